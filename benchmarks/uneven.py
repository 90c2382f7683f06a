"""Two devices that do not match: what the planner makes of them, beside the even split.

      speed    cpu:1 computes at 0.4 of the speed of cpu:0
      memory   cpu:1 has half the memory of cpu:0; half a batch does not fit into it
      both     at once

Stand-ins of one thread each. The slow one has real work to do besides: small matrix products, in
proportion to its samples. Memory is TensorFlow's own limit for the tensors of a process: that of
both devices for those who train on both, that of one for those who train on one.

The limit is the speed of both devices added up, each alone on its core within its memory, by a plan
for it alone, while the other one computes too.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rebalancing import multiply, seconds_per_product
from rich.table import Table
from side_by_side import contenders
from side_by_side.figures import Aim, paired, spread, terminal, write_json
from side_by_side.problems import PROBLEMS, make_loss, make_optimizer
from side_by_side.quiet import Quiet
from side_by_side.turns import compare
from side_by_side.workers import Worker, WorkerError, closing

SPEED_LEFT = 0.4
FAST, SLOW = "cpu:0", "cpu:1"
OPTIMIZER = "adam"
LEAST_OF_LIMIT = 0.95
MEBIBYTE = 2**20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Differences between two devices.

    Attributes:
        problem: A name of `PROBLEMS`.
        is_slowed: Whether the second has work to do besides.
        is_small: Whether memory is limited, and that of the second is half of the first's.
    """

    problem: str
    is_slowed: bool
    is_small: bool


CASES = {
    "speed": Case(problem="mlp", is_slowed=True, is_small=False),
    "memory": Case(problem="deep_transformer", is_slowed=False, is_small=True),
    "both": Case(problem="deep_transformer", is_slowed=True, is_small=True),
}


