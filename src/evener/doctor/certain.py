"""Rules on the text, as far as it is certain: devices, processes, distribution, loops.

They judge the calls of the walk. Where a run has reached training steps, its facts decide on what
happens in steps, and those rules here are silent.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from evener.doctor.facts import AT_DEVICES, AT_IMPORT
from evener.doctor.finding import Case, Severity, Violation
from evener.doctor.numbers import SCALED_LOSS
from evener.doctor.placement import EACH_ITS_PART, OTHERS, forked, without_strategy
from evener.doctor.surroundings import HIDING
from evener.doctor.values import Call, Items, Library, Made, Value, constant, made_by
from evener.run.regions import eager_step_of

_SETTERS = {
    "tf.config.set_memory_growth": "memory growth",
    "tf.config.set_logical_device_configuration": "logical devices",
    "tf.config.set_virtual_device_configuration": "logical devices",
    "tf.config.set_visible_devices": "visible devices",
}
# Calls that start TensorFlow's devices. Measured with TensorFlow 2.21 and Keras 3.15: the import
# starts nothing, nor do listing physical devices, seeds, policies, and models without inputs.
_STARTS = (
    *(
        f"tf.{name}"
        for name in (
            "Variable constant convert_to_tensor zeros zeros_like ones ones_like fill eye range "
            "linspace cast reshape stack concat matmul square add one_hot expand_dims reduce_* "
            "random.normal random.uniform random.truncated_normal random.shuffle "
            "random.stateless_* random.Generator.* io.read_file io.decode_* image.* strings.* "
            "data.Dataset.* data.TFRecordDataset data.TextLineDataset saved_model.load "
            "summary.create_file_writer distribute.*Strategy config.list_logical_devices "
            "config.get_memory_info device"
        ).split()
    ),
    "keras.layers.Dropout",
    "keras.layers.Random*",
    "keras.layers.TextVectorization",
    "keras.Variable",
    "keras.saving.load_model",
    "keras.utils.*_dataset_from_directory",
    "evener.Strategy",
    "tfds.load",
    "model.fit",
    "model.predict",
)
_NOT = ("tf.distribute.get_strategy", "tf.distribute.*.*", "keras.applications.*.*_*")
_CUDA = (
    "tf.config.list_physical_devices tf.config.get_visible_devices tf.test.is_gpu_available "
    "tf.test.gpu_device_name tensorflow.python.client.device_lib.list_local_devices "
    "tf.python.client.device_lib.list_local_devices"
).split()
_UPDATES = ("optimizer.apply_gradients", "optimizer.apply", "optimizer.minimize")
_SPREADING = (
    "tf.distribute.MirroredStrategy",
    "tf.distribute.MultiWorkerMirroredStrategy",
    "tf.distribute.CentralStorageStrategy",
    "tf.distribute.TPUStrategy",
)
_SCALED = re.compile(
    r"num_replicas_in_sync|compute_average_loss|scale_loss_for|(?i:global_batch)|all_reduce"
)
# What makes batches, or may make them.
_BATCHING = {
    *("batch", "padded_batch", "ragged_batch", "window", "map", "apply", "flat_map", "interleave"),
    *("group_by_window", "bucket_by_sequence_length"),
}


def _starts(call: Call) -> bool:
    name = call.name
    if any(fnmatchcase(name, pattern) for pattern in _NOT):
        return False
    if any(fnmatchcase(name, pattern) for pattern in _STARTS):
        return True
    if name.startswith(("keras.optimizers.", "keras.metrics.")):
        return name.count(".") == 2 and call.method[:1].isupper()
    return name == "keras.Model" and bool(call.args or call.keywords)


def _reached(case: Case, *names: str) -> Iterator[Call]:
    """Yield the calls of some names that a line of the program leads to."""
    calls = case.reading.named(*names)
    return (call for call in calls if "unreached" not in call.context.roles)


def _before(case: Case, call: Call, *, cuda: bool = False) -> Call | None:
    """Return the first call that has started the devices (or CUDA) before another one."""
    around = call.context
    for earlier in _reached(case, "*"):
        if earlier.order >= call.order:
            return None
        guards = earlier.context.guards
        if guards[: len(around.guards)] != around.guards[: len(guards)]:
            continue
        is_excluded = earlier.context.excludes(around)
        if not is_excluded and (_starts(earlier) or (cuda and earlier.name in _CUDA)):
            return earlier
    return None


def late_settings(case: Case) -> Iterator[Violation]:
    in_time = set[str]()
    for call in _reached(case, *_SETTERS):
        first = _before(case, call)
        if first is None:
            in_time.add(call.name)
        # Memory growth that is set in time may be set to the same once more.
        if first is None or call.name in in_time:
            continue
        caught = call.context.catches
        yield case.violation(
            call.location,
            f"{_SETTERS[call.name]} set too late: line {first.location.line} has started the "
            "devices.",
            first.location.text,
            why="The program catches TensorFlow's RuntimeError, and goes on without the setting."
            if caught
            else "",
            fix=f"move this before line {first.location.line}, best right after the import.",
            severity=Severity.WARNING if caught else None,
        )


def late_variables(case: Case) -> Iterator[Violation]:
    for call in _reached(case, "environ"):
        name, reader = call.constant(0, "key"), None
        is_import = name in AT_IMPORT
        if is_import:
            roots = ("keras",) if name == "KERAS_BACKEND" else ("tf", "keras")
            imports = (
                each
                for each in _reached(case, "import")
                if each.order < call.order and str(each.constant(0, "")).partition(".")[0] in roots
            )
            reader = next(imports, None)
        elif name in AT_DEVICES:
            reader = _before(case, call, cuda=str(name).startswith("CUDA_"))
        if reader is not None:
            yield case.violation(
                call.location,
                f"{name} is set after line {reader.location.line} has read it: "
                f"{reader.location.text}",
                why="It is read once, when "
                + ("the library is imported" if is_import else "devices are first asked for")
                + ". The value set here is not looked at.",
                fix=f"set {name} in the first lines of the script, before "
                f"{'the import' if is_import else f'line {reader.location.line}'}, or where the "
                "program is started.",
            )


_NAME = re.compile(
    r"/*(job:[\w-]+/)?(replica:\d+/)?(task:\d+/)?(device:\w+:(\d+|\*)|(gpu|cpu|tpu)(:(\d+|\*))?|)\s*",
    re.IGNORECASE,
)
_INDEXED = re.compile(r"(?:device:)?(gpu|cpu):(\d+)$", re.IGNORECASE)


def device_names(case: Case) -> Iterator[Violation]:
    around = case.surroundings
    is_cut = any(
        case.reading.named(
            "tf.config.set_logical_device_configuration",
            "tf.config.set_virtual_device_configuration",
        )
    )
    for call in case.reading.named(
        "tf.device", "tf.distribute.OneDeviceStrategy", "tf.distribute.MirroredStrategy"
    ):
        given = call.argument(0, "devices" if "Mirrored" in call.name else "device_name")
        given = given or call.argument(0, "device")
        for name in map(constant, given.values if isinstance(given, Items) else (given,)):
            if not isinstance(name, str) or "physical_device" in name or not name.strip():
                continue
            match = _INDEXED.search(name.strip())
            if not _NAME.fullmatch(name):
                digits = re.findall(r"\d+", name)
                yield case.violation(
                    call.location,
                    f"{name!r} is no name of a device.",
                    why="TensorFlow raises ValueError where it is used.",
                    fix=f"write '/{'CPU' if 'cpu' in name.lower() else 'GPU'}:"
                    f"{digits[-1] if digits else 0}'.",
                    severity=Severity.ERROR,
                )
            elif match and not is_cut and not call.context.guards and "job:" not in name:
                kind, index = match[1].upper(), int(match[2])
                there = len(around.gpus) if kind == "GPU" else 1
                if index < there or (kind == "GPU" and (around.is_assumed or not around.gpus)):
                    continue
                yield case.violation(
                    call.location,
                    f"{name!r} does not exist: there {'is' if there == 1 else 'are'} {there} "
                    f"{kind}{'' if there == 1 else 's'}.",
                    around.gpus_told,
                    fix="name one of " + ", ".join(f"/{kind}:{n}" for n in range(there)) + ".",
                )


def fork_after_start(case: Case) -> Iterator[Violation]:
    chosen = case.reading.named("multiprocessing.set_start_method", "multiprocessing.get_context")
    if {each.constant(0, "method") for each in chosen} & {"spawn", "forkserver"}:
        return
    for call in _reached(case, "os.fork", "multiprocessing.Process", "multiprocessing.Pool"):
        first = _before(case, call)
        if first is not None:
            yield forked(case, call.location, first.location.line, first.location.text)


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


def whole_batches(case: Case) -> Iterator[Violation]:
    if case.has_trained or not _spreads(case):
        return
    for call in _reached(case, "strategy.run"):
        args = call.argument(1, "args")
        given = args.values if isinstance(args, Items) else ()
        if any(each.kind in ("per_replica", "distributed") for each in given):
            continue
        calls = [each.call for each in given if isinstance(each, Made) and each.kind == "batch"]
        if any(
            call is not None and call.name.startswith(("dataset.", "tf.data.")) for call in calls
        ):
            yield case.violation(
                call.location,
                "strategy.run gives the whole batch to every replica: it splits nothing.",
                fix=EACH_ITS_PART,
            )


def unscaled_loss(case: Case) -> Iterator[Violation]:
    if case.has_trained or not _spreads(case) or _SCALED.search(case.reading.text):
        return
    for call in _reached(case, "tape.gradient"):
        made = made_by(call.argument(0, "target"))
        is_mean = made is not None and made.method in ("reduce_mean", "mean")
        if made is not None and is_mean and "replica" in call.context.roles:
            yield case.violation(
                made.location,
                "the loss is the mean over the samples of one replica, not scaled.",
                call.location.text,
                fix=SCALED_LOSS,
            )


# ---- loops


def eager_steps(case: Case) -> Iterator[Violation]:
    found: list[tuple[Call, str]] = []
    for call in case.reading.named("model.compile", "tf.config.run_functions_eagerly"):
        if call.constant(0 if "config" in call.name else None, "run_eagerly") is True:
            found.append((call, "take this out: it is for debugging."))
    for call in _reached(case, *_UPDATES[:2]) if not case.has_trained else ():
        if call.context.loops and not call.context.roles & {"traced", "keras", "replica"}:
            step = eager_step_of(call.source.text, call.location.line)
            change = "put the step into a tf.function" if step is None else step.change
            found.append((call, f"{change}."))
    for call, fix in found:
        what = "each training step runs eagerly, operation by operation."
        yield case.violation(call.location, what, fix=fix)


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


def never_batched(case: Case) -> Iterator[Violation]:
    for call in case.reading.named("model.fit") if not case.has_trained else ():
        stages: list[Call] = []  # the calls that make the dataset, the last first
        made = made_by(call.argument(0, "x"))
        while made is not None:
            stages.append(made)
            made = made_by(made.owner) if made.name.startswith("dataset.") else None
        source = stages[-1] if stages else None
        if source is None or source.name != "tf.data.Dataset.from_tensor_slices":
            continue
        if not _BATCHING.intersection(each.method for each in stages):
            yield case.violation(
                call.location,
                "the dataset is never batched: each step trains on one sample, or fails.",
                source.location.text,
                fix=f"line {source.location.line}: .batch(32) behind from_tensor_slices.",
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
