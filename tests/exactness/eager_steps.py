"""Training steps that nobody decorated: cases for `test_eager_steps`.

Each program trains for some steps and appends to ``out`` what it sees of them. ``x``, ``y`` are
tensors of 22 samples, ``data`` has them in batches of 4, of which the last is smaller, ``model``
and ``optimizer`` are made anew for each run. Outcome: "all" devices, or what keeps it on one
("one" where that is not asked for); "then: " means all devices first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

PRELUDE = """
import random, time
import keras
import numpy as np
import tensorflow as tf
keras.utils.set_random_seed(1)
generator = np.random.default_rng(0)
x = generator.normal(size=(22, 5)).astype("float32")
y = np.sin(x[:, :1])
x, y = tf.constant(x), tf.constant(y)
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
loss_of = keras.losses.MeanSquaredError()
def make_model():
    layers = [keras.layers.Dense(6, activation="tanh"), keras.layers.Dropout(0.2)]
    return keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(1)])
model = make_model()
optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
w = tf.Variable(tf.ones((5, 1)) * 0.3)
out = []
"""


@dataclass(frozen=True, slots=True)
class Case:
    outcome: str
    text: str


STEP = """
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True)){more}
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
"""
LOOP = "for a, b in data:" + STEP.format(more="")
FUNCTION = "def step(a, b):" + STEP.format(more="{more}") + "    return loss\n"


BY_HAND = r"""\1with tf.GradientTape() as tape:
\1    loss = \3
\1w.assign_sub(\2 * tape.gradient(loss, w))"""
BY_OPTIMIZER = r"""\1with tf.GradientTape() as tape:
\1    loss = \2
\1gradients = tape.gradient(loss, model.trainable_variables)
\1optimizer.apply_gradients(zip(gradients, model.trainable_variables))"""


def function(more: str = "") -> str:
    return FUNCTION.replace("{more}", more)


# "## name | outcome" above each program; <function> and <loop> stand for the texts above, and
# <w by RATE: LOSS> and <model: LOSS> for a step with a loss.
PROGRAMS = r"""
## in line | all
<loop>
    out.append(float(loss))
## in line, twice | all
for e in range(2):
  <loop>
    out.append(float(loss))
## function | all
<function>
for a, b in data: out.append(float(step(a, b)))
## a rate changes every epoch | all
rate = 0.1
for epoch in range(3):
    for a, b in data:
        <w by rate: tf.reduce_mean((a @ w - b) ** 2)>
        out.append(float(loss))
    rate *= 0.5
## a rate changes every step | all
rate = 0.1
for epoch in range(3):
    for a, b in data:
        <w by rate: tf.reduce_mean((a @ w - b) ** 2)>
        out.append(float(loss))
        rate *= 0.9
## a flag of the step | all
for epoch in range(2):
    for i, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((a @ w - b) ** 2)
            if i > 3:
                loss *= 3.0
        w.assign_sub(0.1 * tape.gradient(loss, w))
        out.append(float(loss))
## a list appended to in the step | changes an object of Python
seen = []
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2)
        seen.append(loss)
    w.assign_sub(0.1 * tape.gradient(loss, w))
for a, b in data:
    step(a, b)
out += [float(one) for one in seen]
## a list appended to in a function | it changes seen
seen = []
def measure(a, b):
    loss = tf.reduce_mean((a @ w - b) ** 2)
    seen.append(loss)
    return loss
for a, b in data:
    <w by 0.1: measure(a, b)>
out += [float(one) for one in seen]
## a global counter | assigns the global count
count = 0
def measure(a, b):
    global count
    count += 1
    return tf.reduce_mean((a @ w - b) ** 2) * count
for a, b in data:
    <w by 0.01: measure(a, b)>
    out.append(float(loss))
## a counter of the model | it changes 
class Counting(keras.layers.Layer):
    calls = 0
    def call(self, inputs):
        self.calls += 1
        return inputs * self.calls
model = keras.Sequential([keras.Input((5,)), Counting(), keras.layers.Dense(1)])
<loop>
    out.append(float(loss))
## numpy.random in a function | numpy.random
np.random.seed(3)
def measure(a, b):
    return tf.reduce_mean((a @ w - b) ** 2) * float(np.random.uniform())
for a, b in data:
    <w by 0.01: measure(a, b)>
    out.append(float(loss))
