"""One list of laws for every Store: memory, SQLite in a file, Redis in a real server process."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from stores import RedisServer, row, sum_of

from gateway.config import Store as StoreConfig
from gateway.store import Batch, MemoryStore, Store, StoreError, open_store
from gateway.store.redis import RedisStore
from gateway.store.sqlite import SqliteStore

KINDS = ("memory", "sqlite", "redis")
LASTING = ("sqlite", "redis")

Open = Callable[..., Store]
_namespaces = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """Run one server for all tests that leave it in peace."""
    running = RedisServer()
    yield running
    running.close()


@pytest.fixture
async def store_of(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Store]]:
    """Open Stores over the same place: a second one is another process's view, or the one after a restart."""
    opened: list[Store] = []
    namespace = f"test-{next(_namespaces)}"
    memory: list[MemoryStore] = []

    def open_one(kind: str, **settings: int) -> Store:
        if kind == "memory":
            if not memory:
                memory.append(MemoryStore(**settings))
            return memory[0]
        store: Store
        if kind == "sqlite":
            store = SqliteStore(tmp_path / "a" / "store.db", **settings)
        else:
            store = RedisStore(request.getfixturevalue("server").url, namespace=namespace, **settings)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.aclose()


def taught(seq: int, previous: int = 0, **keys: list[float]) -> Batch:
    """Return a batch that only teaches."""
    return Batch(seq, deltas={"curve": keys}, previous=previous)


def remove_all(directory: Path) -> None:
    """Delete all files of a directory."""
    for path in directory.iterdir():
        path.unlink()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_batch_counts_once(kind: str, store_of: Open) -> None:
    """However often a batch is delivered, alone or among others, its amounts and its learning count once."""
    store = store_of(kind)
    first = Batch(1, (row(calls=1, cost_usd=0.5),), {"curve": {"a": [1.0, 2.0]}})
    second = Batch(2, (row(calls=2),), {"curve": {"a": [1.0]}}, previous=1)

    assert await store.append("one", 0, (first,)) == 1
    assert await store.append("one", 0, (first,)) == 1
    assert await store.append("one", 1, (first, second)) == 2
    assert await store.append("one", 1, (second, second)) == 2

    assert [row(calls=3, cost_usd=0.5)] == await store.totals("2026-11-30", "2026-11-30")
    assert (await store.snapshot()).sums == {"curve": {"a": [2.0, 2.0]}}
    assert await store.applied(["one", "two"]) == {"one": 2, "two": 0}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_repeat_within_one_delivery_counts_once(kind: str, store_of: Open) -> None:
    """A batch that comes twice in the same delivery counts once."""
    store = store_of(kind)
    batch = Batch(1, (row(calls=1),))

    assert await store.append("one", 0, (batch, batch)) == 1
    assert sum_of(await store.totals("2026-01-01", "2026-12-31"), "calls") == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_hole_is_refused(kind: str, store_of: Open) -> None:
    """A Store that has less than the sender believes counts nothing and says how much it has."""
    store = store_of(kind)
    await store.append("one", 0, (Batch(1, (row(calls=1),)),))

    assert await store.append("one", 4, (Batch(5, (row(calls=1),)),)) == 1
    assert sum_of(await store.totals("2026-01-01", "2026-12-31"), "calls") == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_origins_add_up(kind: str, store_of: Open) -> None:
    """Batches of many origins, delivered at once through two connections, add up exactly."""
    stores = [store_of(kind), store_of(kind)]
    sent: list[Awaitable[int]] = [
        stores[i % 2].append(f"origin-{i}", 0, [Batch(n, (row(calls=1, tokens=2.0**40 + 1),)) for n in (1, 2, 3)])
        for i in range(20)
    ]
    assert await asyncio.gather(*sent) == [3] * 20

    rows = await stores[0].totals("2026-01-01", "2026-12-31")
    assert [rows[0].measures["calls"], rows[0].measures["tokens"]] == [60.0, 60 * (2.0**40 + 1)]


