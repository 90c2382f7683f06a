"""Programs that train are watched for a few steps; each test starts TensorFlow once."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from evener.doctor.facts import Facts, Outcome
from evener.doctor.watch import WatchLimits, watch

LONG = 280.0


def watched(
    code: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    devices: str | None,
    num_steps: int = 12,
) -> Facts:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(code), encoding="utf-8")
    monkeypatch.chdir(folder)
    limits = WatchLimits(time_limit_seconds=LONG, num_steps=num_steps, min_seconds=0.05)
    seen = watch("train.py", devices=devices, limits=limits)
    assert list(folder.iterdir()) == [script]
    return seen


FIT = """\
import keras, time
import numpy as np
import tensorflow as tf

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.unused = self.add_weight(shape=(3,), name="unused")
    def call(self, x):
        return self.dense(x)

class Watcher(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.dense.bias.numpy()

def slow():
    while True:
        time.sleep(0.02)
        yield np.ones((6, 4), "float32"), np.ones((6, 2), "float32")

spec = (tf.TensorSpec((6, 4)), tf.TensorSpec((6, 2)))
data = tf.data.Dataset.from_generator(slow, output_signature=spec)
model = Net()
model.compile("adam", "mse")
model.fit(data, steps_per_epoch=5000, epochs=2, callbacks=[Watcher()], verbose=2)
open("model.keras", "w").close()
"""


def test_fit_is_seen_and_nothing_happens_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(FIT, tmp_path, monkeypatch, None)
    script = str(tmp_path / "train.py")
    assert (seen.ending.outcome, seen.ending.exit_code, seen.missed) == (Outcome.ENOUGH, None, ())
    steps = seen.main_steps
    assert steps is not None
    assert 13 <= steps.num_steps < 1000
    assert (steps.batch_sizes, steps.num_replicas) == ((6,), 1)
    assert steps.step_seconds > steps.input_seconds > 0
    assert seen.ending.where == steps.where
    assert steps.where is not None
    assert (steps.where.file, steps.where.line) == (script, 26)
    ((read, num_reads),) = [(read.where, read.num_reads) for read in seen.host_reads]
    assert read.line == 15
    assert num_reads >= 12


LOOP = """\
import keras
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables[:2])
data = tf.data.Dataset.from_tensor_slices(tf.ones((64, 4))).batch(6, drop_remainder=True).repeat()

def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x) ** 2)
        if loss > 100.0:
            loss = loss / 2.0
    weights = model.trainable_variables[:2]
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss

class Trainer:
    @tf.function
    def train(self, x, number):
        return strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None)

trainer = Trainer()
total = 0.0
for number, x in enumerate(strategy.experimental_distribute_dataset(data)):
    loss = trainer.train(x, min(number, 3))
    total += float(loss)
    if number % 2:
        print(loss)
    tf.function(lambda: None)
"""


@pytest.mark.long
def test_a_loop_of_ones_own_is_seen_under_a_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(LOOP, tmp_path, monkeypatch, "cpu:2")
    assert (seen.ending.outcome, seen.missed) == (Outcome.ENOUGH, ())
    steps = seen.main_steps
    assert steps is not None
    assert (steps.batch_sizes, steps.num_replicas) == ((6,), 2)
    assert steps.where is not None
    assert steps.where.line == 28
    train, made_again = seen.traced
    assert (train.name, train.num_traces, train.num_made) == ("train", 4, 1)
    assert train.num_calls == steps.num_steps
    assert train.arguments[-1] == "PerReplica(float32[3, 4], float32[3, 4]), 3"
    # After the last step nothing more was made.
    assert made_again.num_made == steps.num_steps - 1
    reads = {read.where.line: read.num_reads for read in seen.host_reads}
    assert reads.keys() == {29, 31}
    # The first step's is one of none.
    assert reads[29] == steps.num_steps - 1


IN_A_GRAPH = """\
import keras
import tensorflow as tf

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
optimizer = keras.optimizers.SGD(0.001)
optimizer.build(model.trainable_variables)

@tf.function
def train(data):
    for x in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

