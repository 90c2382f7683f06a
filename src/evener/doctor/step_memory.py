"""Costs of the first training step of a program, in bytes: asked by the machinery of `estimate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evener.errors import EvenerError
from evener.plan.profile import ModelCosts
from evener.run.first_step import counted_memory
from evener.run.script import read


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Bytes of a training step, layer by layer.

    Args:
        model: Costs of the layers.
        batch_size: Samples of the program's batch.
    """

    model: ModelCosts
    batch_size: int


def step_memory(
    target: str, args: Sequence[str], *, as_module: bool, time_limit_seconds: float
) -> StepMemory | str:
    """Trace the first training step of a program on the CPU, and count its bytes.

    Returns:
        The bytes; or the reason for which they are not known.
    """
    try:
        script = read(target, as_module=as_module)
        model, batch_size = counted_memory(script, args, time_limit=time_limit_seconds)
    except EvenerError as error:
        return str(error).splitlines()[0]
    if batch_size is None:
        return "the size of its batches is not known before it runs"
    return StepMemory(model=model, batch_size=batch_size)
