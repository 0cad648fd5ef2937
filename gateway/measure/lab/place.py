"""Where the lab lies: its environment, its models, and what is running. Nothing here starts anything."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.measure.lab.errors import LabError

TARGET: Final = "SmolLM2-135M-Instruct"
SERVED: Final = "smollm2"  # the name under which engines and gateway serve it


@dataclass(frozen=True, slots=True)
class Place:
    """A lab's directory."""

    root: Path

    @classmethod
    def usual(cls) -> Place:
        """Return the lab of this checkout, or the one that DRAFTLANE_LAB names."""
        named = os.environ.get("DRAFTLANE_LAB")
        return cls(Path(named).resolve() if named else Path(__file__).resolve().parents[3] / ".lab")

    @property
    def python(self) -> Path:
        """The interpreter that has vLLM."""
        return self.root / "bin" / "python"

    @property
    def ready(self) -> bool:
        """Whether `make lab` has built it to the end."""
        return (self.root / ".ready").is_file() and self.python.exists()

    @property
    def models(self) -> Path:
        """The directory of prepared and distilled models."""
        return self.root / "models"

    @property
    def target(self) -> Path:
        """The prepared model that the lab serves."""
        return self.models / TARGET

    @property
    def run(self) -> Path:
        """The directory of logs, process records and the gateway's configuration; made where it is missing."""
        path = self.root / "run"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def model(self, path: Path | None) -> Path:
        """Return a model's directory, the target's where none is named.

        Raises:
            LabError: the lab is not built, or the model is not there.
        """
        if not self.ready:
            raise LabError(f"there is no lab in {self.root}: build it with `make lab` (about 4 minutes, 4 GB)")
        found = path or self.target
        if not (found / "config.json").is_file():
            known = ", ".join(sorted(each.name for each in self.models.glob("*/") if (each / "config.json").is_file()))
            raise LabError(
                f"there is no model in {found}; {self.models} has: {known or 'none'}. "
                "`make lab` prepares the target, `make lab-draft` the drafts"
            )
        return found