## a generator of NumPy | whose state is not known
draws = np.random.default_rng(3)
for a, b in data:
    <w by 0.01: tf.reduce_mean((a @ w - b) ** 2) * float(draws.uniform())>
    out.append(float(loss))
## a closure that is rebound | all
def make():
    factor = 1.0
    def measure(a, b):
        return tf.reduce_mean((a @ w - b) ** 2) * factor
    def change():
        nonlocal factor
        factor = 3.0
    return measure, change
measure, change = make()
for epoch in range(2):
    for a, b in data:
        <w by 0.1: measure(a, b)>
        out.append(float(loss))
    change()
## trainable is toggled | all
<function>

for epoch in range(3):
    model.layers[0].trainable = epoch != 1
    for a, b in data:
        out.append(float(step(a, b)))
## a list of layers is replaced | all
class Blocks(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(5)]
    def call(self, a):
        for block in self.blocks:
            a = block(a)
        return a[:, :1]
model = Blocks()
optimizer = keras.optimizers.SGD(0.1)
model(x)
for epoch in range(2):
    for a, b in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(a) - b) ** 2)
        for v, g in zip(model.trainable_variables, tape.gradient(loss, model.trainable_variables)):
            if g is not None:
                v.assign_sub(0.1 * g)
        out.append(float(loss))
    model.blocks = model.blocks[1:]
## a dictionary is changed | all
config = {"factor": 1.0, "more": [1.0]}
def measure(a, b):
    return tf.reduce_mean((a @ w - b) ** 2) * config["factor"] * config["more"][0]
for epoch in range(3):
    for a, b in data:
        <w by 0.1: measure(a, b)>
        out.append(float(loss))
    config["factor" if epoch else "more"] = 2.0 if epoch else [3.0]
## gradients accumulated in a list | all
sums = [tf.zeros_like(v) for v in model.trainable_variables]
for i, (a, b) in enumerate(data):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    sums = [s + g for s, g in zip(sums, gradients)]
    if i % 2:
        optimizer.apply_gradients(zip(sums, model.trainable_variables))
        sums = [tf.zeros_like(v) for v in model.trainable_variables]
    out.append(float(loss))
## continue | all
for i, (a, b) in enumerate(data):
    if i == 2:
        continue
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    if i == 4:
        out.append(float(tf.linalg.global_norm(gradients)))
        continue
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    out.append(float(loss))
## a persistent tape | all
v = tf.Variable(tf.ones((5, 1)))
for a, b in data:
    with tf.GradientTape(persistent=True) as tape:
        left = tf.reduce_mean((a @ w - b) ** 2)
        right = tf.reduce_mean((a @ v + w[0]) ** 2)
    first, second = tape.gradient(left, w), tape.gradient(right, v)
    del tape
    w.assign_sub(0.1 * first)
    v.assign_sub(0.1 * second)
    out += [float(left), float(right)]
## nested tapes | all
for a, b in data:
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(a)
            value = tf.reduce_sum((a @ w) ** 3)
        slope = inner.gradient(value, a)
        loss = tf.reduce_mean((a @ w - b) ** 2) + 0.01 * tf.reduce_mean(slope ** 2)
    w.assign_sub(0.01 * outer.gradient(loss, w))
    out.append(float(loss))
## two optimizers, and noise | all
maker, judge = make_model(), keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
one, other = keras.optimizers.SGD(0.05), keras.optimizers.SGD(0.1)
def step(real):
    noise = tf.random.normal((tf.shape(real)[0], 5))
    made = maker(noise, training=True)
    with tf.GradientTape() as tape:
        loss_judge = tf.reduce_mean(judge(made)) - tf.reduce_mean(judge(real))
    g = tape.gradient(loss_judge, judge.trainable_variables)
    other.apply_gradients(zip(g, judge.trainable_variables))
    noise = tf.random.normal((tf.shape(real)[0], 5))
    with tf.GradientTape() as tape:
        loss_maker = -tf.reduce_mean(judge(maker(noise, training=True)))
    g = tape.gradient(loss_maker, maker.trainable_variables)
    one.apply_gradients(zip(g, maker.trainable_variables))
    return {"judge": loss_judge, "maker": loss_maker}
for a, b in data:
    losses = step(b)
    out += [float(losses["judge"]), float(losses["maker"])]
## an average kept by Python | all
average = 0.0
<loop>

    average = 0.9 * average + 0.1 * float(loss)
    out.append(average)
