"""The journal on the local disk and the black box in shared memory: what they keep when processes and disks fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from stores import finished, row

from gateway.ledger import blackbox, wal
from gateway.ledger.blackbox import Blackbox
from gateway.ledger.outbox import Outbox, new_origin
from gateway.ledger.totals import entry_of
from gateway.ledger.wal import Busy, Journal, frame, parse
from gateway.store import Batch

BATCHES = [Batch(seq, (row(calls=float(seq)),), {"curve": {"a\n": [0.1, seq]}}, seq - 1) for seq in range(1, 6)]


def journal_in(directory: Path, *batches: Batch) -> Journal:
    """Open a journal and write batches to it."""
    journal = Journal(directory / "one", now=0.0)
    for batch in batches:
        journal.append(batch, 0.0)
    return journal


def segments(directory: Path) -> list[Path]:
    """Return the segment files of the journal in a directory."""
    return sorted((directory / "one").glob("*.wal"))


def test_a_frame_reads_as_it_was_written() -> None:
    """A batch survives its frame, which is one line whatever its strings hold."""
    line = frame(BATCHES[0])

    assert line.count(b"\n") == 1
    assert BATCHES[0] == parse(line[:-1])


def test_a_torn_frame_is_none() -> None:
    """A frame that is cut anywhere reads as nothing."""
    line = frame(BATCHES[0])[:-1]

    assert [None] * len(line) == [parse(line[:at]) for at in range(len(line))]


@given(at=some.integers(0, len(frame(BATCHES[0])) - 2), byte=some.integers(0, 255))
def test_a_damaged_frame_is_none(at: int, byte: int) -> None:
    """A frame with one wrong byte reads as nothing, or as what it was if the byte says the same."""
    line = bytearray(frame(BATCHES[0])[:-1])
    line[at] = byte

    assert parse(bytes(line)) in (None, BATCHES[0])


@given(noise=some.binary(max_size=200))
def test_noise_is_none(noise: bytes) -> None:
    """Nothing that was not framed reads as a batch, and reading it raises nothing."""
    assert parse(noise) is None


def test_a_journal_gives_back_what_came_after(tmp_path: Path) -> None:
    """Batches come back above a sequence number, ascending, from memory and, after a restart, from the disk."""
    journal = journal_in(tmp_path, *BATCHES)
    fresh = journal.after(2, 2)
    journal.close()
    again = Journal(tmp_path / "one", now=0.0)

    assert BATCHES[2:4] == fresh == again.after(2, 2)
    assert (again.after(5, 9), again.last, again.after(0, 9)) == ([], 5, BATCHES)
    again.close()


def test_a_torn_tail_costs_only_itself(tmp_path: Path) -> None:
    """Cut the file anywhere: every frame before the cut is there, none is invented, and writing goes on."""
    journal_in(tmp_path, *BATCHES[:3]).close()
    path = segments(tmp_path)[0]
    whole = path.read_bytes()
    ends = [len(b"".join(frame(batch) for batch in BATCHES[:n])) for n in range(4)]
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        journal = Journal(tmp_path / "one", now=0.0)
        kept = sum(end - 1 <= cut for end in ends[1:])  # without its line end a frame is whole

        assert BATCHES[:kept] == journal.after(0, 9)
        journal.close()

    journal = journal_in(tmp_path, BATCHES[3])
    assert [batch.seq for batch in journal.after(0, 9)] == [1, 2, 3, 4]
    journal.close()


def test_damage_in_the_middle_is_counted(tmp_path: Path) -> None:
    """A damaged frame loses itself alone, and the journal says how many lines it could not read."""
    journal_in(tmp_path, *BATCHES).close()
    path = segments(tmp_path)[0]
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"acme", b"evil")
    path.write_bytes(b"\n".join(lines))
    journal = Journal(tmp_path / "one", now=0.0)

    assert [batch.seq for batch in journal.after(0, 9)] == [1, 2, 4, 5]
    assert journal.damaged == 1
    journal.close()


class Synced(Journal):
    """A journal that counts how often it is brought to the disk."""

    syncs = 0

    def _sync(self) -> None:
        self.syncs += 1
        super()._sync()


def test_what_was_written_is_synced_by_interval(tmp_path: Path) -> None:
    """Batches reach the disk once an interval, however many there are, and at once when a clock has jumped; nothing, never."""
    journal = Synced(tmp_path / "one", now=100.0, fsync_seconds=1.0)
    journal.sync(100.0)
    assert journal.syncs == 0
    for batch, now, syncs in zip(BATCHES, (100.0, 100.5, 101.0, 101.9, 50.0), (1, 1, 2, 2, 3), strict=True):
        journal.append(batch, now)
        journal.sync(now)
        assert journal.syncs == syncs
    journal.sync(60.0)

    assert journal.syncs == 3


def test_a_batch_is_written_once(tmp_path: Path) -> None:
    """Appending a sequence number again writes nothing."""
    journal = journal_in(tmp_path, BATCHES[0], BATCHES[1], BATCHES[0], BATCHES[1])

    assert [batch.seq for batch in journal.after(0, 9)] == [1, 2]
    assert journal.size == segments(tmp_path)[0].stat().st_size
    journal.close()


def test_a_journal_has_one_holder(tmp_path: Path) -> None:
    """While one process holds a journal no other can; after it has let go, anyone can."""
    journal = journal_in(tmp_path, BATCHES[0])
    with pytest.raises(Busy):
        Journal(tmp_path / "one", now=0.0)
    journal.close()

    Journal(tmp_path / "one", now=0.0).close()


def test_delivered_segments_go_after_a_while(tmp_path: Path) -> None:
    """Segments go when the Store has had them for the time to retain; what it has not had stays for ever."""
    journal = Journal(tmp_path / "one", now=0.0)
    big = {"curve": {f"key-{i}": [1.0] * 400 for i in range(400)}}
    for seq in range(1, 16):
        journal.append(Batch(seq, (), big), float(seq))
    count = len(segments(tmp_path))
    assert count > 2

    journal.prune(15, 16.0, retain_seconds=100.0)
    assert count == len(segments(tmp_path))
    journal.prune(8, 1000.0, retain_seconds=100.0)
    kept = journal.after(0, 99)
    assert kept[0].seq <= 9
    assert kept[-1].seq == 15
    journal.prune(15, 1000.0, retain_seconds=100.0)

    assert (segments(tmp_path), journal.size) == ([], 0)
    journal.append(Batch(16), 1000.0)
    assert [batch.seq for batch in journal.after(15, 9)] == [16]
    journal.close()


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    """Journals are private to the user: 0700 and 0600."""
    journal_in(tmp_path, BATCHES[0]).close()

    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o700
    assert segments(tmp_path)[0].stat().st_mode & 0o777 == 0o600


# Runs in a process of its own, as the limit on file sizes would hit the test runner's files too. Writing past the limit
# fails like a full disk: first a part gets through, then nothing.
FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from gateway.ledger.wal import Journal
from gateway.store import Batch, Row

def batch(seq):
    return Batch(seq, (Row("2026-11-30", "acme", "demo", "fast", {"calls": 1.0}),))

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
journal = Journal(Path(sys.argv[1]) / "one", now=0.0)
seq, refused = 1, 0
while refused < 5:
    try:
        journal.append(batch(seq), 0.0)
        seq += 1
    except OSError:
        refused += 1
written = seq - 1
torn = sum(path.stat().st_size for path in Path(sys.argv[1]).rglob("*") if path.is_file()) - journal.size
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
journal.append(batch(seq), 0.0)
journal.close()
print(written, torn, [found.seq for found in Journal(Path(sys.argv[1]) / "one", now=0.0).after(0, 99)])
"""


