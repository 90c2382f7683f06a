"""An audit as tables for the terminal, readable in 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evener.auditing.records import KINDS, AuditFields, Copy, Fallback, Line
from evener.base.terminal import standard_output
from evener.base.text import format_bytes

_TOP_COPIES = 10
_TOP_FALLBACKS = 20
_UNKNOWN = "-"


def print_audit(audit: AuditFields, console: Console | None = None) -> None:
    """Print an audit: work per device, the largest copies, and fallbacks."""
    console = standard_output() if console is None else console
    title = f"{audit.step}: {len(audit.operations)} operations, not run"
    console.print(Text(f"{title}\nDevices: {', '.join(audit.devices)}"), soft_wrap=True)
    console.print(work_table(audit))
    for line in (*_traffic(audit), *_collectives(audit)):
        console.print(Text(line), soft_wrap=True)
    if audit.copies:
        console.print(Text(f"\n{_copies_title(audit)}"))
        console.print(copies_table(audit))
    if audit.fallbacks:
        console.print(Text("\nOperations not placed on their requested device"))
        console.print(fallbacks_table(audit))
    if audit.gathered:
        console.print(
            Text("\nGathered operations: computed once, on one device, for the global batch")
        )
        console.print(gathered_table(audit))
    console.print(Text(f"\n{_verdict(audit)}"), soft_wrap=True)


def work_table(audit: AuditFields) -> Table:
    """Return the number of operations per device and kind of work."""
    table = _table()
    table.add_column("device", no_wrap=True)
    counted = {(total.device, total.kind): total.num_operations for total in audit.totals}
    for kind in KINDS:
        table.add_column(kind, justify="right", no_wrap=True)
    # A device without an operation is idle, which a table of the others does not say.
    for device in sorted({*audit.devices, *(device for device, _ in counted)}):
        numbers = [counted.get((device, kind)) for kind in KINDS]
        table.add_row(device, *(_UNKNOWN if number is None else str(number) for number in numbers))
    return table


def copies_table(audit: AuditFields) -> Table:
    """Return the largest copies between devices, with the lines."""
    copies = sorted(audit.copies, key=lambda copy: -(copy.num_bytes or 0))
    table = _table()
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("from", no_wrap=True)
    table.add_column("to", no_wrap=True)
    table.add_column("tensor", ratio=3, overflow="fold")
    table.add_column("made at, used at", ratio=2, overflow="fold")
    for copy in copies[:_TOP_COPIES]:
        size = "unknown" if copy.num_bytes is None else format_bytes(copy.num_bytes)
        table.add_row(
            f"{size} per iteration" if copy.in_loop else size,
            copy.source,
            copy.target,
            Text(_short(copy.tensor)),
            Text(_lines(copy)),
        )
    return table


def fallbacks_table(audit: AuditFields) -> Table:
    """Return the operations that do not run on their requested GPU, grouped by reason."""
    counted = Counter((fallback.why, fallback.is_finding) for fallback in audit.fallbacks)
    # Findings first, the most frequent on top.
    order = sorted(counted, key=lambda key: (not key[1], -counted[key]))
    table = _table()
    table.add_column("number", justify="right", no_wrap=True)
    table.add_column("operations", ratio=2, overflow="fold")
    table.add_column("why not there", ratio=4, overflow="fold")
    table.add_column("lines", ratio=2, overflow="fold")
    for why, is_finding in order[:_TOP_FALLBACKS]:
        same = [fallback for fallback in audit.fallbacks if fallback.why == why]
        types = sorted({fallback.type for fallback in same})
        table.add_row(
            str(counted[why, is_finding]),
            Text(_some(types)),
            Text(why),
            Text(_some(_lines_of(same))),
        )
    return table


def gathered_table(audit: AuditFields) -> Table:
    """Return the operations that evener gathers on one device, the largest first."""
    operations = sorted(audit.gathered, key=lambda operation: -(operation.num_bytes or 0))
    table = _table()
    table.add_column("bytes per sample", justify="right", no_wrap=True)
    table.add_column("operation", overflow="fold")
    table.add_column("line", overflow="fold")
    for operation in operations[:_TOP_FALLBACKS]:
        size = "unknown" if operation.num_bytes is None else format_bytes(operation.num_bytes)
        table.add_row(size, Text(operation.operation), Text(operation.line or _UNKNOWN))
    return table


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False)


def _copies_title(audit: AuditFields) -> str:
    number = len(audit.copies)
    noun = "copy" if number == 1 else "copies"
    most = f"The largest {_TOP_COPIES} of {number}" if number > _TOP_COPIES else str(number)
    return f"{most} {noun} between devices"


def _traffic(audit: AuditFields) -> Iterator[str]:
    for pair in audit.traffic:
        unknown = f", {pair.num_unknown} of unknown size" if pair.num_unknown else ""
        yield (
            f"{pair.source} -> {pair.target}: {format_bytes(pair.num_bytes)} in "
            f"{pair.num_copies} {'copy' if pair.num_copies == 1 else 'copies'}{unknown}"
        )
    if not audit.copies and not audit.collectives:
        yield "no copies between devices"


def _collectives(audit: AuditFields) -> Iterator[str]:
    for device in sorted({collective.device for collective in audit.collectives}):
        local = [collective for collective in audit.collectives if collective.device == device]
        size = format_bytes(sum(collective.num_bytes or 0 for collective in local))
        types = ", ".join(sorted({collective.type for collective in local}))
        noun = "operation" if len(local) == 1 else "operations"
        yield f"{device} takes part in {len(local)} collective {noun} on {size} ({types})"


def _verdict(audit: AuditFields) -> str:
    table = "" if audit.kernels_from == "TensorFlow" else " (kernels: evener's table)"
    number = len(audit.findings)
    if number:
        noun = "operation is" if number == 1 else "operations are"
        return f"{number} {noun} not on the requested device{table}"
    left = len(audit.fallbacks)
    return f"no findings{f'; {left} small operations run on the host' if left else ''}{table}"


def _lines(copy: Copy) -> str:
    lines = [str(line) for line in (copy.line, copy.needed_by) if line is not None]
    return ", ".join(dict.fromkeys(lines)) or _UNKNOWN


def _lines_of(fallbacks: list[Fallback]) -> list[str]:
    lines: list[Line] = [fallback.line for fallback in fallbacks if fallback.line is not None]
    return sorted({str(line) for line in lines}) or [_UNKNOWN]


def _some(names: list[str]) -> str:
    few = 3
    return ", ".join(names[:few]) + (f" and {len(names) - few} more" if len(names) > few else "")


def _short(tensor: str) -> str:
    """Return the name of an operation without the names of the calls around it."""
    parts = [part for part in tensor.split("/") if not part.startswith(_CALLS)]
    return "/".join(parts) or tensor


_CALLS = ("StatefulPartitionedCall", "PartitionedCall")
