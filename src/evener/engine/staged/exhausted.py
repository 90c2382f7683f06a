"""When a device runs out of memory in the first step: smaller micro-batches, or a table.

The global batch stays what it is, so the result stays the same; only more of the
activations are freed before others are made.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import TYPE_CHECKING

import tensorflow as tf

from evener.engine.staged.stages.footprint import Footprint, footprints
from evener.errors import EngineError, warn
from evener.plan import Plan, split_batch
from evener.units import format_bytes

if TYPE_CHECKING:
    from evener.engine.staged.step import Steps

# Where one device runs out of memory, the others may be heard first: they were cancelled.
ERRORS = (tf.errors.ResourceExhaustedError, tf.errors.CancelledError)
_CPU_LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"


def can_happen(plan: Plan) -> bool:
    """Return whether a device of the plan can run out of memory.

    The host's memory ends too, but TensorFlow is then killed and raises nothing, unless it
    was given a limit.
    """
    return _CPU_LIMIT in os.environ or any(device.kind == "gpu" for device in plan.devices)


def smaller(plan: Plan, error: tf.errors.OpError, num_samples: int) -> Plan | None:
    """Return the plan with twice as many micro-batches where memory ran out, or None.

    Args:
        plan: The plan whose step ran out of memory.
        error: Says on which device; without that, all replicas are cut.
        num_samples: Samples of the global batch.

    Returns:
        None if a micro-batch would have less than one sample.
    """
    device = _device_of(error)
    samples = split_batch(num_samples, plan.shares)
    affected = [
        k
        for k, replica in enumerate(plan.replicas)
        if device is None or any(stage.device == device for stage in replica.stages)
    ] or range(len(plan.replicas))
    can_be_cut = [k for k in affected if plan.replicas[k].num_micro_batches * 2 <= samples[k]]
    if not can_be_cut:
        return None
    replicas = tuple(
        dataclasses.replace(replica, num_micro_batches=replica.num_micro_batches * 2)
        if k in can_be_cut
        else replica
        for k, replica in enumerate(plan.replicas)
    )
    return dataclasses.replace(plan, replicas=replicas, predicted=None)


def _device_of(error: tf.errors.OpError) -> str | None:
    """Return the device that TensorFlow names: ``"gpu:1"``. Stand-ins share one memory."""
    match = re.search(r"device:(GPU):(\d+)", error.message)
    return f"{match[1].lower()}:{match[2]}" if match else None


def tell(before: Plan, after: Plan, error: tf.errors.OpError) -> None:
    """Warn, once, that micro-batches are smaller than was asked for."""
    changes = [
        f"replica {k}: {new.num_micro_batches} micro-batches instead of {old.num_micro_batches}"
        for k, (old, new) in enumerate(zip(before.replicas, after.replicas, strict=True))
        if new.num_micro_batches != old.num_micro_batches
    ]
    warn(
        "ENG-050",
        f"Memory ran out in the first step; training goes on with {', '.join(changes)}.",
        why=f"{_reason(error)} The batch is the same, and so is the result; "
        "a step takes a little longer.",
        fix="Write the numbers that strategy.plan shows after training into the plan, so that "
        "the first steps need not find them, or use a smaller batch.",
        stacklevel=5,
    )


def gives_up(steps: Steps, num_samples: int, error: tf.errors.OpError) -> EngineError:
    """Return the error that says what each device would need."""
    return EngineError(
        "ENG-051",
        "The model does not fit, even with the smallest micro-batches.",
        why=f"{_reason(error)} With these micro-batches, a step needs at least:"
        f"{_table(steps, num_samples)}",
        fix="More stages on more devices, recompute=('*',) for activations, owners on 'host' "
        "for large variables, or a smaller model.",
    )


def _reason(error: tf.errors.OpError) -> str:
    """Return what TensorFlow says about the memory, in one sentence."""
    found = re.search(r"OOM when allocating [^\n]*", error.message)
    return f"{found[0][:200]}." if found else "One of the devices had no memory left."


def while_updating(steps: Steps, num_samples: int, error: tf.errors.OpError) -> EngineError:
    """Return the error for memory that ran out too late to take the step again."""
    return EngineError(
        "ENG-052",
        "Memory ran out while weights were updated.",
        why=f"{_reason(error)} Some weights are those of before the step and some of after it, so "
        f"it cannot be taken again. A step needs at least:{_table(steps, num_samples)}",
        fix="Begin again with the weights of before, and with owners on 'host' for large "
        "variables, or on more devices.",
    )


def _table(steps: Steps, num_samples: int) -> str:
    needs = {name: need for name, need in footprints(steps, num_samples).items() if need.total}
    width = max(map(len, needs), default=0)
    return "".join(f"\n    {name:{width}}  {_in_words(need)}" for name, need in needs.items())


def _in_words(need: Footprint) -> str:
    parts = [
        f"{name.replace('_', ' ')} {format_bytes(value)}"
        for name, value in dataclasses.asdict(need).items()
        if value
    ]
    return f"{format_bytes(need.total)}: {', '.join(parts)}"
