"""Rules on time: what a step waits for, and what is done too often."""

from __future__ import annotations

from collections.abc import Iterator

from evener.doctor.facts import DataStage, Pipeline, Steps, Traced
from evener.doctor.finding import Case, Severity, Violation, shown_seconds

_MUCH = 0.25  # part of a step
_SOME = 0.1
_MOST = 0.6
_MIN_SECONDS = 0.0005  # of a step; below it the measurement is noise


def _loops(case: Case) -> Iterator[Steps]:
    """Yield the loops of which steps were timed."""
    for steps in case.facts.steps:
        if steps.num_timed and steps.step_seconds > 0:
            yield steps


def _part(case: Case, seconds: float, steps: Steps) -> str:
    return (
        f"{shown_seconds(seconds)} of a step of {shown_seconds(steps.step_seconds)} "
        f"({min(1.0, seconds / steps.step_seconds):.0%}), {case.epoch_text(seconds)}"
    )


def slow_input(case: Case) -> Iterator[Violation]:
    """Yield loops that wait for their input, with the stage that takes the time."""
    for steps in _loops(case):
        waiting = steps.input_seconds
        if waiting < max(_SOME * steps.step_seconds, _MIN_SECONDS):
            continue
        data = case.pipeline("train")
        slowest = _slowest(data)
        where = (
            slowest.where
            if slowest is not None and slowest.where is not None
            else (steps.where if data is None or data.where is None else data.where)
        )
        name = "the next batch" if slowest is None else _stage(slowest)
        yield Violation(
            case.at(where),
            f"the devices wait for {name}: {waiting / steps.step_seconds:.0%} of a step.",
            why=_why(slowest, data),
            fix=_fix(slowest, data),
            evidence=(_part(case, waiting, steps), *_stages(data)),
            severity=None if _is_known(data, waiting, steps) else Severity.HINT,
            seconds=case.per_epoch(waiting),
        )
        return


def _is_known(data: Pipeline | None, waiting: float, steps: Steps) -> bool:
    """Return whether the wait is a good part of a step, and not that of a busy machine."""
    part = waiting / steps.step_seconds
    if part < _MUCH or waiting < 4 * _MIN_SECONDS:
        return False
    if data is None or not data.stages:
        return part >= _MOST or (data is not None and data.kind == "generator")
    slowest = _slowest(data)
    if slowest is None or not slowest.seconds:
        return part >= _MOST or slowest is not None
    works = slowest.calls_python or slowest.kind not in ("batch", "prefetch", "shuffle", "repeat")
    return slowest.seconds >= 0.3 * waiting and (works or part >= _MOST)


def _slowest(data: Pipeline | None) -> DataStage | None:
    """Return the stage that takes the time: that with the most seconds, else a suspect."""
    if data is None or not data.stages:
        return None
    timed = [each for each in data.stages if each.seconds and each.kind != "prefetch"]
    if timed:
        return max(timed, key=lambda each: each.seconds or 0)
    return next((each for each in data.stages if each.calls_python or each.reads_files), None)


def _stage(stage: DataStage) -> str:
    return f"{stage.kind}({stage.function})" if stage.function else stage.kind


def _stages(data: Pipeline | None) -> tuple[str, ...]:
    timed = [each for each in data.stages if each.seconds] if data is not None else []
    if not timed:
        return ()
    told = sorted(timed, key=lambda each: -(each.seconds or 0))[:4]
    return (
        "of the input, per step: "
        + ", ".join(f"{_stage(each)} {shown_seconds(each.seconds or 0)}" for each in told),
    )


def _why(slowest: DataStage | None, data: Pipeline | None) -> str:
    if slowest is not None and slowest.calls_python:
        return "Python makes each element, one at a time, while TensorFlow waits for its lock."
    if slowest is not None and slowest.kind == "map" and not slowest.is_parallel:
        return "Without num_parallel_calls the elements are made one after the other, on one core."
    if data is not None and not _has(data, "prefetch"):
        return "The next batch is only begun when the devices ask for it."
    return "The pipeline takes longer for a batch than the devices do."


def _has(data: Pipeline, *kinds: str) -> bool:
    return any(each.kind in kinds for each in data.stages)


