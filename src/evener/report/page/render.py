"""HTML of the page. All texts of a record are escaped, and lose their control codes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jinja2

from evener import __version__
from evener.recording.reading import RunRecord
from evener.report.page.differences import differences
from evener.report.page.sections import view_of
from evener.units import printable


def render_page(runs: Sequence[Sequence[RunRecord]]) -> str:
    """Return the page of one run, or of two side by side, as HTML that needs nothing else.

    Args:
        runs: Records of each run: one, or those of its workers.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    views = [view_of(records) for records in runs]
    changed = differences(views[0], views[1]) if len(views) == 2 else None
    page = environment.get_template("page.html.j2")
    return page.render(runs=views, changed=changed, version=__version__)