class Profiled:
    """Profiles a problem on one core, and plans for it."""

    def __init__(self) -> None:
        contenders.stand_ins(2)

    def plans(self, case: Case) -> dict[str, Any]:
        """Return plans as JSON for both devices and for each alone, and what they need.

        Args:
            case: Differences between the devices.
        """
        import numpy as np
        import tensorflow as tf

        from evener.devices import resolve_devices
        from evener.plan import Plan
        from evener.planner import check_plan, plan_profile
        from evener.profile import ClusterDevice, CostProfile
        from evener.profiler.profile import profile_step, trace_keras_step

        problem = PROBLEMS[case.problem]
        size = problem.batch_size
        specs = [
            tf.TensorSpec(array.shape[1:], array.dtype)
            for array in problem.data(np.random.default_rng(1), 2)
        ]
        traced = trace_keras_step(lambda: _compiled(problem), *specs)
        found, _ = profile_step(traced, resolve_devices([FAST, SLOW]), size)
        ((_, times),) = found.times.items()
        slowed = tuple(layer.scaled(1 / SPEED_LEFT) for layer in times) if case.is_slowed else times
        whole = check_plan(Plan.data_parallel([FAST]), found, size).prediction.memory[0].total
        caps = {FAST: whole // 2, SLOW: whole // 4} if case.is_small else {FAST: None, SLOW: None}

        def planned(*names: str) -> Any:
            devices = [
                ClusterDevice(name=name, type=name, memory_bytes=caps[name]) for name in names
            ]
            of_devices = {FAST: times, SLOW: slowed}
            profile = CostProfile(
                model=found.model,
                cluster=dataclasses.replace(found.cluster, devices=tuple(devices)),
                times={name: of_devices[name] for name in names},
                step_overhead_seconds=found.step_overhead_seconds,
            )
            return plan_profile(profile, size)

        both, fast, slow = planned(FAST, SLOW), planned(FAST), planned(SLOW)
        own = sum(layer.forward(size / 2) + layer.backward(size / 2) for layer in times) / (
            size / 2
        )
        amount = (1 / SPEED_LEFT - 1) * own / seconds_per_product("CPU:1")
        return {
            "planned": both.plan.to_json(),
            "fast": fast.plan.to_json(),
            "slow": slow.plan.to_json(),
            "predicted": size / both.prediction.step_seconds,
            "amount": amount if case.is_slowed else 0.0,
            "caps": {name: cap and cap // MEBIBYTE for name, cap in caps.items()},
        }


class Planned:
    """Keras's ``fit`` under a plan, with work besides on the slow device.

    Args:
        plan: Plan as JSON; None for even shares.
        amount: Matrix products for each sample of the slow device.
    """

    def __init__(self, *, plan: str | None, amount: float) -> None:
        contenders.stand_ins(2)
        self._plan = plan
        self._amount = amount

    def prepare(self, name: str, optimizer: str) -> None:
        """Make the model of a problem; forget the one before."""
        import keras

        import evener

        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        if self._plan is None:
            strategy = evener.Strategy(devices=[FAST, SLOW], shares="even")
        else:
            strategy = evener.Strategy(evener.Plan.from_json(self._plan))
        self._replicas = [
            [stage.device for stage in replica.stages] for replica in strategy.plan.replicas
        ]
        if any(len(devices) > 1 for devices in self._replicas):
            raise RuntimeError("work besides is for whole replicas, and this plan has stages")
        # Steps of one replica are timed too, so that it can have work besides.
        strategy.share_controller.count(["/device:CPU:0", "/device:CPU:1"])
        # A step in one part has no part before which the work could be.
        inside = 0.0 if strategy.is_partitioned or [SLOW] not in self._replicas else self._amount
        if self._amount:
            strategy.share_controller.before_part = self._before_part
        with strategy.scope():
            self.model = _compiled(PROBLEMS[name], burden=_burden(inside, replica=0))
        self.dataset = contenders.make_dataset(PROBLEMS[name])
        self._strategy = strategy

    def _before_part(self, replica: int, num_samples: Any) -> Any:
        import tensorflow as tf

        if self._replicas[replica] != [SLOW]:
            return tf.zeros([])
        return multiply(tf.cast(tf.cast(num_samples, tf.float32) * self._amount, tf.int32))

    run = contenders.Fit.run

    def notes(self) -> dict[str, Any]:
        """Return the shares and micro-batches."""
        replicas = self._strategy.plan.replicas
        return {
            "shares": [round(share, 3) for share in self._strategy.shares],
            "micro_batches": [replica.num_micro_batches for replica in replicas],
        }


class Mirrored:
    """Keras's ``fit`` under `MirroredStrategy`, with work besides on the slow device.

    Args:
        amount: Products for each sample of the slow device.
    """

    def __init__(self, *, amount: float) -> None:
        self._devices = contenders.stand_ins(2)
        self._amount = amount

    def prepare(self, name: str, optimizer: str) -> None:
        """Make the model of a problem; forget the one before."""
        import keras

        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        problem = PROBLEMS[name]
        with contenders.mirrored(self._devices).scope():
            self.model = _compiled(problem, burden=_burden(self._amount, replica=1))
        self.dataset = contenders.make_dataset(problem)

    run = contenders.Fit.run

    def notes(self) -> dict[str, Any]:
        """Return nothing: there is nothing else to know."""
        return {}


def _burden(amount: float, *, replica: int) -> Any:
    """Return a layer that hands on what it is given after work in one replica; None for none."""
    if not amount:
        return None
    import keras
    import tensorflow as tf

    class Burden(keras.layers.Layer):
        """Work that results do not depend on."""

        def call(self, x: Any) -> Any:
            context = tf.distribute.get_replica_context()
            number = (
                0
                if context is None
                else tf.get_static_value(tf.convert_to_tensor(context.replica_id_in_sync_group))
            )
            if number != replica:
                return x
            wanted = tf.cast(tf.cast(tf.shape(x)[0], tf.float32) * amount, tf.int32)
            with tf.control_dependencies([multiply(wanted)]):
                return tf.identity(x)

    return Burden()


def _compiled(problem: Any, burden: Any = None) -> Any:
    import keras

    keras.utils.set_random_seed(1)
    model = problem.build()
    if burden is not None:
        inputs = keras.Input(model.input_shape[1:], dtype=model.inputs[0].dtype)
        model = keras.Model(inputs, model(burden(inputs)))
    model.compile(make_optimizer(OPTIMIZER), make_loss(), jit_compile=False)
    return model


def _limited(mebibytes: int | None) -> dict[str, str]:
    if mebibytes is None:
        return {}
    return {
        "TF_CPU_ALLOCATOR_USE_BFC": "true",
        "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(mebibytes),
    }


def teams_of(plans: Mapping[str, Any]) -> dict[str, list[Worker]]:
    """Return the contenders: each is a process, or two that run at once."""
    amount, caps = plans["amount"], plans["caps"]
    together = None if caps[FAST] is None else caps[FAST] + caps[SLOW]

    def alone(name: str, plan: str, core: int) -> Worker:
        settings = {"plan": plans[plan], "amount": amount}
        return Worker(Planned, environment=_limited(caps[name]), cores={core}, **settings)

    both = {"environment": _limited(together), "amount": amount}
    return {
        "planned": [Worker(Planned, plan=plans["planned"], **both)],
        "even": [Worker(Planned, plan=None, **both)],
        "MirroredStrategy": [Worker(Mirrored, **both)],
        "cpu:0 alone": [alone(FAST, "fast", 0)],
        "limit": [alone(FAST, "fast", 0), alone(SLOW, "slow", 1)],
    }


def without_memory(team: list[Worker], problem: str) -> bool:
    """Take a first step; return whether memory ran out."""
    for worker in team:
        worker.call("prepare", problem, OPTIMIZER)
        try:
            worker.call("run", 1)
        except WorkerError as error:
            if "OOM" not in str(error) and "ResourceExhausted" not in str(error):
                raise
            return True
    return False


def measure(
    name: str, console: Any, *, rounds: int, seconds: float, patience: float
) -> dict[str, Any]:
    """Let the contenders of a case train in turns."""
    case = CASES[name]
    profiled = Worker(Profiled, cores={0})
    with closing(profiled):
        plans = profiled.call("plans", case)
    teams = teams_of(plans)
    everybody = [worker for team in teams.values() for worker in team]
    with closing(*everybody):
        died = [who for who, team in teams.items() if without_memory(team, case.problem)]
        running = {who: team for who, team in teams.items() if who not in died}
        pids = tuple(worker.pid for worker in everybody)
        quiet = Quiet(pids=pids, patience_seconds=patience)
        found = compare(
            running, case.problem, quiet, optimizer=OPTIMIZER, rounds=rounds, seconds=seconds
        )
    # Two at once: the mean of their speeds.
    found["samples_per_second"]["limit"] = [
        2 * speed for speed in found["samples_per_second"]["limit"]
    ]
    console.print(_table(name, found, died, plans))
    kept = {key: value for key, value in plans.items() if key in ("predicted", "caps", "amount")}
    return {**found, "out_of_memory": died, **kept, "plan": json.loads(plans["planned"])}


def _table(name: str, found: Mapping[str, Any], died: list[str], plans: Mapping[str, Any]) -> Table:
    caps = [cap for cap in plans["caps"].values() if cap is not None]
    memory = f", memory {caps[0]} and {caps[1]} MiB" if caps else ""
    table = Table(title=f"{name}: {CASES[name].problem}{memory}", title_justify="left")
    for heading in ("", "samples/s", "of the limit", ""):
        table.add_column(heading)
    speeds = found["samples_per_second"]
    for who, some in speeds.items():
        of_limit = paired(some, speeds["limit"]).text(3)
        notes = ", ".join(f"{key} {value}" for key, value in found["notes"][who].items())
        table.add_row(who, spread(some).text(), of_limit, notes)
    for who in died:
        table.add_row(who, "out of memory", "", "")
    table.add_row("planned, as predicted", f"{plans['predicted']:.0f}", "", "")
    return table


def main(
    case: Annotated[list[str] | None, typer.Option(help="speed, memory, both; all")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 7,
    seconds: Annotated[float, typer.Option(min=0.1, help="of a turn")] = 3.0,
    patience: Annotated[
        float, typer.Option(min=0, help="seconds to wait for quiet before each turn")
    ] = 20.0,
    to: Annotated[Path, typer.Option("--json", help="where the figures go")] = Path(
        "results/uneven.json"
    ),
    check: Annotated[bool, typer.Option("--check", help="exit 1 if an aim is missed")] = False,
) -> None:
    """Train on two devices that do not match, by plan, evenly, mirrored, and on the big one."""
    names = case or list(CASES)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(CASES)}")
    console = terminal()
    figures, aims = {}, []
    for name in names:
        figures[name] = measure(name, console, rounds=rounds, seconds=seconds, patience=patience)
        speeds = figures[name]["samples_per_second"]
        aims.append(
            Aim(
                what=f"{name}: planned over the limit",
                wanted=LEAST_OF_LIMIT,
                got=paired(speeds["planned"], speeds["limit"]).median,
            )
        )
    for aim in aims:
        console.print(str(aim), highlight=False, soft_wrap=True)
    write_json(to, figures, aims)
    if check and not all(aim.is_met for aim in aims):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
