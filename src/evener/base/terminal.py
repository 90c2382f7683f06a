"""Output of rich: on standard output, as plain text, and as HTML for notebooks.

Names and texts come from programs, plans and records of others: codes in them that a terminal would
obey are left out.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from evener.base.text import printable

WIDTH = 120
"""Columns where standard output is not a terminal."""

# Lines and arrows of drawings, for streams that cannot encode them.
_PLAIN = str.maketrans(
    "─│┌┐└┘├┤┬┴┼╞╡═▼▲►◄█·→µ",
    "-|+++++++++++=v^><#.>u",
)
# A notebook shows the fragment as it is; the default format is a whole HTML page.
_HTML = '<pre style="white-space:pre;overflow-x:auto;line-height:normal">{code}</pre>'


class PrintableConsole(Console):
    """Console that leaves control codes out of texts; the codes of its styles are its own."""

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        """Render an object."""
        for text, style, control in super().render(renderable, options):
            shown = text if control else printable(text)
            try:
                shown.encode(self.encoding)
            except UnicodeEncodeError:
                plain = shown.translate(_PLAIN).encode(self.encoding, "replace")
                shown = plain.decode(self.encoding)
            yield Segment(shown, style, control)


def standard_output(*, highlight: bool = True) -> Console:
    """Return the console of standard output, of a fixed width if that is not a terminal."""
    return _console(sys.stdout, highlight=highlight)


def standard_error(*, highlight: bool = True) -> Console:
    """Return the console of standard error, of a fixed width if that is not a terminal."""
    return _console(sys.stderr, highlight=highlight)


def _console(stream: TextIO, *, highlight: bool) -> Console:
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH
    return PrintableConsole(stderr=stream is sys.stderr, highlight=highlight, width=width)


def text_of(show: Callable[[Console], None], width: int = 100) -> str:
    """Return what a function prints on a console, as plain text."""
    out = io.StringIO()
    # Nothing depends on the terminal or the environment.
    console = PrintableConsole(
        file=out,
        width=width,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        legacy_windows=False,
        _environ={},
    )
    show(console)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")


def html_of(text: str) -> str:
    """Return plain text as an HTML fragment in a fixed-width font, with its characters escaped.

    >>> html_of("1 < 2").startswith("<pre")
    True
    """
    console = PrintableConsole(
        file=io.StringIO(), record=True, color_system=None, force_jupyter=False, _environ={}
    )
    console.print(Text(text), soft_wrap=True)
    return console.export_html(inline_styles=True, code_format=_HTML)
