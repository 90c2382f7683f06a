"""Rules on speed, in the styles in which people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from evener.doctor import Severity
from evener.doctor.watch import (
    HostRead,
    Line,
    Observation,
    Outcome,
    Steps,
    Traced,
)
from unit.doctor.table import check_finds, check_quiet, violations, write

MODEL = """
import logging

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(128), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam()
dataset = tf.data.Dataset.from_tensor_slices((tf.zeros((256, 8)), tf.zeros((256, 1)))).batch(64)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x) - y))
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


"""
FIT = """
model = keras.Sequential([keras.Input((64, 64, 3)), keras.layers.Flatten(), keras.layers.Dense(1)])
model.compile("adam", "mse")
model.fit(dataset, epochs=2)
"""
PARSE = """
import keras
import tensorflow as tf


def parse(record):
    found = tf.io.parse_single_example(record, {"image": tf.io.FixedLenFeature([], tf.string)})
    return tf.io.decode_jpeg(found["image"]), 0


"""

FINDS = [
    (
        "DOC-401",
        PARSE
        + """
dataset = (
    tf.data.TFRecordDataset(["a.tfrecord"])
    .shuffle(1000)
    .map(parse)  # finding: DOC-401
    .batch(32)
)
"""
        + FIT,
    ),
    (
        "DOC-401",
        PARSE
        + """
def make(files):
    ds = tf.data.TFRecordDataset(files)
    ds = ds.map(lambda r: parse(r))  # finding: DOC-401
    return ds.batch(32).prefetch(tf.data.AUTOTUNE)


dataset = make(["a.tfrecord"])
"""
        + FIT,
    ),
    (
        "DOC-401",
        PARSE
        + """
dataset = tf.data.TFRecordDataset(["a.tfrecord"])
dataset = dataset.map(parse, num_parallel_calls=8)
dataset = dataset.batch(32)  # finding: DOC-401
"""
        + FIT,
    ),
    (
        "DOC-401",
        MODEL
        + """
def load(path):
    return tf.py_function(np.load, [path], tf.float32), 0.0


data = tf.data.Dataset.list_files("*.npy").map(load).batch(8)  # finding: DOC-401
for epoch in range(3):
    for step, (x, y) in enumerate(data):
        train_step(x, y)
""",
    ),
    ("DOC-402", MODEL + "for x, y in dataset:\n    print(train_step(x, y))  # finding: DOC-402\n"),
    (
        "DOC-402",
        MODEL
        + """
for epoch in range(2):
    bar = tqdm(dataset)
    for x, y in bar:
        loss = train_step(x, y)
        bar.set_postfix(loss=float(loss))  # finding: DOC-402
""",
    ),
    (
        "DOC-402",
        MODEL
        + """
history = []
def run(ds):
    for step, (x, y) in enumerate(ds):
        loss = train_step(x, y)
        history.append(loss.numpy())  # finding: DOC-402
        logging.info(f"step {step}: {loss}")  # finding: DOC-402
def main():
    for _ in range(2):
        run(dataset)
main()
""",
    ),
    (
        "DOC-402",
        MODEL
        + """
class Log:
    def __init__(self):
        self.values = []
    def add(self, loss):
        self.values.append(np.mean(loss))  # finding: DOC-402
log = Log()
iterator = iter(dataset)
for step in range(100):
    x, y = next(iterator)
    loss = train_step(x, y)
    log.add(loss)