## training is a flag | all
def step(a, b, training):
    <model: loss_of(b, model(a, training=training))>
    return loss
for epoch in range(3):
    for a, b in data:
        out.append(float(step(a, b, epoch != 1)))
## arrays of NumPy | all
<function>

for i in range(0, 22, 4):
    out.append(float(step(x.numpy()[i:i + 4].astype("float64"), y.numpy()[i:i + 4])))
## computing with an array | all
for i in range(0, 20, 4):
    a, b = x.numpy()[i:i + 4].astype("float64"), y.numpy()[i:i + 4].astype("float64")
    <w by 0.1: tf.reduce_mean(b * (b - tf.matmul(tf.cast(a, tf.float32), w)) ** 2)>
    out.append(float(loss))
## computing with small integers | an array of uint8 of NumPy
for i in range(0, 20, 4):
    a, b = (x.numpy()[i:i + 4] * 99).astype("uint8"), y[i:i + 4]
    <w by 0.1: tf.reduce_mean((tf.cast(a / 255, tf.float32) @ w - b) ** 2)>
    out.append(float(loss))
## a walrus | all
for a, b in data:
    with tf.GradientTape() as tape:
        if (scale := tf.constant(2.0)) is not None:
            loss = tf.reduce_mean((a @ w - b) ** 2) * scale
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
## an error of the step | all
def measure(a, b, i):
    if i:
        raise ValueError("its own")
    return tf.reduce_mean((a @ w - b) ** 2)
for i, (a, b) in enumerate(data):
    bad = i == 3
    try:
        <w by 0.1: measure(a, b, bad)>
        out.append(float(loss))
    except ValueError as error:
        out.append(float(error.__traceback__.tb_lineno))
## sizes that change | all
for i in (2, 3, 4) * 3:
    a, b = x[:, :5][:i], y[:i]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2) / a.shape[0]
        n = len(a)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out += [float(loss), n]
## constants of arrays | all
arrays = x.numpy().astype("float64"), y.numpy()
for i in (0, 3, 6) * 3:
    a, b = arrays[0][i : i + 3, :5], arrays[1][i : i + 3]
    with tf.GradientTape() as tape:
        predicted = tf.constant(a, dtype="float32") @ w
        loss = tf.reduce_mean((predicted - tf.constant(b)) ** 2) * tf.constant(0.5)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
## a block of tf.device | all
for a, b in data:
    with tf.device("/CPU:0"):
        with tf.GradientTape() as tape:
            loss = loss_of(b, model(a, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
    with tf.device("CPU:0"), tf.name_scope("update"):
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    out.append(float(loss))
## tf.device around the forward pass | all
gpus = ["/device:CPU:0"]
def step(a, b):
    with tf.GradientTape() as tape:
        with tf.device(gpus[0]):
            loss = loss_of(b, model(a, training=True))
    with tf.device(gpus[0]):
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss
for a, b in data: out.append(float(step(a, b)))
## stop_recording | all
for a, b in data:
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2)
        with tape.stop_recording():
            slope = tape.gradient(loss, w)
            size = tf.norm(slope)
        loss = loss + 0.1 * size * tf.reduce_sum(w ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    del tape
    out += [float(loss), float(size)]
## a loop over layers and optimizers | all
pairs = [(layer, keras.optimizers.SGD(rate)) for layer, rate in zip(model.layers[::2], (0.1, 0.02))]
for a, b in data:
    with tf.GradientTape(persistent=True) as tape:
        loss = loss_of(b, model(a, training=True))
    for layer, its_optimizer in pairs:
        gradients = tape.gradient(loss, layer.trainable_variables)
        its_optimizer.apply_gradients(zip(gradients, layer.trainable_variables))
    del tape
    out.append(float(loss))
## an if of a tensor | cannot be traced
for a, b in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2)
        if loss > 0.5:
            loss = loss * 2.0
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
## the rate of the optimizer | all
<function>

for epoch in range(3):
    optimizer.learning_rate = 0.1 / (1 + epoch)
    for a, b in data:
        out.append(float(step(a, b)))
## an attribute of a layer | all
<function>

for epoch in range(2):
    for a, b in data:
        out.append(float(step(a, b)))
    model.layers[0].activation = keras.activations.relu
    optimizer.weight_decay = 0.1
## losses of layers | all
reg = keras.layers.Dense(6, kernel_regularizer="l2")
model = keras.Sequential([keras.Input((5,)), reg, keras.layers.Dense(1)])
def step(a, b):
    <model: loss_of(b, model(a, training=True)) + sum(model.losses)>
    return loss
for a, b in data: out.append(float(step(a, b)))
## what is used later | all
<loop>

    out += [float(tf.linalg.global_norm(gradients)), float(loss), len(gradients)]
out.append(float(loss))
## a class | all
class Trainer:
    def __init__(self):
        self.model, self.rate, self.seen = make_model(), 0.1, 0
        self.count = tf.Variable(0)
        self.log = iter([1])
    def step(self, a, b):
        with tf.GradientTape() as tape:
            loss = loss_of(b, self.model(a, training=True))
        variables = self.model.trainable_variables
        for v, g in zip(variables, tape.gradient(loss, variables)):
            v.assign_sub(self.rate * g)
        self.count.assign_add(1)
        self.seen += len(a)
        return loss
trainer = Trainer()
for epoch in range(2):
    for a, b in data:
        out.append(float(trainer.step(a, b)))
    trainer.rate = 0.02
out += [float(trainer.count), trainer.seen]
## a function for gradients | all
def grad(model, a, b):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
    return loss, tape.gradient(loss, model.trainable_variables)
mean = keras.metrics.Mean()
for a, b in data:
    loss, grads = grad(model, a, b)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    mean.update_state(loss)
    out.append(float(mean.result()))
## print between tape and update | all
for a, b in data:
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    print(f"{float(loss):.4f}")
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    out.append(float(loss))
## a count in the step | all
n = 0
for a, b in data.repeat(2):
    with tf.GradientTape() as tape:
        n = n + 1
        loss = tf.reduce_mean((a @ w - b) ** 2) / n
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out += [float(loss), n]
## tensors of the step before | all
before = tf.constant(0.0)
for a, b in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2) + 0.1 * before
        before = tf.stop_gradient(loss)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(before))
