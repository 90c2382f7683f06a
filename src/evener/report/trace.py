"""Trace of the recorded steps for Perfetto: a track for each device, and counters beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from evener.errors import RunError
from evener.recording.reading import COPY, IDLE, WAIT, Activity, RunRecord, activities

_SEQUENCE = 1
_COUNTERS = ("samples_per_second", "share", "busy", "memory")


def trace_of(records: Sequence[RunRecord]) -> bytes:
    """Return the recorded steps and the metrics of a run as TrackEvents of Perfetto."""
    try:
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder
    except ImportError:
        raise RunError(
            "RUN-107",
            "A trace for Perfetto needs the package perfetto.",
            why="It has the protocol buffers of traces, and is not installed.",
            fix="Install it: pip install evener[trace].",
        ) from None
    builder = TraceProtoBuilder()
    trace = _Trace(builder)
    for record in records:
        trace.add(record, record.path.name)
    return builder.serialize()


class _Trace:
    def __init__(self, builder: Any) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackDescriptor, TrackEvent

        self._builder = builder
        self._event: Any = TrackEvent
        self._descriptor: Any = TrackDescriptor
        self._num_tracks = 0

    def add(self, record: RunRecord, name: str) -> None:
        process = self._track(name, process=True)
        devices = {span["device"] for spans in record.traces.values() for span in spans}
        tracks = {device: self._track(device, process) for device in sorted(devices)}
        for step in record.steps:
            begin = round(step["time"] * 1e9)
            for device, row in activities(record.traces[step["of"]], step).items():
                for each in _after_each_other(row):
                    self._slice(tracks[device], each, begin, step["step"])
        marks = self._track("events", process)
        for event in record.events:
            packet = self._packet(round(event["time"] * 1e9))
            packet.track_event.type = self._event.TYPE_INSTANT
            packet.track_event.track_uuid = marks
            packet.track_event.name = f"{event.get('event', '')}: {event.get('text', '')}"
        self._add_counters(record, process)

    def _add_counters(self, record: RunRecord, process: int) -> None:
        counters: dict[str, int] = {}
        for line in record.metrics:
            for name, value in _values(record, line):
                if name not in counters:
                    counters[name] = self._track(name, process, counter=True)
                packet = self._packet(round(line["time"] * 1e9))
                packet.track_event.type = self._event.TYPE_COUNTER
                packet.track_event.track_uuid = counters[name]
                packet.track_event.double_counter_value = float(value)

    def _slice(self, track: int, each: Activity, begin: int, number: int) -> None:
        for at, kind in ((each.begin, "BEGIN"), (each.end, "END")):
            packet = self._packet(begin + round(at * 1e9))
            packet.track_event.type = getattr(self._event, f"TYPE_SLICE_{kind}")
            packet.track_event.track_uuid = track
            if kind == "BEGIN":
                packet.track_event.name = _name(each)
                note = packet.track_event.debug_annotations.add()
                note.name, note.int_value = "step", number

    def _track(
        self, name: str, parent: int = 0, *, process: bool = False, counter: bool = False
    ) -> int:
        self._num_tracks += 1
        descriptor = self._packet(0).track_descriptor
        descriptor.uuid = self._num_tracks
        if process:
            descriptor.process.pid = self._num_tracks
            descriptor.process.process_name = name
            return self._num_tracks
        descriptor.name = name
        descriptor.parent_uuid = parent
        if counter:
            descriptor.counter.SetInParent()
        return self._num_tracks

    def _packet(self, timestamp: int) -> Any:
        packet = self._builder.add_packet()
        packet.timestamp = timestamp
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet


def _after_each_other(row: Sequence[Activity]) -> Iterator[Activity]:
    """Yield the activities of a device as Perfetto nests them: none ends amid another."""
    now = 0.0
    for each in sorted(row, key=lambda activity: activity.begin):
        begin = max(each.begin, now)
        if each.end > begin:
            yield replace(each, begin=begin)
        now = max(now, each.end)


def _name(each: Activity) -> str:
    words = {WAIT: f"waits for {each.other}", COPY: f"copy from {each.other}", IDLE: "idle"}
    if each.kind in words:
        return words[each.kind]
    stage = "" if each.stage is None else f", stage {each.stage}"
    return each.kind + stage + ("" if each.micro_batch is None else f" [{each.micro_batch}]")


def _values(record: RunRecord, line: Any) -> Iterator[tuple[str, float]]:
    for name in _COUNTERS:
        value = line.get(name)
        if isinstance(value, list):
            pairs = zip(record.devices, value, strict=False)
            yield from ((f"{name} {device}", v) for device, v in pairs if v is not None)
        elif value is not None:
            yield name, value
