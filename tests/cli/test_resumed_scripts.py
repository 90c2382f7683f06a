"""`evener run --checkpoint`: unchanged scripts that are killed and run again."""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path

import pytest

from cli.forked import Done, Run

RESUMED = ("run", "--devices", "cpu:2", "--shares", "3,1", "--checkpoint", "kept")

SCRIPT = """
import os, signal, sys
from pathlib import Path

import keras, numpy as np, tensorflow as tf

kind, killed_in_fit, killed_in_epoch, killed_at = sys.argv[1], *map(int, sys.argv[2:])
x = np.random.default_rng().normal(size=(64, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)

class InOrder(keras.utils.PyDataset):
    order = None

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if self.order is None:
            self.order = np.arange(64)
        chosen = self.order[index * 8 : index * 8 + 8]
        return x[chosen] + np.random.normal(size=(8, 4)).astype("float32"), y[chosen]

    def on_epoch_end(self):
        self.order = np.random.permutation(64)

def generate():
    # A thread draws ahead of the steps: from the global generator, no two runs would draw alike.
    rng = np.random.default_rng(3)
    while True:
        chosen = rng.integers(0, 64, 8)
        yield x[chosen], y[chosen]

def make():
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).batch(8)

shared = make()
ordered = InOrder()

class Seen(keras.callbacks.Callback):
    def __init__(self, number):
        super().__init__()
        self.number, self.losses, self.best = number, [], {}

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])
        self.best = {"loss": min(self.losses), "text": f"{batch}"}

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        at = self.number, self.epoch, batch
        if at == (killed_in_fit, killed_in_epoch, killed_at) and Path("kill").exists():
            os.kill(os.getpid(), signal.SIGKILL)

for number in (1, 2):
    model = keras.Sequential([
        keras.Input((4,)),
        keras.layers.Dense(3 + number, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1),
    ])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    seen = Seen(number)
    data = {
        "arrays": lambda: {"x": x, "y": y, "batch_size": 8, "validation_split": 0.25},
        "dataset": lambda: {"x": shared, "validation_data": shared},
        "steps": lambda: {"x": make().repeat(), "steps_per_epoch": 5, "validation_data": shared},
        "PyDataset": lambda: {"x": ordered},
        "generator": lambda: {"x": generate(), "steps_per_epoch": 6},
    }[kind]()
    stops = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)
    more = [stops] if "validation_split" in data else []
    history = model.fit(**data, epochs=3, verbose=0, callbacks=[*more, seen])
    print(history.epoch, history.history, seen.losses, seen.best)
    print(model.evaluate(x, y, verbose=0), float(model.predict(x, verbose=0).sum()))
    # A thread draws from a generator ahead of the steps.
    print(kind == "generator" or np.random.rand())
    print([weight.tobytes().hex() for weight in model.get_weights()])
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "at"),
    [
        ("arrays", ("1", "1", "2")),
        ("arrays", ("2", "0", "5")),
        ("dataset", ("2", "1", "4")),
        ("steps", ("2", "2", "3")),
        ("PyDataset", ("2", "1", "4")),
        ("generator", ("2", "1", "5")),
    ],
)
def test_a_killed_script_ends_with_the_bits_of_an_undisturbed_one(
    kind: str, at: tuple[str, ...], run_forked: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    every = ("--every-steps", "2", "train.py", kind, *at)
    (tmp_path / "kill").touch()
    killed = run_forked("evener", *RESUMED, *every)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (tmp_path / "kill").unlink()
    resumed = run_forked("evener", *RESUMED, *every)
    assert resumed.returncode == 0, resumed.stderr
    assert "this fit goes on behind what was done" in resumed.stderr
    # The seed of the run, without its checkpoints.
    for folder in (tmp_path / "kept").glob("fit-*"):
        folder.rename(tmp_path / f"before {folder.name}")
    undisturbed = run_forked("evener", *RESUMED, *every)
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert resumed.stdout == undisturbed.stdout


LOOP = """
import os, signal, sys, time
from pathlib import Path

import keras, numpy as np, tensorflow as tf

kind, number, killed_at = sys.argv[1], getattr(signal, sys.argv[2]), int(sys.argv[3])
x = np.random.default_rng().normal(size=(60, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
if kind == "other data":
    x += np.float32(time.time() % 1)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).batch(8)
model = keras.Sequential([
    keras.Input((4,)),
    keras.layers.Dense(8, "relu"),
    keras.layers.BatchNormalization(),
    keras.layers.Dropout(0.3),
    keras.layers.Dense(1),
])
average = keras.models.clone_model(model)
scale = tf.Variable([1.0, 1.0])
optimizer = keras.optimizers.Adam(0.01)
model.compile(optimizer, "mse", metrics=["mae"])
mean = keras.metrics.Mean()
saves = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "own", max_to_keep=2)
if kind == "restores":
    saves.checkpoint.restore(saves.latest_checkpoint)
if kind == "fits":
    average.compile("sgd", "mse")
    average.fit(x, y, verbose=0)

def train(inputs, targets):
    tf.print("computed", output_stream=sys.stderr)
    with tf.GradientTape() as tape:
        outputs = tf.nn.dropout(model(inputs, training=True) * scale[0], 0.1)
        loss = tf.reduce_mean((outputs - targets) ** 2) + 0.01 * tf.reduce_sum(scale**2)
    weights = [*model.trainable_variables, scale]
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
    return loss

decorated = tf.function(train)

@tf.function
def take(iterator):
    return train(*next(iterator))

@tf.function
def validate(inputs, targets):
    return tf.reduce_mean((model(inputs) - targets) ** 2)