def _fix(slowest: DataStage | None, data: Pipeline | None) -> str:
    ways: list[str] = []
    if data is None or data.kind in ("generator", "other"):
        ways.append("feed the loop from a tf.data.Dataset, or a keras.utils.PyDataset with workers")
    if slowest is not None and slowest.calls_python:
        ways.append(
            "write the function with TensorFlow's operations"
            if slowest.kind == "map"
            else "read the data by tf.data (from_tensor_slices, TFRecordDataset), or make "
            "whole batches in the generator"
        )
    if slowest is not None and slowest.kind == "map":
        if not slowest.is_parallel:
            ways.append("map(..., num_parallel_calls=tf.data.AUTOTUNE)")
        if (
            data is not None
            and not _has(data, "cache")
            and not slowest.is_random
            and (data.num_samples is not None)
        ):
            ways.append(".cache() behind this map, so that it runs in the first epoch only")
        if data is not None and not slowest.reads_files and _is_before_batch(data, slowest):
            ways.append("batch first, and map whole batches")
    if data is not None and data.stages and not _has(data, "prefetch"):
        ways.append(".prefetch(tf.data.AUTOTUNE) at the end")
    if not ways:
        ways.append("do its work once, before training, and store the result (TFRecord, cache)")
    return "; ".join(ways) + "."


def _is_before_batch(data: Pipeline, stage: DataStage) -> bool:
    kinds = [each.kind for each in data.stages]
    return "batch" in kinds and data.stages.index(stage) < kinds.index("batch")


def host_reads(case: Case) -> Iterator[Violation]:
    """Yield lines that bring a tensor to the host in every step."""
    steps = case.steps
    for read in case.facts.host_reads:
        if steps is None or read.per_step < 0.9 or steps.num_steps < 3:
            continue
        waiting = read.seconds / steps.num_steps
        yield Violation(
            case.at(read.where),
            "a tensor is copied to the host in every step.",
            why="The program waits here until the devices have finished the step, and they then "
            "wait for the program to begin the next one.",
            fix="keep it as a tensor (keras.metrics.Mean, or every 100 steps only), and read it "
            "once per epoch.",
            evidence=(
                f"{read.per_step:.0f} reads per step",
                *([_part(case, waiting, steps)] if steps.step_seconds and waiting > 0 else []),
            ),
            # A loop that Python keeps busy anyway, as an environment of games, reads what it needs.
            severity=Severity.HINT
            if steps.outside_seconds > 0.3 * steps.step_seconds > 0
            else None,
            seconds=case.per_epoch(waiting),
        )


_CAUSES = {
    "shape": (
        "its arguments have other shapes each time",
        "give it input_signature with None for the size that changes, or reduce_retracing=True; "
        "or pad, and drop_remainder=True.",
    ),
    "python value": (
        "it is given numbers of Python, and each new value is a new graph",
        "give it tensors: tf.constant(value), or tf.range for a loop's counter.",
    ),
    "object": (
        "it is given other objects of Python each time",
        "give it tensors, or hand the object in once, by a closure or an attribute.",
    ),
    "new function": (
        "a new function is made each time",
        "decorate once, outside of the loop.",
    ),
    "dtype": ("its arguments have other dtypes each time", "cast them to one dtype before."),
    "structure": (
        "its arguments have another structure each time",
        "give it the same nesting each time.",
    ),
}


def retracing(case: Case) -> Iterator[Violation]:
    """Yield functions that are traced again and again."""
    steps = case.steps
    for traced in case.facts.traced:
        cause = _cause(traced)
        if cause is None:
            continue
        why, fix = _CAUSES[cause]
        count = max(traced.num_traces, traced.num_made)
        num_steps = 0 if steps is None else steps.num_steps
        lost = traced.seconds * (count - 1) / count / num_steps if num_steps else 0.0
        yield Violation(
            case.at(traced.where),
            f"{traced.name} is traced {count} times in {max(traced.num_calls, 1)} calls: {why}.",
            fix=fix,
            evidence=(
                f"traces took {shown_seconds(traced.seconds)}",
                *(f"arguments: {each}" for each in traced.arguments[-2:]),
            ),
            seconds=case.per_epoch(lost) if lost else None,
        )


