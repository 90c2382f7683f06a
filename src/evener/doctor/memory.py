"""Rules on memory: what does not fit, and what grows from step to step."""

from __future__ import annotations

import os
from collections.abc import Iterator

from evener.base.text import format_bytes
from evener.doctor.facts import CodeLine
from evener.doctor.finding import Case, Severity, Violation
from evener.doctor.values import Call, Items, constant

_MIB = 2**20
_PROTOBUF = 2**31  # largest graph


def does_not_fit(case: Case) -> Iterator[Violation]:
    """Yield a step that needs more memory than a card has."""
    memory = case.facts.memory
    if memory is None or memory.usable is None or memory.total <= memory.usable:
        return
    steps = case.steps
    gpus = case.surroundings.gpus
    ways = [f"a batch of {memory.largest_batch} fits"] if memory.largest_batch else []
    if len(gpus) > 1 and memory.samples == memory.batch_size > 1:
        ways.append(
            f"spread the batch over {len(gpus)} GPUs by evener.Strategy(), which gives "
            "each the share that fits it"
        )
    ways.append(
        "evener with micro-batches, which gives the same weights (evener plan)"
        if memory.largest_batch
        else "not even one sample fits: split the model over several GPUs (evener plan)"
    )
    yield Violation(
        case.at(steps.where if steps is not None else None),
        f"a batch of {memory.batch_size} needs {format_bytes(memory.total)} "
        + (f"({memory.samples} samples per GPU), " if memory.samples != memory.batch_size else "")
        + f"and {format_bytes(memory.usable)} are usable.",
        why=f"Weights take {format_bytes(memory.weights)}, the optimizer's state "
        f"{format_bytes(memory.optimizer_state)}, gradients {format_bytes(memory.gradients)}, "
        f"activations {format_bytes(memory.activations)}, temporary tensors "
        f"{format_bytes(memory.workspace)}. TensorFlow ends with ResourceExhaustedError (OOM).",
        fix="; or ".join(ways) + ".",
        evidence=(case.surroundings.gpus_told,),
    )


def kept_tensors(case: Case) -> Iterator[Violation]:
    """Yield tensors that live on after each step."""
    growth = case.facts.growth
    if growth is None or growth.tensors_per_step < 0.9:
        return
    holder = f" in {growth.holder}" if growth.holder else ""
    yield Violation(
        case.at(growth.where),
        f"{growth.tensors_per_step:.0f} tensors more are kept{holder} after each step.",
        why=f"{format_bytes(int(growth.bytes_per_step))} per step stay on the device, "
        f"{format_bytes(int(case.per_epoch(growth.bytes_per_step)))} in "
        "an epoch: memory runs out some time.",
        fix="keep numbers, not tensors: float(loss) every 100 steps, or keras.metrics.Mean.",
        evidence=(
            f"{growth.tensors_per_step:.1f} tensors, "
            f"{format_bytes(int(growth.bytes_per_step))} per step",
        ),
    )


def large_constants(case: Case) -> Iterator[Violation]:
    """Yield data that is a constant of a graph."""
    facts = case.facts
    for traced in facts.traced:
        if traced.constant_bytes >= 16 * _MIB:
            yield _constant(
                case,
                traced.largest_where or traced.where,
                traced.constant_bytes,
                f"the graph of {traced.name}",
                str(traced.largest_constant),
            )
    for data in facts.pipelines:
        if data.constant_bytes >= 512 * _MIB:
            yield _constant(case, data.where, data.constant_bytes, "the input pipeline", "")


def _constant(case: Case, where: CodeLine | None, size: int, what: str, shape: str) -> Violation:
    return Violation(
        case.at(where),
        f"{what} holds {format_bytes(size)} of data as constants"
        + (f" (the largest of shape {shape})." if shape else "."),
        fix="give the data as an argument, batch by batch; or read it from files (TFRecord), or "
        "by from_generator.",
        severity=Severity.ERROR if size >= _PROTOBUF else None,
    )


