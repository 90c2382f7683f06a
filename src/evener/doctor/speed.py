"""Rules on time: what a step waits for, and what is done too often."""

from __future__ import annotations

from collections.abc import Iterator

from evener.doctor.facts import DataStage, Pipeline, Steps, Traced
from evener.doctor.finding import Case, Severity, Violation, shown_seconds

_SOME, _MUCH, _MOST = 0.1, 0.25, 0.6  # parts of a step
_MIN_SECONDS = 0.0005  # of a step; below it the measurement is noise
_WORKLESS = ("batch", "prefetch", "shuffle", "repeat")


def _loops(case: Case) -> Iterator[Steps]:
    """Yield the loops of which steps were timed."""
    return (each for each in case.facts.steps if each.num_timed and each.step_seconds > 0)


def _part(case: Case, seconds: float, steps: Steps) -> str:
    if not steps.step_seconds or seconds <= 0:
        return ""
    return (
        f"{shown_seconds(seconds)} of a step of {shown_seconds(steps.step_seconds)} "
        f"({min(1.0, seconds / steps.step_seconds):.0%}), {shown_seconds(case.per_epoch(seconds))} "
        + ("per epoch" if case.steps and case.steps.steps_per_epoch else "in 1,000 steps")
    )


def slow_input(case: Case) -> Iterator[Violation]:
    data = case.pipeline("train")
    stages = () if data is None else data.stages
    timed = [each for each in stages if each.seconds]
    timed.sort(key=lambda each: -(each.seconds or 0))
    suspects = [each for each in timed if each.kind != "prefetch"]
    suspects += [each for each in stages if each.calls_python or each.reads_files]
    slowest = suspects[0] if suspects else None
    for steps in _loops(case):
        waiting = steps.input_seconds
        part = waiting / steps.step_seconds
        if waiting < max(_SOME * steps.step_seconds, _MIN_SECONDS):
            continue
        is_known = part >= _MUCH and waiting >= 4 * _MIN_SECONDS
        if slowest is not None and slowest.seconds:
            works = slowest.calls_python or slowest.kind not in _WORKLESS
            is_known &= slowest.seconds >= 0.3 * waiting and (works or part >= _MOST)
        # A busy machine lets any process wait.
        elif slowest is None or case.facts.is_machine_busy:
            is_generator = data is not None and data.kind == "generator" and not data.stages
            is_known &= part >= _MOST or (is_generator and not case.facts.is_machine_busy)
        places = [each.where for each in (slowest, data, steps) if each is not None]
        yield case.violation(
            next((each for each in places if each is not None), None),
            f"the devices wait for {'the next batch' if slowest is None else _stage(slowest)}: "
            f"{part:.0%} of a step.",
            _part(case, waiting, steps),
            "of the input, per step: "
            + ", ".join(f"{_stage(each)} {shown_seconds(each.seconds or 0)}" for each in timed[:4])
            if timed
            else "",
            why="Python makes each element, one at a time, while TensorFlow waits for its lock."
            if slowest is not None and slowest.calls_python
            else "",
            fix=_fix(slowest, data),
            severity=None if is_known else Severity.HINT,
            seconds=case.per_epoch(waiting),
        )
        return


def _stage(stage: DataStage) -> str:
    return f"{stage.kind}({stage.function})" if stage.function else stage.kind


def _fix(slowest: DataStage | None, data: Pipeline | None) -> str:
    ways: list[str] = []
    kinds = [] if data is None else [each.kind for each in data.stages]
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
        if "cache" not in kinds and not slowest.is_random and data and data.num_samples is not None:
            ways.append(".cache() behind this map, so that it runs in the first epoch only")
        if not slowest.reads_files and "batch" in kinds[kinds.index("map") :]:
            ways.append("batch first, and map whole batches")
    if kinds and "prefetch" not in kinds:
        ways.append(".prefetch(tf.data.AUTOTUNE) at the end")
    usual = "do its work once, before training, and store the result (TFRecord, cache)"
    return "; ".join(ways or [usual]) + "."