train(tf.data.Dataset.from_tensor_slices(tf.ones((64, 4))).batch(8).repeat())
"""


@pytest.mark.long
def test_a_loop_within_a_graph_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(IN_A_GRAPH, tmp_path, monkeypatch, None)
    assert seen.ending.outcome is Outcome.ENOUGH
    assert seen.main_steps is not None
    assert seen.main_steps.num_steps >= 12
    assert seen.main_steps.where is not None
    assert seen.main_steps.where.line == 16
    assert seen.missed == ()


CRASH = """\
import tensorflow as tf

w = tf.Variable(tf.ones((4, 2), tf.float64))

def forward(x):
    if tf.reduce_sum(x) > 0.0:
        x = x + 1.0
    return x @ w

@tf.function
def step(x):
    return forward(x)

step(tf.ones((3, 4)))
"""


@pytest.mark.long
def test_a_crash_in_rewritten_code_is_seen_at_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(CRASH, tmp_path, monkeypatch, None)
    assert seen.ending.outcome is Outcome.CRASHED
    assert seen.ending.raised is not None
    assert seen.ending.raised.where is not None
    assert seen.ending.raised.where.line == 8


OWN_LOSSES = """\
import keras
import numpy as np
import tensorflow as tf

class Plain(keras.layers.Layer):  # without an __init__ of its own
    def call(self, x):
        return x

def train(model, loss_of, x, y, in_graph):
    optimizer = keras.optimizers.SGD(0.001)
    def step(x, y):
        with tf.device("/CPU:0"), tf.GradientTape() as tape:
            loss = loss_of(model(x, training=True), y)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    step = tf.function(step) if in_graph else step
    for _ in range(6):
        step(x, y)

rows, labels = tf.random.normal((8, 4)), tf.random.normal((8, 1))
images = tf.constant(np.random.randint(0, 256, (8, 6, 6, 1)).astype("float32"))
relu = keras.Sequential([Plain(), keras.layers.Dense(1, activation="relu")])
conv = keras.Sequential([keras.layers.Conv2D(1, 6), keras.layers.Flatten()])
train(relu, lambda p, y: tf.reduce_mean(tf.square(p - y)), rows, labels, True)
train(relu, lambda p, y: tf.reduce_mean(tf.abs(y - p)), rows, labels, False)
train(conv, lambda p, y: -tf.reduce_mean((p - y) ** 2), images, labels, True)
"""


def test_losses_of_the_program_itself_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watched(OWN_LOSSES, tmp_path, monkeypatch, None, 1000)
    assert seen.ending.outcome is Outcome.FINISHED
    assert seen.missed == ()
    losses = {loss.where.line: loss for loss in seen.losses if loss.where is not None}
    assert losses.keys() == {24, 25}
    for loss in losses.values():
        assert (loss.name, loss.activation) == ("difference", "relu")
        assert loss.labels is not None and loss.labels.min is not None and loss.labels.min < 0
    convolved = next(each for each in seen.inputs if each.kind == "Conv2D")
    assert convolved.values.shape == (8, 6, 6, 1) and (convolved.values.max or 0) > 200
    (gradient,) = seen.gradients
    assert gradient.is_negated
    (pin,) = seen.pins
    assert pin.trains


FOLDS = """\
import gc
import keras
import numpy as np
import tensorflow as tf

x = np.random.rand(80, 8).astype("float32")
for fold in range(3):
    held = np.arange(80) % 4 == fold
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    train, test = (tf.data.Dataset.from_tensor_slices((p, p[:, :1])) for p in (x[~held], x[held]))
    model.fit(train.batch(10), epochs=4, steps_per_epoch=STEPS, verbose=0)
    model.evaluate(test.batch(10), verbose=0)
    del model
    gc.collect()
"""


@pytest.mark.long
@pytest.mark.parametrize(("steps", "missing"), [(6, 0), (4, 2)])
def test_folds_do_not_leak_into_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, missing: int
) -> None:
    seen = watched(FOLDS.replace("STEPS", str(steps)), tmp_path, monkeypatch, None, 1000)
    pipelines = {each.role: each for each in seen.pipelines}
    assert pipelines["validation"].num_rows_compared == 20
    assert pipelines["validation"].num_rows_of_training == 0
    # Keras begins the data anew where an epoch ends with it.
    assert pipelines["train"].num_missing == missing
    # Models that are gone had them among their trainable variables.
    assert all(variable.trainable for variable in seen.variables if variable.num_applied)
