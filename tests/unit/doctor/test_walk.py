"""The symbolic walk: which calls a program makes, in which order, and what is around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from evener.doctor.sources import read_sources
from evener.doctor.values import Call, made_by
from evener.doctor.walk import Walk
from unit.doctor.cases import write


def walk(program: str, folder: Path) -> list[Call]:
    return Walk(read_sources(write(program, folder))[0]).calls


def names(program: str, folder: Path) -> list[str]:
    return [call.name for call in walk(program, folder) if call.name != "import"]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        # Names, however they are imported or kept.
        ("from tensorflow.keras import layers as L\nL.Dense(1)", ["keras.layers.Dense"]),
        ("made = keras.layers\nmade.Dense(1)", ["keras.layers.Dense"]),
        ("table = {'adam': keras.optimizers.Adam}\ntable['adam']()", ["keras.optimizers.Adam"]),
        # Methods by the kind of their owner.
        ("m = keras.Sequential()\nm.fit(1)", ["keras.Sequential", "model.fit"]),
        (
            "d = tf.data.Dataset.range(3).map(len).batch(2)",
            ["tf.data.Dataset.range", "dataset.map", "dataset.batch"],
        ),
        ("def f(model):\n  model.fit(1)\nf(x)", ["own", "x.fit"]),
        ("class M(keras.Model):\n  pass\nM().fit(1)", ["class", "model.fit"]),
        # Functions are entered where they are called, with what they are given.
        (
            "def build():\n  return keras.Sequential()\nbuild().compile()",
            ["own", "keras.Sequential", "model.compile"],
        ),
        ("def f(g):\n  g(1)\nf(tf.zeros)", ["own", "tf.zeros"]),
        ("f = lambda: tf.ones(1)\nf()", ["own", "tf.ones"]),
        # What is never reached.
        ("DEBUG = False\nif DEBUG:\n  tf.zeros(1)", []),
        ("import sys\nsys.exit()\ntf.zeros(1)", ["sys.exit"]),
        ("def f():\n  return 1\n  tf.zeros(1)\nf()", ["own"]),
        ("while True:\n  tf.ones(1)\ntf.zeros(1)", ["tf.ones"]),
        # Attributes of objects.
        (
            "class T:\n  def __init__(self):\n    self.m = keras.Sequential()\n"
            "  def go(self):\n    self.m.fit(1)\nT().go()",
            ["class", "keras.Sequential", "own", "model.fit"],
        ),
        # Environment variables, in each way to set them.
        ("import os\nos.environ['A'] = '1'", ["environ"]),
        ("import os\nos.environ.setdefault('A', '1')", ["os.environ.setdefault", "environ"]),
        ("import os\nos.environ.update(A='1')", ["os.environ.update", "environ"]),
        # What a library calls.
        (
            "s = tf.distribute.MirroredStrategy()\ndef f(x):\n  tf.square(x)\ns.run(f, args=(1,))",
            ["tf.distribute.MirroredStrategy", "strategy.run", "tf.square"],
        ),
    ],
)
def test_calls_in_their_order(program: str, expected: list[str], tmp_path: Path) -> None:
    assert names(program, tmp_path) == expected


def test_what_no_line_calls_comes_last(tmp_path: Path) -> None:
    calls = walk("def f():\n  tf.ones(1)\ntf.zeros(1)", tmp_path)
    assert [call.name for call in calls[3:]] == ["tf.zeros", "tf.ones"]
    assert [call.context.roles for call in calls[3:]] == [frozenset(), {"unreached"}]


def test_loops_and_scopes_are_those_of_callers_too(tmp_path: Path) -> None:
    program = """
        strategy = tf.distribute.MirroredStrategy()
        def build():
            return keras.Sequential()
        with strategy.scope():
            build()
        for batch in tf.data.Dataset.range(3):
            [tf.ones(1) for _ in range(3)]
        """
    calls = {call.name: call for call in walk(program, tmp_path)}
    assert calls["keras.Sequential"].context.is_scoped
    assert not calls["tf.data.Dataset.range"].context.is_scoped
    over = [loop.over.kind for loop in calls["tf.ones"].context.loops]
    assert over == ["dataset", ""]


@pytest.mark.parametrize(
    ("program", "role"),
    [
        ("@tf.function\ndef f():\n  tf.ones(1)\nf()", "traced"),
        ("def f():\n  tf.ones(1)\nf = tf.function(f)\nf()", "traced"),
        (
            "class M(keras.Model):\n  def train_step(self, data):\n    tf.ones(1)\nM().fit(1)",
            "keras",
        ),
    ],
)
def test_why_a_function_is_entered(program: str, role: str, tmp_path: Path) -> None:
    ones = next(call for call in walk(program, tmp_path) if call.name == "tf.ones")
    assert role in ones.context.roles


def test_of_several_values_the_kind_is_known(tmp_path: Path) -> None:
    program = "m = keras.Sequential() if x else keras.Model()\nm.fit(1)"
    (fit,) = [call for call in walk(program, tmp_path) if call.name == "model.fit"]
    assert made_by(fit.owner) is None


def test_modules_of_the_project_are_entered_where_they_are_imported(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import keras\nmade = keras.Sequential()\n")
    calls = walk("import net\nfrom net import made\nmade.fit()", tmp_path)
    names = [call.name for call in calls if call.name != "import"]
    assert names == ["keras.Sequential", "model.fit"]


@pytest.mark.parametrize(
    "program",
    [
        "def f():\n  f()\nf()",
        "x = x",
        "import train",
        "class A(A):\n  pass\nA()",
        "f = lambda g: g(g)\nf(f)",
        "a, *b = c\n(d := e)\nprint(*a, **b)",
        "match x:\n  case [a, *b]:\n    tf.ones(1)",
        "x = 10 ** 5000",
        "try:\n  pass\nexcept* ValueError:\n  pass",
    ],
)
def test_odd_programs_are_walked(program: str, tmp_path: Path) -> None:
    assert walk(program, tmp_path)
