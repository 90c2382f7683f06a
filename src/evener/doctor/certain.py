"""Rules on the text alone: what is certain without a run and without types.

They judge the calls of the walk. Where a run has reached training steps, its facts decide on what
happens in steps, and those rules here are silent.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from evener.doctor.finding import Case, Severity, Violation
from evener.doctor.placement import OTHERS
from evener.doctor.surroundings import HIDING
from evener.doctor.walk import Call, Items, Loop, Made, Value, constant, made_by, options

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
_BY_IMPORT = (
    "TF_CPP_MIN_LOG_LEVEL",
    "TF_CPP_MAX_VLOG_LEVEL",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_DISABLE_MKL",
    "AUTOGRAPH_VERBOSITY",
)
_BY_START = (
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_ALLOCATOR",
    "TF_GPU_THREAD_MODE",
    "TF_GPU_THREAD_COUNT",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)
_BY_CUDA = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_CUDA = (
    "tf.config.list_physical_devices",
    "tf.config.get_visible_devices",
    "tf.test.is_gpu_available",
    "tf.test.gpu_device_name",
    "tensorflow.python.client.device_lib.list_local_devices",
    "tf.python.client.device_lib.list_local_devices",
)
_UPDATES = ("optimizer.apply_gradients", "optimizer.apply", "optimizer.minimize")
_DATA = ("dataset", "distributed", "batch", "array")


def _starts(call: Call) -> bool:
    name = call.name
    if any(fnmatchcase(name, pattern) for pattern in _NOT):
        return False
    if any(fnmatchcase(name, pattern) for pattern in _STARTS):
        return True
    if name.startswith(("keras.optimizers.", "keras.metrics.")):
        return name.count(".") == 2 and call.method[:1].isupper()
    return name == "keras.Model" and bool(call.args or call.keywords)


def _before(case: Case, call: Call, *, cuda: bool = False) -> Call | None:
    """Return the first call that has started the devices (or CUDA) before another one."""
    for earlier in case.reading.calls:
        if earlier.order >= call.order:
            return None
        if (
            earlier.context.excludes(call.context)
            or earlier.context.guards[: len(call.context.guards)]
            != call.context.guards[: len(earlier.context.guards)]
        ):
            continue
        if "unreached" in earlier.context.roles:
            continue
        if _starts(earlier) or (cuda and earlier.name in _CUDA):
            return earlier
    return None


def late_settings(case: Case) -> Iterator[Violation]:
    """Yield settings of devices behind a call that starts them."""
    if case.facts is not None:
        return
    seen = set[object]()
    in_time = set[str]()
    for call in case.reading.named(*_SETTERS):
        first = None if "unreached" in call.context.roles else _before(case, call)
        if first is None:
            in_time.add(call.name)
        # Memory growth that is set in time may be set to the same once more.
        if first is None or call.node in seen or call.name in in_time:
            continue
        seen.add(call.node)
        caught = call.context.catches
        yield Violation(
            call.location,
            f"{_SETTERS[call.name]} set too late: line {first.location.line} has started the "
            "devices.",
            why="TensorFlow then raises RuntimeError: ... devices cannot be modified after being "
            "initialized."
            + (" The program catches it and goes on without the setting." if caught else ""),
            fix=f"move this before line {first.location.line}, best right after the import.",
            evidence=(first.location.text,),
            severity=Severity.WARNING if caught else None,
        )


def late_variables(case: Case) -> Iterator[Violation]:
    """Yield environment variables that are set behind what reads them."""
    if case.facts is not None:
        return
    for call in case.reading.named("environ"):
        name = call.constant(0, "key")
        if "unreached" in call.context.roles or not isinstance(name, str):
            continue
        reader: Call | None = None
        if name in _BY_IMPORT or name == "KERAS_BACKEND":
            roots = ("tf", "keras") if name in _BY_IMPORT else ("keras",)
            reader = next(
                (
                    each
                    for each in case.reading.named("import")
                    if each.order < call.order
                    and str(each.constant(0, "")).partition(".")[0] in roots
                    and "unreached" not in each.context.roles
                ),
                None,
            )
        elif name in _BY_START or name in _BY_CUDA:
            reader = _before(case, call, cuda=name in _BY_CUDA)
        if reader is None:
            continue
        is_import = reader.name == "import"
        yield Violation(
            call.location,
            f"{name} is set after line {reader.location.line} has read it: {reader.location.text}",
            why="It is read once, when "
            + ("the library is imported" if is_import else "devices are first asked for")
            + ". The value set here is not looked at.",
            fix=f"set {name} in the first lines of the script, before "
            f"{'the import' if is_import else f'line {reader.location.line}'}, or where the "
            "program is started.",
            evidence=(reader.location.text,),
        )


_NAME = re.compile(
    r"/*(job:[\w-]+/)?(replica:\d+/)?(task:\d+/)?(device:\w+:(\d+|\*)|(gpu|cpu|tpu)(:(\d+|\*))?|)\s*",
    re.IGNORECASE,
)
_INDEXED = re.compile(r"(?:device:)?(gpu|cpu):(\d+)$", re.IGNORECASE)


def device_names(case: Case) -> Iterator[Violation]:
    """Yield names of devices that are misspelt, or beyond those of this machine."""
    gpus, around = case.surroundings.gpus, case.surroundings
    cut = any(
        True
        for _ in case.reading.named(
            "tf.config.set_logical_device_configuration",
            "tf.config.set_virtual_device_configuration",
        )
    )
    for call, name in _named_devices(case):
        if "physical_device" in name or not name.strip():
            continue
        match = _INDEXED.search(name.strip())
        if not _NAME.fullmatch(name):
            digits = re.findall(r"\d+", name)
            yield Violation(
                call.location,
                f"{name!r} is no name of a device.",
                why="TensorFlow raises ValueError where it is used.",
                fix=f"write '/{'CPU' if 'cpu' in name.lower() else 'GPU'}:"
                f"{digits[-1] if digits else 0}'.",
                severity=Severity.ERROR,
            )
        elif match and not cut and not call.context.guards and "job:" not in name:
            kind, index = match[1].upper(), int(match[2])
            there = len(gpus) if kind == "GPU" else 1
            if index < there or (kind == "GPU" and (around.is_assumed or not gpus)):
                continue
            yield Violation(
                call.location,
                f"{name!r} does not exist: there {'is' if there == 1 else 'are'} {there} {kind}"
                f"{'' if there == 1 else 's'}.",
                why="With soft placement, TensorFlow runs the operations of a device that does "
                "not exist on another one, without a warning."
                + (" All CPUs of a machine are one device." if kind == "CPU" else ""),
                fix="name one of " + ", ".join(f"/{kind}:{n}" for n in range(there)) + ".",
                evidence=(around.gpus_told,),
            )


def _named_devices(case: Case) -> Iterator[tuple[Call, str]]:
    for call in case.reading.calls:
        given: list[Value | None] = []
        if call.name in ("tf.device", "tf.distribute.OneDeviceStrategy"):
            given = [call.argument(0, "device_name"), call.argument(0, "device")]
        elif call.name in ("tf.distribute.MirroredStrategy",):
            devices = call.argument(0, "devices")
            given = list(devices.values) if isinstance(devices, Items) else []
        for name in dict.fromkeys(constant(each) for each in given):
            if isinstance(name, str):
                yield call, name


# ---- distribution


def _spreads(case: Case) -> bool:
    """Return whether a strategy of several replicas is made, which is not evener's."""
    names = (
        "tf.distribute.MirroredStrategy",
        "tf.distribute.MultiWorkerMirroredStrategy",
        "tf.distribute.CentralStorageStrategy",
        "tf.distribute.TPUStrategy",
    )
    for call in case.reading.named(*names):
        devices = call.argument(0, "devices")
        if not (isinstance(devices, Items) and len(devices.values) == 1):
            return True
    return False