def host_reads(case: Case) -> Iterator[Violation]:
    steps = case.steps
    for read in case.facts.host_reads:
        if steps is None or read.per_step < 0.9 or steps.num_steps < 3:
            continue
        waiting = read.seconds / steps.num_steps
        # A loop that Python keeps busy anyway, as an environment of games, reads what it needs.
        is_busy = steps.outside_seconds > 0.3 * steps.step_seconds > 0 or read.per_step > 2
        is_busy |= case.facts.is_machine_busy
        yield case.violation(
            read.where,
            "a tensor is copied to the host in every step.",
            f"{read.per_step:.0f} reads per step",
            _part(case, waiting, steps),
            fix="keep it as a tensor (keras.metrics.Mean, or every 100 steps only), and read it "
            "once per epoch.",
            severity=Severity.HINT if is_busy else None,
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
    "new function": ("a new function is made each time", "decorate once, outside of the loop."),
    "dtype": ("its arguments have other dtypes each time", "cast them to one dtype before."),
    "structure": (
        "its arguments have another structure each time",
        "give it the same nesting each time.",
    ),
}


def retracing(case: Case) -> Iterator[Violation]:
    num_steps = 0 if case.steps is None else case.steps.num_steps
    for traced in case.facts.traced:
        cause = _cause(traced)
        if cause is None:
            continue
        why, fix = _CAUSES[cause]
        count = max(traced.num_traces, traced.num_made)
        lost = traced.seconds * (count - 1) / count / num_steps if num_steps else 0.0
        yield case.violation(
            traced.where,
            f"{traced.name} is traced {count} times in {max(traced.num_calls, 1)} calls: {why}.",
            f"traces took {shown_seconds(traced.seconds)}",
            *(f"arguments: {each}" for each in traced.arguments[-2:]),
            fix=fix,
            seconds=case.per_epoch(lost) if lost else None,
        )


def _cause(traced: Traced) -> str | None:
    """Return the usual cause of the traces behind the first, None if there are few."""
    if traced.num_made >= 3 and traced.num_made * 2 >= traced.num_calls:
        return "new function"
    known = [each for each in traced.causes if each in _CAUSES]
    # A last batch that is smaller, and variables made in the first trace, are no mistake.
    are_rare = traced.num_traces * 5 < traced.num_calls and traced.num_traces < 10
    if traced.num_traces < 3 or len(known) < 2 or are_rare:
        return None
    return max(known, key=known.count)  # The first of equals


def eager_steps(case: Case) -> Iterator[Violation]:
    facts = case.facts
    switch = [
        each.where
        for each in facts.settings
        if each.name == "run_functions_eagerly" and "True" in each.value
    ]
    by_keras = any(each.trains and each.run_eagerly for each in facts.models)
    for steps in facts.steps:
        is_eager = steps.kind == "eager" or (steps.kind == "fit" and by_keras)
        if not switch and not is_eager:
            continue
        seconds = steps.eager_seconds if steps.num_timed else 0.0
        step = case.reading.eager_step()
        if switch:
            fix = "take tf.config.run_functions_eagerly(True) out."
        elif steps.kind == "fit":
            fix = "take run_eagerly=True out of compile."
        elif step is not None:
            fix = f"{step.change}."
        else:
            fix = "put the step into a function with @tf.function above it."
        yield case.violation(
            switch[0] if switch else steps.where,
            "each training step runs eagerly, operation by operation.",
            f"{steps.num_eager_operations:.0f} operations per step"
            if steps.num_eager_operations
            else f"{steps.num_steps} eager steps",
            _part(case, seconds, steps),
            fix=fix,
            seconds=case.per_epoch(seconds or steps.step_seconds / 2),
        )
        return


def small_batches(case: Case) -> Iterator[Violation]:
    data = case.pipeline("train")
    kinds = [each.kind for each in data.stages] if data and data.kind == "dataset" else ["batch"]
    never = "" if any("batch" in each for each in kinds) else ": the dataset is never batched"
    for steps in _loops(case):
        if max(steps.batch_sizes, default=0) == 1 and steps.num_steps >= 3:
            yield case.violation(
                data.where if data is not None and data.where is not None else steps.where,
                f"each step trains on one sample{never}.",
                _part(case, steps.step_seconds, steps),
                fix="give a batch size, such as .batch(32).",
                seconds=case.per_epoch(steps.step_seconds * 0.9),
            )


