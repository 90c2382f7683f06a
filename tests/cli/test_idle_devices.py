"""The line at the end of a run in which one device did nearly all the training."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from cli.forked import Run

MODEL = """
    import keras
    import numpy as np
    import tensorflow as tf
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(64)]
    x = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
    y = np.sin(x[:, :1])
"""

FIT = f"""{MODEL}
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile("sgd", "mse")
    model.fit(x, y, verbose=0)
"""

GATHERED = f"""{MODEL}
    class Sort(keras.layers.Layer):
        def call(self, x):
            return tf.sort(x, axis=0)

    model = keras.Sequential([keras.Input((8,)), Sort(), *layers])
    model.compile("sgd", "mse")
    model.fit(x, y, verbose=0)
"""

STEP = f"""{MODEL}
    class Line(tf.Module):
        def __init__(self):
            super().__init__()
            self.weight = tf.Variable(tf.ones([8, 1]))

    line = Line()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ line.weight - y) ** 2)
        line.weight.assign_sub(0.1 * tape.gradient(loss, line.weight))
        return loss
"""

EAGER = f"""{STEP}
    for _ in range(4):
        step(tf.constant(x), tf.constant(y))
"""

DECORATED = f"""{STEP}
    step = tf.function(step)
    for _ in range(4):
        step(tf.constant(x), tf.constant(y))
"""

OVER_DATA = f"""{STEP}
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(36)

    @tf.function
    def train(data):
        for x, y in data:
            step(x, y)

    expected = tf.Variable(line.weight)
    for a, b in data:
        step(a, b)
    after, _ = tf.Variable(line.weight), line.weight.assign(expected)
    for _ in range(20):
        line.weight.assign(expected)
        train(data)
    np.testing.assert_allclose(line.weight, after, rtol=1e-5)
"""

WITH_BREAK = OVER_DATA.replace(
    "        for x, y in data:",
    "        for x, y in data:\n            if tf.reduce_sum(x) > 1e6: break",
)

FROM_ITERATOR = f"""{STEP}
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(36)

    class Loop:
        def __init__(self):
            self.batches = iter(data)

        @tf.function
        def skip(self, number):
            for _ in tf.range(number):
                next(self.batches)

        @tf.function
        def step(self):
            loss = step(*self.batches.get_next())
            if loss > 1e6:
                tf.print("large")

    expected = tf.Variable(line.weight)
    for a, b in data.skip(1):
        step(a, b)
    after, _ = tf.Variable(line.weight), line.weight.assign(expected)
    for _ in range(20):
        line.weight.assign(expected)
        loop = Loop()
        loop.skip(tf.constant(1))
        loop.step()
        loop.step()
    np.testing.assert_allclose(line.weight, after, rtol=1e-5)
    assert loop.step.experimental_get_tracing_count() == 1
"""

WITHOUT_BATCH = f"""{STEP}
    @tf.function
    def train():
        for k in tf.range(4):
            step(tf.constant(x), tf.constant(y))

    train()
"""

LOOKS_AT_GRADIENTS = f"""{STEP}
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(line.weight ** 2)
    print(tape.gradient(loss, line.weight).shape)
"""

PLACED_BY_HAND = f"""{STEP}
    @tf.function
    def train():
        with tf.device("CPU:1"):
            step(tf.constant(x), tf.constant(y))

    train()
