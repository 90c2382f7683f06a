"""Nine ways to write a training, and all tools: each tells the same of its step.

::

                      run, verify, report     audit        plan, estimate     doctor
    fit ... tf.dist   all devices             its graph    costs              a strategy, or run
    eager, hoisted    all devices             eager        costs              run, unchanged
    eager, prevented  one device, line 14     line 14      line 14            line 14
"""

from __future__ import annotations

import itertools
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.commands import run
from cli.forked import Run

_MODEL = """\
import keras
import tensorflow as tf
x = tf.random.stateless_normal((64, 8), (1, 2))
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(16)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam()
seen = []
"""
_KERAS_2 = _MODEL.replace("import keras", "import tf_keras as keras")
_STEP = """\
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
gradients = tape.gradient(loss, model.trainable_variables)
optimizer.apply_gradients(zip(gradients, model.trainable_variables))
"""
_STEP_WITH_LIST = _STEP.replace("loss = tf", "seen.append(len(seen))\n    loss = tf")
_STEP_OF_MODEL = """\
class Own(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss}
model = Own(model.inputs, model.outputs)
"""
_FIT = 'model.compile("adam", "mse")\nmodel.fit(data, verbose=0)\n'
_LOOP = "for x, y in data:\n    step(x, y)\n    seen.append(1)\n"
_DISTRIBUTED = (
    _MODEL.replace("model = ", "strategy = tf.distribute.MirroredStrategy()\nmodel = ")
    .replace("model = ", "with strategy.scope():\n    model = ")
    .replace("optimizer = keras.optimizers.Adam()\nseen = []\n", "")
)


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A way to write a training, and what is true of it.

    Attributes:
        source: The program.
        told: Note of `evener run` on the step.
        lines: Lines that it makes a function of; empty for a step that is traced.
        obstacle: Reason that keeps the step on one device; empty for a step on all devices.
        read: The same as the tools say that read the source, if it has another line.
        has_strategy: Whether the program has a strategy of its own.
    """

    source: str
    told: str
    lines: str = ""
    obstacle: str = ""
    read: str = ""
    has_strategy: bool = False

    @property
    def is_eager(self) -> bool:
        return bool(self.lines or self.obstacle)

    @property
    def of_eager_step(self) -> str:
        """Sentence on an eager step of all tools that do not run it."""
        if self.obstacle:
            return f"`evener run` leaves the step on one device: {self.read or self.obstacle}"
        return f"`evener run` makes a function of lines {self.lines}, and all devices compute it"


_IN_SCOPE = "this model trains on cpu:0, cpu:1"
SCENARIOS = {
    "undecorated step": Scenario(
        source=_MODEL + "def step(x, y):\n" + _indented(_STEP) + _LOOP,
        told="lines 9 to 12 run on cpu:0, cpu:1",
        lines="9 to 12",
    ),
    "fit": Scenario(source=_MODEL + _FIT, told=_IN_SCOPE),
    "own train_step": Scenario(source=_MODEL + _STEP_OF_MODEL + _FIT, told=_IN_SCOPE),
    "decorated loop": Scenario(
        source=_MODEL + "@tf.function\ndef step(x, y):\n" + _indented(_STEP) + _LOOP,
        told="step runs on cpu:0, cpu:1",
    ),
    "decorated step beside eager operations": Scenario(
        source=_MODEL
        + "total = tf.Variable(0.0)\n@tf.function\ndef step(x, y):\n"
        + _indented(_STEP + "return loss\n")
        + "for x, y in data:\n    loss = step(x, y)\n    total.assign(0.9 * total + loss)\n",
        told="step runs on cpu:0, cpu:1",
    ),
    "loop in line": Scenario(
        source=_MODEL + "for x, y in data:\n" + _indented(_STEP),
        told="lines 9 to 12 run on cpu:0, cpu:1",
        lines="9 to 12",
    ),
    "step that cannot be hoisted": Scenario(
        source=_MODEL + "def step(x, y):\n" + _indented(_STEP_WITH_LIST) + _LOOP,
        told="this training step computes every batch on cpu:0; cpu:1 has nothing to do",
        obstacle="line 10 prevents more: seen.append() changes an object of Python",
    ),
    "tf.distribute": Scenario(
        source=_DISTRIBUTED + "    " + _FIT,
        told="MirroredStrategy() -> evener.Strategy on cpu:0, cpu:1",
        has_strategy=True,
    ),
    "tf_keras": Scenario(source=_KERAS_2 + _FIT, told=_IN_SCOPE),
    "eager step of tf_keras": Scenario(
        source=_KERAS_2 + "def step(x, y):\n" + _indented(_STEP) + _LOOP,
        told="this training step computes every batch on cpu:0; cpu:1 has nothing to do",
        obstacle="line 10 prevents more: it calls tf_keras, whose layers and optimizers are not "
        "followed",
        read="line 1 prevents more: it imports tf_keras, whose layers and optimizers are not "
        "followed",
    ),
}


def written(name: str, folder: Path) -> Scenario:
    scenario = SCENARIOS[name]
    (folder / "train.py").write_text(scenario.source + 'open("ended", "w").close()\n')
    return scenario


def words(text: str) -> str:
    """Return text without line breaks, as tools wrap it differently."""
    return " ".join(text.split())


@pytest.mark.sampled(36)
@pytest.mark.parametrize("name", SCENARIOS)
def test_run_verify_and_report_tell_where_it_trains(
    name: str, run_forked: Run, tmp_path: Path
) -> None:
    scenario = written(name, tmp_path)
    done = run_forked("evener", "run", "--devices", "cpu:2", "--verify", "--report", "train.py")
    assert done.returncode == 0, done.stderr
    assert scenario.told in done.stderr
    assert scenario.obstacle in done.stderr
    assert (tmp_path / "ended").exists()
    is_divided = not scenario.obstacle
    assert ("Verified against one device" in done.stderr) is is_divided
    assert ("RUN-024" in done.stderr) is not is_divided
    assert "ENG-080" not in done.stderr
    assert done.stderr.count("50.0 %") == (2 if is_divided else 0)
    assert ("has nothing to do" in done.stderr) is not is_divided


# Both commands take the step from the first steps of the script, each of half of the scenarios.
@pytest.mark.sampled(36)
@pytest.mark.parametrize("name", [*SCENARIOS][::2])
def test_an_audit_shows_the_graph_or_says_why_there_is_none(name: str, tmp_path: Path) -> None:
    scenario = written(name, tmp_path)
    done = run("audit", "--devices", "cpu:2", "train.py", folder=tmp_path)
    assert not (tmp_path / "ended").exists()
    if scenario.is_eager:
        assert "PLACE-040" in done.stderr
        assert scenario.of_eager_step in words(done.stderr)
        return
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(" cpu:")]
    assert [row[0] for row in rows] == ["cpu:0", "cpu:1"]
    is_idle = not any(number.isdigit() for number in rows[1])
    assert ("cpu:1: no operation of this step runs there" in done.stdout) is is_idle
    assert done.returncode == is_idle, done.stderr


@pytest.mark.sampled(36)
@pytest.mark.parametrize(
    ("name", "command"), [*zip([*SCENARIOS][1::2], itertools.cycle(["plan", "estimate"]))]
)
def test_costs_are_those_of_the_step_that_runs(name: str, command: str, tmp_path: Path) -> None:
    scenario = written(name, tmp_path)
    options = [] if command == "estimate" else ["--devices", "cpu:2"]
    done = run(command, *options, "train.py", folder=tmp_path)
    assert not (tmp_path / "ended").exists()
    if scenario.obstacle:
        assert done.returncode == 1
        obstacle = scenario.read or scenario.obstacle
        assert f"cannot become a function ({obstacle})" in words(done.stderr)
        assert "Fix: Put @tf.function above line 8, def step." in words(done.stderr)
        return
    assert done.returncode == 0, done.stderr
    assert ("this step ran once" in done.stderr) is scenario.is_eager


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_doctor_advises_what_works(name: str, tmp_path: Path) -> None:
    from evener.doctor import diagnose

    scenario = written(name, tmp_path)
    found = diagnose(tmp_path / "train.py", num_gpus=2, select=["DOC-201"], run=False).findings
    if scenario.has_strategy:
        assert found == ()
        return
    [finding] = found
    assert (scenario.of_eager_step in finding.why) is scenario.is_eager
    assert ("unchanged" in finding.fix) is not bool(scenario.obstacle)


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["loop in line", "step that cannot be hoisted", "tf.distribute", "tf_keras"]
)
def test_the_doctor_says_the_same_with_a_run(name: str, tmp_path: Path) -> None:
    scenario = written(name, tmp_path)
    done = run("doctor", "--gpus", "2", "--devices", "cpu:2", "train.py", folder=tmp_path)
    assert ("DOC-201" in done.stdout) is not scenario.has_strategy, done.stdout
    assert (scenario.of_eager_step in words(done.stdout)) is scenario.is_eager