steps, best, losses = 0, np.inf, []
for epoch in range(3):
    mean.reset_state()
    iterator = iter(data)
    for inputs, targets in data:
        if kind == "train_on_batch":
            loss = model.train_on_batch(inputs, targets, return_dict=True)["loss"]
        elif kind == "eager":
            exec("loss = train(inputs, targets)")
        elif kind == "iterator":
            loss = take(iterator)
        else:
            loss = decorated(inputs, targets)
        losses.append(float(loss))
        mean.update_state(loss)
        steps += 1
        if steps % 3 == 0:
            for old, new in zip(average.weights, model.weights):
                old.assign(0.9 * old + 0.1 * new)
        if steps == killed_at and Path("kill").exists():
            os.kill(os.getpid(), number)
    if epoch == 1:
        optimizer.learning_rate.assign(0.005)
    found = float(validate(x, y))
    if kind == "train_on_batch":
        found = model.evaluate(x, y, verbose=0)[0]
    if found < best:
        best = found
        model.save_weights("best.weights.h5")
    saves.save()
    # Read by C code, by Keras, and by functions of Python.
    print(epoch, float(mean.result()), found, float(tf.reduce_sum(scale * 2)))
    print(float(tf.reduce_sum(average(x))), model.predict(x, verbose=0).sum(), np.random.rand())
print(losses, float(optimizer.learning_rate), saves.checkpoints)
model.load_weights("best.weights.h5")
for each in (model, average):
    print([weight.tobytes().hex() for weight in each.get_weights()])
"""
# Becomes a step of `evener run`; a branch on the kind would not.
EAGER_LINES = """
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs, training=True) - targets) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
"""
NUMBER = re.compile("goes on behind step (\\d+)")
RUN_LOOP = (*RESUMED, "--every-steps", "2", "loop.py")


def begin_loop(run: Run, folder: Path, kind: str, signal_name: str = "SIGKILL") -> Done:
    """Run the loop with a signal in its third epoch."""
    text = LOOP
    if kind == "hoisted":
        before, _, rest = text.partition('        if kind == "train_on_batch":')
        text = before + EAGER_LINES + rest[rest.index("        losses.append") :]
    (folder / "loop.py").write_text(text, encoding="utf-8")
    (folder / "kill").touch()
    begun = run("evener", *RUN_LOOP, kind, signal_name, "19")
    (folder / "kill").unlink()
    return begun


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "signal_name"),
    [
        ("decorated", "SIGKILL"),
        ("decorated", "SIGTERM"),
        ("train_on_batch", "SIGKILL"),
        ("hoisted", "SIGKILL"),
    ],
)
def test_a_killed_loop_ends_like_an_undisturbed_one(
    kind: str, signal_name: str, run_forked: Run, tmp_path: Path
) -> None:
    killed = begin_loop(run_forked, tmp_path, kind, signal_name)
    assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGTERM), killed.stderr
    resumed = run_forked("evener", *RUN_LOOP, kind, signal_name, "19")
    assert resumed.returncode == 0, resumed.stderr
    assert (
        f"this loop goes on behind step {20 if signal_name == 'SIGTERM' else 1}" in resumed.stderr
    )
    if kind == "decorated":
        # The last checkpoint is that of step 18, or of the signal.
        kept = 20 if signal_name == "SIGTERM" else int(NUMBER.findall(resumed.stderr)[0])
        assert resumed.stderr.count("computed") == 24 - kept
    # Nothing is computed again behind the end.
    again = run_forked("evener", *RUN_LOOP, kind, signal_name, "19")
    assert "this loop goes on behind step 2" in again.stderr
    assert "computed" not in again.stderr
    assert "had little to do" not in again.stderr
    assert again.stdout == resumed.stdout
    for path in (*tmp_path.glob("kept/loop"), *tmp_path.glob("own"), *tmp_path.glob("best*")):
        path.rename(tmp_path / f"before {path.name}")
    undisturbed = run_forked("evener", *RUN_LOOP, kind, signal_name, "19")
    assert undisturbed.returncode == 0, undisturbed.stderr
    if kind != "hoisted":
        assert resumed.stdout == undisturbed.stdout
        return
    # The first steps behind the checkpoint run as they are written, which rounds otherwise.
    for ours, theirs in zip(resumed.stdout.split(), undisturbed.stdout.split(), strict=True):
        with contextlib.suppress(ValueError):
            assert float(ours.strip("[],")) == pytest.approx(float(theirs.strip("[],")), rel=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "code", "why"),
    [
        ("eager", "CKPT-018", "Its step runs as single operations"),
        ("iterator", "CKPT-018", "take has the operation IteratorGetNext"),
        ("fits", "CKPT-018", "The script calls fit, too."),
    ],
)
def test_what_cannot_be_resumed_ends_at_the_first_step(
    kind: str, code: str, why: str, run_forked: Run, tmp_path: Path
) -> None:
    begun = begin_loop(run_forked, tmp_path, kind)
    assert begun.returncode == 1
    assert f"[{code}] The training loop at loop.py:" in begun.stderr
    assert f"Why: {why}" in begun.stderr
    assert begun.stdout == ""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("other data", "Behind step 0, that run had a call of the step; this one has other values"),
        ("restores", "the restore of a checkpoint, which is not there; this one has the restore"),
    ],
)
def test_a_loop_that_does_otherwise_computes_nothing(
    kind: str, why: str, run_forked: Run, tmp_path: Path
) -> None:
    killed = begin_loop(run_forked, tmp_path, kind)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = run_forked("evener", *RUN_LOOP, kind, "SIGKILL", "19")
    assert resumed.returncode == 1
    assert "[CKPT-021] The training loop at loop.py:" in resumed.stderr
    assert why in resumed.stderr
    assert resumed.stdout == ""
