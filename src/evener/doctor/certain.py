"""Rules on the text, as far as it is certain: distribution, loops, files.

They judge the calls of the walk. Where a run has reached training steps, its facts decide on what
happens in steps, and those rules here are silent.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from evener.doctor.finding import Case, Severity, Violation
from evener.doctor.placement import OTHERS, without_strategy
from evener.doctor.surroundings import HIDING
from evener.doctor.values import Call, Items, Library, Made, Value, constant, made_by

_UPDATES = ("optimizer.apply_gradients", "optimizer.apply", "optimizer.minimize")
_SPREADING = (
    "tf.distribute.MirroredStrategy",
    "tf.distribute.MultiWorkerMirroredStrategy",
    "tf.distribute.CentralStorageStrategy",
    "tf.distribute.TPUStrategy",
)


def _reached(case: Case, *names: str) -> Iterator[Call]:
    """Yield the calls of some names that a line of the program leads to."""
    calls = case.reading.named(*names)
    return (call for call in calls if "unreached" not in call.context.roles)


# ---- distribution


def _spreads(case: Case) -> bool:
    """Return whether a strategy of several replicas is made, which is not evener's."""
    given = (call.argument(0, "devices") for call in case.reading.named(*_SPREADING))
    return any(not isinstance(each, Items) or len(each.values) != 1 for each in given)


def outside_scope(case: Case) -> Iterator[Violation]:
    if not _spreads(case) or any(case.reading.named("tf.distribute.experimental_set_strategy")):
        return
    for use in _reached(case, "model.compile", "model.fit"):
        made = made_by(use.owner)
        if made is None or not use.context.is_scoped or made.context.is_scoped:
            continue
        if "unreached" not in made.context.roles:
            yield case.violation(
                made.location,
                "the model is made outside the strategy's scope, and trained under it (line "
                f"{use.location.line}).",
                use.location.text,
                fix="create the model in `with strategy.scope():`; for Keras, call compile there.",
            )


def optimizer_outside(case: Case) -> Iterator[Violation]:
    for use in _reached(case, "model.compile", *_UPDATES) if _spreads(case) else ():
        is_compiled = use.name == "model.compile"
        made = made_by(use.argument(0, "optimizer") if is_compiled else use.owner)
        model = made_by(use.owner) if is_compiled else None
        if made is None or made.context.is_scoped:
            continue
        is_under = "replica" in use.context.roles or use.context.is_scoped
        is_under |= model is not None and model.context.is_scoped
        if is_under and made.name.startswith("keras.optimizers."):
            is_plain = made.name.endswith(".SGD") and made.argument(1, "momentum") is None
            yield case.violation(
                made.location,
                "the optimizer is made outside the strategy's scope, and used under it (line "
                f"{use.location.line}).",
                use.location.text,
                fix="create the optimizer in `with strategy.scope():`, beside the model.",
                severity=Severity.WARNING if is_plain else None,
            )


def no_strategy(case: Case) -> Iterator[Violation]:
    around = case.surroundings
    if case.has_trained or len(around.gpus) < 2 or case.reading.imports(*OTHERS):
        return
    for call in case.reading.calls:
        first = str(call.constant(0, "") or "")
        names_gpu = call.name == "tf.device" and re.search(r":[1-9]|^$", first)
        hides = call.name == "environ" and first == HIDING
        chooses = call.name.startswith(("tf.distribute.", "strategy.", "tf.config.set_vis"))
        if names_gpu or hides or chooses:
            return
    for call in _reached(case, "model.fit", *_UPDATES):
        yield without_strategy(case, call.location, around.is_assumed)
        return


# ---- loops


