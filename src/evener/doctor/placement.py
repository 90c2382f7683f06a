"""Rules on devices and distribution, by what a run shows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from evener.doctor.facts import Setting, StrategyUse
from evener.doctor.finding import Case, Severity, Violation
from evener.doctor.sources import Location
from evener.doctor.surroundings import HIDING

# Who imports one of these spreads the work in another way.
OTHERS = ("horovod", "byteps", "ray", "mpi4py", "evener", "multiprocessing", "deepspeed", "torch")
_VARIABLES = r"[A-Z][A-Z0-9_]+"
EACH_ITS_PART = (
    "for batch in strategy.experimental_distribute_dataset(dataset): "
    "strategy.run(step, args=(batch,))"
)
"""Fix of a step that gives each replica the whole batch."""
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


def _late(case: Case, names: str) -> Iterator[tuple[Setting, int, str]]:
    """Yield late settings, with the line that had read them (0 if not known) and its text."""
    for setting in _settings(case):
        if setting.is_late and re.fullmatch(names, setting.name):
            reader = setting.read_at
            yield setting, reader.line if reader else 0, case.at(reader).text if reader else ""


def late_settings(case: Case) -> Iterator[Violation]:
    for setting, line, text in _late(case, f"(?!fork$|{_VARIABLES}$).*"):
        started = f": line {line} has started them" if line else ""
        yield case.violation(
            setting.where,
            f"{setting.name} comes after the devices were started{started}.",
            text,
            setting.error,
            fix="move this line right after the import of TensorFlow.",
        )


def late_variables(case: Case) -> Iterator[Violation]:
    for setting, line, text in _late(case, f"(?!TF_CONFIG$){_VARIABLES}"):
        yield case.violation(
            setting.where,
            f"{setting.name} is set after it was read{f' (line {line})' if line else ''}.",
            f"{setting.name}={setting.value}",
            text,
            why="The value set here is not looked at.",
            fix=f"set {setting.name} in the first lines of the script, before TensorFlow is "
            "imported, or where the program is started.",
        )


def fork_after_start(case: Case) -> Iterator[Violation]:
    for setting, line, text in _late(case, "fork"):
        yield forked(case, case.at(setting.where), line, text)


def forked(case: Case, location: Location, line: int, text: str) -> Violation:
    """Return that a process is forked after a line has started TensorFlow."""
    return case.violation(
        location,
        f"a process is forked after TensorFlow was started{f' (line {line})' if line else ''}.",
        text,
        fix="multiprocessing.set_start_method('spawn'), or start processes before TensorFlow is "
        "used.",
    )


def missing_devices(case: Case) -> Iterator[Violation]:
    for pin in case.facts.pins:
        # A run on a laptop says nothing of GPUs that are assumed.
        if pin.exists is False and case.surroundings.machine.gpus:
            yield case.violation(
                pin.where,
                f"{pin.device!r} does not exist.",
                fix=f"name one of the {case.surroundings.gpus_told.partition(': ')[2]}, which "
                "begin at /GPU:0.",
            )


def all_on_one(case: Case) -> Iterator[Violation]:
    pins = [each for each in case.facts.pins if each.trains and case.surroundings.gpus]
    if pins and all("cpu" in each.device.lower() for each in pins):
        yield case.violation(
            pins[0].where,
            f"the training step is pinned to {pins[0].device}.",
            case.surroundings.gpus_told,
            fix="take the model and the step out of tf.device; keep input work on the CPU only.",
        )


def no_strategy(case: Case) -> Iterator[Violation]:
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
    return case.violation(
        location,
        f"this trains on one of {len(around.gpus)} GPUs: the program has no strategy.",
        around.gpus_told,
        f"batches of {batch}" if batch else "",
        why="Without a strategy TensorFlow puts all work on one GPU; the others idle."
        + (" A batch of one cannot be split: give a batch size first." if batch == 1 else "")
        + ("" if step is None else f" The step runs eagerly; {step}."),
        fix=f"{fix}.",
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
    around = case.surroundings
    count = len(around.gpus)
    found = [
        (call.location, value, f"{HIDING} is set to {value!r} here")
        for call in case.reading.named("environ")
        if call.constant(0, "key") == HIDING and not call.context.guards
        if isinstance(value := call.constant(1, "value"), str)
    ]
    outer = around.environment.get(HIDING)
    if not found and outer is not None:
        found = [(case.at(None), outer, f"the environment sets {HIDING}={outer!r}")]
    found += [
        (case.at(each.where), "", "set_visible_devices([], 'GPU')")
        for each in _settings(case)
        if each.name == "set_visible_devices" and re.match(r"\(?\[\].*GPU", each.value)
    ]
    is_mirrored = any(case.reading.named("tf.distribute.MirroredStrategy"))
    for location, value, what in found if count else ():
        if hides_all(value):
            yield case.violation(
                location,
                f"{what}: no GPU is left.",
                around.gpus_told,
                fix="take that line out, or name the GPUs to use, such as "
                f"{HIDING}={','.join(str(i) for i in range(count))}.",
                severity=Severity.WARNING if around.is_assumed else Severity.ERROR,
            )
        elif value.count(",") == 0 and count > 1 and is_mirrored:
            yield case.violation(
                location,
                f"{what}: one of {count} GPUs is left to MirroredStrategy.",
                around.gpus_told,
                why="A strategy over one GPU has one replica; the other GPUs idle.",
                fix=f"name more GPUs in {HIDING}, or leave it unset.",
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
    facts = case.facts
    if not facts.steps or any(each.trained for each in facts.strategies):
        return
    for strategy, count in _strategies(case):
        if not strategy.num_scopes and not strategy.num_runs:
            yield case.violation(
                strategy.where,
                f"{strategy.kind} is made and never used.",
                f"0 scopes, 0 runs, {count} replicas",
                fix="make and compile the model in `with strategy.scope():`.",
            )


def loop_without_run(case: Case) -> Iterator[Violation]:
    own = [each for each in case.facts.steps if each.kind not in ("fit", "train_on_batch")]
    for strategy, count in _strategies(case):
        if own and strategy.num_scopes and not strategy.num_runs and not strategy.trained:
            yield case.violation(
                own[0].where,
                f"the loop takes its steps without strategy.run: one of {count} devices computes.",
                f"{own[0].num_steps} steps, 0 calls of strategy.run",
                fix="strategy.run(step, args=(batch,)) on batches of "
                "strategy.experimental_distribute_dataset(dataset); or evener.distribute(step), "
                "in one line.",
            )


def outside_scope(case: Case) -> Iterator[Violation]:
    scoped = [(each, count) for each, count in _strategies(case) if each.num_scopes]
    if not scoped or any(each.trained for each, _ in scoped):
        return
    for model in case.facts.models:
        if model.trains and not model.made_in_scope:
            yield case.violation(
                model.where,
                "the model is made outside the strategy's scope.",
                f"{scoped[0][0].kind} with {scoped[0][1]} replicas",
                fix="create and compile the model in `with strategy.scope():`.",
            )


def whole_batches(case: Case) -> Iterator[Violation]:
    for strategy, count in _strategies(case):
        if strategy.num_plain_batches:
            yield case.violation(
                strategy.where if case.steps is None else case.steps.where,
                "strategy.run gives the whole batch to every replica: it splits nothing.",
                f"{strategy.num_plain_batches} calls with a batch that is not distributed, {count} "
                "replicas",
                fix=EACH_ITS_PART,
            )


def uneven_batch(case: Case) -> Iterator[Violation]:
    for steps in case.facts.steps:
        count = steps.num_replicas
        for batch in steps.batch_sizes[:1] if count > 1 else ():
            each, rest = divmod(batch, count)
            if rest or each <= _FEW_SAMPLES:
                yield case.violation(
                    steps.where,
                    f"a batch of {batch} is {'uneven' if rest else 'small'} for {count} replicas: "
                    f"{each}{f' or {each + 1}' if rest else ''} samples each.",
                    why="A mean over each replica counts their samples differently, and the "
                    "fastest waits for the others."
                    if rest
                    else "A device then waits for its kernels to start and for the sum of the "
                    "gradients more than it computes.",
                    fix="take a size per device times strategy.num_replicas_in_sync, such as "
                    f"{32 * count}.",
                )
                return


def unequal_cards(case: Case) -> Iterator[Violation]:
    made = [
        case.at(each.where) for each in case.facts.strategies if each.kind == "MirroredStrategy"
    ]
    if not case.facts.strategies:
        named = case.reading.named("tf.distribute.MirroredStrategy")
        made = [call.location for call in named]
    if made and case.are_unequal:
        yield case.violation(
            made[0],
            "MirroredStrategy gives unequal GPUs equal shares of each batch.",
            case.surroundings.gpus_told,
            fix="strategy = evener.Strategy(): each card gets the share of the batch that it can "
            "compute in the same time, with the weights of one device.",
        )


def multi_worker(case: Case) -> Iterator[Violation]:
    reading = case.reading
    set_here = [each for each in reading.named("environ") if each.constant(0, "key") == "TF_CONFIG"]
    # A program that asks for it tells its user when it is missing.
    is_known = bool(case.surroundings.environment.get("TF_CONFIG")) or any(
        "TF_CONFIG" in line.partition("#")[0] for source in reading.sources for line in source.lines
    )
    for call in reading.named("tf.distribute.MultiWorkerMirroredStrategy"):
        is_set = any(each.order < call.order for each in set_here)
        if call.argument(None, "cluster_resolver") is not None or is_set or call.context.catches:
            continue
        if set_here:
            late = set_here[0].location
            what = f"is made before TF_CONFIG is set (line {late.line})"
            fix, evidence = f"move line {late.line} before this one.", late.text
        elif is_known:
            continue
        else:
            what = "is made without TF_CONFIG"
            fix = "set TF_CONFIG before, with another task index on each machine; or start the "
            fix += "program by `evener launch`, which needs none. On one machine, take "
            fix += "MirroredStrategy."
            evidence = "TF_CONFIG is set neither here nor in the environment"
        yield case.violation(call.location, f"{call.method} {what}.", evidence, fix=fix)
