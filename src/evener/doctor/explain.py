"""The help page of a code: the line of its error, and the page of the doctor's rule."""

from __future__ import annotations

import re

from evener.doctor.finding import PAGES
from evener.doctor.rules import all_rules

_ROW = re.compile(r"^\| ([A-Z]+-\d{3}) \| (.+?) \|$", re.MULTILINE)


def explain(code: str) -> str | None:
    """Return the help page of a code, as Markdown; None for an unknown code.

    Example:
        >>> print(explain("data-011"))
        # DATA-011
        <BLANKLINE>
        `in_axes` does not fit the arguments of a step
    """
    code = code.strip().upper()
    row, page = _rows().get(code), _page(code)
    if page is None:
        return None if row is None else f"# {code}\n\n{row}"
    if row is None:
        return page
    raised = f"Raised as {code}: {row}."
    title, _, rest = page.partition("\n")
    return f"{title}\n\n{raised}\n{rest}"


def has_page(code: str) -> bool:
    """Return whether a code has a help page, with wrong and right code."""
    return _page(code) is not None


def _page(code: str) -> str | None:
    rule = next((known for known in all_rules() if code in (known.code, *known.also)), None)
    path = PAGES / f"{rule.code}.md" if rule is not None else PAGES / "errors" / f"{code}.md"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def known_codes() -> list[str]:
    rules = all_rules()
    return sorted({*_rows(), *(code for rule in rules for code in (rule.code, *rule.also))})


def _rows() -> dict[str, str]:
    return dict(_ROW.findall((PAGES / "errors.md").read_text(encoding="utf-8")))