""",
    ),
    (
        "DOC-403",
        MODEL + "for i, (x, y) in enumerate(dataset):\n    f = tf.function(lambda a: model(a))"
        "  # finding: DOC-403\n    f(x)\n",
    ),
    (
        "DOC-403",
        """
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        opt = keras.optimizers.SGD(0.1)
        def train_epoch(dataset):
            @tf.function  # finding: DOC-403
            def step(x, y):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x) - y) ** 2)
                grads = tape.gradient(loss, model.trainable_variables)
                opt.apply_gradients(zip(grads, model.trainable_variables))
            for x, y in dataset:
                step(x, y)
        data = tf.data.Dataset.from_tensors((tf.zeros((4, 8)), tf.zeros((4, 1))))
        for epoch in range(10):
            train_epoch(data)
        """,
    ),
    (
        "DOC-403",
        MODEL.replace("@tf.function\n", "@tf.function  # finding: DOC-403\n").replace(
            ".batch(64)", ".padded_batch(64)"
        )
        + "for x, y in dataset:\n    train_step(x, y)\n",
    ),
    (
        "DOC-404",
        """
        def main():
            net = keras.models.Sequential([
                keras.layers.Input((4,)), keras.layers.Dense(32), keras.layers.Dense(3)])
            net.compile(optimizer="adam", loss="mse")  # finding: DOC-404
            net.fit(np.zeros((1000, 4)), np.zeros((1000, 3)), epochs=10)
        main()
        """,
    ),
    (
        "DOC-404",
        """
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(units=1)])
        model.compile("sgd", "mse")  # finding: DOC-404
        model.fit(np.zeros((100, 1)), np.zeros((100, 1)), epochs=10)
        """,
    ),
    (
        "DOC-405",
        MODEL.replace(
            "loss = tf.reduce_mean(tf.square(model(x) - y))",
            "loss = tf.reduce_mean(tf.square(model(tf.random.shuffle(x)) - y))  # finding: DOC-405",
        )
        + "for x, y in dataset:\n    train_step(x, y)\n",
    ),
    (
        "DOC-405",
        """
        def dice(y, p):
            return tf.py_function(lambda a, b: a - b, [y, p], tf.float32)  # finding: DOC-405
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(128)])
        model.compile("adam", loss=dice)
        model.fit(tf.zeros((64, 8)), tf.zeros((64, 128)))
        """,
    ),
    (
        "DOC-405",
        """
        text = keras.Input((1,), dtype="string")
        lookup = keras.layers.StringLookup(vocabulary=["a", "b"])  # finding: DOC-405
        h = keras.layers.Embedding(4, 8)(lookup(text))
        model = keras.Model(text, keras.layers.Dense(1)(h))
        model.compile("adam", "mse")
        model.fit(tf.constant([["a"]]), tf.zeros((1, 1)))
        """,
    ),
]

QUIET = [
    (
        "DOC-401",
        PARSE
        + """
dataset = tf.data.Dataset.list_files("*.tfrecord").interleave(
    tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE
)
dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).cache().shuffle(1000)
dataset = dataset.batch(32).prefetch(tf.data.AUTOTUNE)
"""
        + FIT,
    ),
    ("DOC-401", MODEL + "for x, y in dataset:\n    train_step(x, y)\n"),
    (
        "DOC-402",
        MODEL
        + """
mean = keras.metrics.Mean()
for epoch in range(2):
    total = 0.0
    for step, (x, y) in enumerate(dataset):
        loss = train_step(x, y)
        mean.update_state(loss)
        total += loss
        if step % 50 == 0:
            print(step, float(loss))
    print(epoch, mean.result().numpy(), float(total), loss.numpy())
predictions = []
for x, y in dataset:
    predictions.append(model(x).numpy())
""",
    ),
    (
        "DOC-402",
        MODEL
        + """
for epoch in range(2):
    for step, (x, y) in enumerate(dataset):
        loss = train_step(x, y)
        print(f"step {step}")
    print(f"epoch {epoch}: {float(loss):.3f}")
""",
    ),
    (
        "DOC-403",
        MODEL
        + """
def make_step(scale):
    @tf.function
    def step(x):
        return model(x) * scale
    return step
fast = make_step(2.0)
for epoch in range(3):
    for i, (x, y) in enumerate(dataset):
        train_step(x, y)
        fast(x)
        model(x, training=False)
""",
    ),
    (
        "DOC-403",
        """
        @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
        def square(n):
            return n * n
        for n in range(10):
            square(n)
        results = {}
        for width in (8, 16):
            model = keras.Sequential([keras.Input((width,)), keras.layers.Dense(128)])
            model.compile("adam", "mse")
            model.fit(tf.zeros((64, width)), tf.zeros((64, 128)))
        """,
    ),
    (
        "DOC-404",
        """
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("adam", "mse", steps_per_execution=32)
        model.fit(tf.zeros((64, 8)), tf.zeros((64, 1)))
        """,
    ),
    (
        "DOC-404",
        """
        strategy = tf.distribute.MirroredStrategy()
        with strategy.scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        model.fit(tf.zeros((64, 8)), tf.zeros((64, 1)))
        """,
    ),
    (
        "DOC-405",
        PARSE
        + """
