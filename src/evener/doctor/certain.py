"""Rules on the text: devices, processes and distribution, as far as they are certain.

They judge the calls of the walk. Where a run has reached training steps, its facts decide on what
happens in steps, and those rules here are silent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

from evener.doctor.finding import Case, Severity, Violation
from evener.doctor.placement import OTHERS, without_strategy
from evener.doctor.surroundings import HIDING
from evener.doctor.values import Call, Items, Made, Value, constant, made_by, options

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
                fix="multiprocessing.set_start_method('spawn'), or start processes before "
                "TensorFlow is used.",
                evidence=(first.location.text,),
            )


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
            fix="create the optimizer in `with strategy.scope():`, beside the model.",
            evidence=(use.location.text,),
            severity=Severity.WARNING if plain else None,
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
        yield without_strategy(case, trains.location, around.is_assumed)


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
            fix="strategy.reduce('SUM', result, axis=None) makes one of it.",
            evidence=(used.call.location.text,),
        )
