"""Rules on the text of training itself: numbers, time and memory, as far as they are certain.

Where a run has reached training steps, its facts decide on what happens in steps, and the rules
here on time and memory are silent.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

from evener.doctor.finding import Case, Violation
from evener.doctor.values import (
    Call,
    Computed,
    Constant,
    Items,
    Loop,
    Made,
    Value,
    constant,
    made_by,
    options,
)
from evener.run.eager_steps import eager_step_of

_UPDATES = ("optimizer.apply_gradients", "optimizer.apply", "optimizer.minimize")

# ---- time and memory


def _data_loop(call: Call) -> Loop | None:
    """Return the innermost loop around a call if it goes through batches of data."""
    for loop in reversed(call.context.loops):
        over = loop.over
        for value in options(over):
            made = made_by(value)
            inner = (
                made.args[0]
                if made is not None
                and made.args
                and made.name in ("enumerate", "tqdm.tqdm", "tqdm.auto.tqdm", "zip", "iter")
                else value
            )
            if inner.kind in ("dataset", "distributed"):
                return loop
    return None


def eager_steps(case: Case) -> Iterator[Violation]:
    """Yield steps of a custom loop that no `tf.function` traces."""
    if case.has_trained:
        return
    seen = set[object]()
    for call in case.reading.named(*_UPDATES):
        roles = call.context.roles
        if roles & {"traced", "unreached", "keras", "replica"} or call.node in seen:
            continue
        if not call.context.loops or call.name == "optimizer.minimize":
            continue
        seen.add(call.node)
        step = eager_step_of("\n".join(call.source.lines), call.location.line)
        yield Violation(
            call.location,
            "each training step runs eagerly, operation by operation.",
            why="Python starts each operation of the step; the devices wait for it, and nothing "
            "is fused or run side by side.",
            fix=f"{'put the step into a tf.function' if step is None else step.change}.",
        )


def eager_switches(case: Case) -> Iterator[Violation]:
    """Yield lines that make TensorFlow run functions eagerly."""
    for call in case.reading.named("model.compile"):
        if call.constant(None, "run_eagerly") is True:
            yield Violation(
                call.location,
                "each training step runs eagerly: run_eagerly=True.",
                why="It is for debugging: Python starts each operation of the step.",
                fix="take run_eagerly=True out.",
            )
    for call in case.reading.named("tf.config.run_functions_eagerly"):
        if call.constant(0, "run_eagerly") is True:
            yield Violation(
                call.location,
                "all tf.functions run eagerly.",
                why="It is for debugging: Python starts each operation of the step.",
                fix="take this line out.",
            )


def predict_in_loop(case: Case) -> Iterator[Violation]:
    """Yield calls of `predict` in a loop of any form."""
    seen = set[object]()
    for call in case.reading.named("model.predict"):
        if not call.context.loops or call.node in seen or "unreached" in call.context.roles:
            continue
        loop = call.context.loops[-1]
        made = made_by(call.owner)
        # A model of each iteration is asked once.
        if made is not None and loop in made.context.loops:
            continue
        if isinstance(loop.over, Items) and len(loop.over.values) < 5:
            continue
        trains = any(
            each.name in ("model.fit", *_UPDATES) and loop in each.context.loops
            for each in case.reading.calls
        )
        data = call.argument(0, "x")
        if trains or (data is not None and data.kind == "dataset"):
            continue
        seen.add(call.node)
        yield Violation(
            call.location,
            "predict is called in a loop.",
            why="Each call of predict makes a pipeline and callbacks of its own, for a few "
            "samples.",
            fix="call model(x, training=False) on one batch, in a tf.function; or predict all "
            "samples at once.",
        )


def never_batched(case: Case) -> Iterator[Violation]:
    """Yield datasets that are given to fit, and never batched."""
    if case.has_trained:
        return
    for call in case.reading.named("model.fit"):
        data = call.argument(0, "x")
        if len(options(data)) != 1 or data is None or data.kind != "dataset":
            continue
        names: list[str] = []
        made = made_by(data)
        while made is not None and made.name.startswith("dataset."):
            names.append(made.method)
            made = made_by(made.owner)
        if made is None or made.name != "tf.data.Dataset.from_tensor_slices":
            continue
        if {
            "batch",
            "padded_batch",
            "ragged_batch",
            "window",
            "map",
            "apply",
            "flat_map",
            "interleave",
            "group_by_window",
            "bucket_by_sequence_length",
        } & set(names):
            continue
        yield Violation(
            call.location,
            "the dataset is never batched: each step trains on one sample, or fails.",
            why="fit takes the elements of a dataset as they are; batch_size does not apply to "
            "them.",
            fix=f"line {made.location.line}: .batch(32) behind from_tensor_slices.",
            evidence=(made.location.text,),
        )


# ---- numbers


def shuffled_apart(case: Case) -> Iterator[Violation]:
    """Yield inputs and labels that are shuffled each on its own."""
    for call in case.reading.named("tf.data.Dataset.zip"):
        given = call.args[0].values if call.args and isinstance(call.args[0], Items) else call.args
        shuffled = [made for each in given if (made := _shuffle_in(each)) is not None]
        if len(shuffled) >= 2 and not all(each.argument(1, "seed") for each in shuffled):
            yield _apart(call, shuffled)
    pairs: dict[str, list[Call]] = {}
    for call in case.reading.named("np.random.shuffle", "?.shuffle", "random.shuffle"):
        if (call.args and call.owner is not None) or call.name != "?.shuffle":
            pairs.setdefault(call.name + repr(call.context.functions[-1:]), []).append(call)
        if call.name == "np.random.shuffle" and (trains := _alone(case, call)) is not None:
            yield _apart(call, [call, trains])
    for calls in pairs.values():
        seeds = list(case.reading.named("np.random.seed", "random.seed", "tf.random.set_seed"))
        for first, second in itertools.pairwise(calls):
            between = [each for each in seeds if first.order < each.order < second.order]
            texts = {each.written(0, "x") for each in (first, second)}
            if between or first.context.loops != second.context.loops or len(texts) < 2:
                continue
            if _are_pair(case, first, second):
                yield _apart(second, [first, second])


def _derives(value: Value | None, base: Value) -> bool:
    """Return whether a value is an array, or a part of it by slicing."""
    if value is base:
        return True
    return (
        isinstance(value, Made)
        and isinstance(base, Made)
        and value.call is base.call
        and value.path[: len(base.path)] == base.path
    )


def _alone(case: Case, shuffle: Call) -> Call | None:
    """Return the call that trains on a shuffled array beside one in its first order."""
    array = shuffle.args[0] if shuffle.args else None
    if not isinstance(array, Made) or array.call is None or array.call.name == "np.arange":
        return None
    shuffled = [each.args[0] for each in case.reading.named("np.random.shuffle") if each.args]
    for call in case.reading.named("model.fit", "tf.data.Dataset.from_tensor_slices"):
        given = call.args
        if len(given) == 1 and isinstance(given[0], Items):
            given = given[0].values
        if len(given) < 2 or (not _derives(given[0], array) and not _derives(given[1], array)):
            continue
        other = given[1] if _derives(given[0], array) else given[0]
        if not isinstance(other, Made) or other.call is None or _derives(other, array):
            continue
        if any(_derives(other, each) for each in shuffled):
            continue
        # What is computed of the shuffled array has its order.
        if other.call.order < shuffle.order < call.order:
            return call
    return None


def _shuffle_in(value: Value) -> Call | None:
    made = made_by(value)
    while made is not None and made.name.startswith("dataset."):
        if made.method == "shuffle":
            return made
        made = made_by(made.owner)
    return None


def _are_pair(case: Case, first: Call, second: Call) -> bool:
    """Return whether two arrays are given to one call of fit or from_tensor_slices."""
    names = {first.written(0, "x"), second.written(0, "x")}
    for call in case.reading.named("model.fit", "tf.data.Dataset.from_tensor_slices"):
        text = ast.unparse(call.node)
        if all(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in names):
            return True
    return False


def _apart(call: Call, shuffles: list[Call]) -> Violation:
    return Violation(
        call.location,
        "inputs and labels are shuffled each on its own.",
        fix="shuffle both by one order: order = np.random.permutation(len(x)); "
        "x, y = x[order], y[order]; or zip the datasets first and shuffle then.",
        evidence=tuple(dict.fromkeys(each.location.text for each in shuffles)),
    )


def made_per_epoch(case: Case) -> Iterator[Violation]:
    """Yield optimizers and compile calls in the loop over epochs of a model made before it."""
    for call in case.reading.calls:
        # Under a condition it may be made once.
        if not call.context.loops or call.context.guards or "unreached" in call.context.roles:
            continue
        loop = call.context.loops[-1]
        if call.name == "model.compile":
            made = made_by(call.owner)
            fits = [
                each
                for each in case.reading.named("model.fit")
                if loop in each.context.loops and made_by(each.owner) is made
            ]
            freezes = any(
                each.name == "set trainable" and loop in each.context.loops
                for each in case.reading.calls
            )
            if made is None or loop in made.context.loops or not fits or freezes:
                continue
            what, lost = (
                "the model is compiled again in every iteration of the loop",
                ("the optimizer's state and the traced step"),
            )
        elif call.name.startswith("keras.optimizers.") and call.name.count(".") == 2:
            uses = [
                each
                for each in case.reading.named(*_UPDATES)
                if made_by(each.owner) is call and loop in each.context.loops
            ]
            models = [
                each
                for each in case.reading.calls
                if loop in each.context.loops
                and (each.name in ("keras.Sequential", "keras.Model", "class"))
            ]
            if not uses or models:
                continue
            what, lost = (
                f"a new {call.method} is made in every iteration of the loop",
                ("the optimizer's state"),
            )
        else:
            continue
        yield Violation(
            call.location,
            f"{what}.",
            why=f"Each time {lost} begin anew: momentum and the count of steps are lost.",
            fix="do it once, before the loop.",
            evidence=(loop_text(call, loop),),
        )


def weights_per_epoch(case: Case) -> Iterator[Violation]:
    """Yield models that are made anew in each epoch."""
    for call in case.reading.named("keras.Sequential", "keras.Model", "class"):
        if not call.context.loops or "unreached" in call.context.roles:
            continue
        loop = call.context.loops[-1]
        if (
            not isinstance(loop.node, ast.For)
            or "epoch" not in ast.unparse(loop.node.target).lower()
        ):
            continue
        if isinstance(call.owner, Value) and call.name == "class" and call.owner.kind != "model":
            continue
        trained = any(
            each.name in ("model.fit", "model.train_on_batch", *_UPDATES, "model.__call__")
            and loop in each.context.loops
            and each.order > call.order
            for each in case.reading.calls
        )
        if trained:
            yield Violation(
                call.location,
                "the model is made anew in every epoch.",
                why="Its weights begin at random each time: what an epoch has learned is lost.",
                fix="make the model once, before the loop.",
                evidence=(loop_text(call, loop),),
            )


def loop_text(call: Call, loop: Loop) -> str:
    """Return the first line of a loop."""
    return call.source.location(loop.node).text


def metric_not_reset(case: Case) -> Iterator[Violation]:
    """Yield metrics of a custom loop that run over all epochs."""
    resets = {
        id(made_by(each.owner))
        for each in case.reading.calls
        if each.method in ("reset_state", "reset_states")
    }
    if any(
        each.method in ("reset_state", "reset_states") and made_by(each.owner) is None
        for each in case.reading.calls
    ):
        return
    seen = set[object]()
    for call in case.reading.calls:
        if call.name not in ("metric.update_state", "metric.__call__", "metric.update"):
            continue
        made = made_by(call.owner)
        if (
            made is None
            or id(made) in resets
            or made.node in seen
            or not made.name.startswith("keras.metrics.")
        ):
            continue
        if call.context.roles & {"unreached", "keras"} or len(call.context.loops) < 2:
            continue
        if made.context.loops or _data_loop(call) is None:
            continue
        seen.add(made.node)
        yield Violation(
            made.location,
            "the metric is updated in every epoch, and never reset.",
            why="From the second epoch on its result is the mean over all epochs so far.",
            fix="call reset_state() on it where an epoch begins.",
            evidence=(call.location.text,),
        )


def constant_seeds(case: Case) -> Iterator[Violation]:
    """Yield random operations that draw the same numbers for each element or step."""
    for call in case.reading.named("tf.random.stateless_*", "tf.image.stateless_random_*"):
        seed = call.keywords.get("seed") or (
            call.argument(1, "seed") if call.name.startswith("tf.random.") else None
        )
        is_fixed = isinstance(seed, Items) and all(isinstance(v, Constant) for v in seed.values)
        if is_fixed and call.context.roles & {"map", "traced", "keras"}:
            yield Violation(
                call.location,
                "each element draws the same random numbers: the seed is a constant.",
                why="Stateless operations give the same numbers for the same seed: all elements "
                "and steps are changed in the same way.",
                fix="make the seed of a counter (tf.data.Dataset.enumerate, tf.random.Generator's "
                "make_seeds), or use tf.image.random_... without a seed.",
            )


def python_in_steps(case: Case) -> Iterator[Violation]:
    """Yield functions of Python that each training step calls from its graph."""
    for call in case.reading.named("tf.py_function", "tf.numpy_function"):
        roles = call.context.roles
        in_step = "keras" in roles or ("traced" in roles and call.context.loops)
        names = {getattr(function, "name", "") for function in call.context.functions}
        if not in_step or "map" in roles or not (names & {"train_step"} or "traced" in roles):
            continue
        yield Violation(
            call.location,
            "each training step calls Python from its graph, and waits for it.",
            why="The values are copied to the host, Python runs alone under its lock, and the "
            "devices wait.",
            fix="use TensorFlow's operations; show a loss by a metric, or every 100 steps.",
        )


_ENDINGS = {"model.save": (".keras", ".h5"), "model.save_weights": (".weights.h5",)}


def file_endings(case: Case) -> Iterator[Violation]:
    """Yield files of models that Keras 3 refuses for their names."""
    if case.has_keras_2:
        return
    for call in case.reading.calls:
        if call.name in _ENDINGS:
            given, endings = call.argument(0, "filepath"), _ENDINGS[call.name]
            if call.constant(None, "save_format") == "tf":
                continue
        elif call.name == "keras.callbacks.ModelCheckpoint":
            only = call.constant(None, "save_weights_only")
            given = call.argument(0, "filepath")
            endings = (".weights.h5",) if only is True else (".keras", ".h5")
        else:
            continue
        last = given.operands[-1] if isinstance(given, Computed) and given.operands else given
        name = constant(last)
        if not isinstance(name, str) or not name or name.endswith(endings):
            continue
        if isinstance(given, Computed) and given.sign not in (ast.JoinedStr, ast.Add):
            continue
        yield Violation(
            call.location,
            f"Keras 3 refuses the file name {name!r}.",
            fix=f"end the name in {endings[0]}"
            + ("" if "weights" in endings[0] else "; model.export(folder) writes a SavedModel")
            + ".",
        )
