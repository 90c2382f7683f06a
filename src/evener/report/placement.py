"""An audit as tables for the terminal, readable in 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evener.placement.parts import KINDS, Copy, Fallback, Line
from evener.placement.record import Audit
from evener.report.tables import standard_output
from evener.units import format_bytes

_TOP_COPIES = 10
_TOP_FALLBACKS = 20
_UNKNOWN = "-"


def print_audit(audit: Audit, console: Console | None = None) -> None:
    """Print an audit: work per device, the largest copies, what is not on its GPU.

    Args:
        audit: What was found.
        console: Where to; None for standard output.
    """
    console = standard_output() if console is None else console
    said = f"{audit.step}: {len(audit.operations)} operations, not run"
    console.print(Text(f"{said}\nDevices here: {', '.join(audit.devices)}"), soft_wrap=True)
    console.print(work_table(audit))
    for line in (*_traffic(audit), *_collectives(audit)):
        console.print(Text(line), soft_wrap=True)
    if audit.copies:
        console.print(Text(f"\n{_copies_title(audit)}"))
        console.print(copies_table(audit))
    if audit.fallbacks:
        console.print(Text("\nNot computed on the GPU, or other device, they are meant for"))
        console.print(fallbacks_table(audit))
    if audit.gathered:
        console.print(Text("\nComputed once, on one device, of the samples of all devices"))
        console.print(gathered_table(audit))
    console.print(Text(f"\n{_verdict(audit)}"), soft_wrap=True)


def work_table(audit: Audit) -> Table:
    """Return the number of operations per device and kind of work."""
    table = _table()
    table.add_column("device", no_wrap=True)
    counted = {(total.device, total.kind): total.num_operations for total in audit.totals}
    for kind in KINDS:
        table.add_column(kind, justify="right", no_wrap=True)
    for device in sorted({device for device, _ in counted}):
        numbers = [counted.get((device, kind)) for kind in KINDS]
        table.add_row(device, *(_UNKNOWN if one is None else str(one) for one in numbers))
    return table


def copies_table(audit: Audit) -> Table:
    """Return the largest copies between devices, with the lines."""
    copies = sorted(audit.copies, key=lambda copy: -(copy.num_bytes or 0))
    table = _table()
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("from", no_wrap=True)
    table.add_column("to", no_wrap=True)
    table.add_column("tensor", ratio=3, overflow="fold")
    table.add_column("made at, needed at", ratio=2, overflow="fold")
    for copy in copies[:_TOP_COPIES]:
        size = "unknown" if copy.num_bytes is None else format_bytes(copy.num_bytes)
        table.add_row(
            f"{size} each time" if copy.in_loop else size,
            copy.source,
            copy.target,
            Text(_short(copy.tensor)),
            Text(_lines(copy)),
        )
    return table


def fallbacks_table(audit: Audit) -> Table:
    """Return what does not compute on the GPU it is meant for, equal reasons together."""
    counted = Counter((one.why, one.is_finding) for one in audit.fallbacks)
    # Findings first, and the most of them.
    order = sorted(counted, key=lambda key: (not key[1], -counted[key]))
    table = _table()
    table.add_column("number", justify="right", no_wrap=True)
    table.add_column("operations", ratio=2, overflow="fold")
    table.add_column("would run there: no, because", ratio=4, overflow="fold")
    table.add_column("lines", ratio=2, overflow="fold")
    for why, is_finding in order[:_TOP_FALLBACKS]:
        same = [one for one in audit.fallbacks if one.why == why]
        types = sorted({one.type for one in same})
        table.add_row(
            str(counted[why, is_finding]),
            Text(_some(types)),
            Text(why),
            Text(_some(_lines_of(same))),
        )
    return table


def gathered_table(audit: Audit) -> Table:
    """Return the operations that evener does not compute in parts, the most bytes first."""
    operations = sorted(audit.gathered, key=lambda one: -(one.num_bytes or 0))
    table = _table()
    table.add_column("bytes per sample", justify="right", no_wrap=True)
    table.add_column("operation", overflow="fold")
    table.add_column("line", overflow="fold")
    for one in operations[:_TOP_FALLBACKS]:
        size = "unknown" if one.num_bytes is None else format_bytes(one.num_bytes)
        table.add_row(size, Text(one.operation), Text(one.line or _UNKNOWN))
    return table


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False)


def _copies_title(audit: Audit) -> str:
    number = len(audit.copies)
    noun = "copy" if number == 1 else "copies"
    most = f"The largest {_TOP_COPIES} of {number}" if number > _TOP_COPIES else str(number)
    return f"{most} {noun} between devices"


def _traffic(audit: Audit) -> Iterator[str]:
    for way in audit.traffic:
        unknown = f", {way.num_unknown} of unknown size" if way.num_unknown else ""
        yield (
            f"{way.source} -> {way.target}: {format_bytes(way.num_bytes)} in "
            f"{way.num_copies} {'copy' if way.num_copies == 1 else 'copies'}{unknown}"
        )
    if not audit.copies and not audit.collectives:
        yield "nothing moves between devices"


def _collectives(audit: Audit) -> Iterator[str]:
    for device in sorted({one.device for one in audit.collectives}):
        own = [one for one in audit.collectives if one.device == device]
        size = format_bytes(sum(one.num_bytes or 0 for one in own))
        types = ", ".join(sorted({one.type for one in own}))
        noun = "operation" if len(own) == 1 else "operations"
        yield f"{device} takes part in {len(own)} collective {noun} on {size} ({types})"


def _verdict(audit: Audit) -> str:
    table = "" if audit.kernels_from == "TensorFlow" else " (kernels: evener's table)"
    number = len(audit.findings)
    if number:
        said = "operation is not where it" if number == 1 else "operations are not where they"
        return f"{number} {said} should be{table}"
    left = len(audit.fallbacks)
    return f"no findings{f'; {left} small operations work on the host' if left else ''}{table}"


def _lines(copy: Copy) -> str:
    lines = [str(line) for line in (copy.line, copy.needed_by) if line is not None]
    return ", ".join(dict.fromkeys(lines)) or _UNKNOWN


def _lines_of(fallbacks: list[Fallback]) -> list[str]:
    lines: list[Line] = [one.line for one in fallbacks if one.line is not None]
    return sorted({str(line) for line in lines}) or [_UNKNOWN]


def _some(names: list[str]) -> str:
    few = 3
    return ", ".join(names[:few]) + (f" and {len(names) - few} more" if len(names) > few else "")


def _short(tensor: str) -> str:
    """Leave out the names of the calls that an operation was in."""
    parts = [part for part in tensor.split("/") if not part.startswith(_CALLS)]
    return "/".join(parts) or tensor


_CALLS = ("StatefulPartitionedCall", "PartitionedCall")