def outside_scope(case: Case) -> Iterator[Violation]:
    """Yield models made outside of the scope that they are compiled or trained in."""
    if not _spreads(case) or any(
        True for _ in case.reading.named("tf.distribute.experimental_set_strategy")
    ):
        return
    seen = set[object]()
    for use in case.reading.named("model.compile", "model.fit"):
        if use.context.scope is None or len(options(use.owner)) != 1:
            continue
        made = made_by(use.owner)
        if (
            made is None
            or made.context.scope is not None
            or not use.is_certain
            or made.node in seen
        ):
            continue
        if "unreached" in made.context.roles or "unreached" in use.context.roles:
            continue
        seen.add(made.node)
        yield Violation(
            made.location,
            "the model is made outside the strategy's scope, and trained under it (line "
            f"{use.location.line}).",
            why="A strategy mirrors only the variables that are made in its scope. Training stops "
            "with 'Mixing different tf.distribute.Strategy objects' or 'Need to be inside \"with "
            "strategy.scope()\"', or runs on one device.",
            fix="create the model in `with strategy.scope():`; for Keras, call compile there.",
            evidence=(use.location.text,),
        )


def optimizer_outside(case: Case) -> Iterator[Violation]:
    """Yield optimizers made outside of the scope that they are used under."""
    if not _spreads(case):
        return
    seen = set[object]()
    for use in case.reading.named("model.compile", *_UPDATES):
        optimizer = use.argument(0, "optimizer") if use.name == "model.compile" else use.owner
        made = made_by(optimizer)
        if (
            made is None
            or made.context.scope is not None
            or not use.is_certain
            or made.node in seen
        ):
            continue
        if not made.name.startswith("keras.optimizers.") or "unreached" in use.context.roles:
            continue
        model = made_by(use.owner) if use.name == "model.compile" else None
        is_under = (
            "replica" in use.context.roles
            or use.context.scope is not None
            or (model is not None and model.context.scope is not None)
        )
        if not is_under:
            continue
        seen.add(made.node)
        plain = made.name.endswith(".SGD") and made.argument(1, "momentum") is None
        yield Violation(
            made.location,
            "the optimizer is made outside the strategy's scope, and used under it (line "
            f"{use.location.line}).",
            why="Its variables are then not mirrored. Where it first makes its slots training "
            "stops: RuntimeError: Mixing different tf.distribute.Strategy objects.",
            fix="create the optimizer in `with strategy.scope():`, beside the model.",
            evidence=(use.location.text,),
            severity=Severity.WARNING if plain else None,
        )