async def test_a_new_file_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    """Gateways that start together over a new file wait for one another, and none is told that it is locked."""
    for attempt in range(60):  # before they waited, one opening in forty failed
        stores = [SqliteStore(tmp_path / f"{attempt}.db") for _ in range(4)]
        assert await asyncio.gather(*(store.applied(["one"]) for store in stores)) == [{"one": 0}] * 4
        for store in stores:
            await store.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_totals_are_rows_by_day(kind: str, store_of: Open) -> None:
    """The ledger comes back by day, tenant, model and pool, in order, within the days asked for."""
    store = store_of(kind)
    rows = [row(tenant, day, calls=1.0) for day in ("2026-11-29", "2026-11-30", "2026-12-01") for tenant in ("a", "b")]
    await store.append("one", 0, (Batch(1, tuple(rows)),))

    assert rows[2:] == await store.totals("2026-11-30", "9999-12-31")
    assert await store.totals("2027-01-01", "2027-12-31") == []


@pytest.mark.parametrize("kind", KINDS)
async def test_pulling_follows_pushes(kind: str, store_of: Open) -> None:
    """Whoever pulls from a position gets what came after it, in order, with its origin."""
    store = store_of(kind)
    await store.append("one", 0, (taught(1, a=[1.0]), Batch(2, (row(calls=1),)), taught(3, 1, a=[2.0])))
    all_of_it = await store.pull("")
    await store.append("two", 0, (taught(1, b=[0.1]),))
    news = await store.pull(all_of_it.position)
    nothing = await store.pull(news.position)

    assert [(push.origin, push.seq, push.previous) for push in all_of_it.pushes] == [("one", 1, 0), ("one", 3, 1)]
    assert [(push.origin, push.deltas) for push in news.pushes] == [("two", {"curve": {"b": [0.1]}})]
    assert ((), True, news.position) == (nothing.pushes, nothing.whole, nothing.position)
    assert len({all_of_it.epoch, news.epoch, (await store.snapshot()).epoch}) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_a_snapshot_knows_its_position(kind: str, store_of: Open) -> None:
    """A snapshot holds everything before its position, with every origin's sequence, and pulling goes on there."""
    store = store_of(kind)
    await store.append("one", 0, (taught(1, a=[1.0, 0.5]),))
    await store.append("two", 0, (Batch(1, (row(calls=1),)), taught(2, a=[2.0], b=[0.25])))
    snapshot = await store.snapshot()
    await store.append("one", 1, (taught(2, 1, a=[4.0]),))

    assert snapshot.sums == {"curve": {"a": [3.0, 0.5], "b": [0.25]}}
    assert snapshot.applied == {"one": 1, "two": 2}
    assert [(push.origin, push.seq) for push in (await store.pull(snapshot.position)).pushes] == [("one", 2)]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_log_that_was_cut_says_so(kind: str, store_of: Open) -> None:
    """Pulling from a position whose successors were dropped is not whole; from the newest it is."""
    store = store_of(kind, log_entries=3)
    await store.append("one", 0, (taught(1, a=[1.0]),))
    early = (await store.pull("")).position
    await store.append("one", 1, [taught(seq, seq - 1, a=[1.0]) for seq in range(2, 8)])
    cut = await store.pull(early)

    assert (len(cut.pushes), cut.whole) == (3, False)
    assert (await store.pull(cut.position)).whole


@pytest.mark.parametrize("kind", KINDS)
async def test_the_least_recently_touched_is_forgotten(kind: str, store_of: Open) -> None:
    """Learned keys are bounded; the one that nobody has touched for longest goes first."""
    store = store_of(kind, max_keys=3)
    await store.append("one", 0, (taught(1, a=[1.0], b=[1.0], c=[1.0]),))
    await store.append("one", 1, (taught(2, 1, a=[1.0], c=[1.0]),))
    await store.append("one", 2, (taught(3, 2, d=[1.0]),))

    assert (await store.snapshot()).sums == {"curve": {"a": [2.0], "c": [2.0], "d": [1.0]}}