def predict_in_loop(case: Case) -> Iterator[Violation]:
    for call in _reached(case, "model.predict"):
        loop = call.context.loops[-1] if call.context.loops else None
        if loop is None or (isinstance(loop.over, Items) and len(loop.over.values) < 5):
            continue
        made, data = made_by(call.owner), call.argument(0, "x")
        trains = any(
            loop in each.context.loops for each in case.reading.named("model.fit", *_UPDATES)
        )
        # A model of each iteration is asked once.
        is_once = trains or (made is not None and loop in made.context.loops)
        if not is_once and (data is None or data.kind != "dataset"):
            yield case.violation(
                call.location,
                "predict is called in a loop.",
                fix="call model(x, training=False) on one batch, in a tf.function; or predict all "
                "samples at once.",
            )


# ---- numbers that no run shows


def shuffled_apart(case: Case) -> Iterator[Violation]:
    seeds = [*case.reading.named("np.random.seed", "random.seed", "tf.random.set_seed")]
    calls = [*case.reading.named("np.random.shuffle", "random.shuffle", "?.shuffle")]
    for call in case.reading.named("model.fit", "tf.data.Dataset.from_tensor_slices"):
        pair = call.args[0] if len(call.args) == 1 else None
        parts = (pair.values if isinstance(pair, Items) else call.args)[:2]
        if len(parts) < 2:
            continue
        both = [next((s for s in calls if s.args and _holds(s.args[0], p)), None) for p in parts]
        known = [each for each in both if each is not None]
        apart: list[Call] = []
        if len(known) == 2 and known[0].context.loops == known[1].context.loops:
            orders = sorted(each.order for each in known)
            if not any(orders[0] < each.order < orders[1] for each in seeds):
                apart = list(dict.fromkeys(reversed(known)))
        elif len(known) == 1 and known[0].name == "np.random.shuffle":
            other, array = parts[1 if both[0] else 0], made_by(known[0].args[0])
            # What is computed of the shuffled array has its order; indices are not the data.
            made = other.call if isinstance(other, Made) else None
            is_index = array is not None and array.name == "np.arange"
            if made is not None and made.order < known[0].order < call.order and not is_index:
                apart = [known[0], call]
        if len(apart) == 2:
            yield case.violation(
                apart[0].location,
                "inputs and labels are shuffled each on its own.",
                *dict.fromkeys(each.location.text for each in apart),
                fix="shuffle both by one order: order = np.random.permutation(len(x)); "
                "x, y = x[order], y[order].",
            )


def _holds(array: Value, part: Value) -> bool:
    """Return whether a value is an array, or a part of it."""
    if isinstance(array, Library) and isinstance(part, Library):
        return array.name == part.name  # a name that the text does not bind
    if isinstance(array, Made) and isinstance(part, Made) and array.call is not None:
        return array.call is part.call and part.path[: len(array.path)] == array.path
    return array is part


_ENDINGS = {
    "model.save": (".keras", ".h5"),
    "model.save_weights": (".weights.h5",),
    "keras.callbacks.ModelCheckpoint": (".keras", ".h5"),
}


def file_endings(case: Case) -> Iterator[Violation]:
    for call in case.reading.named(*_ENDINGS) if not case.has_keras_2 else ():
        given, endings = call.argument(0, "filepath"), _ENDINGS[call.name]
        if call.constant(None, "save_weights_only") is True:
            endings = (".weights.h5",)
        name = constant(given)
        if name is None and isinstance(call.node, ast.Call) and call.node.args:
            # Of a text that is put together, its end is known.
            written = call.node.args[0]
            end = written.values[-1] if isinstance(written, ast.JoinedStr) else written
            name = getattr(end.right if isinstance(end, ast.BinOp) else end, "value", None)
        is_folder = call.constant(None, "save_format") == "tf"
        if isinstance(name, str) and name and not is_folder and not name.endswith(endings):
            folder = "" if "weights" in endings[0] else "; model.export(folder) writes a SavedModel"
            yield case.violation(
                call.location,
                f"Keras 3 refuses the file name {name!r}.",
                fix=f"end the name in {endings[0]}{folder}.",
            )