def loop_without_run(case: Case) -> Iterator[Violation]:
    """Yield loops under a strategy that update weights, and never call its `run`."""
    if (
        case.has_trained
        or not _spreads(case)
        or any(
            True
            for _ in case.reading.named(
                "strategy.run",
                "strategy.experimental_run_v2",
                "model.fit",
                "?.run",
                "model.train_on_batch",
            )
        )
    ):
        return
    for update in case.reading.named(*_UPDATES):
        if update.context.loops and "unreached" not in update.context.roles:
            yield Violation(
                update.location,
                "the loop updates weights without strategy.run: one device computes.",
                why="The scope only says where variables live. Outside of strategy.run a step "
                "runs once, on the first device.",
                fix="strategy.run(step, args=(batch,)) on batches of "
                "strategy.experimental_distribute_dataset(dataset); or evener.distribute(step).",
                evidence=(
                    next(
                        call.location.text
                        for call in case.reading.calls
                        if call.name.startswith("tf.distribute.")
                    ),
                ),
            )
            return


def unused_strategy(case: Case) -> Iterator[Violation]:
    """Yield strategies that nothing is done with."""
    if case.has_trained or not _spreads(case):
        return
    used = any(call.name.startswith("strategy.") for call in case.reading.calls) or any(
        True for _ in case.reading.named("tf.distribute.experimental_set_strategy")
    )
    trains = next(case.reading.named("model.fit", *_UPDATES), None)
    if used or trains is None or _handed_out(case):
        return
    for call in case.reading.named("tf.distribute.MirroredStrategy"):
        if not _is_left(call):
            continue
        yield Violation(
            call.location,
            f"{call.method} is made and never used.",
            why="A strategy does nothing by itself: the model is made and trained outside of it, "
            "on one device.",
            fix="make and compile the model in `with strategy.scope():`.",
            evidence=(trains.location.text,),
        )


def _is_left(call: Call) -> bool:
    """Return whether what a call makes gets a name that is nowhere used but to print it."""
    names = {
        target.id
        for node in ast.walk(call.source.tree)
        if isinstance(node, ast.Assign) and node.value is call.node
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    printed = {
        name
        for node in ast.walk(call.source.tree)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
        for name in ast.walk(node)
    }
    return bool(names) and not any(
        isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Load)
        and node.id in names
        and node not in printed
        for node in ast.walk(call.source.tree)
    )


def _handed_out(case: Case) -> bool:
    """Return whether a strategy is given to a function that is not known."""
    return any(
        isinstance(value, Made) and value.kind == "strategy"
        for call in case.reading.calls
        for value in (*call.args, *call.keywords.values())
    )