@pytest.mark.parametrize("kind", KINDS)
async def test_leases_stay_within_the_limit(kind: str, store_of: Open) -> None:
    """Leases taken at once by many never exceed the limit together, and what is given back can be taken again."""
    store = store_of(kind)
    grants = await asyncio.gather(*(store.lease("tokens:acme:1", 30, limit=100, ttl=60) for _ in range(5)))
    back = await store.lease("tokens:acme:1", -25.5, limit=100, ttl=60)
    again = await store.lease("tokens:acme:1", 100, limit=100, ttl=60)

    assert sorted(grant.granted for grant in grants) == [0, 10, 30, 30, 30]
    assert (back.granted, back.used) == (-25.5, 74.5)
    assert (again.granted, again.used) == (25.5, 100)
    assert (await store.lease("tokens:acme:1", -500, limit=100, ttl=60)).granted == -100


@pytest.mark.parametrize("kind", KINDS)
async def test_receipts_are_kept(kind: str, store_of: Open) -> None:
    """A receipt is found under its request id, the last one given counts, and an unknown id is None."""
    store = store_of(kind)
    await store.keep({"r-1": b'{"a":1}', "r-2": b"{}"})
    await store.keep({"r-1": b'{"a":2}'})

    assert tuple([await store.receipt(key) for key in ("r-1", "r-2", "r-3")]) == (b'{"a":2}', b"{}", None)


@pytest.mark.parametrize("kind", LASTING)
async def test_a_restart_keeps_everything(kind: str, store_of: Open) -> None:
    """A process that comes after finds ledger, learning, sequences, quotas and receipts."""
    before = store_of(kind)
    await before.append("one", 0, (Batch(1, (row(calls=1),), {"curve": {"a": [0.1]}}),))
    await before.lease("k", 5, limit=10, ttl=60)
    await before.keep({"r-1": b"{}"})
    await before.aclose()
    after = store_of(kind)

    assert await after.append("one", 0, (Batch(1, (row(calls=1),)),)) == 1
    assert sum_of(await after.totals("2026-01-01", "2026-12-31"), "calls") == 1
    assert (await after.snapshot()).sums == {"curve": {"a": [0.1]}}
    assert (await after.lease("k", 1, limit=10, ttl=60)).used == 6
    assert await after.receipt("r-1") == b"{}"


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_time_ends_leases_and_receipts(kind: str, tmp_path: Path) -> None:
    """A counter begins anew after its time to live and a receipt is gone after an hour, however the clock got there."""
    now = [1000.0]
    clocked: dict[str, Callable[[], Store]] = {
        "memory": lambda: MemoryStore(clock=lambda: now[0]),
        "sqlite": lambda: SqliteStore(tmp_path / "store.db", clock=lambda: now[0]),
    }
    store = clocked[kind]()
    await store.lease("k", 10, limit=10, ttl=60)
    await store.keep({"r-1": b"{}"})
    now[0] += 59
    assert (await store.lease("k", 1, limit=10, ttl=60)).granted == 0
    now[0] += 86_400

    assert ((await store.lease("k", 7, limit=10, ttl=60)).used, await store.receipt("r-1")) == (7, None)
    await store.aclose()


async def test_redis_ends_leases_itself(server: RedisServer) -> None:
    """Redis drops a counter when its time is over, counted from the first lease."""
    store = RedisStore(server.url, namespace="ttl")
    await store.lease("k", 10, limit=10, ttl=0.05)
    while (await store.lease("k", 10, limit=10, ttl=0.05)).granted == 0:
        await asyncio.sleep(0.01)
    await store.aclose()


async def test_redis_adds_all_or_nothing(server: RedisServer) -> None:
    """A number that is none counts as 0 in Redis, where a failing script would leave half a batch."""
    store = RedisStore(server.url, namespace="nan")
    poisoned = Batch(1, (row(calls=1, cost_usd=float("nan")),), {"curve": {"a": [float("inf"), 1.0]}})

    assert await store.append("one", 0, (poisoned,)) == 1
    assert (await store.snapshot()).sums == {"curve": {"a": [0.0, 1.0]}}
    await store.aclose()


