"""Values that a notebook shows as `print` does; above the terminal, whose texts are plain."""

from __future__ import annotations


class ShownAsText:
    """Base class of values whose text a notebook shows, in a fixed-width font."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        # rich takes longer to import than everything else here.
        from evener.base.terminal import html_of

        return html_of(str(self))