def test_a_full_disk_tears_nothing(tmp_path: Path) -> None:
    """Writes that a full disk refuses leave no trace, and the same batch goes in when there is room again."""
    done = subprocess.run([sys.executable, "-c", FULL_DISK, tmp_path], capture_output=True, text=True, check=True)
    written, torn, found = done.stdout.split(" ", 2)

    assert int(written) > 3
    assert torn == "0"
    assert str([*range(1, int(written) + 2)]) == found.strip()


def test_a_journal_is_bounded(tmp_path: Path) -> None:
    """A journal at its limit refuses like a full disk, in words that an operator understands."""
    journal = journal_in(tmp_path, BATCHES[0])
    journal._segments[0].size = wal.LIMIT_BYTES

    with pytest.raises(OSError, match="limit of 256 MiB"):
        journal.append(BATCHES[1], 0.0)
    journal.close()


def test_the_black_box_keeps_two_batches(tmp_path: Path) -> None:
    """Entries come back under the batch they were recorded for; a batch that is safe is forgotten."""
    box = Blackbox(tmp_path / "box")
    calls = [entry_of(finished(tenant=f"t{i}")) for i in range(5)]
    for entry in calls[:3]:
        assert box.record(entry)
    box.turn(2)
    box.record(calls[3])
    both = blackbox.recover(tmp_path / "box")
    box.forget(1)
    one = blackbox.recover(tmp_path / "box")
    box.turn(3)
    box.record(calls[4])

    assert [(1, calls[:3]), (2, calls[3:4])] == both
    assert [(2, calls[3:4])] == one
    assert [(2, calls[3:4]), (3, calls[4:])] == blackbox.recover(tmp_path / "box")
    box.close()
    assert blackbox.recover(tmp_path / "box") == []


