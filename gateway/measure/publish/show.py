"""Any result that can be shown, as a page and a picture."""

from __future__ import annotations

from pathlib import Path

from gateway.measure import writing
from gateway.measure.publish import compare_page, sweep_page
from gateway.measure.publish.results import Sweep, read


def show(result: Path, html: Path, png: Path | None) -> str:
    """Write the page, and the picture if one is wanted; returns the result in a sentence.

    Raises:
        ResultError: the file holds no such result.
        OSError: a file cannot be written.
    """
    found = read(result)
    page = sweep_page.page(found) if isinstance(found, Sweep) else compare_page.page(found)
    with writing.whole(html) as part:
        part.write_text(page)
    if isinstance(found, Sweep):
        if png is not None:
            sweep_page.picture(found, png)
        return sweep_page.headline(found)
    if png is not None:
        compare_page.picture(found, png)
    return found.verdict.text
