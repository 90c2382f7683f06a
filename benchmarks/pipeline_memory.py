"""Memory of training steps in stages, on every device, beside what evener says they need.

Every device is a process of its own, whose allocator is the GPU's (BFC) and counts bytes; the
host is another one. Predicted is `Strategy.memory_estimate`. The temporary memory of single
operations is not included, and is the same on both sides of a comparison:

      in flight       fewer micro-batches alive at once      saving
      recomputed      activations of blocks not saved        saving
      on the host     weights and Adam's slots of layers     saving
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table
from side_by_side.apart import connect, devices_apart
from side_by_side.chains import feed_forward, mlp, plan_of
from side_by_side.figures import Aim, terminal, write_json
from side_by_side.workers import Worker, closing

from evener.base.text import format_bytes

IN_FLIGHT = (8, 4, 2, 1)
MOST_OFF = 0.1
_STEPS = 9


class Settings(NamedTuple):
    """Model, batch and devices of a training.

    Attributes:
        kind: ``"stack"`` of Dense layers or ``"pairs"`` of them.
        num_blocks: Dense layers, or pairs of them.
        width: Units of each layer.
        batch_size: Samples of a global batch.
        num_devices: Number of devices.
        num_stages: Number of stages, spread over the devices in turns.
    """

    kind: str
    num_blocks: int
    width: int
    batch_size: int
    num_devices: int
    num_stages: int


# No biases: the allocator counts the chunk that it gives, up to twice of what was asked for, and
# a small tensor may come to sit in a large one.
STACK = Settings("stack", 64, 512, 4096, 4, 4)
PAIRS = Settings("pairs", 8, 256, 8192, 1, 1)
WIDE = Settings("stack", 16, 1024, 1024, 1, 8)
OWNERS = {"their stage": {}, "the host, half": {"block_?_*": "host"}, "the host": {"*": "host"}}


class StagedStep:
    """A model that trains by ``fit`` in stages on devices of a cluster.

    Args:
        addresses: Host and port of each device.
    """

    def __init__(self, *, addresses: list[str]) -> None:
        self._devices = connect(addresses)
        self._fit: Any = None
        self._needs: Any = None

    def prepare(self, settings: Settings, optimizer: str, **order: Any) -> None:
        """Make the model, and take the first steps, which trace and make the slots.

        Args:
            settings: Model, batch and devices.
            optimizer: Its name.
            **order: Given to `plan_of`.
        """
        import keras
        import numpy as np
        import tensorflow as tf

        import evener

        keras.utils.set_random_seed(1)
        make = mlp if settings.kind == "stack" else feed_forward
        more = {"num_classes": None, "use_bias": False} if settings.kind == "stack" else {}
        chain = make(num_blocks=settings.num_blocks, width=settings.width, **more)
        turns = [self._devices[k % settings.num_devices] for k in range(settings.num_stages)]
        strategy = evener.Strategy(plan_of(chain, turns, **order))
        with strategy.scope():
            model = chain.build()
            model.compile(optimizer, "mse")
        x = np.random.default_rng(0).random((settings.batch_size, settings.width), "float32")
        data = tf.data.Dataset.from_tensors((x, x)).repeat()
        self._fit = lambda: model.fit(data, steps_per_epoch=1, verbose=0)
        self._needs = lambda: strategy.memory_estimate(settings.batch_size)
        self._fit()
        self._fit()

    def train(self) -> list[int]:
        """Take a step; return what evener says that each device needs, in bytes."""
        self._fit()
        needs = self._needs()
        return [needs[name].total for name in self._devices]


def measure(settings: Settings, optimizer: str, **order: Any) -> dict[str, list[int]]:
    """Train; return for each device the bytes at a step's peak, the median, and those predicted."""
    with devices_apart(settings.num_devices) as devices:
        host = Worker(StagedStep, addresses=[device.call("address") for device in devices])
        with closing(host):
            host.call("prepare", settings, optimizer, **order)
            peaks = []
            for _ in range(_STEPS):
                for device in devices:
                    device.call("forget")
                predicted = host.call("train")
                peaks.append([device.call("used")["peak"] for device in devices])
    # What arrives early from another process is on the device for longer in some steps.
    middle = [round(statistics.median(column)) for column in zip(*peaks, strict=True)]
    return {"peak": middle, "predicted": predicted}