## tensors in a dictionary | all
for a, b in data:
    batch = {"a": a, "b": (b, 2.0)}
    <w by 0.1: tf.reduce_mean((batch["a"] @ w - batch["b"][0]) ** 2) * batch["b"][1]>
    out.append(float(loss))
## a dictionary filled in a function | it changes a list or dictionary
def measure(batch):
    batch["loss"] = tf.reduce_mean((batch["a"] @ w - batch["b"]) ** 2)
    return batch["loss"]
for batch in data.map(lambda a, b: {"a": a, "b": b}):
    <w by 0.1: measure(batch)>
    out.append(float(batch["loss"]))
## a dictionary made and filled | all
def measure(batch):
    batch["loss"] = tf.reduce_mean((batch["a"] @ w - batch["b"]) ** 2)
    return batch["loss"]
for a, b in data:
    batch = {"a": a, "b": b}
    <w by 0.1: measure(batch)>
    out.append(float(batch["loss"]))
## losses read behind the step | which line
model = keras.Sequential([keras.Input((5,)), keras.layers.ActivityRegularization(0.1),
                          keras.layers.Dense(1)])
<function>

for a, b in data:
    out += [float(step(a, b)), float(sum(model.losses))]
## losses read in the step | all
model = keras.Sequential([keras.Input((5,)), keras.layers.ActivityRegularization(0.1),
                          keras.layers.Dense(1)])
def step(a, b):
    <model: loss_of(b, model(a, training=True)) + sum(model.losses)>
    return loss
for a, b in data: out.append(float(step(a, b)))
## an attribute by a name | all
class Config:
    pass
config = Config()
config.rate_0, config.rate_1 = 1.0, 1.0
def measure(a, b):
    return sum(getattr(config, f"rate_{i}") for i in range(2)) * tf.reduce_mean((a @ w - b) ** 2)
for epoch in range(2):
    for a, b in data:
        <w by 0.1: measure(a, b)>
        out.append(float(loss))
    config.rate_1 = 3.0
## a small batch prints | then: it calls print()
def measure(a, b):
    if len(a) < 4:
        print("small")
        return tf.reduce_sum((a @ w - b) ** 2)
    return tf.reduce_mean((a @ w - b) ** 2)
for a, b in data.repeat(2):
    <w by 0.1: measure(a, b)>
    out.append(float(loss))
## a setting of Keras | all
<function>

model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6), keras.layers.Dense(1)])
def loss_of(b, p):
    return tf.reduce_mean(p ** 2) / (keras.config.epsilon() + tf.reduce_mean(b ** 2))