def repeated_calls(case: Case) -> Iterator[Violation]:
    steps = case.steps
    for call in case.facts.calls:
        lost = call.seconds / steps.num_steps if steps is not None and steps.num_steps else 0.0
        times = f"{call.kind} is called {call.num_calls} times"
        often = call.num_after_first_step >= 3 and call.per_step >= 0.3
        why = ""
        if call.kind in ("predict", "predict_on_batch") and (call.num_calls >= 10 or often):
            what = f"{times}, in a loop"
            fix = "call model(x, training=False) on one batch, in a tf.function; or predict all "
            fix += "samples at once."
        elif call.kind in ("evaluate", "test_on_batch") and (often or call.num_calls >= 10):
            what = f"{times}, in the training loop"
            why = "The model is validated in (nearly) every step: training waits for it."
            fix = "evaluate once per epoch."
        elif (
            (call.kind == "evaluate" and call.detail and call.num_calls)
            and (steps is not None and steps.steps_per_epoch is not None)
            and int(call.detail) > 2 * steps.steps_per_epoch
            and call.seconds > call.num_calls * case.per_epoch(steps.step_seconds)
        ):
            what = f"each validation takes {call.detail} batches, and the epoch before it "
            what += f"{steps.steps_per_epoch}"
            why = "Training waits for it at the end of each epoch."
            fix = "validation_steps counts batches, not samples: number of samples // batch size; "
            fix += "or validate on fewer samples, or less often (validation_freq)."
        elif call.kind in ("save", "save_weights", "checkpoint") and often:
            what = f"{call.kind} is called in {min(1, call.per_step):.0%} of the steps"
            why = "Each one copies all weights to the host and writes them while training waits."
            fix = "save once per epoch, or every few minutes."
        elif (
            call.kind == "fit"
            and often
            and call.per_step >= 0.5
            and steps
            and (steps.kind == "fit")
        ):
            what = f"{times}, each for a step"
            why = "Each call of fit makes a pipeline, callbacks and a history of its own."
            fix = "call fit once with all data and epochs=N, or train_on_batch in a loop."
        else:
            continue
        detail = f" of {call.detail}" if call.detail and call.kind != "evaluate" else ""
        yield case.violation(
            call.where,
            f"{what}.",
            f"{call.num_calls} calls{detail}",
            "" if steps is None else _part(case, lost, steps),
            why=why,
            fix=fix,
            seconds=case.per_epoch(lost) if lost else None,
        )


def slow_callbacks(case: Case) -> Iterator[Violation]:
    steps = case.steps
    if steps is None or not steps.num_timed or not steps.step_seconds:
        return
    for call in case.facts.calls:
        lost = call.seconds / steps.num_steps
        kind, _, name = call.kind.partition(" ")
        if kind != "callback" or lost < max(0.15 * steps.step_seconds, 2 * _MIN_SECONDS):
            continue
        # At the end of an epoch of a few steps it is no loss.
        is_much = lost > 0.5 * steps.step_seconds and not case.facts.is_machine_busy
        yield case.violation(
            call.where,
            f"the callback {name} takes {lost / steps.step_seconds:.0%} of a step.",
            _part(case, lost, steps),
            fix="do it at the end of an epoch (on_epoch_end, save_freq='epoch', "
            "update_freq='epoch'), or every 100 steps.",
            severity=None if is_much else Severity.HINT,
            seconds=case.per_epoch(lost),
        )


def outside_of_tensorflow(case: Case) -> Iterator[Violation]:
    for steps in _loops(case):
        lost = steps.outside_seconds
        # Between the operations of an eager step is Python too.
        least = max(0.4 * steps.step_seconds, 0.005, 2.0 * steps.eager_seconds)
        if steps.kind != "fit" and lost >= least:
            yield case.violation(
                steps.where,
                f"{lost / steps.step_seconds:.0%} of a step is spent in Python, outside of "
                "TensorFlow.",
                _part(case, lost, steps),
                fix="prepare data in a tf.data pipeline, which runs beside the step, and do the "
                "rest every 100 steps.",
                severity=Severity.HINT if case.facts.is_machine_busy else None,
                seconds=case.per_epoch(lost),
            )


def double_precision(case: Case) -> Iterator[Violation]:
    wide = [each for each in case.facts.variables if each.trainable and each.dtype == "float64"]
    models = [each for each in case.facts.models if each.trains and "float64" in each.policy]
    if models or wide:
        yield case.violation(
            models[0].where if models else wide[0].where,
            "the model computes in float64.",
            *(f"{each.name}: float64" for each in wide[:3]),
            "" if wide else f"policy: {models[0].policy}",
            fix="keras.backend.set_floatx('float32'), and data of float32.",
        )
