"""Training steps that nobody decorated: cases for `test_eager_steps`.

Each program trains for some steps and appends to ``out`` what it sees of them. ``x``, ``y`` are
tensors of 22 samples, ``data`` has them in batches of 4, of which the last is smaller, ``model``
and ``optimizer`` are made anew for each run. Outcome: "all" devices, or what keeps it on one
("one" where that is not asked for); "then: " means all devices first.
"""

from __future__ import annotations

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


def function(more: str = "") -> str:
    return FUNCTION.replace("{more}", more)


CASES = {
    "in line": Case("all", LOOP + "    out.append(float(loss))"),
    "in line, twice": Case(
        "all",
        f"for e in range(2):\n  for a, b in data:{STEP.format(more='')}    out.append(float(loss))",
    ),
    "function": Case("all", function() + "for a, b in data: out.append(float(step(a, b)))"),
    "a rate changes every epoch": Case(
        "all",
        """
rate = 0.1
for epoch in range(3):
    for a, b in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((a @ w - b) ** 2)
        w.assign_sub(rate * tape.gradient(loss, w))
        out.append(float(loss))
    rate *= 0.5
""",
    ),
    "a rate changes every step": Case(
        "rate changes in every step",
        """
rate = 0.1
for epoch in range(3):
    for a, b in data:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((a @ w - b) ** 2)
        w.assign_sub(rate * tape.gradient(loss, w))
        out.append(float(loss))
        rate *= 0.9
""",
    ),
    "a flag of the step": Case(
        "changes in every step",
        """
for epoch in range(2):
    for i, (a, b) in enumerate(data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((a @ w - b) ** 2)
            if i > 3:
                loss *= 3.0
        w.assign_sub(0.1 * tape.gradient(loss, w))
        out.append(float(loss))
""",
    ),
    "a list appended to in the step": Case(
        "changes an object of Python",
        """
seen = []
def step(a, b):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2)
        seen.append(loss)
    w.assign_sub(0.1 * tape.gradient(loss, w))
for a, b in data:
    step(a, b)
out += [float(one) for one in seen]
""",
    ),
    "a list appended to in a function": Case(
        "it changes seen",
        """
seen = []
def measure(a, b):
    loss = tf.reduce_mean((a @ w - b) ** 2)
    seen.append(loss)
    return loss
for a, b in data:
    with tf.GradientTape() as tape:
        loss = measure(a, b)
    w.assign_sub(0.1 * tape.gradient(loss, w))
out += [float(one) for one in seen]
""",
    ),
    "a global counter": Case(
        "assigns the global count",
        """
count = 0
def measure(a, b):
    global count
    count += 1
    return tf.reduce_mean((a @ w - b) ** 2) * count
for a, b in data:
    with tf.GradientTape() as tape:
        loss = measure(a, b)
    w.assign_sub(0.01 * tape.gradient(loss, w))
    out.append(float(loss))
""",
    ),
    "a counter of the model": Case(
        "it changes ",
        """
class Counting(keras.layers.Layer):
    calls = 0
    def call(self, inputs):
        self.calls += 1
        return inputs * self.calls
model = keras.Sequential([keras.Input((5,)), Counting(), keras.layers.Dense(1)])
"""
        + LOOP
        + "    out.append(float(loss))",
    ),
    **{
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
    },
    "numpy.random in a function": Case(
        "numpy.random",
        """
np.random.seed(3)
def measure(a, b):
    return tf.reduce_mean((a @ w - b) ** 2) * float(np.random.uniform())
for a, b in data:
    with tf.GradientTape() as tape:
        loss = measure(a, b)
    w.assign_sub(0.01 * tape.gradient(loss, w))
    out.append(float(loss))
""",
    ),
    "a generator of NumPy": Case(
        "whose state is not known",
        """
draws = np.random.default_rng(3)
for a, b in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2) * float(draws.uniform())
    w.assign_sub(0.01 * tape.gradient(loss, w))
    out.append(float(loss))
""",
    ),
    "a closure that is rebound": Case(
        "all",
        """
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
        with tf.GradientTape() as tape:
            loss = measure(a, b)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        out.append(float(loss))
    change()
""",
    ),
    "trainable is toggled": Case(
        "all",
        f"""
{function()}
for epoch in range(3):
    model.layers[0].trainable = epoch != 1
    for a, b in data:
        out.append(float(step(a, b)))
""".replace("SGD(0.1, momentum=0.9)", "SGD(0.1)"),
    ),
    "a list of layers is replaced": Case(
        "all",
        """
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
""",
    ),
    "a dictionary is changed": Case(
        "all",
        """
config = {"factor": 1.0, "more": [1.0]}
def measure(a, b):
    return tf.reduce_mean((a @ w - b) ** 2) * config["factor"] * config["more"][0]
for epoch in range(3):
    for a, b in data:
        with tf.GradientTape() as tape:
            loss = measure(a, b)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        out.append(float(loss))
    config["factor" if epoch else "more"] = 2.0 if epoch else [3.0]
""",
    ),
    "gradients accumulated in a list": Case(
        "all",
        """
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
""",
    ),
    "continue": Case(
        "all",
        """
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
""",
    ),
    "a persistent tape": Case(
        "all",
        """
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
""",
    ),
    "nested tapes": Case(
        "all",
        """
for a, b in data:
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(a)
            value = tf.reduce_sum((a @ w) ** 3)
        slope = inner.gradient(value, a)
        loss = tf.reduce_mean((a @ w - b) ** 2) + 0.01 * tf.reduce_mean(slope ** 2)
    w.assign_sub(0.01 * outer.gradient(loss, w))
    out.append(float(loss))
""",
    ),
    "two optimizers, and noise": Case(
        "all",
        """
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
""",
    ),
    "an average kept by Python": Case(
        "all",
        LOOP.replace("for a", "average = 0.0\nfor a")
        + """
    average = 0.9 * average + 0.1 * float(loss)
    out.append(average)
""",
    ),
    "training is a flag": Case(
        "all",
        """
def step(a, b, training):
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=training))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss
for epoch in range(3):
    for a, b in data:
        out.append(float(step(a, b, epoch != 1)))
""",
    ),
    "arrays of NumPy": Case(
        "all",
        function()
        + """
for i in range(0, 22, 4):
    out.append(float(step(x.numpy()[i:i + 4].astype("float64"), y.numpy()[i:i + 4])))
""",
    ),
    "computing with an array": Case(
        "all",
        """
for i in range(0, 20, 4):
    a, b = x.numpy()[i:i + 4].astype("float64"), y.numpy()[i:i + 4].astype("float64")
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(b * (b - tf.matmul(tf.cast(a, tf.float32), w)) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
""",
    ),
    "computing with small integers": Case(
        "an array of uint8 of NumPy",
        """
for i in range(0, 20, 4):
    a, b = (x.numpy()[i:i + 4] * 99).astype("uint8"), y[i:i + 4]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.cast(a / 255, tf.float32) @ w - b) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
""",
    ),
    "a walrus": Case(
        "all",
        """
for a, b in data:
    with tf.GradientTape() as tape:
        if (scale := tf.constant(2.0)) is not None:
            loss = tf.reduce_mean((a @ w - b) ** 2) * scale
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
""",
    ),
    "an error of the step": Case(
        "all",
        """
def measure(a, b, i):
    if i:
        raise ValueError("its own")
    return tf.reduce_mean((a @ w - b) ** 2)
for i, (a, b) in enumerate(data):
    bad = i == 3
    try:
        with tf.GradientTape() as tape:
            loss = measure(a, b, bad)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        out.append(float(loss))
    except ValueError as error:
        out.append(float(error.__traceback__.tb_lineno))
""",
    ),
    "sizes that change": Case(
        "all",
        """
for i in (2, 3, 4) * 3:
    a, b = x[:, :5][:i], y[:i]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2) / a.shape[0]
        n = len(a)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out += [float(loss), n]
""",
    ),
    "tf.random in a function": Case(
        "tf.random draws",
        """
def disturb(b):
    return b + tf.random.normal(tf.shape(b))
tf.random.set_seed(2)
for a, b in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - disturb(b)) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
""",
    ),
    "tf.random under the tape": Case(
        "in every call",
        """
tf.random.set_seed(2)
for a, b in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w + tf.random.normal(tf.shape(b)) - b) ** 2)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
""",
    ),
    "an if of a tensor": Case(
        "cannot be traced",
        """
for a, b in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2)
        if loss > 0.5:
            loss = loss * 2.0
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
""",
    ),
    "the rate of the optimizer": Case(
        "all",
        function()
        + """
for epoch in range(3):
    optimizer.learning_rate = 0.1 / (1 + epoch)
    for a, b in data:
        out.append(float(step(a, b)))
""",
    ),
    "an attribute of a layer": Case(
        "all",
        function()
        + """
for epoch in range(2):
    for a, b in data:
        out.append(float(step(a, b)))
    model.layers[0].activation = keras.activations.relu
    optimizer.weight_decay = 0.1
""",
    ),
    "losses of layers": Case(
        "all",
        """
reg = keras.layers.Dense(6, kernel_regularizer="l2")
model = keras.Sequential([keras.Input((5,)), reg, keras.layers.Dense(1)])
"""
        + function(" + sum(model.losses)")
        + "for a, b in data: out.append(float(step(a, b)))",
    ),
    "what is used later": Case(
        "all",
        LOOP
        + """
    out += [float(tf.linalg.global_norm(gradients)), float(loss), len(gradients)]
out.append(float(loss))
""",
    ),
    "a class": Case(
        "all",
        """
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
""",
    ),
    "a function for gradients": Case(
        "all",
        """
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
""",
    ),
    "print between tape and update": Case(
        "all",
        """
for a, b in data:
    with tf.GradientTape() as tape:
        loss = loss_of(b, model(a, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    print(f"{float(loss):.4f}")
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    out.append(float(loss))
""",
    ),
    "a count in the step": Case(
        "changes in every step",
        """
n = 0
for a, b in data.repeat(2):
    with tf.GradientTape() as tape:
        n = n + 1
        loss = tf.reduce_mean((a @ w - b) ** 2) / n
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out += [float(loss), n]
""",
    ),
    "tensors of the step before": Case(
        "all",
        """
before = tf.constant(0.0)
for a, b in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2) + 0.1 * before
        before = tf.stop_gradient(loss)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(before))
""",
    ),
    "tensors in a dictionary": Case(
        "all",
        """
for a, b in data:
    batch = {"a": a, "b": (b, 2.0)}
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((batch["a"] @ w - batch["b"][0]) ** 2) * batch["b"][1]
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
""",
    ),
    "a dictionary filled in a function": Case(
        "it changes a list or dictionary",
        """
def measure(batch):
    batch["loss"] = tf.reduce_mean((batch["a"] @ w - batch["b"]) ** 2)
    return batch["loss"]
for batch in data.map(lambda a, b: {"a": a, "b": b}):
    with tf.GradientTape() as tape:
        loss = measure(batch)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(batch["loss"]))
""",
    ),
    "a dictionary made and filled": Case(
        "all",
        """
def measure(batch):
    batch["loss"] = tf.reduce_mean((batch["a"] @ w - batch["b"]) ** 2)
    return batch["loss"]
for a, b in data:
    batch = {"a": a, "b": b}
    with tf.GradientTape() as tape:
        loss = measure(batch)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(batch["loss"]))
""",
    ),
    "losses read behind the step": Case(
        "which line",
        """
model = keras.Sequential([keras.Input((5,)), keras.layers.ActivityRegularization(0.1),
                          keras.layers.Dense(1)])
"""
        + function()
        + """
for a, b in data:
    out += [float(step(a, b)), float(sum(model.losses))]
""",
    ),
    "losses read in the step": Case(
        "all",
        """
model = keras.Sequential([keras.Input((5,)), keras.layers.ActivityRegularization(0.1),
                          keras.layers.Dense(1)])
"""
        + function(" + sum(model.losses)")
        + "for a, b in data: out.append(float(step(a, b)))",
    ),
    "an attribute by a name": Case(
        "all",
        """
class Config:
    pass
config = Config()
config.rate_0, config.rate_1 = 1.0, 1.0
def measure(a, b):
    return sum(getattr(config, f"rate_{i}") for i in range(2)) * tf.reduce_mean((a @ w - b) ** 2)
for epoch in range(2):
    for a, b in data:
        with tf.GradientTape() as tape:
            loss = measure(a, b)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        out.append(float(loss))
    config.rate_1 = 3.0
""",
    ),
    "a small batch prints": Case(
        "then: it calls print()",
        """
def measure(a, b):
    if len(a) < 4:
        print("small")
        return tf.reduce_sum((a @ w - b) ** 2)
    return tf.reduce_mean((a @ w - b) ** 2)
for a, b in data.repeat(2):
    with tf.GradientTape() as tape:
        loss = measure(a, b)
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
""",
    ),
    "a setting of Keras": Case(
        "all",
        function()
        + """
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6), keras.layers.Dense(1)])
def loss_of(b, p):
    return tf.reduce_mean(p ** 2) / (keras.config.epsilon() + tf.reduce_mean(b ** 2))
for epoch in range(2):
    for a, b in data:
        out.append(float(step(a, b)))
    keras.config.set_epsilon(0.5)
keras.config.set_epsilon(1e-7)
""",
    ),
    "print under the tape": Case(
        "all",
        """
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
""",
    ),
    "print of a variable under the tape": Case(
        "which may change",
        """
for a, b in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2)
        print(w.numpy()[0])
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
""",
    ),
    "print of what changes": Case(
        "one",
        """
for a, b in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((a @ w - b) ** 2)
        print(float(loss))
        loss = loss + 1.0
    w.assign_sub(0.1 * tape.gradient(loss, w))
    out.append(float(loss))
""",
    ),
}