def no_strategy(case: Case) -> Iterator[Violation]:
    """Yield programs that train on one of several GPUs."""
    around = case.surroundings
    if case.has_trained or len(around.gpus) < 2 or case.reading.imports(*OTHERS):
        return
    for call in case.reading.calls:
        names_gpu = call.name == "tf.device" and re.search(
            r":[1-9]|^$", str(call.constant(0, "device_name") or "")
        )
        if names_gpu or call.name.startswith(("tf.distribute.", "strategy.", "tf.config.set_vis")):
            return
        if call.name == "environ" and call.constant(0, "key") == HIDING:
            return
    trains = next(
        (
            call
            for call in case.reading.named("model.fit", *_UPDATES)
            if "unreached" not in call.context.roles
        ),
        None,
    )
    if trains is not None:
        yield Violation(
            trains.location,
            f"this trains on one of {len(around.gpus)} GPUs: the program has no strategy.",
            why="Without a strategy TensorFlow puts all work on the first GPU; the others idle.",
            fix="`evener run` trains it unchanged on all of them, with the same weights; or make "
            "and compile the model in `with tf.distribute.MirroredStrategy().scope()`.",
            evidence=(around.gpus_told,),
            severity=Severity.HINT if around.is_assumed else None,
        )


def whole_batches(case: Case) -> Iterator[Violation]:
    """Yield calls of `strategy.run` with an element of a dataset that is not distributed."""
    if case.has_trained or not _spreads(case):
        return
    for call in case.reading.named("strategy.run"):
        args = call.argument(1, "args")
        given = args.values if isinstance(args, Items) else ()
        if any(each.kind in ("per_replica", "distributed") for each in given):
            continue
        if not any(
            isinstance(each, Made)
            and each.kind == "batch"
            and each.call is not None
            and each.call.name.startswith(("dataset.", "tf.data."))
            for each in given
        ):
            continue
        if "unreached" in call.context.roles:
            continue
        yield Violation(
            call.location,
            "strategy.run gives the whole batch to every replica: it splits nothing.",
            why="All devices compute the same batch: at the speed of one, and gradients that are "
            "added up over the replicas count each sample once per device.",
            fix="for batch in strategy.experimental_distribute_dataset(dataset): "
            "strategy.run(step, args=(batch,))",
        )


def unscaled_loss(case: Case) -> Iterator[Violation]:
    """Yield losses of a replica that are a plain mean over its samples."""
    if case.has_trained or not _spreads(case):
        return
    text = " ".join(line for source in case.reading.sources for line in source.lines)
    if re.search(
        r"num_replicas_in_sync|compute_average_loss|scale_loss_for|global_batch|"
        r"GLOBAL_BATCH|all_reduce",
        text,
    ):
        return
    for call in case.reading.named("tape.gradient"):
        loss = call.argument(0, "target")
        if "replica" not in call.context.roles or "unreached" in call.context.roles:
            continue
        for value in options(loss):
            made = made_by(value)
            if made is not None and made.method in ("reduce_mean", "mean"):
                yield Violation(
                    made.location,
                    "the loss is the mean over the samples of one replica, not scaled.",
                    why="The strategy adds up the gradients of all replicas: the gradient is "
                    "multiplied by the number of replicas.",
                    fix="tf.nn.compute_average_loss(per_sample_loss, "
                    "global_batch_size=GLOBAL_BATCH_SIZE); or divide the mean by "
                    "strategy.num_replicas_in_sync.",
                    evidence=(call.location.text,),
                )


def per_replica_values(case: Case) -> Iterator[Violation]:
    """Yield values per replica that are used as one number."""
    if case.has_trained or not _spreads(case):
        return
    for call in case.reading.calls:
        used = call.owner if call.method in ("numpy", "item") else None
        if call.name in ("float", "int") and call.args:
            used = call.args[0]
        if not isinstance(used, Made) or used.kind != "per_replica" or used.call is None:
            continue
        if used.call.name != "strategy.run" or not call.is_certain:
            continue
        yield Violation(
            call.location,
            "what strategy.run returns is used as one number: it holds one for each replica.",
            why="With several replicas it is a PerReplica value, which has no numpy() and is no "
            "number.",
            fix="strategy.reduce('SUM', result, axis=None) makes one of it.",
            evidence=(used.call.location.text,),
        )


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
        yield Violation(
            call.location,
            "each training step runs eagerly, operation by operation.",
            why="Python starts each operation of the step; the devices wait for it, and nothing "
            "is fused or run side by side.",
            fix="put the step into a function with @tf.function above it.",
        )
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
    if case.has_trained:
        return
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


