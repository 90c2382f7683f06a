"""Fixes of the doctor, told in lines."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from evener.doctor.edit import Fix
from evener.doctor.finding import shown_location
from evener.doctor.fix import Fixed


def print_fixes(fixed: Fixed, console: Console, *, is_written: bool) -> None:
    """Print the fixes that are made and those that are not, and what the doctor finds then.

    Args:
        fixed: The program with its fixes.
        console: Console to print to.
        is_written: Whether the files have been written.
    """
    for fix in fixed.made:
        _print(f"{'Fixed' if is_written else 'Would fix'} {_named(fix)}", console)
    for left in fixed.left_out:
        _print(f"Not fixed: {_named(left.fix)}: {left.reason}.", console)
    _print(_summary(fixed, is_written=is_written), console)


def _summary(fixed: Fixed, *, is_written: bool) -> str:
    count, num_files = len(fixed.made), len(fixed.contents)
    if not count:
        return "There is no fix that is certain. Nothing was written."
    text = f"{count} fix{'es' * (count > 1)} in {num_files} file{'s' * (num_files > 1)}"
    if is_written:
        return f"{text}, written."
    return f"{text}. Nothing was written; --fix --write writes {'them' if count > 1 else 'it'}."


def _named(fix: Fix) -> str:
    where = shown_location(fix.location.path, fix.location.line)
    return f"[{fix.code}] {where}: {fix.location.text}"


def _print(text: str, console: Console) -> None:
    console.print(Text(text), soft_wrap=True)
