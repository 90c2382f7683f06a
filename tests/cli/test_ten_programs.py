"""Programs as people post them when only one GPU is used, each with one mistake of its own.

Under `evener run` each trains right on all devices, or stops with an error that names the line.

What is right: the weights of the same program on one device, with TensorFlow's default strategy
in the place of the one that it makes. On one device none of the mistakes of these programs
changes anything, so that no other version of them is needed.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from cli.forked import UNEVEN, Run, compare_with_plain_python

PROGRAMS = Path(__file__).parents[1] / "programs"

RIGHT = (
    "arrays_into_run",
    "batch_that_does_not_divide",
    "loss_not_scaled",
    "model_outside_the_scope",
    "no_strategy_run",
    "optimizer_made_late",
    "shards_looped_around_run",
    "strategy_after_the_model",
)
# With what is said about the mistake, and the line that it is said of.
STOPPED = {
    "layers_made_on_every_call": ("RUN-009", 'x = layers.Conv2D(4, 3, activation="relu")(inputs)'),
    "tf_device_with_a_physical_name": ("RUN-008", "with tf.device(gpu.name):"),
}


def test_there_are_ten() -> None:
    assert sorted(path.stem for path in PROGRAMS.glob("*.py")) == sorted([*RIGHT, *STOPPED])
    assert len([*RIGHT, *STOPPED]) == 10


@pytest.mark.sampled(16)
@pytest.mark.parametrize("name", RIGHT)
def test_it_trains_right_on_all_devices(name: str, run_forked: Run, tmp_path: Path) -> None:
    program = PROGRAMS / f"{name}.py"
    found = compare_with_plain_python(run_forked, program, tmp_path, rtol=0)
    assert found.devices == {"CPU:0", "CPU:1"}, found
    report = json.loads(found.evener.stdout.splitlines()[-1])
    assert [device["share"] for device in report["devices"]] == [0.75, 0.25]
    said = found.evener.stderr.splitlines()
    assert not [line for line in said if line.startswith("Warning: [")]


@pytest.mark.parametrize("name", STOPPED)
def test_it_stops_with_an_error_that_names_the_line(
    name: str, run_forked: Run, tmp_path: Path
) -> None:
    program = PROGRAMS / f"{name}.py"
    code, text = STOPPED[name]
    lines = [line.strip() for line in program.read_text(encoding="utf-8").splitlines()]
    assert lines.count(text) == 1
    line = lines.index(text) + 1
    done = run_forked("evener", *UNEVEN, str(program), "weights.npz")
    assert done.returncode == 1
    assert not (tmp_path / "weights.npz").exists()
    said = [text for text in done.stderr.splitlines() if not text.startswith("evener: ")]
    assert said[0].startswith(f"[{code}] {program}:{line}: "), done.stderr
    assert said[1].startswith("Why: ")
    assert said[2].startswith("Fix: ")
    assert said[-1].startswith(f'  File "{program}", line {line}')
    assert "Traceback" not in done.stderr


INNOCENT = """
    from collections import deque
    import keras
    import numpy as np
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy()
    BATCH = 4 * strategy.num_replicas_in_sync
    outside = [keras.layers.Dense(4), keras.layers.Dense(4)]

    class Block(keras.layers.Layer):
        def build(self, shape):
            self.inner = deque(keras.layers.Dense(4) for _ in range(2))
        def call(self, x):
            for layer in [*outside, *self.inner]:
                x = layer(x)
            return keras.layers.Flatten()(keras.layers.ReLU()(x))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(tf.reduce_sum(model(x) ** 2, 1))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), Block(), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam()
    variables = model.trainable_variables
    optimizer.apply_gradients([(tf.zeros_like(v), v) for v in variables])
    x = np.ones((8, 4), "float32")
    with tf.device("/CPU:0"):
        for batch in tf.data.Dataset.from_tensor_slices(x).batch(BATCH):
            strategy.run(tf.function(step), args=(batch,))
    for epoch in range(2):
        for half in np.split(x, 2):
            strategy.run(tf.function(step), args=(half,))
    class Small(keras.Model):
        def call(self, x):
            return x
    print(len(model.get_weights()), Small(name="own").get_config()["name"])
    raise ValueError("its own error")
"""


@pytest.mark.long
def test_what_only_looks_like_a_mistake_is_left_alone(run_forked: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(INNOCENT), encoding="utf-8")
    done = run_forked("evener", *UNEVEN, "train.py")
    assert "RUN-" not in done.stderr
    assert "custom loop" not in done.stderr
    assert done.stderr.splitlines()[-1] == "ValueError: its own error"
    assert done.stdout.startswith("2 own\n{")
