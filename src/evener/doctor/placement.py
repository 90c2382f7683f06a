"""Rules on devices and distribution, by what a run shows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from evener.base.text import format_bytes
from evener.doctor.facts import Setting, StrategyUse
from evener.doctor.finding import Case, Severity, Violation
from evener.doctor.names import canonical
from evener.doctor.sources import Location
from evener.doctor.surroundings import HIDING
from evener.doctor.values import Items

_SPREADING = (
    "MirroredStrategy",
    "CentralStorageStrategy",
    "MultiWorkerMirroredStrategy",
    "Strategy",
    "ParameterServerStrategy",
)
# Who imports one of these spreads the work in another way.
OTHERS = ("horovod", "byteps", "ray", "mpi4py", "evener", "multiprocessing", "deepspeed", "torch")
_VARIABLES = re.compile(r"^[A-Z][A-Z0-9_]+$")
_FEW_SAMPLES = 4
_TINY_STEP = 0.002


def hides_all(value: str) -> bool:
    """Return whether a value of ``CUDA_VISIBLE_DEVICES`` leaves no GPU.

    CUDA stops at the first entry that is not a GPU.

    >>> hides_all(""), hides_all("-1"), hides_all("gpu:0"), hides_all("0,1"), hides_all("GPU-5a")
    (True, True, True, False, False)
    """
    first = value.split(",")[0].strip()
    return not (first.isdigit() or first.startswith(("GPU-", "MIG-")))


def _settings(case: Case) -> Iterator[Setting]:
    """Yield the settings that the program makes, not evener for it."""
    for setting in case.facts.settings:
        if setting.where is not None and "evener" not in case.at(setting.where).text:
            yield setting


def late_settings(case: Case) -> Iterator[Violation]:
    """Yield settings of devices that came too late."""
    for setting in _settings(case):
        if not setting.is_late or _VARIABLES.match(setting.name):
            continue
        reader = (
            "" if setting.read_at is None else f": line {setting.read_at.line} has started them"
        )
        started = () if setting.read_at is None else (case.at(setting.read_at).text,)
        yield Violation(
            case.at(setting.where),
            f"{setting.name} comes after the devices were started{reader}.",
            why="Memory growth, logical and visible devices are fixed from then on. TensorFlow "
            f"raises {setting.error or 'RuntimeError'}"
            + ("" if not setting.error else ", and the program goes on without the setting."),
            fix="move this line right after the import of TensorFlow.",
            evidence=started,
        )


def late_variables(case: Case) -> Iterator[Violation]:
    """Yield environment variables that are set after they were read."""
    for setting in _settings(case):
        if not setting.is_late or not _VARIABLES.match(setting.name):
            continue
        if setting.name == "TF_CONFIG":
            continue
        reader = () if setting.read_at is None else (case.at(setting.read_at).text,)
        yield Violation(
            case.at(setting.where),
            f"{setting.name} is set after it was read"
            + ("." if setting.read_at is None else f" (line {setting.read_at.line})."),
            why="The value set here is not looked at.",
            fix=f"set {setting.name} in the first lines of the script, before TensorFlow is "
            "imported, or where the program is started.",
            evidence=(f"{setting.name}={setting.value}", *reader),
        )


def missing_devices(case: Case) -> Iterator[Violation]:
    """Yield pins to devices that do not exist."""
    for pin in case.facts.pins:
        # A run on a laptop says nothing of GPUs that are assumed.
        if pin.exists is not False or not case.surroundings.machine.gpus:
            continue
        yield Violation(
            case.at(pin.where),
            f"{pin.device!r} does not exist.",
            why="With soft placement, TensorFlow runs the operations of a device that does not "
            "exist on another one, without a warning.",
            fix=f"name one of the {case.surroundings.gpus_told.partition(': ')[2]}, which begin "
            "at /GPU:0.",
        )


def all_on_one(case: Case) -> Iterator[Violation]:
    """Yield training that is pinned to the CPU of a machine with GPUs."""
    pins = [each for each in case.facts.pins if each.trains and case.surroundings.gpus]
    if pins and all("cpu" in each.device.lower() for each in pins):
        yield Violation(
            case.at(pins[0].where),
            f"the training step is pinned to {pins[0].device}.",
            fix="take the model and the step out of tf.device; keep input work on the CPU only.",
            evidence=(case.surroundings.gpus_told,),
        )


def no_strategy(case: Case) -> Iterator[Violation]:
    """Yield programs that train on one of several GPUs."""
    facts, around = case.facts, case.surroundings
    if not facts.steps or len(around.gpus) < 2:
        return
    if facts.strategies or case.reading.imports(*OTHERS) or _is_hidden(case):
        return
    steps = facts.main_steps
    numbers = {
        match for pin in facts.pins for match in re.findall(r"gpu:(\d+)", pin.device.lower())
    }
    if steps is None or len(numbers) > 1:
        return
    batch = max(steps.batch_sizes, default=0)
    is_small = batch == 1 or (steps.num_timed > 0 and steps.step_seconds < _TINY_STEP)
    is_hint = is_small or (around.is_assumed and not _means_gpus(case))
    yield without_strategy(case, case.at(steps.where), is_hint, batch=batch)


def without_strategy(case: Case, location: Location, is_hint: bool, *, batch: int = 0) -> Violation:
    """Return that a line trains on one of several GPUs, with the way to use all of them."""
    around = case.surroundings
    step = case.reading.eager_step()
    if step is not None:
        fix = step.fix
    elif case.are_unequal:
        fix = (
            "`evener run` trains it unchanged on all of them, with the same weights and a share of "
            "each batch that fits each card"
        )
    else:
        fix = (
            "`evener run` trains it unchanged on all of them, with the same weights; or make and "
            "compile the model in `with tf.distribute.MirroredStrategy().scope()`"
        )
    return Violation(
        location,
        f"this trains on one of {len(around.gpus)} GPUs: the program has no strategy.",
        why="Without a strategy TensorFlow puts all work on one GPU; the others idle."
        + (" A batch of one cannot be split: give a batch size first." if batch == 1 else "")
        + ("" if step is None else f" The step runs eagerly; {step}."),
        fix=f"{fix}.",
        evidence=(around.gpus_told, f"batches of {batch}" if batch else ""),
        severity=Severity.HINT if is_hint else None,
    )


def _means_gpus(case: Case) -> bool:
    """Return whether the program speaks of several GPUs: then it is not meant for one."""
    for call in case.reading.calls:
        if call.name in (
            "tf.config.list_physical_devices",
            "tf.config.list_logical_devices",
            "tf.config.set_memory_growth",
        ):
            return True
        if call.name == "environ" and call.constant(0, "") == HIDING:
            return "," in str(call.constant(1, ""))
        if call.name == "tf.device" and re.search(r"gpu:[1-9]", str(call.constant(0, "")).lower()):
            return True
    return False


def _is_hidden(case: Case) -> bool:
    """Return whether the program or its environment chooses its devices itself."""
    facts, environment = case.facts, case.surroundings.environment
    return any(
        (each.name == HIDING and each.value.count(",") == 0) or each.name == "set_visible_devices"
        for each in facts.settings
        # The environment of this machine says nothing of GPUs that are assumed.
        if each.where is not None or each.name in environment
    )


def hidden_gpus(case: Case) -> Iterator[Violation]:
    """Yield settings that hide GPUs from the program."""
    around = case.surroundings
    count = len(around.gpus)
    if count == 0:
        return
    found: list[tuple[Location, str, str]] = []
    for call in case.reading.named("environ"):
        value = call.constant(1, "value")
        if call.constant(0, "key") == HIDING and isinstance(value, str) and not call.context.guards:
            found.append((call.location, value, f"{HIDING} is set to {value!r} here"))
    outer = around.environment.get(HIDING)
    if not found and outer is not None:
        found.append((case.at(None), outer, f"the environment sets {HIDING}={outer!r}"))
    for location, value, what in found:
        if hides_all(value):
            yield Violation(
                location,
                f"{what}: no GPU is left.",
                why="No GPU is seen, and TensorFlow goes on without a word: all work falls to the "
                "CPU.",
                fix="take that line out, or name the GPUs to use, such as "
                f"{HIDING}={','.join(str(i) for i in range(count))}.",
                evidence=(around.gpus_told,),
                severity=Severity.WARNING if around.is_assumed else Severity.ERROR,
            )
        elif (
            value.count(",") == 0
            and count > 1
            and (any(True for _ in case.reading.named("tf.distribute.MirroredStrategy")))
        ):
            yield Violation(
                location,
                f"{what}: one of {count} GPUs is left to MirroredStrategy.",
                why="A strategy over one GPU has one replica; the other GPUs idle.",
                fix=f"name more GPUs in {HIDING}, or leave it unset.",
                evidence=(around.gpus_told,),
            )
    for setting in _settings(case):
        if (
            setting.name == "set_visible_devices"
            and re.match(r"\(?\[\]", setting.value)
            and "GPU" in setting.value
        ):
            yield Violation(
                case.at(setting.where),
                "set_visible_devices([], 'GPU') hides all GPUs.",
                why="All work falls to the CPU.",
                fix="take that line out.",
                evidence=(around.gpus_told,),
            )


def cpu_wheel(case: Case) -> Iterator[Violation]:
    """Yield a TensorFlow without GPU support on a machine with GPUs."""
    gpus = case.surroundings.machine.gpus
    wheels = ("tensorflow-cpu", "tensorflow-cpu-aws", "intel-tensorflow", "tf-nightly-cpu")
    for name in wheels if gpus else ():
        version = case.surroundings.packages.get(name)
        if version is not None:
            yield Violation(
                case.at(None),
                f"the installed TensorFlow has no GPU support: {name} {version}.",
                fix=f"pip uninstall {name}, then pip install 'tensorflow[and-cuda]'.",
                evidence=(f"the machine has {len(gpus)} GPU(s): {gpus[0].name}",),
            )


# ---- distribution


def _strategies(case: Case) -> Iterator[tuple[StrategyUse, int]]:
    """Yield strategies of several replicas, with their number."""
    gpus = len(case.surroundings.gpus)
    for strategy in case.facts.strategies:
        # Of GPUs that are assumed, a run on a laptop has none.
        is_mirrored = strategy.kind == "MirroredStrategy"
        count = max(strategy.num_replicas, gpus if is_mirrored else 1)
        if count > 1:
            yield strategy, count


def unused_strategy(case: Case) -> Iterator[Violation]:
    """Yield strategies that are made, and not trained under."""
    facts = case.facts
    if not facts.steps or any(each.trained for each in facts.strategies):
        return
    for strategy, count in _strategies(case):
        if strategy.num_scopes or strategy.num_runs:
            continue
        yield Violation(
            case.at(strategy.where),
            f"{strategy.kind} is made and never used.",
            why="A strategy does nothing by itself: the model is made and trained outside of it, "
            f"on one of {count} devices.",
            fix="make and compile the model in `with strategy.scope():`.",
            evidence=(f"0 scopes, 0 runs, {count} replicas",),
        )


def loop_without_run(case: Case) -> Iterator[Violation]:
    """Yield custom loops under a strategy that never call its `run`."""
    facts = case.facts
    for strategy, count in _strategies(case):
        own = [each for each in facts.steps if each.kind not in ("fit", "train_on_batch")]
        if own and strategy.num_scopes and not strategy.num_runs and not strategy.trained:
            yield Violation(
                case.at(own[0].where),
                f"the loop takes its steps without strategy.run: one of {count} devices computes.",
                fix="strategy.run(step, args=(batch,)) on batches of "
                "strategy.experimental_distribute_dataset(dataset); or evener.distribute(step), "
                "in one line.",
                evidence=(f"{own[0].num_steps} steps, 0 calls of strategy.run",),
            )


def outside_scope(case: Case) -> Iterator[Violation]:
    """Yield models made outside of the scope of a strategy."""
    facts = case.facts
    scoped = [(each, count) for each, count in _strategies(case) if each.num_scopes]
    for model in facts.models if scoped else ():
        if model.made_in_scope or not model.trains or any(each.trained for each, _ in scoped):
            continue
        yield Violation(
            case.at(model.where),
            "the model is made outside the strategy's scope.",
            why="A strategy mirrors only the variables that are made in its scope: the model "
            "trains on one device, or training stops.",
            fix="create and compile the model in `with strategy.scope():`.",
            evidence=(f"{scoped[0][0].kind} with {scoped[0][1]} replicas",),
        )


def whole_batches(case: Case) -> Iterator[Violation]:
    """Yield strategies whose `run` is given whole batches."""
    for strategy, count in _strategies(case):
        if strategy.num_plain_batches:
            yield Violation(
                case.at(strategy.where if case.steps is None else case.steps.where),
                "strategy.run gives the whole batch to every replica: it splits nothing.",
                fix="for batch in strategy.experimental_distribute_dataset(dataset): "
                "strategy.run(step, args=(batch,))",
                evidence=(
                    f"{strategy.num_plain_batches} calls with a batch that is not "
                    f"distributed, {count} replicas",
                ),
            )


def uneven_batch(case: Case) -> Iterator[Violation]:
    """Yield batches that do not divide by the replicas, or are small for them."""
    for steps in case.facts.steps:
        count = steps.num_replicas
        for batch in steps.batch_sizes[:1] if count > 1 else ():
            if batch % count == 0 and batch // count > _FEW_SAMPLES:
                continue
            uneven = batch % count != 0
            yield Violation(
                case.at(steps.where),
                f"a batch of {batch} is {'uneven' if uneven else 'small'} for {count} replicas: "
                f"{batch // count}{f' or {batch // count + 1}' if uneven else ''} samples each.",
                why="A mean over each replica counts their samples differently, and the fastest "
                "waits for the others."
                if uneven
                else "A device then waits for its kernels to start and for the sum of the "
                "gradients more than it computes.",
                fix=f"take a size per device times strategy.num_replicas_in_sync, such as "
                f"{32 * count}.",
                evidence=(f"{batch} samples, {count} replicas",),
            )
            return


def unequal_cards(case: Case) -> Iterator[Violation]:
    """Yield equal shares for unequal cards."""
    facts = case.facts
    if not case.are_unequal:
        return
    mirrored = next((each for each in facts.strategies if each.kind == "MirroredStrategy"), None)
    if mirrored is None and not facts.strategies:
        call = next(case.reading.named("tf.distribute.MirroredStrategy"), None)
        if call is None:
            return
        location = call.location
    elif mirrored is None:
        return
    else:
        location = case.at(mirrored.where)
    sizes = [each.memory_total_bytes or 0 for each in case.surroundings.gpus]
    yield Violation(
        location,
        "MirroredStrategy gives unequal GPUs equal shares of each batch.",
        why=f"The batch is bounded by the smallest card ({format_bytes(min(sizes))}), and the "
        "fastest waits for the slowest in every step.",
        fix="strategy = evener.Strategy(): each card gets the share of the batch that it can "
        "compute in the same time, with the weights of one device.",
        evidence=(case.surroundings.gpus_told,),
    )


def fewer_devices(case: Case) -> Iterator[Violation]:
    """Yield strategies that train on one of several devices."""
    facts, gpus = case.facts, case.surroundings.gpus
    if len(gpus) < 2 or not facts.steps or case.reading.imports("evener"):
        return
    if any(each.num_replicas > 1 for each in facts.strategies) or _is_hidden(case):
        return
    # Of GPUs that are assumed the run had none: a strategy over all devices has one there.
    chosen = any(
        isinstance(given := call.argument(0, "devices"), Items) and len(given.values) == 1
        for call in case.reading.named("tf.distribute.MirroredStrategy")
    )
    kinds = [each.name.partition(":")[0] for each in facts.devices]
    are_several = max(map(kinds.count, kinds), default=0) > 1
    for strategy in facts.strategies:
        is_one = strategy.kind == "OneDeviceStrategy"
        is_mirrored = strategy.kind == "MirroredStrategy" and (chosen or are_several)
        if strategy.trained and (is_one or is_mirrored):
            yield Violation(
                case.at(strategy.where),
                f"{strategy.kind} has one replica: {len(gpus) - 1} of {len(gpus)} GPUs idle.",
                fix="tf.distribute.MirroredStrategy() without devices, or evener.Strategy().",
                evidence=(case.surroundings.gpus_told, *strategy.devices),
            )


def multi_worker(case: Case) -> Iterator[Violation]:
    """Yield MultiWorkerMirroredStrategy without TF_CONFIG before it."""
    reading = case.reading
    set_here = [each for each in reading.named("environ") if each.constant(0, "key") == "TF_CONFIG"]
    # A program that asks for it tells its user when it is missing.
    reads = not set_here and any(
        "TF_CONFIG" in line.partition("#")[0] for source in reading.sources for line in source.lines
    )
    for call in reading.named("tf.distribute.MultiWorkerMirroredStrategy"):
        if call.argument(None, "cluster_resolver") is not None:
            continue
        before = [each for each in set_here if each.order < call.order]
        if before or call.context.catches:
            continue
        if set_here:
            late = set_here[0].location
            yield Violation(
                call.location,
                f"{call.method} is made before TF_CONFIG is set (line {late.line}).",
                why="The strategy reads it when it is made, and takes this process for the only "
                "worker.",
                fix=f"move line {late.line} before this one.",
                evidence=(late.text,),
            )
        elif not case.surroundings.environment.get("TF_CONFIG") and not reads:
            yield Violation(
                call.location,
                f"{canonical(call.name).rpartition('.')[2]} is made without TF_CONFIG.",
                why="Without it TensorFlow takes this process for the only worker: each machine "
                "trains a model of its own, without a warning.",
                fix="set TF_CONFIG before, with another task index on each machine; or start the "
                "program by `evener launch`, which needs none. On one machine, take "
                "MirroredStrategy.",
                evidence=("TF_CONFIG is set neither here nor in the environment",),
            )