def _cause(traced: Traced) -> str | None:
    """Return the usual cause of the traces behind the first, None if there are few."""
    if traced.num_made >= 3 and traced.num_made * 2 >= traced.num_calls:
        return "new function"
    if traced.num_traces < 3:
        return None
    known = [each for each in traced.causes if each in _CAUSES]
    # A last batch that is smaller, and variables made in the first trace, are no mistake.
    if len(known) < 2 or (traced.num_traces * 5 < traced.num_calls and traced.num_traces < 10):
        return None
    return max(set(known), key=known.count)


def eager_steps(case: Case) -> Iterator[Violation]:
    """Yield training steps that run operation by operation."""
    facts = case.facts
    switch = next(
        (
            each
            for each in facts.settings
            if each.name == "run_functions_eagerly" and "True" in each.value
        ),
        None,
    )
    for steps in facts.steps:
        model = next((each for each in facts.models if each.trains and each.run_eagerly), None)
        is_eager = steps.kind == "eager" or (steps.kind == "fit" and model is not None)
        if switch is None and not is_eager:
            continue
        seconds = steps.eager_seconds if steps.num_timed else 0.0
        if switch is not None:
            where, fix = switch.where, "take tf.config.run_functions_eagerly(True) out."
        elif steps.kind == "fit":
            where, fix = steps.where, "take run_eagerly=True out of compile."
        else:
            step = case.reading.eager_step()
            where, fix = steps.where, "put the step into a function with @tf.function above it."
            fix = fix if step is None else f"{step.change}."
        yield Violation(
            case.at(where),
            "each training step runs eagerly, operation by operation.",
            why="Python starts each operation of the step; the devices wait for it, and nothing "
            "is fused or run side by side.",
            fix=fix,
            evidence=(
                f"{steps.num_eager_operations:.0f} operations per step"
                if steps.num_eager_operations
                else f"{steps.num_steps} eager steps",
                *([_part(case, seconds, steps)] if seconds and steps.step_seconds else []),
            ),
            seconds=case.per_epoch(seconds or steps.step_seconds / 2),
        )
        return


def small_batches(case: Case) -> Iterator[Violation]:
    """Yield training on single samples."""
    for steps in _loops(case):
        data = case.pipeline("train")
        if not steps.batch_sizes or max(steps.batch_sizes) != 1 or steps.num_steps < 3:
            continue
        is_batched = data is not None and any(
            each.kind in ("batch", "padded_batch", "ragged_batch") for each in data.stages
        )
        yield Violation(
            case.at(data.where if data is not None and data.where is not None else steps.where),
            "each step trains on one sample"
            + (
                "."
                if is_batched or data is None or data.kind != "dataset"
                else ": the dataset is never batched."
            ),
            why="A device is made for many samples at once: a step of 32 takes hardly longer, and "
            "its gradient is less noisy.",
            fix="give a batch size, such as .batch(32).",
            evidence=(_part(case, steps.step_seconds, steps),),
            seconds=case.per_epoch(steps.step_seconds * 0.9),
        )