def buffers(case: Case) -> Iterator[Violation]:
    """Yield caches, shuffles and prefetches that hold more than the machine's memory."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for data in case.facts.pipelines:
        is_endless = False
        for number, stage in enumerate(data.stages):
            if stage.kind == "repeat" and (stage.size is None or stage.size < 0):
                is_endless = True
            if stage.kind == "cache" and is_endless:
                yield Violation(
                    case.at(stage.where),
                    "cache behind repeat keeps every element of every epoch.",
                    why="To the cache the endless data is one long epoch: it grows until memory "
                    "runs out, and is never read.",
                    fix="call cache before repeat.",
                )
            counts = {
                "cache": stage.num_elements,
                "shuffle": stage.size,
                "prefetch": stage.size,
            }
            count = counts.get(stage.kind)
            before = data.stages[number - 1] if number else stage
            size = stage.element_bytes or before.element_bytes
            if not count or count < 0 or not size:
                continue
            if stage.kind == "shuffle" and before.num_elements is not None:
                count = min(count, before.num_elements)
            if count * size > (0.5 if stage.kind == "cache" else 0.25) * there:
                yield Violation(
                    case.at(stage.where),
                    f"{stage.kind} holds {format_bytes(count * size)} in memory.",
                    why=f"{count:,} elements of {format_bytes(size)} each; the machine has "
                    f"{format_bytes(there)}.",
                    fix={
                        "cache": "cache to a file, cache('folder/name'), or before what makes "
                        "elements large (decoding, augmentation).",
                        "shuffle": "shuffle file names or smaller elements, before decoding, and "
                        "by a smaller buffer.",
                    }.get(stage.kind, "prefetch(tf.data.AUTOTUNE)."),
                )


def models_in_loop(case: Case) -> Iterator[Violation]:
    """Yield models that are made in a loop, and stay in memory."""
    facts = case.facts
    for model in facts.models:
        if model.num_made >= 3 and model.num_trained >= 2 and not model.num_cleared:
            yield Violation(
                case.at(model.where),
                f"{model.num_made} models are made here, and none is cleared.",
                fix="call keras.backend.clear_session() before each new model.",
                evidence=(f"{model.num_parameters:,} parameters each",),
                severity=None if model.num_made >= 10 else Severity.HINT,
            )


def constant_sizes(case: Case) -> Iterator[Violation]:
    """Yield layers and arrays that are larger than a card by what the text says."""
    sizes = [gpu.memory_total_bytes for gpu in case.surroundings.gpus]
    known = [size for size in sizes if size]
    if not known or case.facts.memory is not None:
        return
    smallest = min(known)
    for call in case.reading.calls:
        size = _weight_bytes(call) or _array_bytes(call)
        if size > smallest:
            yield Violation(
                call.location,
                f"this alone takes {format_bytes(size)}, more than a GPU has "
                f"({format_bytes(smallest)}).",
                why="TensorFlow ends with ResourceExhaustedError (OOM) where it is made.",
                fix="make it smaller, keep it on the host (evener.pin('cpu:0')), or spread it "
                "over several GPUs.",
                evidence=(case.surroundings.gpus_told,),
            )


def _weight_bytes(call: Call) -> int:
    """Return the bytes of a layer's weights with those of Adam, 0 if the text does not say them."""
    if call.name == "keras.layers.Embedding":
        rows, width = call.constant(0, "input_dim"), call.constant(1, "output_dim")
        if isinstance(rows, int) and isinstance(width, int):
            return 4 * rows * width
    return 0


def _array_bytes(call: Call) -> int:
    if call.name not in ("tf.zeros", "tf.ones", "tf.fill", "tf.random.normal", "tf.random.uniform"):
        return 0
    shape = call.argument(0, "shape")
    if not isinstance(shape, Items) or not shape.values:
        return 0
    count = 4
    for part in map(constant, shape.values):
        if not isinstance(part, int):
            return 0
        count *= part
    return count
