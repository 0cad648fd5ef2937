"""`python -m deploy.grafana`: write the dashboards; with --check say whether the committed ones are what would be written."""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.grafana import cost, engines, latency, routing

FOLDER = Path(__file__).parent / "dashboards"


def dashboards() -> dict[Path, str]:
    """Return the files and what they should hold."""
    return {
        FOLDER / f"{board.name}.json": board.render()
        for board in (m.build() for m in (cost, routing, latency, engines))
    }


def main() -> int:
    """Write them, or compare; 1 when --check finds a difference."""
    stale = [path for path, text in dashboards().items() if not path.is_file() or path.read_text() != text]
    if "--check" in sys.argv:
        print("\n".join(f"{path.name}: run python -m deploy.grafana" for path in stale) or "dashboards are as written")
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for path, text in dashboards().items():
        path.write_text(text)
        print(path.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
