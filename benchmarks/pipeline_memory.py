"""Memory of a training step in stages, beside what its schedule says.

The stand-ins share the allocator of the process, which is the GPU's (BFC) and counts bytes:
what is measured is the sum over all devices at the worst moment. One thread computes all tasks.

      predicted    weights, optimizer, gradients
                   + sum over stages: micro-batches alive there x what each of them keeps
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table
from side_by_side import contenders
from side_by_side.chains import feed_forward, mlp, plan_of
from side_by_side.figures import Aim, terminal, write_json
from side_by_side.workers import Worker, closing

from evener.plan import Replica, Stage, schedule_for, timeline
from evener.units import format_bytes

NUM_STAGES = 4
NUM_MICRO_BATCHES = 8
IN_FLIGHT = (1, 2, 4, 8)
MOST_OFF = 0.1
_STEPS = 2
# A backward pass computes two products where the forward pass computes one.
_SECONDS = {"forward": 1.0, "backward": 2.0}


class Settings(NamedTuple):
    """What is trained.

    Attributes:
        num_blocks: Dense layers, or pairs of them.
        width: Of the layers.
        batch_size: Samples of a global batch.
    """

    num_blocks: int
    width: int
    batch_size: int


STACK = Settings(num_blocks=64, width=256, batch_size=8192)
PAIRS = Settings(num_blocks=8, width=256, batch_size=8192)


class StagedStep:
    """A model that trains by ``fit`` in stages, with its memory counted.

    Args:
        num_devices: Logical CPUs, one for each stage.
    """

    def __init__(self, *, num_devices: int) -> None:
        import tensorflow as tf

        contenders.stand_ins(num_devices)
        # One thread for all: what a task needs while it runs would come on top once for every
        # stage that happens to compute at that moment.
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self._devices = [f"cpu:{k}" for k in range(num_devices)]

    def peak(self, kind: str, settings: Settings, optimizer: str, **order: Any) -> dict[str, Any]:
        """Return bytes: at the peak of a step, between steps, and what stages keep.

        Args:
            kind: ``"stack"`` or ``"pairs"``.
            settings: What is trained.
            optimizer: Its name.
            **order: Given to `plan_of`.
        """
        import keras
        import numpy as np
        import tensorflow as tf

        import evener

        keras.utils.set_random_seed(1)
        num_blocks, width, batch_size = settings
        if kind == "stack":
            chain = mlp(num_blocks=num_blocks, width=width, num_classes=None)
        else:
            chain = feed_forward(num_blocks=num_blocks, width=width)
        plan = plan_of(chain, self._devices, **order)
        strategy = evener.Strategy(plan)
        with strategy.scope():
            model = chain.build()
            model.compile(optimizer, "mse")
        x = np.random.default_rng(0).random((batch_size, width), dtype="float32")
        # One batch again and again: those that wait in an input pipeline would count too.
        data = tf.data.Dataset.from_tensors((x, x)).repeat()
        # The first steps trace and make the optimizer's slots.
        model.fit(data, steps_per_epoch=_STEPS, verbose=0)
        tf.config.experimental.reset_memory_stats("CPU:0")
        model.fit(data, steps_per_epoch=_STEPS, verbose=0)
        used = tf.config.experimental.get_memory_info("CPU:0")
        (replica,) = plan.replicas
        return {
            "resting": used["current"],
            "peak": used["peak"],
            "weights": sum(v.shape.num_elements() * 4 for v in model.trainable_variables),
            "kept": kept_bytes(model, strategy, batch_size // replica.num_micro_batches),
        }


def kept_bytes(model: Any, strategy: Any, num_samples: int) -> list[int]:
    """Return for each stage the bytes of what it makes that one micro-batch keeps.

    What a later stage needs again in its backward pass counts here alone: the stand-ins share
    their memory, so it is not copied.
    """
    from evener.engine.keras_bridge import steps_of

    # Not public: what has been cut from the trace of a training step.
    (cut,) = steps_of(model, strategy).functions._made.values()
    needed = {
        id(tensor)
        for stage in cut.stages
        for function in (stage.backward, stage.weight_gradients)
        if function is not None
        for tensor in function.feeds
    }
    return [
        sum(_num_bytes(t, num_samples) for t in stage.forward.fetches if id(t) in needed)
        for stage in cut.stages
    ]


def _num_bytes(tensor: Any, num_samples: int) -> int:
    return tensor.dtype.size * math.prod(num_samples if k is None else k for k in tensor.shape)


def most_kept(replica: Replica, kept: Sequence[int]) -> int:
    """Return the bytes that all stages keep at the worst moment of a step."""
    events = timeline(schedule_for(replica), _SECONDS).events
    changes: list[tuple[float, int]] = []
    for task, begin, end in (event for device in events for event in device):
        if task.kind == "forward":
            changes.append((begin, kept[task.stage]))
        elif task.kind == "backward":
            changes.append((end, -kept[task.stage]))
    # At one time, what is given back goes before what is taken.
    return max(accumulate(change for _, change in sorted(changes)))


def at_most_kept(replica: Replica, kept: Sequence[int]) -> int:
    """Return the bytes that all stages keep if each has its worst moment at the same time."""
    peaks = timeline(schedule_for(replica), _SECONDS).peak_live
    return sum(live * each for live, each in zip(peaks, kept, strict=True))


def measure(
    kind: str, settings: Settings, optimizer: str, num_stages: int, **order: Any
) -> dict[str, Any]:
    """Train in a process of its own; return the bytes measured and those predicted."""
    worker = Worker(
        StagedStep,
        num_devices=num_stages,
        environment={"TF_CPU_ALLOCATOR_USE_BFC": "true"},
    )
    with closing(worker):
        found = worker.call("peak", kind, settings, optimizer, **order)
    stages = tuple(Stage(device=f"cpu:{k}", layers=(f"stage_{k}",)) for k in range(num_stages))
    order.pop("recompute", None)
    replica = Replica(share=1, stages=stages, **order)
    found["predicted"] = most_kept(replica, found["kept"])
    found["at_most"] = at_most_kept(replica, found["kept"])
    return found


def main(
    optimizer: Annotated[str, typer.Option()] = "adam",
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path(
        "results/pipeline_memory.json"
    ),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if an aim is missed")] = False,
) -> None:
    """Compare the peak bytes of steps in stages with what their schedules say."""
    by_in_flight = {
        in_flight: measure(
            "stack",
            STACK,
            optimizer,
            NUM_STAGES,
            num_micro_batches=NUM_MICRO_BATCHES,
            in_flight=in_flight,
        )
        for in_flight in IN_FLIGHT
    }
    again = {
        name: measure(
            "pairs", PAIRS, optimizer, 1, num_micro_batches=4, in_flight=4, recompute=patterns
        )
        for name, patterns in {"kept": (), "computed again": ("block_*",)}.items()
    }
    console = terminal()
    console.print(_table_in_flight(by_in_flight, optimizer))
    console.print(_table_again(again, optimizer))
    aims = [*_aims_in_flight(by_in_flight), _aim_again(again)]
    for aim in aims:
        console.print(str(aim), highlight=False, soft_wrap=True)
    write_json(json, {"in_flight": by_in_flight, "recompute": again}, aims)
    console.print(f"figures: {json}")
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


def _growth(found: Mapping[int, Any], in_flight: int) -> tuple[int, int]:
    """Return how many bytes more than with one micro-batch, measured and predicted."""
    first, this = found[1], found[in_flight]
    return this["peak"] - first["peak"], this["predicted"] - first["predicted"]


def _aims_in_flight(found: Mapping[int, Any]) -> list[Aim]:
    aims = []
    for in_flight in IN_FLIGHT[1:]:
        measured, predicted = _growth(found, in_flight)
        what = f"growth from 1 to {in_flight} in flight, off the prediction"
        aims.append(_aim(what, measured, predicted))
    return aims


def _saving(found: Mapping[str, Any]) -> tuple[int, int]:
    kept, again = found["kept"], found["computed again"]
    return kept["peak"] - again["peak"], kept["predicted"] - again["predicted"]


def _aim_again(found: Mapping[str, Any]) -> Aim:
    return _aim("saved by computing again, off the prediction", *_saving(found))


def _aim(what: str, measured: int, predicted: int) -> Aim:
    off = abs(measured / predicted - 1)
    return Aim(what=what, wanted=MOST_OFF, got=off, at_least=False)


def _table_in_flight(found: Mapping[int, Any], optimizer: str) -> Table:
    weights = format_bytes(found[1]["weights"])
    title = (
        f"{STACK.num_blocks} Dense of {STACK.width}, batch {STACK.batch_size}, {optimizer}: "
        f"{NUM_STAGES} stages, {NUM_MICRO_BATCHES} micro-batches, weights {weights}"
    )
    table = Table(title=title, title_justify="left")
    for heading in ("in flight", "between steps", "peak", "kept, predicted", "at most"):
        table.add_column(heading, justify="right")
    for heading in ("growth", "predicted", "ratio"):
        table.add_column(heading, justify="right")
    for in_flight, used in found.items():
        bytes_used = [used[key] for key in ("resting", "peak", "predicted", "at_most")]
        measured, predicted = _growth(found, in_flight)
        growth = ("", "", "")
        if predicted:
            ratio = f"{measured / predicted:.3f}"
            growth = (format_bytes(measured), format_bytes(predicted), ratio)
        table.add_row(str(in_flight), *map(format_bytes, bytes_used), *growth)
    return table


def _table_again(found: Mapping[str, Any], optimizer: str) -> Table:
    title = (
        f"{PAIRS.num_blocks} layers of Dense {4 * PAIRS.width}, gelu, Dense {PAIRS.width}, "
        f"batch {PAIRS.batch_size}, {optimizer}: 1 stage, 4 micro-batches, 4 in flight"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("inside of the layers", no_wrap=True)
    for heading in ("between steps", "peak", "kept, predicted", "saving", "predicted", "ratio"):
        table.add_column(heading, justify="right")
    measured, predicted = _saving(found)
    for name, used in found.items():
        saving = ("", "", "")
        if name == "computed again":
            ratio = f"{measured / predicted:.3f}"
            saving = (format_bytes(measured), format_bytes(predicted), ratio)
        bytes_used = [used[key] for key in ("resting", "peak", "predicted")]
        table.add_row(name, *map(format_bytes, bytes_used), *saving)
    return table


if __name__ == "__main__":
    typer.run(main)
