"""From the request's path to the Store and back: nothing lost, nothing twice, whatever fails between."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from stores import RedisServer, Tally, finished, sum_of, until

from gateway.ledger import Receipts, Settlement, open_ledger
from gateway.store import Batch, MemoryStore, Pulled, Push, Snapshot, Store, StoreError
from gateway.store.follower import Follower
from gateway.store.redis import RedisStore
from gateway.store.sqlite import SqliteStore

EVER = ("2000-01-01", "2100-01-01")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Run a server that the test may kill; it writes everything down before it answers."""
    running = RedisServer()
    yield running
    running.close()


@pytest.fixture
def forgetful() -> Iterator[RedisServer]:
    """Run a server that forgets everything when it is killed."""
    running = RedisServer(durable=False)
    yield running
    running.close()


class Process:
    """What one gateway process has: a ledger, curves, receipts, and the loop that settles them."""

    def __init__(self, store: Store, directory: Path | None, flush_seconds: float = 0.02) -> None:
        self.ledger, self.outbox = open_ledger(directory)
        self.curves = Tally()
        self.receipts = Receipts()
        self.troubles: list[tuple[str, bool]] = []
        self.settlement = Settlement(
            store=store,
            ledger=self.ledger,
            outbox=self.outbox,
            curves=self.curves,
            receipts=self.receipts,
            flush_seconds=flush_seconds,
            watch=lambda part, trouble: self.troubles.append((part, trouble is not None)),
        )

    def call(self, count: int = 1) -> None:
        """Finish some calls, and learn from each."""
        for _ in range(count):
            self.ledger.append(finished())
            self.receipts.append(finished())
            self.curves.learn("a", 1.0, 0.5)

    async def settled(self) -> None:
        """Wait until everything is safe in the Store."""
        await until(lambda: self.ledger.empty and not self.settlement.state().pending)