"""

READS_NUMBERS = EAGER.replace("** 2)", "** 2) * (1.0 + 0.0 * line.weight.numpy().max())")

FUNCTIONS_RUN_EAGERLY = DECORATED.replace(
    "import keras\n", "import keras\n    tf.config.run_functions_eagerly(True)\n", 1
).replace("import keras\n", "import keras\n    import tensorflow as tf\n", 1)

EAGER_FIT = FIT.replace('"mse"', '"mse", run_eagerly=True')
EAGER_FIT_OF_KERAS_2 = EAGER_FIT.replace("import keras", "import tf_keras as keras")
DYNAMIC_LAYER = FIT.replace("import keras", "import tf_keras as keras").replace(
    "Dense(64)", "Dense(64, dynamic=True)"
)

PLACED_EAGERLY = f"""{STEP}
    with tf.device("CPU:1"):
        other = Line()
    for _ in range(4):
        step(tf.constant(x), tf.constant(y))
        with tf.device("CPU:1"):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ other.weight - y) ** 2)
            other.weight.assign_sub(0.1 * tape.gradient(loss, other.weight))
            assert loss.device.endswith("CPU:1")
"""

PINNED = EAGER.replace(
    "    line = Line()",
    """
    import evener
    with evener.pin("cpu:1"):
        line = Line()
        twice = evener.pin("cpu:1")(lambda y: 2.0 * y)
""",
).replace("- y)", "- twice(y))")

OF_FIRST = "cpu:0 did 100 % of the training of this run, cpu:1 had little to do"
PROGRAMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fit": (FIT, ()),
    "gathered": (GATHERED, ()),  # the layers behind are computed in parts again
    "eager": (EAGER, ("train.py:20: ", OF_FIRST, "gradients are computed eagerly")),
    "reads_numbers": (READS_NUMBERS, (OF_FIRST, "eagerly; line 19 prevents more: line.weight.nu")),
    "functions_run_eagerly": (
        FUNCTIONS_RUN_EAGERLY,
        (OF_FIRST, "eagerly; tf.config.run_functions_eagerly(True) asks for that"),
    ),
    "eager_fit": (EAGER_FIT, (OF_FIRST, "eagerly; run_eagerly=True")),
    "eager_fit_of_keras_2": (EAGER_FIT_OF_KERAS_2, (OF_FIRST, "eagerly; run_eagerly=True")),
    "dynamic_layer": (DYNAMIC_LAYER, (OF_FIRST, "eagerly; a layer with dynamic=True asks")),
    "placed_eagerly": (PLACED_EAGERLY, ()),
    "pinned": (PINNED, ()),
    "decorated": (DECORATED, ()),
    "over_data": (OVER_DATA, ()),
    "with_break": (WITH_BREAK, ("did 9", "what is gathered: If at train.py:27")),
    "from_iterator": (FROM_ITERATOR, ()),
    "without_batch": (WITHOUT_BATCH, ("train.py:28: ", OF_FIRST, "train trains there")),
    "looks_at_gradients": (LOOKS_AT_GRADIENTS, ()),
    "placed_by_hand": (PLACED_BY_HAND, ()),
}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_told_at_the_end(name: str, run_forked: Run, tmp_path: Path) -> None:
    source, expected = PROGRAMS[name]
    (tmp_path / "train.py").write_text(textwrap.dedent(source), encoding="utf-8")
    options = ["--devices", "cpu:2", "--shares", "even", "--no-hoist"]
    done = run_forked("evener", "run", *options, "train.py")
    assert done.returncode == 0, done.stderr
    last = (done.stderr.splitlines() or [""])[-1]
    for words in expected:
        assert words in last
    assert ("of the training of this run" in done.stderr) == bool(expected)


@pytest.mark.long
@pytest.mark.parametrize("name", ["reads_numbers", "placed_eagerly"])
def test_what_is_said_at_the_end_is_what_was_said_of_the_step(
    name: str, run_forked: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAMS[name][0]), encoding="utf-8")
    done = run_forked("evener", "run", "--devices", "cpu:2", "--shares", "even", "train.py")
    assert done.returncode == 0, done.stderr
    is_placed = name == "placed_eagerly"
    assert ("little to do" in done.stderr) != is_placed
    assert "nothing to do" not in done.stderr
    assert "make a @tf.function" not in done.stderr
    reason = "it asks for another device" if is_placed else "line.weight.numpy() gives a number"
    assert reason in done.stderr