for epoch in range(2):
    for a, b in data:
        out.append(float(step(a, b)))
    keras.config.set_epsilon(0.5)
keras.config.set_epsilon(1e-7)
## print under the tape | all
losses = []
for i, (a, b) in enumerate(data.repeat(2)):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
        print("step %d: %.4f" % (i, loss.numpy()))
        losses.append(float(loss))
        if i % 2 == 0:
            print(f"{i}: {float(loss):.3f}")
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
out += losses
## tf.print in the step | all
for i, (a, b) in enumerate(data.repeat(2)):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
    tf.print("step", i, "loss", loss)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    out.append(float(loss))
## tf.print of what is computed for it | all
import sys
for i, (a, b) in enumerate(data.repeat(2)):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
        tf.print("step", i, tf.cast(99 * tf.reduce_mean(loss), tf.int32), output_stream=sys.stdout)
    gradients = tape.gradient(loss, model.trainable_variables)
    norm = tf.linalg.global_norm(gradients)
    tf.print(tf.shape(a)[0], tf.cast(norm, tf.int32), output_stream=sys.stdout)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    out.append(float(loss))
## tf.print in a function that the step calls | all
import sys
def shown(loss):
    tf.print("loss", tf.cast(99 * loss, tf.int32), [tf.shape(loss)], output_stream=sys.stdout)
    return loss
def step(a, b):
    with tf.GradientTape() as tape:
        loss = shown(loss_of(b, model(a, training=True)))
    gradients = tape.gradient(loss, model.trainable_variables)
    for gradient in gradients[:2]:
        tf.print(tf.cast(9 * tf.norm(gradient), tf.int32), end=";", output_stream=sys.stdout)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss
for a, b in data.repeat(2):
    out.append(float(step(a, b)))
## tf.print in a loop of TensorFlow | it prints in a loop
import sys
@tf.function
def shown(loss):
    tf.print("loss", tf.cast(99 * loss, tf.int32), output_stream=sys.stdout)
    return loss
def step(a, b):
    <model: shown(loss_of(b, model(a, training=True)))>
    return loss
for a, b in data.repeat(2):
    out.append(float(step(a, b)))
## print of a variable under the tape | which may change
for a, b in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2)
        print(w.numpy()[0])
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
## print of what changes | one
for a, b in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2)
        print(float(loss))
        loss = loss + 1.0
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
## an array changed in place | it changes an array
pixels = x.numpy()[:20].reshape(5, 4, 5).copy()
for epoch in range(3):
    for a in pixels:
        with tf.GradientTape() as tape:
            a *= 0.9
            loss = tf.reduce_mean((tf.convert_to_tensor(a) @ w) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        out.append(float(loss))
out += pixels.ravel().tolist()
## a function with a tape, called under a tape | all
def slope(a):
    with tf.GradientTape() as inner:
        inner.watch(a)
        value = tf.reduce_sum((a @ w) ** 3)
    return inner.gradient(value, a)
for a, b in data:
    <w by 0.01: tf.reduce_mean((a @ w - b) ** 2) + 0.01 * tf.reduce_mean(slope(a) ** 2)>
    out.append(float(loss))
## a number changes with the epochs | all
for epoch in range(8):
    for a, b in data.repeat(4):
        <w by 0.01: tf.reduce_mean((a @ w - b) ** 2) / (epoch + 1)>
        out.append(float(loss))
## a namespace | all
import types
config = types.SimpleNamespace(rate=0.1)
for epoch in range(3):
    for a, b in data:
        <w by config.rate: tf.reduce_mean((a @ w - b) ** 2)>
        out.append(float(loss))
    config.rate = 0.01
## the rate of the optimizer at every step | all
<function>

for i, (a, b) in enumerate(data.repeat(2)):
    optimizer.learning_rate = 0.1 / (1 + i)
    out.append(float(step(a, b)))
## a rate that is an argument | all
def step(a, b, rate, momentum=0.5):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2)
    w.assign_sub(rate * tape.gradient(loss, w) * (1 - momentum))
    return loss, rate * 2
for i, (a, b) in enumerate(data.repeat(2)):
    loss, twice = step(a, b, rate=0.1 / (i + 1), momentum=0.5 if i < 6 else 0.9)
    out += [float(loss), twice]