def test_the_black_box_says_when_it_is_full(tmp_path: Path) -> None:
    """A full half refuses entries until the next batch, and holds thousands before."""
    box = Blackbox(tmp_path / "box")
    entry = entry_of(finished())
    count = 0
    while box.record(entry):
        count += 1
    assert count > 5000
    assert [count] == [len(entries) for _, entries in blackbox.recover(tmp_path / "box")]
    box.turn(2)

    assert box.record(entry)
    box.close()


def test_a_planted_black_box_is_ignored(tmp_path: Path) -> None:
    """A file of another shape, a link to one, or a damaged one recovers nothing false."""
    box = Blackbox(tmp_path / "real")
    box.record(entry_of(finished()))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "short").write_bytes(b"\1" * 100)
    damaged = bytearray((tmp_path / "real").read_bytes())
    damaged[blackbox.HALF_BYTES + 12] ^= 2  # in the head of the first entry
    (tmp_path / "damaged").write_bytes(damaged)

    assert blackbox.recover(tmp_path / "link") == []
    assert blackbox.recover(tmp_path / "short") == []
    assert blackbox.recover(tmp_path / "damaged") == [(1, [])]
    with pytest.raises(FileExistsError):
        Blackbox(tmp_path / "real")
    box.close()


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, "tests")
from stores import finished
from gateway.ledger import open_ledger

ledger, outbox = open_ledger(Path(sys.argv[1]))
for i in range(10):
    ledger.append(finished())
outbox.seal(ledger.take({}))
ledger.settled()
for i in range(100):
    ledger.append(finished(tenant="later"))
ledger.take({"curve": {"a": [1.0]}})
for i in range(7):
    ledger.append(finished(tenant="last"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_9_loses_no_call(tmp_path: Path) -> None:
    """What was counted before kill -9 is taken over whole: written, on its way, and only just counted."""
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    outbox = Outbox(tmp_path, new_origin())
    (origin,) = outbox.adopt()
    batches = outbox.after(origin, 0, 9)

    assert killed.returncode == -9
    calls = [(batch.seq, rows.tenant, rows.measures["calls"]) for batch in batches for rows in batch.rows]
    assert calls == [(1, "acme", 10.0), (2, "later", 100.0), (3, "last", 7.0)]
    assert outbox.adopt() == []
    assert not blackbox.place(tmp_path, origin).exists()
    outbox.close()


def test_the_dead_are_buried(tmp_path: Path) -> None:
    """A journal that was taken over disappears when the Store has had all of it for long enough."""
    now = [1e9]
    dead = Outbox(tmp_path, "dead", clock=lambda: now[0])
    dead.seal(BATCHES[0])
    dead.close()
    heir = Outbox(tmp_path, "heir", clock=lambda: now[0])
    assert heir.adopt() == ["dead"]
    now[0] = (tmp_path / "dead" / "00000001.wal").stat().st_mtime

    heir.prune({"dead": 1})
    assert (tmp_path / "dead").exists()
    now[0] += wal.RETAIN_SECONDS + 1
    heir.prune({"dead": 0})
    assert (tmp_path / "dead").exists()
    heir.prune({"dead": 1})

    assert [path.name for path in tmp_path.iterdir()] == ["heir"]
    heir.close()


def test_the_living_are_left_alone(tmp_path: Path) -> None:
    """Two processes over one directory keep their own journals."""
    one, two = Outbox(tmp_path, "one"), Outbox(tmp_path, "two")

    assert (one.adopt(), two.adopt()) == ([], [])
    one.close()
    assert two.adopt() == ["one"]
    two.close()