class Faulty(MemoryStore):
    """A Store that is away when told so, before or after it has done what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.away = ""

    async def append(self, origin: str, after: int, batches: Sequence[Batch]) -> int:
        """Append, unless it is away; "after" has it answer too late."""
        if self.away == "before":
            raise StoreError("away")
        done = await super().append(origin, after, batches)
        if self.away == "after":
            raise StoreError("too late")
        return done


async def total(store: Store, measure: str = "calls") -> float:
    """Return the sum of a measure in a Store."""
    return sum_of(await store.totals(*EVER), measure)


async def total_in(store: Store) -> float:
    """Return the calls in a Store, and close it."""
    calls = await total(store)
    await store.aclose()
    return calls


def store_in(kind: str, path: Path, server: RedisServer) -> Store:
    """Open a lasting Store."""
    return SqliteStore(path / "store.db") if kind == "sqlite" else RedisStore(server.url, timeout=0.5)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_two_processes_converge(kind: str, tmp_path: Path, server: RedisServer) -> None:
    """Two processes over one Store soon know the same, and the ledger has the calls of both."""
    one, two = (Process(store_in(kind, tmp_path, server), tmp_path / "journals") for _ in range(2))
    await one.settlement.start()
    one.call(3)
    await two.settlement.start()
    two.call(4)
    await until(lambda: one.curves.of("a") == two.curves.of("a") == [7.0, 3.5])
    one.curves.learn("b", 1.0)
    await until(lambda: two.curves.of("b") == [1.0])
    await one.settled()
    await two.settled()
    await one.settlement.stop()
    await two.settlement.stop()

    assert await total_in(store_in(kind, tmp_path, server)) == 7
    assert one.curves.known == two.curves.known


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_a_restart_knows_what_was_learned(kind: str, tmp_path: Path, server: RedisServer) -> None:
    """A process that stops has brought everything to the Store; the next one starts with it, before it serves."""
    before = Process(store_in(kind, tmp_path, server), tmp_path / "journals", flush_seconds=60)
    await before.settlement.start()
    before.call(5)
    await before.settlement.stop()
    after = Process(store_in(kind, tmp_path, server), tmp_path / "journals")
    await after.settlement.start()

    assert after.curves.of("a") == [5.0, 2.5]
    await after.settlement.stop()
    assert await total_in(store_in(kind, tmp_path, server)) == 5


async def test_an_absent_store_loses_nothing(tmp_path: Path) -> None:
    """While the Store is away batches wait in the journal; the state says so, and it all arrives, once."""
    store = Faulty()
    process = Process(store, tmp_path)
    await process.settlement.start()
    store.away = "before"
    for _ in range(3):
        process.call()
        await process.settlement.flush()
    waiting = process.settlement.state()
    assert waiting.pending >= 1
    assert "store" in waiting.degraded
    assert not waiting.healthy
    store.away = ""
    await process.settled()
    healed = process.settlement.state()
    await process.settlement.stop()

    assert await total(store) == 3
    assert (healed.healthy, healed.pending, process.troubles) == (True, 0, [("store", True), ("store", False)])
    assert process.curves.of("a") == [3.0, 1.5]


@pytest.mark.parametrize("journalled", [True, False])
async def test_an_answer_that_was_lost_counts_once(tmp_path: Path, journalled: bool) -> None:  # noqa: FBT001
    """A Store that counted and could not say so is asked again, and neither ledger nor learning counts twice."""
    store = Faulty()
    process = Process(store, tmp_path if journalled else None)
    other = Process(store, tmp_path if journalled else None)
    await process.settlement.start()
    await other.settlement.start()
    store.away = "after"
    process.call(2)
    for _ in range(5):
        await process.settlement.flush()
    store.away = ""
    await process.settled()
    await until(lambda: other.curves.of("a") == [2.0, 1.0])
    await process.settlement.stop()
    await other.settlement.stop()

    assert await total(store) == 2
    assert process.curves.of("a") == other.curves.of("a") == [2.0, 1.0]


@pytest.mark.parametrize("durable", [True, False])
async def test_redis_may_be_killed(durable: bool, tmp_path: Path, server: RedisServer, forgetful: RedisServer) -> None:  # noqa: FBT001
    """Kill -9 of Redis loses nothing, even if it forgets everything: journals bring back what they have brought before."""
    redis = server if durable else forgetful
    one, two = (Process(RedisStore(redis.url, timeout=0.5), tmp_path) for _ in range(2))
    await one.settlement.start()
    await two.settlement.start()
    one.call(10)
    two.call(1)
    await until(lambda: one.curves.of("a") == two.curves.of("a") == [11.0, 5.5])
    await one.settled()
    redis.kill()
    one.call(5)
    await until(lambda: "store" in one.settlement.state().degraded and "store" in two.settlement.state().degraded)
    redis.start()
    one.call(2)
    await until(lambda: two.curves.of("a") == one.curves.of("a") == [18.0, 9.0])
    await one.settled()
    await two.settled()
    store = RedisStore(redis.url)
    await until_total(store, 18)

    assert (await store.snapshot()).sums == one.curves.known == two.curves.known == {"tally": {"a": [18.0, 9.0]}}
    for ending in (one.settlement.stop(), two.settlement.stop(), store.aclose()):
        await ending


async def until_total(store: Store, calls: float) -> None:
    """Wait until the ledger has so many calls, and see that it does not get more."""
    for _ in range(1000):
        if await total(store) >= calls:
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)

    assert await total(store) == calls


async def test_redis_may_be_silent(tmp_path: Path, server: RedisServer) -> None:
    """A Redis that hangs is given up in time, serving goes on, and what it did after all counts once."""
    process = Process(RedisStore(server.url, timeout=0.1), tmp_path)
    await process.settlement.start()
    process.call()
    await process.settled()
    server.freeze()
    process.call(3)
    await until(lambda: "store" in process.settlement.state().degraded)
    process.call(2)
    server.thaw()
    await process.settled()
    await process.settlement.stop()

    assert await total_in(RedisStore(server.url)) == 6


KILLED = """
import asyncio, os, sys
from pathlib import Path
sys.path.insert(0, "tests")
from stores import Tally, finished
from gateway.ledger import Settlement, open_ledger
from gateway.store.sqlite import SqliteStore

async def main(path):
    ledger, outbox = open_ledger(path / "journals")
    curves = Tally()
    store = SqliteStore(path / "store.db")
    settlement = Settlement(store=store, ledger=ledger, outbox=outbox, curves=curves, flush_seconds=0.05)
    await settlement.start()
    for number in range(1, 100_000):
        ledger.append(finished())
        curves.learn("a", 1.0)
        os.write(1, b"counted %d\\n" % number)  # a line is written whole or not at all, which print does not promise
        if number % 25 == 0:
            await settlement.flush()
            os.write(1, b"flushed %d\\n" % number)

asyncio.run(main(Path(sys.argv[1])))
"""


def killed(directory: Path) -> tuple[int, int]:
    """Kill -9 a process while it counts; return how many calls it had said were counted, and flushed."""
    with subprocess.Popen([sys.executable, "-c", KILLED, directory], stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        lines = [victim.stdout.readline() for _ in range(400)]
        victim.kill()
        lines += victim.stdout.read().splitlines()
    said = dict(line.split() for line in lines)  # the last of each word
    return int(said[b"counted"]), int(said[b"flushed"])


async def test_kill_9_loses_no_call_and_little_learning(tmp_path: Path) -> None:
    """Of a process that is killed at any moment, the next has every call, and all learning up to the last flush."""
    counted, flushed = await asyncio.to_thread(killed, tmp_path)
    heir = Process(SqliteStore(tmp_path / "store.db"), tmp_path / "journals")
    await heir.settlement.start()
    await until(lambda: sum(heir.curves.of("a")[:1]) >= flushed)  # what was left behind has been taken over
    await heir.settled()
    await heir.settlement.stop()
    calls = await total_in(SqliteStore(tmp_path / "store.db"))

    assert counted <= calls <= counted + 1  # it may have counted one more than it could still say
    assert flushed <= heir.curves.of("a")[0] <= calls


FULL_DISK = """
import asyncio, json, resource, signal, sys
from pathlib import Path
sys.path.insert(0, "tests")
from stores import finished, sum_of
from gateway.ledger import Settlement, open_ledger
from gateway.store import MemoryStore, StoreError