## a division by a number that becomes zero | all
for n in (4, 3, 2, 1, 0, -1):
    a, b = x[:4], y[:4]
    try:
        <w by 0.1: tf.reduce_mean((a @ w - b) ** 2) * (1 / n)>
        out.append(float(loss))
    except ZeroDivisionError as error:
        out.append(float(error.__traceback__.tb_lineno))
## a number that becomes too large for float32 | all
for n in (1.0, 2.0, 3.0, 4.0, 1e39, 5.0, float("inf"), float("nan")):
    a, b = x[:4], y[:4]
    try:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((a @ w - b) ** 2) * n
        w.assign_sub(tf.minimum(0.01 * tape.gradient(loss, w), 0.001))
        out.append(float(loss))
    except ValueError as error:
        out.append(1.0)
## a number that is given to a traced function | changes again and again
@tf.function
def measure(a, b, n):
    return tf.reduce_mean((a @ w - b) ** 2) * n
for n, (a, b) in enumerate(data.repeat(2)):
    <w by 0.01: measure(a, b, n)>
    out.append(float(loss))
## an integer that becomes a float | all
for n in (1, 2, 3, 4.5, 5.5, 2**40, 6, True):
    a, b = x[:4], y[:4]
    <w by 0.01: tf.reduce_mean((a @ w - b) ** 2) / n>
    out += [float(loss), n]
"""


def read_programs() -> Iterator[tuple[str, Case]]:
    for block in PROGRAMS.split("\n## ")[1:]:
        heading, _, text = block.partition("\n")
        name, outcome = heading.split(" | ")
        text = text.replace("<function>", function()).replace("<loop>", LOOP)
        text = re.sub(r"( *)<w by (.*?): (.*)>", BY_HAND, text)
        text = re.sub(r"( *)<model: (.*)>", BY_OPTIMIZER, text)
        yield name, Case(outcome, text)


CASES = dict(read_programs())
CASES |= {
    f"{text} in a function": Case(
        "it calls",
        f"""
random.seed(3)
np.random.seed(3)
def measure(a, b):
    return tf.reduce_mean((a @ w - b) ** 2) * (1.0 + 0 * {text})
def other():
    {text}
for a, b in data:
    with tf.GradientTape() as tape:
        loss = measure(a, b)
    w.assign_sub(0.01 * tape.gradient(loss, w))
    out.append(float(loss))
""",
    )
    for text in ("random.random()", "time.time()", "len([print()])")
}
CASES |= {
    f"draws {text}{' without a global seed' * (not seed)}": Case(
        "all",
        f"""
def disturb(b):
    return b + {text}
{seed}
for a, b in data.repeat(2):
    noise = tf.random.uniform((), 0.5, 1.5)
    with tf.GradientTape() as tape:
        own = 0.1 * tf.random.normal(tf.shape(b))
        loss = noise * tf.reduce_mean((a @ w + own - disturb(b)) ** 2)
        loss += 0.01 * tf.reduce_sum(tf.nn.dropout(w, 0.5))
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
out.append(float(tf.random.normal(())))
{"" if seed else "out = [0.0] * 5; w.assign(tf.zeros((5, 1)))"}
""",
    )
    for text, seed in (
        ("tf.random.normal(tf.shape(b), stddev=0.1)", "tf.random.set_seed(2)"),
        ("tf.random.truncated_normal(b.shape, dtype=tf.float32)", "tf.random.set_seed(2)"),
        ("tf.random.normal(tf.shape(b))", ""),
        (
            "tf.cast(tf.random.uniform(tf.shape(b), -3, 4, dtype=tf.int32), tf.float32)",
            "tf.random.set_seed(-5)",
        ),
    )
}
CASES |= {
    f"draws that are left: {text}": Case(
        reason,
        f"""
def disturb(b):
    return b + {text}
tf.random.set_seed(2)
for a, b in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - disturb(b)) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
out.append(float(tf.random.normal(())))
""",
    )
    for text, reason in (
        ("tf.random.normal(tf.shape(b), seed=3)", "tf.random draws"),
        ("tf.random.shuffle(b)", "tf.random draws"),
        ("(tf.random.normal(()) if len(b) > 3 else 0.0)", "then: it does not draw"),
        ("tf.map_fn(lambda r: r + tf.random.normal(()), b)", "it does not draw"),
        ("tf.cond(b[0, 0] > 0, lambda: tf.random.normal(()), lambda: tf.zeros(()))", "random"),
    )
}
CASES |= {
    f"attributes that change behind call {call}": Case(
        "all",
        f"""
