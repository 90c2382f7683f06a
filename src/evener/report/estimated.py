"""The memory that training needs by kind, for several settings, and the largest batches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evener.base.terminal import standard_output
from evener.base.text import format_bytes
from evener.plan.profile import ModelCosts
from evener.planner.prediction import (
    MOST_SAMPLES,
    MemoryByKind,
    Way,
    estimate_memory,
    largest_batch,
    usable_memory,
)

NUM_MICRO_BATCHES = (1, 2, 4, 8)
"""The numbers of micro-batches that are tabulated."""

CARDS = (8, 11, 12, 16, 24, 40, 80)
"""Common sizes of GPU memory, in GiB; vendors call them GB."""

_GIB = 2**30
# Rows of the table; a row of zeros is left out.
_KINDS = {
    "weights": "weights",
    "fetched": "weights of others",
    "optimizer_state": "optimizer state",
    "other_variables": "other variables",
    "gradients": "gradients",
    "activations": "activations",
    "samples": "samples",
    "workspace": "workspace",
    "total": "total",
}
_RECOMPUTED_KINDS = ("activations", "workspace", "total")
_COLUMNS = {
    "at once": Way(),
    "recomputed": Way(recompute=True),
    f"{NUM_MICRO_BATCHES[-1]} micro-batches": Way(num_micro_batches=NUM_MICRO_BATCHES[-1]),
    "both": Way(num_micro_batches=NUM_MICRO_BATCHES[-1], recompute=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    model: ModelCosts  # The costs of its layers
    batch_size: int  # Samples of the global batch, at least 1
    num_devices: int = 1  # Number of devices, at least 1

    def ways(self) -> list[Way]:
        """Return the settings to show: at most as many micro-batches as a device has samples."""
        most = -(-self.batch_size // self.num_devices)
        counts = [count for count in NUM_MICRO_BATCHES if count <= most]
        return [
            Way(num_micro_batches=count, recompute=recompute)
            for recompute in (False, True)
            for count in counts
        ]

    def memory(self, way: Way) -> MemoryByKind:
        return estimate_memory(self.model, self.batch_size, way, num_devices=self.num_devices)

    def largest(self, card: int, way: Way) -> int:
        """Return the largest global batch on devices with ``card`` GiB each; 0 if none fits."""
        return largest_batch(self.model, usable_bytes(card), way, num_devices=self.num_devices)

    def to_json(self) -> str:
        content = {
            "model": self.model.name,
            "batch_size": self.batch_size,
            "num_devices": self.num_devices,
            "memory": [_with_way(way, self._bytes(way)) for way in self.ways()],
            "largest_batches": [
                {
                    "memory_gib": card,
                    "usable_bytes": usable_bytes(card),
                    "batches": [
                        _with_way(way, {"batch_size": self.largest(card, way)})
                        for way in _COLUMNS.values()
                    ],
                }
                for card in CARDS
            ],
        }
        return json.dumps(content, indent=2)

    def _bytes(self, way: Way) -> dict[str, int]:
        return {f"{name}_bytes": size for name, size in _by_name(self.memory(way)).items()}


def usable_bytes(card: int) -> int:
    """Return the bytes of a device's memory that a plan may use.

    >>> usable_bytes(24) == 23 * 2**30
    True
    """
    return usable_memory(card * _GIB)


def print_estimated(found: Estimated, console: Console | None = None) -> None:
    console = standard_output() if console is None else console
    where = "one device" if found.num_devices == 1 else f"each of {found.num_devices} devices"
    samples = "1 sample" if found.batch_size == 1 else f"{found.batch_size} samples"
    title = f"Memory of {found.model.name} on {where}, a step of {samples}"
    console.print(Text(title), soft_wrap=True)
    console.print(memory_table(found, recompute=False))
    console.print(Text("\nWith activations recomputed"))
    console.print(memory_table(found, recompute=True))
    of_all = "" if found.num_devices == 1 else f" of all {found.num_devices} devices together"
    console.print(Text(f"\nLargest batch{of_all} by memory of a device"))
    console.print(largest_table(found))


def memory_table(found: Estimated, *, recompute: bool) -> Table:
    ways = [way for way in found.ways() if way.recompute == recompute]
    table = _table("micro-batches", [str(way.num_micro_batches) for way in ways])
    by_way = [_by_name(found.memory(way)) for way in ways]
    for name in _RECOMPUTED_KINDS if recompute else _KINDS:
        sizes = [by_name[name] for by_name in by_way]
        if any(sizes):
            table.add_row(_KINDS[name], *map(format_bytes, sizes))
    return table


def largest_table(found: Estimated) -> Table:
    table = _table("memory", ["usable", *_COLUMNS])
    for card in CARDS:
        sizes = (found.largest(card, way) for way in _COLUMNS.values())
        table.add_row(f"{card} GB", format_bytes(usable_bytes(card)), *map(_samples, sizes))
    return table


def _table(first: str, columns: list[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column(first)
    for heading in columns:
        table.add_column(heading, justify="right", overflow="fold")
    return table


def _samples(number: int) -> str:
    if number == 0:
        return "-"
    return f"{number:,}" if number < MOST_SAMPLES // 2 else f">{MOST_SAMPLES // 2:,}"


def _by_name(memory: MemoryByKind) -> dict[str, int]:
    return {**asdict(memory), "total": memory.total}


def _with_way(way: Way, figures: Mapping[str, Any]) -> dict[str, Any]:
    return {**asdict(way), **figures}