class Away(MemoryStore):
    away = True
    async def applied(self, origins):
        if self.away:
            raise StoreError("away")
        return await super().applied(origins)

async def main(path):
    told = []
    store = Away()
    ledger, outbox = open_ledger(path)
    def watch(part, trouble):
        told.append([part, bool(trouble)])
    settlement = Settlement(store=store, ledger=ledger, outbox=outbox, flush_seconds=0.0, watch=watch)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    for _ in range(200):
        ledger.append(finished())
        await settlement.flush()
    full = settlement.state()
    store.away = sys.argv[2] == "resumes"
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)) if store.away else None
    ledger.append(finished())
    await settlement.flush()
    written = settlement.state()
    store.away = False
    for _ in range(2):
        ledger.append(finished())
        await settlement.flush()
    calls = sum_of(await store.totals("2000-01-01", "2100-01-01"), "calls")
    await settlement.stop()
    print(json.dumps([sorted(full.degraded), full.pending, sorted(written.degraded), calls, told]))

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("ending", ["resumes", "stays full"])
def test_a_full_disk_is_loud_and_loses_nothing(ending: str, tmp_path: Path) -> None:
    """On a full disk the ledger counts on in memory and says so; it all arrives, by the journal or past it."""
    command = [sys.executable, "-c", FULL_DISK, tmp_path, ending]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    degraded, pending, later, calls, told = json.loads(done.stdout)

    assert (degraded, calls) == (["journal", "store"], 203.0)
    assert 1 < pending < 200
    assert later == (["store"] if ending == "resumes" else ["journal"])
    assert ["journal", True] in told
    assert (["journal", False] in told) == (ending == "resumes")
    assert "journal is degraded" in done.stderr


async def test_sqlite_never_holds_the_loop(tmp_path: Path) -> None:
    """While another process has the file locked, the event loop runs on and calls are counted."""
    process = Process(SqliteStore(tmp_path / "store.db"), tmp_path / "journals")
    await process.settlement.start()
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    process.call()
    turns = 0
    while turns < 100:
        await asyncio.sleep(0)
        process.ledger.append(finished())
        turns += 1
    other.execute("ROLLBACK")
    other.close()
    await process.settled()
    await process.settlement.stop()

    assert await total_in(SqliteStore(tmp_path / "store.db")) == 101


async def test_receipts_can_be_asked_of_any_process(tmp_path: Path) -> None:
    """A receipt is found by the process that served the call, by another through the Store, and else it is None."""
    store = MemoryStore()
    one, two = Process(store, tmp_path), Process(store, tmp_path)
    one.receipts.append(finished(request_id="r-7", attempts=2))
    await one.settlement.flush()
    by_one, by_two = [await process.settlement.receipt("r-7") for process in (one, two)]
    nothing = await two.settlement.receipt("r-8")
    await one.settlement.stop()
    await two.settlement.stop()

    assert by_one is not None
    assert by_one == by_two
    assert (by_one["attempts"], nothing) == (2, None)


class Broken(Tally):
    """A learner with a defect."""

    def deltas(self) -> Mapping[str, Mapping[str, Sequence[float]]]:
        """Fail twice."""
        self.failures = getattr(self, "failures", 0) + 1
        if self.failures < 3:
            raise ZeroDivisionError("a defect")
        return super().deltas()


async def test_a_defect_does_not_end_the_loop() -> None:
    """A round that fails is told, and the next one makes up for it."""
    store = MemoryStore()
    ledger, outbox = open_ledger(None)
    told: list[str | None] = []
    settlement = Settlement(
        store=store,
        ledger=ledger,
        outbox=outbox,
        curves=Broken(),
        flush_seconds=0.01,
        watch=lambda _, trouble: told.append(trouble),
    )
    ledger.append(finished())
    await settlement.start()
    await until(lambda: ledger.empty and not settlement.state().degraded)
    await settlement.stop()

    assert told == ["ZeroDivisionError('a defect')", None]
    assert await total(store) == 1