import types
config = types.SimpleNamespace(rate=0.1, more=[1.0])
def measure(a, b):
    return tf.reduce_mean((a @ w - b) ** 2) * config.rate * config.more[0]
for i in range(8):
    with tf.GradientTape() as tape:
        loss = measure(x[:8], y[:8])
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out += [float(loss), config.rate, config.more[0]]
    if i == {call}:
        config.rate, config.more[0] = 0.05, 2.0
""",
    )
    for call in range(4)
}

NUMBERS = """
import math
rate = 0.1
for n, (a, b) in enumerate(data.repeat(3)):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2)
        {more}
    gradient = tape.gradient(loss, w)
    w.assign_sub({rate} * gradient)
    out += [float(loss), {seen}]
    rate *= 0.9
"""
FLOATS = NUMBERS.replace("a @ w", "tf.cast(a, tf.float64) @ w").replace(
    "- b", "- tf.cast(b, tf.float64)"
)


def numbers(more: str = "pass", rate: str = "rate", seen: str = "rate", text: str = NUMBERS) -> str:
    return text.format(more=more, rate=rate, seen=seen)


_WIDE = "w = tf.Variable(tf.ones((5, 1), tf.float64) * 0.3)\n"
CASES |= {
    f"a number: {text}": Case(outcome, body)
    for text, outcome, body in (
        ("a rate", "all", numbers()),
        ("arithmetic", "all", numbers(rate="(1 - rate * 2 + n / 100) / 10")),
        ("an integer", "all", numbers("loss = loss / (n + 1) * n", seen="n")),
        ("a quotient", "all", numbers("loss = loss * (1.0 / (n + 1))")),
        ("a product of integers", "all", numbers("loss = loss * (n * n - n)")),
        ("a negative one", "all", numbers("loss = -rate * loss * -n")),
        ("a minimum", "all", numbers("beta = min(1.0, n / 7); loss = loss * beta", seen="beta")),
        ("a branch", "all", numbers("loss = loss * (3.0 if n > 4 else 1.0)")),
        ("a turn", "all", numbers("loss = loss * (3.0 if n % 2 else 1.0)")),
        ("a type", "all", numbers("loss = loss * (rate if isinstance(rate, float) else 9.0)")),
        ("an int to tf.cast", "all", numbers("loss = loss * tf.cast(n, tf.float32)")),
        ("a number to tf.multiply", "all", numbers("loss = tf.multiply(loss, rate)")),
        ("a new number", "all", numbers("m = n * 2 + 1; loss = loss / m", seen="m")),
        ("a new float", "all", numbers("m = rate * 2 + n; loss = loss / m", seen="m")),
        ("a condition that is seen", "all", numbers("m = n > 4", seen="float(m)")),
        ("a float64 model", "all", _WIDE + numbers(text=FLOATS)),
        ("a float64 model, computed", "all", _WIDE + numbers(rate="(1 - rate) / 9", text=FLOATS)),
        ("a power", "rate changes", numbers("loss = loss * rate ** 2")),
        ("a whole quotient", "n changes", numbers("loss = loss * (n // 2)")),
        ("a shape", "n changes", numbers("loss = loss + tf.reduce_sum(tf.zeros([n, 1]))")),
        ("a slice", "n changes", numbers("loss = loss + tf.reduce_sum(a[:, :n])")),
        ("an index", "n changes", numbers("loss = loss * [1.0, 2.0, *range(99)][n]")),
        ("a range", "n changes", numbers("loss = loss + sum(0.1 for _ in range(n))")),
        ("a text", "n changes", numbers("loss = loss * len(f'{n}')")),
        ("a key", "n changes", numbers("loss = loss * {3: 2.0}.get(n, 1.0)")),
        ("an integer of it", "rate changes", numbers("loss = loss * int(rate * 30)")),
        ("a function of math", "rate changes", numbers("loss = loss * math.exp(-rate)")),
        ("a function of NumPy", "rate changes", numbers("loss = loss * float(np.sqrt(rate))")),
        ("an array", "rate changes", numbers("loss = loss * np.asarray([rate])[0]")),
        ("tf.constant", "rate changes", numbers("loss = loss * tf.constant(rate)")),
        (
            "a use that is caught",
            "rate changes",
            numbers("""
        try_ = getattr(rate, "hex", None)
        loss = loss * (1.0 if try_ is None else len(try_()))"""),
        ),
    )
}
