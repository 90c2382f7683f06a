"""DOC-605: a training step needs more memory than a GPU has."""

from __future__ import annotations

import math
from collections.abc import Iterator

from evener.base.text import format_bytes
from evener.doctor.queries.strategies import the_number_of_replicas
from evener.doctor.queries.training import training_lines
from evener.doctor.rule import Case, Violation
from evener.plan.profile import ModelCosts
from evener.planner.prediction import Way, estimate_memory, largest_batch, usable_memory

_MIXED = "mixed_float16"


def check(case: Case) -> Iterator[Violation]:
    """Yield the violation."""
    sizes = [gpu.memory_total_bytes for gpu in case.surroundings.gpus]
    found = case.memory
    known = [size for size in sizes if size is not None]
    lines = training_lines(case.program)
    if found is None or not known or len(known) != len(sizes) or not lines:
        return
    usable = usable_memory(min(known))
    num_used = min(the_number_of_replicas(case) or 1, found.batch_size)
    # Under tf.distribute each device has all weights, and its part of the batch.
    samples = math.ceil(found.batch_size / num_used)
    needed = estimate_memory(found.model, samples)
    if needed.total <= usable:
        return
    each = "" if num_used == 1 else f" on each of {num_used} GPUs ({samples} samples)"
    yield Violation(
        lines[0],
        f"a batch of {found.batch_size} needs {format_bytes(needed.total)}{each}, of "
        f"{format_bytes(usable)}.",
        why=f"Weights take {format_bytes(needed.weights + needed.other_variables)}, the "
        f"optimizer's state {format_bytes(needed.optimizer_state)}, gradients "
        f"{format_bytes(needed.gradients)}, activations "
        f"{format_bytes(needed.activations + needed.samples)}, temporary tensors "
        f"{format_bytes(needed.workspace)}. TensorFlow ends with ResourceExhaustedError (OOM).",
        fix="; or ".join(_ways(case, found.model, found.batch_size, usable, num_used)) + ".",
        evidence=(
            lines[0].text,
            f"the first step, traced on the CPU; {format_bytes(usable)} of "
            f"{format_bytes(min(known))} are left by the driver and libraries",
        ),
    )


def _ways(
    case: Case, model: ModelCosts, batch_size: int, usable: int, num_used: int
) -> Iterator[str]:
    """Yield the ways to fit, the simplest first."""
    largest = largest_batch(model, usable) * num_used
    if largest:
        yield f"a batch of {largest} fits"
    num_gpus = len(case.surroundings.gpus)
    if num_gpus > num_used:
        samples = math.ceil(batch_size / num_gpus)
        if estimate_memory(model, samples).total <= usable:
            yield f"{num_gpus} GPUs under a strategy, with {samples} samples each"
    if not _is_mixed(case) and _halved(model, math.ceil(batch_size / num_used)) <= usable:
        yield (
            f"mixed precision, keras.mixed_precision.set_global_policy({_MIXED!r}), which about "
            "halves the activations"
        )
    for way, words in _SAVING.items():
        if estimate_memory(model, math.ceil(batch_size / num_used), way).total <= usable:
            yield words
            break
    if not largest:
        yield (
            "not even one sample fits one GPU: split the model over several (evener plan makes "
            "a pipeline), or keep optimizer state on other devices (evener.Strategy)"
        )


_SAVING = {
    Way(num_micro_batches=4): "evener with 4 micro-batches, which gives the same weights",
    Way(num_micro_batches=4, recompute=True): "evener with 4 micro-batches and recomputed layers",
    Way(num_micro_batches=16, recompute=True): "evener with 16 micro-batches and recomputed layers",
}


def _is_mixed(case: Case) -> bool:
    return any("mixed_" in line for module in case.program.modules for line in module.lines)


def _halved(model: ModelCosts, samples: int) -> int:
    """Return the bytes with activations and temporary tensors of half the size."""
    needed = estimate_memory(model, samples)
    return needed.total - (needed.activations + needed.workspace) // 2