class Compared(NamedTuple):
    """Bytes by which two measurements differ.

    Attributes:
        name: Name of the second of them.
        what: Description of the difference, for the aim.
        measured: Measured difference in bytes.
        predicted: Predicted difference in bytes.
    """

    name: str
    what: str
    measured: int
    predicted: int

    def aim(self) -> Aim:
        """Return the aim."""
        off = abs(self.measured / self.predicted - 1)
        what = f"{self.what}, off the prediction"
        return Aim(what=what, wanted=MOST_OFF, got=off, at_least=False)


def compare(
    found: Mapping[str, Any], what: str, *, sign: int, device: int | None
) -> list[Compared]:
    """Compare measurements with the first of them.

    Args:
        found: Measurements by name, as `measure` returns them.
        what: Description of the difference, with ``{}`` for the name.
        sign: 1 if the others need more, -1 if they need less.
        device: Number of the device, or None for the sum over all of them.
    """
    (_, first), *others = found.items()
    return [
        Compared(
            name,
            what.format(name),
            *(sign * (_of(other[key], device) - _of(first[key], device)) for key in first),
        )
        for name, other in others
    ]


def _of(values: Sequence[int], device: int | None) -> int:
    return sum(values) if device is None else values[device]


def main(
    optimizer: Annotated[str, typer.Option()] = "adam",
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path(
        "results/pipeline_memory.json"
    ),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if an aim is missed")] = False,
) -> None:
    """Compare the peak bytes of steps in stages with what evener says they need."""
    console = terminal()
    figures: dict[str, Any] = {}
    aims: list[Aim] = []
    for title, found, compared in _cases(optimizer):
        console.print(_table(f"{title}, {optimizer}", found, compared))
        figures[title] = found
        aims += [comparison.aim() for comparison in compared]
    for aim in aims:
        console.print(str(aim), highlight=False, soft_wrap=True)
    write_json(json, figures, aims)
    console.print(f"figures: {json}")
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


def _cases(optimizer: str) -> Iterator[tuple[str, dict[str, Any], list[Compared]]]:
    """Yield a title, what was measured, and what is compared."""
    found = {
        f"{n} in flight": measure(STACK, optimizer, num_micro_batches=8, in_flight=n)
        for n in IN_FLIGHT
    }
    title = (
        f"{STACK.num_blocks} Dense of {STACK.width}, batch {STACK.batch_size}, "
        f"{STACK.num_stages} stages on as many devices, 8 micro-batches"
    )
    fall = "fall from 8 to {} on " + f"{STACK.num_devices} devices together"
    first = "fall from 8 to {} on the first device"
    yield (
        title,
        found,
        [
            *compare(found, fall, sign=-1, device=None),
            *compare(found, first, sign=-1, device=0),
        ],
    )
    found = {
        name: measure(PAIRS, optimizer, num_micro_batches=4, in_flight=4, recompute=patterns)
        for name, patterns in {"kept": (), "recomputed": ("block_*",)}.items()
    }
    title = (
        f"{PAIRS.num_blocks} layers of Dense {4 * PAIRS.width}, gelu, Dense {PAIRS.width}, "
        f"batch {PAIRS.batch_size}, 4 micro-batches, 4 in flight"
    )
    yield title, found, compare(found, "saved with what is {}", sign=-1, device=0)
    found = {
        name: measure(WIDE, optimizer, num_micro_batches=4, in_flight=1, owners=owners)
        for name, owners in OWNERS.items()
    }
    title = (
        f"{WIDE.num_blocks} Dense of {WIDE.width}, batch {WIDE.batch_size}, {WIDE.num_stages} "
        "stages in turns on one device, 4 micro-batches, 1 in flight, owners on"
    )
    yield title, found, compare(found, "saved with owners on {}", sign=-1, device=0)


def _table(title: str, found: Mapping[str, Any], compared: Sequence[Compared]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in ("peaks", "predicted", "difference", "predicted", "ratio"):
        table.add_column(heading, justify="right")
    for name, used in found.items():
        cells = [", ".join(map(format_bytes, used[key])) for key in ("peak", "predicted")]
        # The first of several comparisons: the sum over the devices.
        comparison = next((candidate for candidate in compared if candidate.name == name), None)
        if comparison is not None:
            ratio = f"{comparison.measured / comparison.predicted:.3f}"
            cells += [format_bytes(comparison.measured), format_bytes(comparison.predicted), ratio]
        table.add_row(name, *cells)
    return table


if __name__ == "__main__":
    typer.run(main)
