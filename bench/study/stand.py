"""What the study runs on: the lab that is up already, or one that is started for it, and the files that keep its samples."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from bench.study.load import Job, closed_loop
from gateway.measure.lab import session
from gateway.measure.lab.engines import EngineSpec, started
from gateway.measure.lab.place import SERVED, Place
from gateway.measure.load.sample import Results, Sample
from gateway.measure.load.sending import Endpoint

POOLS: Final = ("baseline", "speculative")


def say(text: str) -> None:
    """Tell progress."""
    print(f"study: {text}", file=sys.stderr, flush=True)


@contextmanager
def engines(specs: Sequence[EngineSpec] | None = None) -> Iterator[dict[str, str]]:
    """Give the addresses of the lab's two engines, started for this where no lab is up; or of others that are named."""
    up = session.current(Place.usual())
    if specs is None and up is not None and up.alive:
        yield {name: up.urls[name] for name in POOLS}
        return
    with started(specs or session.specs(), say=say) as urls:
        yield urls


def endpoint(name: str, url: str, **settings: Any) -> Endpoint:
    """Return where to measure; `name` labels the samples."""
    return Endpoint(name=name, url=url, model=SERVED, **settings)


class Kept:
    """Samples in a file: what it holds already is not measured again."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = Results(path, settings, resume=path.exists())
        self.samples: list[Sample] = [sample for sample in self._file.kept if sample.ok]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def of(self, target: str) -> list[Sample]:
        """Return the samples of one label."""
        return [sample for sample in self.samples if sample.target == target]

    async def measure(self, jobs: Sequence[Job], concurrency: int) -> None:
        """Make the calls that are not in the file, so many at once."""
        have = {sample.key for sample in self.samples}
        missing = [job for job in jobs if (job.endpoint.name, job.request.line, job.repeat) not in have]
        before = len(self.samples)
        await closed_loop(missing, concurrency, self._take)
        failed = len(missing) - (len(self.samples) - before)
        if failed:
            say(f"{failed} of {len(missing)} calls have failed; run it again to have them repeated")

    def _take(self, sample: Sample) -> None:
        self._file.append(sample)
        if sample.ok:
            self.samples.append(sample)
