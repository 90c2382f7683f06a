"""Rules on memory: what does not fit, and what grows from step to step."""

from __future__ import annotations

import os
from collections.abc import Iterator

from evener.base.text import format_bytes
from evener.doctor.finding import Case, Severity, Violation

_MIB = 2**20
_PROTOBUF = 2**31  # largest graph
_LESS = {
    "cache": "cache to a file, cache('folder/name'), or before what makes elements large "
    "(decoding, augmentation).",
    "shuffle": "shuffle file names or smaller elements, before decoding, and by a smaller buffer.",
    "prefetch": "prefetch(tf.data.AUTOTUNE).",
}


def does_not_fit(case: Case) -> Iterator[Violation]:
    memory, gpus = case.facts.memory, case.surroundings.gpus
    if memory is None or memory.usable is None or memory.total <= memory.usable:
        return
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
    per_gpu = f"({memory.samples} samples per GPU), " if memory.samples != memory.batch_size else ""
    usable = f"{format_bytes(memory.usable)} are usable"
    if not memory.usable:
        usable = "so small a GPU has nothing left beside what the driver and libraries take"
    yield case.violation(
        None if case.steps is None else case.steps.where,
        f"a batch of {memory.batch_size} needs {format_bytes(memory.total)} {per_gpu}and {usable}.",
        case.surroundings.gpus_told,
        why=f"Weights take {format_bytes(memory.weights)}, the optimizer's state "
        f"{format_bytes(memory.optimizer_state)}, gradients {format_bytes(memory.gradients)}, "
        f"activations {format_bytes(memory.activations)}, temporary tensors "
        f"{format_bytes(memory.workspace)}. TensorFlow ends with ResourceExhaustedError (OOM).",
        fix="; or ".join(ways) + ".",
    )


def kept_tensors(case: Case) -> Iterator[Violation]:
    growth = case.facts.growth
    if growth is None or growth.tensors_per_step < 0.9:
        return
    per_step = format_bytes(int(growth.bytes_per_step))
    per_epoch = format_bytes(int(case.per_epoch(growth.bytes_per_step)))
    yield case.violation(
        growth.where,
        f"{growth.tensors_per_step:.0f} tensors more are kept"
        f"{f' in {growth.holder}' if growth.holder else ''} after each step.",
        f"{growth.tensors_per_step:.1f} tensors, {per_step} per step",
        why=f"{per_step} per step stay on the device, {per_epoch} in an epoch: memory runs out "
        "some time.",
        fix="keep numbers, not tensors: float(loss) every 100 steps, or keras.metrics.Mean.",
    )


def large_constants(case: Case) -> Iterator[Violation]:
    found = [
        (
            traced.largest_where or traced.where,
            traced.constant_bytes,
            f"the graph of {traced.name}",
            f" (the largest of shape {traced.largest_constant})",
        )
        for traced in case.facts.traced
        if traced.constant_bytes >= 16 * _MIB
    ]
    found += [
        (data.where, data.constant_bytes, "the input pipeline", "")
        for data in case.facts.pipelines
        if data.constant_bytes >= 512 * _MIB
    ]
    for where, size, what, shape in found:
        yield case.violation(
            where,
            f"{what} holds {format_bytes(size)} of data as constants{shape}.",
            fix="give the data as an argument, batch by batch; or read it from files (TFRecord), "
            "or by from_generator.",
            severity=Severity.ERROR if size >= _PROTOBUF else None,
        )


def buffers(case: Case) -> Iterator[Violation]:
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for data in case.facts.pipelines:
        is_endless = False
        for number, stage in enumerate(data.stages):
            is_endless |= stage.kind == "repeat" and (stage.size is None or stage.size < 0)
            if stage.kind == "cache" and is_endless:
                yield case.violation(
                    stage.where,
                    "cache behind repeat keeps every element of every epoch.",
                    fix="call cache before repeat.",
                )
            if stage.kind not in _LESS:
                continue
            before = data.stages[number - 1] if number else stage
            count = (stage.num_elements if stage.kind == "cache" else stage.size) or 0
            size = stage.element_bytes or before.element_bytes or 0
            if stage.kind == "shuffle" and before.num_elements is not None:
                count = min(count, before.num_elements)
            if count * size > (0.5 if stage.kind == "cache" else 0.25) * there:
                yield case.violation(
                    stage.where,
                    f"{stage.kind} holds {format_bytes(count * size)} in memory.",
                    why=f"{count:,} elements of {format_bytes(size)} each; the machine has "
                    f"{format_bytes(there)}.",
                    fix=_LESS[stage.kind],
                )


def models_in_loop(case: Case) -> Iterator[Violation]:
    for model in case.facts.models:
        if model.num_made >= 3 and model.num_trained >= 2 and not model.num_cleared:
            yield case.violation(
                model.where,
                f"{model.num_made} models are made here, and none is cleared.",
                f"{model.num_parameters:,} parameters each",
                fix="call keras.backend.clear_session() before each new model.",
                severity=None if model.num_made >= 10 else Severity.HINT,
            )
