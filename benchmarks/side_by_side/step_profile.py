"""Time of a step by kernels, copies, gaps and host time, from TensorFlow's profiler.

The profiler writes an XSpace: a plane for each GPU, with a line for each of its streams, and a
plane of the host, with a line for each thread. The cause of a gap is read off the figures: many
short kernels, copies between the kernels, or a host that hands work over too slowly.
"""

from __future__ import annotations

import collections
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

NUM_STEPS = 5
_LAST_EVENT_SECONDS = 0.1
_COPIES = ("memcpy", "memset")
_PS_PER_MS = 1e9
_OPERATION = re.compile(r"[^\s:]+:\w+")
"""Name and type of an operation, as its event on the host is named."""
# Lines of a GPU that repeat its streams, grouped by name.
_DERIVED = ("XLA Modules", "XLA Ops", "TensorFlow Name Scope", "TensorFlow Ops", "Steps", "Source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A kernel, a copy or an operation.

    Attributes:
        name: Name.
        begin: Begin, in milliseconds.
        end: End, in milliseconds.
        is_copy: Whether it moves memory.
    """

    name: str
    begin: float
    end: float
    is_copy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProfile:
    """Work of a stream of a GPU, or of a thread that runs operations, in a step.

    Attributes:
        name: Name of the device and the stream.
        num_kernels: Number of kernels.
        kernel_ms: Milliseconds in which at least one of them ran.
        num_copies: Number of copies.
        copy_ms: Milliseconds of the copies.
        idle_ms: Milliseconds without kernels and copies, between the first and the last one.
        longest_gap_ms: Longest time without them.
        costliest: Names of the costliest kernels with their milliseconds.
    """

    name: str
    num_kernels: float
    kernel_ms: float
    num_copies: float
    copy_ms: float
    idle_ms: float
    longest_gap_ms: float
    costliest: tuple[tuple[str, float], ...]


def profiled(run: Callable[[int], Any]) -> list[StreamProfile]:
    """Run some steps under the profiler; return the work of each stream in one of them.

    Args:
        run: Runs so many steps and waits until they are done.
    """
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        try:
            run(NUM_STEPS)
            # A result may be there before its operation has told the profiler that it ends.
            time.sleep(_LAST_EVENT_SECONDS)
        finally:
            tf.profiler.experimental.stop()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        return [each for path in files for each in profiles_of(path.read_bytes(), NUM_STEPS)]


def profiles_of(space: bytes, num_steps: int) -> list[StreamProfile]:
    """Return the work of each stream in a step.

    Args:
        space: An XSpace, serialized.
        num_steps: Number of steps that it holds.
    """
    found = [_profile(name, events, num_steps) for name, events in _streams(space) if events]
    return sorted(found, key=lambda each: -each.kernel_ms)


def _streams(space: bytes) -> Iterator[tuple[str, list[Event]]]:
    """Yield the streams of all GPUs; those of the host's threads if there is none."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    parsed = xplane_pb2.XSpace()
    parsed.ParseFromString(space)
    gpus = [plane for plane in parsed.planes if plane.name.startswith("/device:GPU:")]
    for plane in gpus:
        for line in plane.lines:
            if not line.name.startswith(_DERIVED):
                yield f"{plane.name[8:].lower()} {line.name}", list(_events(plane, line))
    if gpus:
        return
    for plane in parsed.planes:
        for line in plane.lines:
            # Small operations run in the thread that calls the function.
            if line.name.startswith(("tf_Compute", "python")):
                events = [e for e in _events(plane, line) if _OPERATION.fullmatch(e.name)]
                yield line.name.partition("/")[0], events


def _events(plane: Any, line: Any) -> Iterator[Event]:
    names = plane.event_metadata
    for event in line.events:
        begin = line.timestamp_ns / 1e6 + event.offset_ps / _PS_PER_MS
        name = names[event.metadata_id].name
        yield Event(
            name=name,
            begin=begin,
            end=begin + event.duration_ps / _PS_PER_MS,
            is_copy=name.lower().startswith(_COPIES),
        )


def _profile(name: str, events: Sequence[Event], num_steps: int) -> StreamProfile:
    copies = [event for event in events if event.is_copy]
    kernels = [event for event in events if not event.is_copy]
    of_name: collections.Counter[str] = collections.Counter()
    for event in kernels:
        of_name[event.name] += event.end - event.begin
    gaps = [after.begin - before for before, after in _with_end_before(events)]
    return StreamProfile(
        name=name,
        num_kernels=len(kernels) / num_steps,
        kernel_ms=_covered(kernels) / num_steps,
        num_copies=len(copies) / num_steps,
        copy_ms=_covered(copies) / num_steps,
        idle_ms=sum(gap for gap in gaps if gap > 0) / num_steps,
        longest_gap_ms=max(gaps, default=0.0),
        costliest=tuple((kind, ms / num_steps) for kind, ms in of_name.most_common(3)),
    )


def _with_end_before(events: Sequence[Event]) -> Iterator[tuple[float, Event]]:
    """Yield events in order, with the time at which all before are over."""
    ordered = sorted(events, key=lambda event: event.begin)
    over = ordered[0].end if ordered else 0.0
    for event in ordered[1:]:
        yield over, event
        over = max(over, event.end)


def _covered(events: Sequence[Event]) -> float:
    """Return the milliseconds in which at least one of the events runs."""
    covered, until = 0.0, float("-inf")
    for event in sorted(events, key=lambda event: event.begin):
        covered += max(0.0, event.end - max(event.begin, until))
        until = max(until, event.end)
    return covered


def table_of_profiles(title: str, profiles: Mapping[str, Sequence[StreamProfile]]) -> Table:
    """Return a table with the busiest streams of each contender."""
    table = Table(title=title, title_justify="left")
    for heading in ("contender", "stream"):
        table.add_column(heading, overflow="fold")
    for heading in ("kernels", "ms", "copies", "ms", "idle, ms", "longest"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("costliest, ms", overflow="fold")
    for contender, streams in profiles.items():
        for stream in streams[:4]:
            costliest = ", ".join(
                f"{kind.rpartition('/')[2][:40]} {ms:.2f}" for kind, ms in stream.costliest
            )
            numbers = (
                f"{stream.num_kernels:.0f}",
                f"{stream.kernel_ms:.2f}",
                f"{stream.num_copies:.0f}",
                f"{stream.copy_ms:.2f}",
                f"{stream.idle_ms:.2f}",
                f"{stream.longest_gap_ms:.2f}",
            )
            table.add_row(contender, stream.name, *numbers, costliest)
    return table