class Sizes(Tally):
    """A learner that notes how much it is told at once."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def merge(self, deltas: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
        """Note, then merge."""
        self.sizes.append(sum(map(len, deltas.values())))
        super().merge(deltas)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_a_large_snapshot_comes_in_small_parts(kind: str, tmp_path: Path, server: RedisServer) -> None:
    """What was learned under thousands of keys, of any characters, arrives whole and never holds the loop for long."""
    store = store_in(kind, tmp_path, server)
    keys = {f'["é\n{i}",{i}]': [0.1 * i, 1.0] for i in range(3000)}
    await store.append("other", 0, (Batch(1, deltas={"curve": keys}),))
    ledger, outbox = open_ledger(None)
    curves = Sizes()
    settlement = Settlement(store=store, ledger=ledger, outbox=outbox, curves=curves)
    await settlement.flush()
    await settlement.stop()

    assert curves.known == {"curve": keys}
    assert max(curves.sizes) <= 200


def pushed(origin: str, seq: int, previous: int, *numbers: float) -> Push:
    """Return a push of one key."""
    return Push(origin, seq, previous, {"c": {"a": list(numbers)}})


def pulled(*pushes: Push, epoch: str = "e", whole: bool = True) -> Pulled:
    """Return what a pull brings."""
    return Pulled(epoch, str(len(pushes)), pushes, whole)


def shot(applied: dict[str, int], *numbers: float, epoch: str = "e") -> Snapshot:
    """Return a snapshot of one key."""
    return Snapshot(epoch, "9", applied, {"c": {"a": list(numbers)}})


def test_a_follower_merges_others_once() -> None:
    """Pushes of others are merged once in whatever pulls they come, one's own never."""
    follower = Follower("me")
    assert follower.compare(shot({"you": 1}, 1.0), ()) == {"c": {"a": [1.0]}}
    news = follower.absorb(pulled(pushed("you", 1, 0, 1.0), pushed("me", 1, 0, 5.0), pushed("you", 3, 1, 2.0)))
    again = follower.absorb(pulled(pushed("you", 3, 1, 2.0), pushed("you", 4, 3, 4.0)))

    assert (news, again) == ({"c": {"a": [2.0]}}, {"c": {"a": [4.0]}})
    assert (follower.astray, follower.seen_own) == (False, 1)


@pytest.mark.parametrize(
    "gap",
    [
        pulled(pushed("you", 5, 4, 8.0)),
        pulled(pushed("you", 5, 4, 8.0), whole=False),
        pulled(epoch="other"),
    ],
)
def test_a_follower_that_missed_something_compares(gap: Pulled) -> None:
    """After a gap, a cut log or a restart of the Store, exactly what is missing comes from the snapshot."""
    follower = Follower("me")
    follower.compare(shot({"you": 1}, 1.0), ())
    follower.absorb(pulled(pushed("you", 2, 1, 2.0)))
    assert follower.absorb(gap) == {}
    assert follower.astray
    own = Batch(1, deltas={"c": {"a": [100.0]}})
    not_yet = Batch(2, deltas={"c": {"a": [1000.0]}}, previous=1)
    missing = follower.compare(shot({"you": 5, "me": 1}, 1.0 + 2.0 + 4.0 + 8.0 + 100.0), (own, not_yet))

    assert (missing, follower.astray) == ({"c": {"a": [12.0]}}, False)
    assert follower.absorb(pulled(pushed("you", 5, 4, 8.0), pushed("me", 2, 1, 1000.0))) == {}


def test_a_follower_ahead_of_the_store_waits_for_the_log() -> None:
    """When the Store has lost what was merged before, what is brought again is known, and only the new is merged."""
    follower = Follower("me")
    follower.compare(shot({"you": 3}, 7.0), ())
    follower.absorb(pulled(epoch="later"))
    assert follower.compare(shot({"you": 1}, 1.0, epoch="later"), ()) == {}
    again = pulled(pushed("you", 2, 1, 2.0), pushed("you", 3, 2, 4.0), pushed("you", 5, 4, 8.0), epoch="later")

    assert follower.position == ""
    assert follower.absorb(again) == {"c": {"a": [8.0]}}
    assert not follower.astray


def test_a_key_that_the_store_forgot_is_not_unlearned() -> None:
    """A key that the Store has less of than we merged was forgotten there; nothing is taken away here."""
    follower = Follower("me")
    follower.compare(shot({"you": 1}, 10.0, 10.0), ())
    follower.absorb(pulled(whole=False))

    assert follower.compare(shot({"you": 9}, 1.0, 20.0), ()) == {}


def test_rounding_is_not_learning() -> None:
    """Sums that differ by the order in which they were added are the same."""
    follower = Follower("me")
    follower.compare(shot({"you": 1}, 0.1), ())
    follower.absorb(pulled(pushed("you", 2, 1, 0.2), pushed("you", 3, 2, 0.3)))
    follower.absorb(pulled(whole=False))

    assert follower.compare(shot({"you": 3}, 0.3 + 0.2 + 0.1), ()) == {}