def host_reads(case: Case) -> Iterator[Violation]:
    """Yield tensors that are copied to the host in every step of a custom loop."""
    if case.has_trained:
        return
    updated = {
        loop.node
        for call in case.reading.named(*_UPDATES, "model.train_on_batch")
        for loop in call.context.loops
    }
    seen = set[object]()
    for call in case.reading.calls:
        loop = _data_loop(call)
        if loop is None or loop.node not in updated or call.node in seen:
            continue
        roles, inner = call.context.roles, call.context.guards
        if roles & {"traced", "unreached", "keras", "replica", "map"} or inner:
            continue
        reads = (
            call.method == "numpy"
            and call.owner is not None
            and call.owner.kind in ("tensor", "per_replica")
        )
        reads = reads or (
            call.name == "float" and bool(call.args) and call.args[0].kind == "tensor"
        )
        if reads:
            seen.add(call.node)
            yield Violation(
                call.location,
                "a tensor is copied to the host in every step.",
                why="The program waits here until the devices have finished the step, and they "
                "then wait for the program to begin the next one.",
                fix="keep it as a tensor (keras.metrics.Mean, or every 100 steps only), and read "
                "it once per epoch.",
            )


def kept_tensors(case: Case) -> Iterator[Violation]:
    """Yield tensors that a loop over data appends to a list."""
    if case.has_trained:
        return
    for call in case.reading.calls:
        if call.method != "append" or not call.args or not isinstance(call.owner, Items):
            continue
        if call.context.roles & {"traced", "unreached", "keras"} or call.args[0].kind != "tensor":
            continue
        if (
            isinstance(call.args[0], Made)
            and call.args[0].call is not None
            and (call.args[0].call.method in ("numpy", "item"))
        ):
            continue
        trained = {
            loop.node for each in case.reading.named(*_UPDATES) for loop in each.context.loops
        }
        loop = _data_loop(call)
        if loop is None or loop.node not in trained:
            continue
        yield Violation(
            call.location,
            "a list keeps a tensor of every step.",
            why="Each one stays in the memory of its device until the list is gone.",
            fix="keep numbers, not tensors: float(loss) every 100 steps, or keras.metrics.Mean.",
        )


def fork_after_start(case: Case) -> Iterator[Violation]:
    """Yield processes that are forked when TensorFlow has been started."""
    chosen = [
        each.constant(0, "method")
        for each in case.reading.named(
            "multiprocessing.set_start_method", "multiprocessing.get_context"
        )
    ]
    if "spawn" in chosen or "forkserver" in chosen:
        return
    for call in case.reading.named("os.fork", "multiprocessing.Process", "multiprocessing.Pool"):
        first = None if "unreached" in call.context.roles else _before(case, call)
        if first is not None:
            yield Violation(
                call.location,
                f"a process is forked after TensorFlow was started (line {first.location.line}).",
                why="Threads and locks of TensorFlow, and CUDA's state, do not survive a fork: "
                "the child hangs or crashes where it first computes.",
                fix="multiprocessing.set_start_method('spawn'), or start processes before "
                "TensorFlow is used.",
                evidence=(first.location.text,),
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
    for calls in pairs.values():
        seeds = list(case.reading.named("np.random.seed", "random.seed", "tf.random.set_seed"))
        for one, other in itertools.pairwise(calls):
            between = [each for each in seeds if one.order < each.order < other.order]
            texts = {each.written(0, "x") for each in (one, other)}
            if between or one.context.loops != other.context.loops or len(texts) < 2:
                continue
            if _are_pair(case, one, other):
                yield _apart(other, [one, other])


def _shuffle_in(value: Value) -> Call | None:
    made = made_by(value)
    while made is not None and made.name.startswith("dataset."):
        if made.method == "shuffle":
            return made
        made = made_by(made.owner)
    return None


def _are_pair(case: Case, one: Call, other: Call) -> bool:
    """Return whether two arrays are given to one call of fit or from_tensor_slices."""
    names = {one.written(0, "x"), other.written(0, "x")}
    for call in case.reading.named("model.fit", "tf.data.Dataset.from_tensor_slices"):
        text = ast.unparse(call.node)
        if all(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in names):
            return True
    return False


def _apart(call: Call, shuffles: list[Call]) -> Violation:
    return Violation(
        call.location,
        "inputs and labels are shuffled each on its own.",
        why="Each label then belongs to the input of another sample: nothing can be learned.",
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