def repeated_calls(case: Case) -> Iterator[Violation]:
    """Yield predictions, evaluations and saves that are made in every step, or one by one."""
    facts, steps = case.facts, case.steps
    for call in facts.calls:
        lost = call.seconds / steps.num_steps if steps is not None and steps.num_steps else 0.0
        often = call.num_after_first_step >= 3 and call.per_step >= 0.3
        if call.kind in ("predict", "predict_on_batch") and (call.num_calls >= 10 or often):
            what = f"{call.kind} is called {call.num_calls} times, in a loop"
            why = (
                "Each call of predict makes a pipeline and callbacks of its own, for a few samples."
            )
            fix = (
                "call model(x, training=False) on one batch, in a tf.function; or predict all "
                "samples at once."
            )
        elif call.kind in ("evaluate", "test_on_batch") and (often or call.num_calls >= 10):
            what = f"{call.kind} is called {call.num_calls} times, in the training loop"
            why = "The model is validated in (nearly) every step: training waits for it."
            fix = "evaluate once per epoch."
        elif (
            (call.kind == "evaluate" and call.detail and call.num_calls)
            and (steps is not None and steps.steps_per_epoch is not None)
            and int(call.detail) > 2 * steps.steps_per_epoch
            and call.seconds > call.num_calls * case.per_epoch(steps.step_seconds)
        ):
            what = (
                f"each validation takes {call.detail} batches, and the epoch before it "
                f"{steps.steps_per_epoch}"
            )
            why = "Training waits for it at the end of each epoch."
            fix = (
                "validation_steps counts batches, not samples: number of samples // batch size; "
                "or validate on fewer samples, or less often (validation_freq)."
            )
        elif call.kind in ("save", "save_weights", "checkpoint") and often:
            what = f"{call.kind} is called in {min(1, call.per_step):.0%} of the steps"
            why = "Each one copies all weights to the host and writes them while training waits."
            fix = "save once per epoch, or every few minutes."
        elif (
            call.kind == "fit"
            and call.num_calls >= 3
            and call.num_after_first_step >= 3
            and (steps is not None and steps.kind == "fit" and call.per_step >= 0.5)
        ):
            what = f"fit is called {call.num_calls} times, each for a step"
            why = "Each call of fit makes a pipeline, callbacks and a history of its own."
            fix = "call fit once with all data and epochs=N, or train_on_batch in a loop."
        else:
            continue
        detail = f" of {call.detail}" if call.detail and call.kind != "evaluate" else ""
        evidence = (f"{call.num_calls} calls{detail}",)
        if lost and steps is not None and steps.step_seconds:
            evidence = (*evidence, _part(case, lost, steps))
        yield Violation(
            case.at(call.where),
            f"{what}.",
            why=why,
            fix=fix,
            evidence=evidence,
            seconds=case.per_epoch(lost) if lost else None,
        )


def slow_callbacks(case: Case) -> Iterator[Violation]:
    """Yield callbacks that take a good part of a step."""
    facts, steps = case.facts, case.steps
    if steps is None or not steps.num_timed or not steps.step_seconds:
        return
    for call in facts.calls:
        if not call.kind.startswith("callback ") or not steps.num_steps:
            continue
        lost = call.seconds / steps.num_steps
        if lost < max(0.15 * steps.step_seconds, 2 * _MIN_SECONDS):
            continue
        name = call.kind.partition(" ")[2]
        yield Violation(
            case.at(call.where),
            f"the callback {name} takes {lost / steps.step_seconds:.0%} of a step.",
            fix="do it at the end of an epoch (on_epoch_end, save_freq='epoch', "
            "update_freq='epoch'), or every 100 steps.",
            evidence=(_part(case, lost, steps),),
            # At the end of an epoch of a few steps it is no loss.
            severity=None if lost > 0.5 * steps.step_seconds else Severity.HINT,
            seconds=case.per_epoch(lost),
        )


def outside_of_tensorflow(case: Case) -> Iterator[Violation]:
    """Yield loops in which Python, and not TensorFlow, takes the time of a step."""
    for steps in _loops(case):
        lost = steps.outside_seconds
        # Between the operations of an eager step is Python too.
        least = max(0.4 * steps.step_seconds, 0.005, 2.0 * steps.eager_seconds)
        if steps.kind == "fit" or lost < least:
            continue
        yield Violation(
            case.at(steps.where),
            f"{lost / steps.step_seconds:.0%} of a step is spent in Python, outside of TensorFlow.",
            fix="prepare data in a tf.data pipeline, which runs beside the step, and do the rest "
            "every 100 steps.",
            evidence=(_part(case, lost, steps),),
            severity=Severity.HINT if case.facts.is_machine_busy else None,
            seconds=case.per_epoch(lost),
        )


def double_precision(case: Case) -> Iterator[Violation]:
    """Yield models that compute in float64."""
    facts = case.facts
    model = next((each for each in facts.models if each.trains and "float64" in each.policy), None)
    wide = [each for each in facts.variables if each.trainable and each.dtype == "float64"]
    if model is None and not wide:
        return
    where = model.where if model is not None else wide[0].made_in or wide[0].where
    yield Violation(
        case.at(where),
        "the model computes in float64.",
        fix="keras.backend.set_floatx('float32'), and data of float32.",
        evidence=tuple(f"{each.name}: float64" for each in wide[:3])
        or (f"policy: {'' if model is None else model.policy}",),
    )