@tf.function
def load(path):
    return tf.io.read_file(path)


dataset = tf.data.Dataset.list_files("*.tfrecord").map(load, num_parallel_calls=4)
dataset = dataset.map(parse, num_parallel_calls=4).batch(8).prefetch(2)


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, x):
        tf.print("shape", tf.strings.as_string(tf.shape(x)))
        return self.out(tf.image.resize(x, (8, 8)))


net = Net()
net.compile("adam", "mse")
net.fit(dataset)
""",
    ),
]


@pytest.mark.parametrize(("code", "program"), FINDS)
def test_a_mistake_is_found_at_its_line(code: str, program: str, tmp_path: Path) -> None:
    check_finds(code, program, tmp_path)


@pytest.mark.parametrize(("code", "program"), QUIET)
def test_what_only_looks_like_a_mistake_is_not_found(
    code: str, program: str, tmp_path: Path
) -> None:
    check_quiet(code, program, tmp_path)


def steps(**given: float) -> Steps:
    return Steps(**{"num_steps": 10, "step_seconds": 0.1, "input_seconds": 0.0, **given})  # type: ignore[arg-type]


def seen(**given: object) -> Observation:
    return Observation(outcome=Outcome.ENOUGH, seconds=1.0, **given)  # type: ignore[arg-type]


QUICK = MODEL + "for x, y in dataset:\n    train_step(x, y)\n"


def test_a_pipeline_that_a_run_waits_for_is_named_with_the_numbers(tmp_path: Path) -> None:
    path = write(QUICK, tmp_path)
    assert violations(path, observation=seen(steps=steps(input_seconds=0.01))) == []
    (found,) = violations(path, observation=seen(steps=steps(input_seconds=0.06)))
    assert (found.code, found.severity) == ("DOC-401", Severity.HINT)
    assert any("60%" in line for line in found.evidence)


def test_a_cheap_serial_map_that_a_run_waits_for_is_a_warning(tmp_path: Path) -> None:
    path = write(QUICK.replace(".batch(64)", ".map(lambda a, b: (a, b)).batch(64)"), tmp_path)
    assert [violation.severity for violation in violations(path)] == [Severity.HINT]
    (found,) = violations(path, observation=seen(steps=steps(input_seconds=0.06)))
    assert (found.code, found.severity) == ("DOC-401", Severity.WARNING)


def test_reads_that_only_a_run_has_shown(tmp_path: Path) -> None:
    path = write(QUICK, tmp_path)
    where = Line(file=str(path), line=24)
    for num_reads, codes in ((10, ["DOC-402"]), (2, [])):
        reads = (HostRead(where=where, num_reads=num_reads, seconds=0.5),)
        found = violations(path, observation=seen(steps=steps(), host_reads=reads))
        assert [violation.code for violation in found] == codes


def test_traces_that_a_run_has_counted(tmp_path: Path) -> None:
    path = write(QUICK, tmp_path)
    where = Line(file=str(path), line=14)
    for num_traces, codes in ((8, ["DOC-403"]), (2, [])):
        traced = (Traced(name="train_step", where=where, num_calls=10, num_traces=num_traces),)
        found = violations(path, observation=seen(traced=traced))
        assert [violation.code for violation in found] == codes
        assert [violation.line for violation in found] == [14] * len(codes)


def test_short_steps_that_a_run_has_measured_are_a_warning(tmp_path: Path) -> None:
    program = next(program for code, program in FINDS if code == "DOC-404")
    path = write(program, tmp_path)
    assert [violation.severity for violation in violations(path)] == [Severity.HINT]
    found = violations(path, observation=seen(steps=steps(step_seconds=0.0005)))
    assert [violation.severity for violation in found] == [Severity.WARNING]
