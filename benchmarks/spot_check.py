"""Cost of the spot check: once, beside the training, and in the steps after it.

Two devices of one thread each. A check is held back until the first steps are over, and takes its
processor seconds alone; later steps with it and without it take turns.
"""

from __future__ import annotations

import math
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table
from side_by_side import contenders
from side_by_side.figures import Aim, spread, terminal, write_json
from side_by_side.quiet import Quiet
from side_by_side.workers import Worker, closing

ON, OFF = "checked", "not checked"
GAN, _NOISE, _PIXELS = "gan", 32, 784


def _strategy(verify: bool | None, devices: list[str]) -> Any:
    import evener

    return evener.Strategy(devices=[name.lower() for name in devices], shares="even", verify=verify)


class Checked(contenders.Fit):
    """Keras's ``fit`` of a problem, or a loop that trains a GAN.

    Args:
        verify: None for checks, False for none.
    """

    def __init__(self, verify: bool | None) -> None:
        super().__init__(num_devices=2, make_strategy=partial(_strategy, verify))
        self._verify = verify
        self._gan: Any = None

    def prepare(self, name: str, optimizer: str) -> None:
        """Make the model of a problem; forget the one before."""
        self._gan = (
            _gan([device.lower() for device in self._devices], self._verify)
            if name == GAN
            else None
        )
        if name != GAN:
            super().prepare(name, optimizer)

    def run(self, num_steps: int) -> contenders.Ran:
        """Train for some steps; return what they took."""
        if self._gan is None:
            return super().run(num_steps)
        import tensorflow as tf

        images = tf.constant(np.random.default_rng(0).normal(size=(128, _PIXELS)), tf.float32)
        began, cores = time.perf_counter(), time.process_time()
        losses = [self._gan(images) for _ in range(num_steps)]
        float(losses[-1][0])
        seconds, cores = time.perf_counter() - began, time.process_time() - cores
        return contenders.Ran(num_steps=num_steps, seconds=seconds, core_seconds=cores)

    def check(self, name: str, optimizer: str) -> dict[str, Any]:
        """Begin to train, and check; return what the check took by itself."""
        from evener.strategy import spot_check

        estimates: list[float] = []
        begins_after = spot_check.begins_after

        def at_once(seconds: float) -> float:
            estimates.append(seconds)
            return 0.0

        spot_check.begins_after = at_once
        self.prepare(name, optimizer)
        with spot_check._ONE_AT_A_TIME:
            self.run(3)
            began, cores = time.perf_counter(), time.process_time()
        spot_check.wait_for_checks()
        seconds, cores = time.perf_counter() - began, time.process_time() - cores
        spot_check.begins_after = begins_after
        found = self._gan.spot_checks if self._gan else self.strategy.spot_checks
        return {
            "core_seconds": cores,
            "seconds": seconds,
            "estimated": estimates[-1],
            "begins_after": begins_after(estimates[-1]),
            "found": str(found[-1]),
        }


def _gan(devices: list[str], verify: bool | None) -> Any:
    import keras
    import tensorflow as tf
    from keras import layers

    import evener

    made = keras.Sequential(
        [keras.Input((_NOISE,)), layers.Dense(512, "tanh"), layers.Dense(_PIXELS)]
    )
    judge = keras.Sequential(
        [keras.Input((_PIXELS,)), layers.Dense(512, "tanh"), layers.Dropout(0.3), layers.Dense(1)]
    )
    optimizers = [keras.optimizers.Adam(1e-4) for _ in range(2)]
    for optimizer, model in zip(optimizers, (made, judge), strict=True):
        optimizer.build(model.trainable_variables)
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)
    generator = tf.random.Generator.from_seed(1)

    @evener.distribute(devices=devices, shares="even", verify=verify)
    def step(real: Any) -> Any:
        noise = generator.normal(tf.stack([tf.shape(real)[0], _NOISE]))
        with tf.GradientTape() as tape:
            answers = judge(real, training=True), judge(made(noise), training=True)
            truth = tf.ones_like(answers[0]), tf.zeros_like(answers[1])
            judged = entropy(tf.concat(truth, 0), tf.concat(answers, 0))
        optimizers[1].apply(tape.gradient(judged, judge.trainable_variables))
        with tf.GradientTape() as tape:
            answer = judge(made(noise), training=True)
            fooled = entropy(tf.ones_like(answer), answer)
        optimizers[0].apply(tape.gradient(fooled, made.trainable_variables))
        return judged, fooled

    return step


def later_steps(
    team: dict[str, Worker], name: str, quiet: Quiet, *, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Let both train in turns; return seconds per step, behind the check."""
    count = 0
    for worker in team.values():
        worker.call("prepare", name, "adam")
        worker.call("run", 5)
        count = max(5, count, math.ceil(seconds * 5 / worker.call("run", 5).seconds))
    found: dict[str, list[float]] = {contender: [] for contender in team}
    order = list(team)
    for _ in range(rounds):
        for contender in order:
            turn = quiet.turn(partial(team[contender].call, "run", count))
            found[contender].append(turn.result.seconds / turn.result.num_steps)
        order.reverse()
    return found


def main(
    models: Annotated[str, typer.Option(help="comma list of mlp, cnn, transformer, gan")] = (
        "mlp,cnn,transformer,gan"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="turns with and without")] = 7,
    checks: Annotated[int, typer.Option(min=1, help="how often each is checked")] = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="length of a turn")] = 1.0,
    patience: Annotated[
        float, typer.Option(min=0.0, help="seconds to wait per turn for a quiet machine")
    ] = 5.0,
    json: Annotated[Path, typer.Option(help="where the figures go")] = Path(
        "results/spot_check.json"
    ),
) -> None:
    """Measure what checks cost."""
    team = {ON: Worker(Checked, verify=None), OFF: Worker(Checked, verify=False)}
    quiet = Quiet(pids=tuple(worker.pid for worker in team.values()), patience_seconds=patience)
    table = Table(title="A check of a few samples, two devices", title_justify="left")
    for heading in ("model", "core-seconds", "estimated", "begins after, s", "later steps, %"):
        table.add_column(heading, justify="right", no_wrap=True)
    figures: dict[str, Any] = {}
    aims: list[Aim] = []
    with closing(*team.values()):
        for name in models.split(","):
            checked = [team[ON].call("check", name, "adam") for _ in range(checks)]
            steps = later_steps(team, name, quiet, rounds=rounds, seconds=seconds)
            pairs = zip(steps[ON], steps[OFF], strict=True)
            slower = spread([(on / off - 1) * 100 for on, off in pairs])
            took = statistics.median(run["core_seconds"] for run in checked)
            begins = checked[0]["begins_after"]
            figures[name] = {"checks": checked, "step_seconds": steps, "took": took}
            table.add_row(
                name,
                f"{took:.2f}",
                f"{checked[0]['estimated']:.2f}",
                f"{begins:.0f}",
                f"{slower.median:.1f} ({slower.least:.1f} to {slower.most:.1f})",
            )
            part = took / (60 + begins) * 100
            what = f"{name}, part of the shortest run, %"
            aims.append(Aim(what=what, wanted=1.0, got=part, at_least=False))
    console = terminal()
    console.print(table)
    for aim in aims:
        console.print(str(aim), highlight=False, soft_wrap=True)
    write_json(json, {"models": figures}, aims)


if __name__ == "__main__":
    typer.run(main)