async def test_an_absent_redis_is_an_error_at_once() -> None:
    """A Redis that nobody runs is a StoreError, and comes back into use without a new Store."""
    server = RedisServer()
    store = RedisStore(server.url)
    await store.append("one", 0, (Batch(1, (row(calls=1),)),))
    epoch = (await store.pull("")).epoch
    server.kill()
    with pytest.raises(StoreError):
        await store.applied(["one"])
    server.start()

    assert await store.applied(["one"]) == {"one": 1}
    assert epoch != (await store.pull("")).epoch
    await store.aclose()
    server.close()


async def test_a_frozen_redis_is_given_up(server: RedisServer) -> None:
    """A Redis that accepts and never answers is a StoreError after the timeout; what it did later counts once."""
    store = RedisStore(server.url, namespace="frozen", timeout=0.1)
    batch = Batch(1, (row(calls=1),))
    await store.append("one", 0, (batch,))
    server.freeze()
    with pytest.raises(StoreError):
        await store.append("one", 1, (Batch(2, (row(calls=1),)),))
    server.thaw()

    assert await store.append("one", 1, (Batch(2, (row(calls=1),)),)) == 2
    assert sum_of(await store.totals("2026-01-01", "2026-12-31"), "calls") == 2
    await store.aclose()


async def test_sqlite_waits_for_other_writers(tmp_path: Path) -> None:
    """A file that another process has locked is waited for in the thread, while the event loop goes on."""
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    appending = asyncio.create_task(store.append("one", 0, (Batch(1, (row(calls=1),)),)))
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not appending.done()
    other.execute("ROLLBACK")

    assert await appending == 1
    other.close()
    await store.aclose()


async def test_sqlite_undoes_what_failed(tmp_path: Path) -> None:
    """A write that fails halfway leaves nothing behind, and the next one works."""
    store = SqliteStore(tmp_path / "store.db")
    with pytest.raises(StoreError):
        await store.append("one", 0, (Batch(1, (row(calls=1), row(calls=None))),))  # type: ignore[arg-type]

    assert await store.totals("2026-01-01", "2026-12-31") == []
    assert await store.append("one", 0, (Batch(1, (row(calls=1),)),)) == 1
    await store.aclose()


async def test_a_removed_file_is_noticed(tmp_path: Path) -> None:
    """A SQLite file that is deleted under a running process is made anew, as an empty Store of another epoch."""
    store = SqliteStore(tmp_path / "store.db")
    await store.append("one", 0, (Batch(1, (row(calls=1),)),))
    epoch = (await store.pull("")).epoch
    await asyncio.to_thread(remove_all, tmp_path)

    assert await store.append("one", 1, (Batch(2, (row(calls=1),)),)) == 0
    assert epoch != (await store.pull("")).epoch
    await store.aclose()


async def test_a_place_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    """A path below a file is a StoreError at use, not at opening."""
    (tmp_path / "file").write_text("")
    store = SqliteStore(tmp_path / "file" / "store.db")
    await store.open()
    with pytest.raises(StoreError, match="file"):
        await store.applied(["one"])
    await store.aclose()


async def test_the_configuration_names_the_store(tmp_path: Path, server: RedisServer) -> None:
    """Each kind of the configuration opens its Store, and a missing address says which variable to set."""
    sqlite = open_store(StoreConfig(kind="sqlite", path=str(tmp_path / "x.db")), {})
    redis = open_store(StoreConfig(kind="redis", url_env="U"), {"U": server.url})
    with pytest.raises(StoreError, match="set U to"):
        open_store(StoreConfig(kind="redis", url_env="U"), {})

    assert "MemoryStore" in repr(open_store(StoreConfig(), {}))
    assert {"one": 0} == await sqlite.applied(["one"]) == await redis.applied(["one"])
    await sqlite.aclose()
    await redis.aclose()
