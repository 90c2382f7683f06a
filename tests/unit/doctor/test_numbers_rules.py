"""Rules on gradients and numbers, in the styles in which people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from evener.doctor.watch import Line, Outcome, Seen, Steps, Work
from unit.doctor.table import check_finds, check_quiet, findings, write

HEAD = """
import keras
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
GLOBAL_BATCH_SIZE = 64
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    mse = keras.losses.MeanSquaredError()
    each = keras.losses.MeanSquaredError(reduction="none")
x, y = tf.zeros((256, 8)), tf.zeros((256, 1))
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH_SIZE)
dataset = strategy.experimental_distribute_dataset(dataset)

"""
TAIL = """
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


@tf.function
def train_step(x, y):
    losses = strategy.run(step, args=(x, y))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


for x, y in dataset:
    train_step(x, y)
"""


def stepping(body: str, before: str = "") -> str:
    return HEAD + before + "\ndef step(x, y):\n    with tf.GradientTape() as tape:\n" + body + TAIL


TRAINER = """
import keras
import tensorflow as tf
from tensorflow import distribute as d


class Trainer:
    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            self.optimizer = keras.optimizers.Adam()
            %(build)s
            self.loss_fn = keras.losses.MeanSquaredError(%(reduction)s)

    def compute_loss(self, y, pred):
        %(loss)s

    def step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y, self.model(x, training=True))
        grads = tape.gradient(loss, self.model.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.model.trainable_variables))%(slots)s
        return loss

    @tf.function
    def train(self, batch):
        return self.strategy.run(self.step, args=(batch,))

    def fit(self, ds):
        for batch in self.strategy.experimental_distribute_dataset(ds):
            loss = self.train(batch)
            %(show)s


def main():
    trainer = Trainer(d.MirroredStrategy())
    trainer.fit(tf.data.Dataset.from_tensor_slices((tf.zeros((64, 8)), tf.zeros((64, 1)))).batch(8))


if __name__ == "__main__":
    main()
"""


def trainer(**given: str) -> str:
    usual = {
        "build": "self.optimizer.build(self.model.trainable_variables)",
        "reduction": "",
        "loss": "return self.loss_fn(y, pred)",
        "slots": "",
        "show": "total = self.strategy.reduce('SUM', loss, axis=None)",
    }
    return TRAINER % {**usual, **given}


def fitted(loss: str, name: str = "loss") -> str:
    return f"""
import keras
import tensorflow as tf
from keras import backend as K

strategy = tf.distribute.MirroredStrategy()


{loss}


def main():
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile(optimizer="adam", loss={name})
    model.fit(tf.zeros((256, 8)), tf.zeros((256, 4)), batch_size=64)


main()
"""


FINDS = [
    (
        "ENG-066",
        stepping("        loss = tf.reduce_mean((model(x) - y) ** 2)  # finding: ENG-066\n"),
    ),
    ("ENG-066", stepping("        loss = keras.ops.mean(each(y, model(x)))  # finding: ENG-066\n")),
    (
        "ENG-066",
        stepping(
            "        errors = tf.square(model(x) - y)\n"
            "        loss = tf.reduce_mean(errors)  # finding: ENG-066\n"
            "        loss = optimizer.scale_loss(loss)\n"
        ),
    ),
    (
        "ENG-066",
        stepping(
            "        loss = mse(y, model(x))\n"
            "        loss += tf.add_n(model.losses)  # finding: ENG-066\n"
        ),
    ),
    (
        "ENG-066",
        stepping(
            "        loss = tf.nn.sigmoid_cross_entropy_with_logits(y, model(x))\n"
            "        loss = tf.math.reduce_mean(loss)  # finding: ENG-066\n"
        ),
    ),
    ("ENG-066", trainer(loss="return tf.reduce_mean(tf.abs(y - pred))  # finding: ENG-066")),
    (
        "ENG-066",
        """
        strategy = tf.distribute.MirroredStrategy()
        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.out = keras.layers.Dense(1)
            def call(self, x):
                return self.out(x)
            def train_step(self, data):
                x, y = data
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.square(self(x) - y))  # finding: ENG-066
                grads = tape.gradient(loss, self.trainable_variables)
                self.optimizer.apply_gradients(zip(grads, self.trainable_variables))
                return {"loss": loss}
        with strategy.scope():
            net = Net()
            net.compile(optimizer="adam")
        net.fit(tf.zeros((64, 8)), tf.zeros((64, 1)))
        """,
    ),
    (
        "DOC-304",
        stepping(
            "        loss = mse(y, model(x)) / strategy.num_replicas_in_sync  # finding: DOC-304\n"
        ),
    ),
    (
        "DOC-304",
        stepping(
            "        loss = tf.nn.compute_average_loss(  # finding: DOC-304\n"
            "            mse(y, model(x)), global_batch_size=GLOBAL_BATCH_SIZE\n"
            "        )\n"
        ),
    ),
    (
        "DOC-304",
        stepping(
            "        loss = tf.nn.compute_average_loss(each(y, model(x)), global_batch_size=64)\n"
            "        loss /= strategy.num_replicas_in_sync  # finding: DOC-304\n"
        ),
    ),
    (
        "DOC-304",
        stepping(
            "        loss = tf.reduce_mean(each(y, model(x)))\n"
            "        loss = loss * (1.0 / GLOBAL_BATCH_SIZE)  # finding: DOC-304\n"
        ),
    ),
    (
        "DOC-304",
        trainer(
            show="self.last = self.strategy.reduce('MEAN', loss, axis=None)  # finding: DOC-304"
        ),
    ),
    (
        "DOC-304",
        fitted(
            "def loss(y, p):\n"
            "    return tf.square(y - p)[:, 0] / strategy.num_replicas_in_sync  # finding: DOC-304"
        ).replace("tf.square(y - p)[:, 0]", "keras.losses.mean_squared_error(y, p)"),
    ),
    ("ENG-064", fitted("def loss(y, p):\n    return K.mean(K.square(y - p))  # finding: ENG-064")),
    (
        "ENG-064",
        fitted(
            "def loss(y, p):\n    value = tf.reduce_mean(tf.square(y - p))  # finding: ENG-064\n"
            "    return value"
        ),
    ),
    (
        "ENG-064",
        fitted(
            "def dice(smooth=1.0):\n    def loss(y, p):\n        both = tf.reduce_sum(y * p)\n"
            "        whole = tf.reduce_sum(y) + tf.reduce_sum(p)\n"
            "        return 1 - (2 * both + smooth) / (whole + smooth)  # finding: ENG-064\n"
            "    return loss",
            "dice()",
        ),
    ),
    (
        "ENG-064",
        fitted("", "lambda y, p: tf.reduce_mean(tf.abs(y - p))  # finding: ENG-064")
        .replace("loss=lambda", "loss=lambda")
        .replace("  # finding: ENG-064)", ")  # finding: ENG-064"),
    ),
    (
        "ENG-064",
        fitted(
            "class Scaled(keras.losses.Loss):\n    def __init__(self, weight):\n"
            "        super().__init__()\n        self.weight = weight\n"
            "    def call(self, y_true, y_pred):\n"
            "        return self.weight * K.mean(abs(y_true - y_pred))  # finding: ENG-064",
            "Scaled(2.0)",
        ),
    ),
    (
        # It has a replica on each GPU.
        "RUN-010",
        """
        strategy = tf.distribute.experimental.CentralStorageStrategy()
        loss = strategy.run(lambda: tf.constant(1.0))
        print(loss.numpy())  # finding: RUN-010
        """,
    ),
    (
        "DOC-301",
        """
        from tensorflow import device, function, GradientTape
        first, second = keras.layers.Dense(8), keras.layers.Dense(1)
        import tensorflow as tf
        def forward(x):
            with device("/GPU:0"):
                x = first(x)
            with device("/GPU:1"):
                return second(x)
        @function
        def step(x, y):
            with GradientTape() as tape:
                loss = tf.reduce_mean((forward(x) - y) ** 2)
            return tape.gradient(loss, first.variables + second.variables)  # finding: DOC-301
        """,
    ),
    (
        "DOC-301",
        """
        class Split(keras.Model):
            def __init__(self):
                super().__init__()
                self.a, self.b = keras.layers.Dense(8), keras.layers.Dense(1)
            def call(self, x):
                with tf.device("GPU:0"):
                    x = self.a(x)
                with tf.device("GPU:1"):  # finding: DOC-301
                    return self.b(x)
        model = Split()
        model.compile("adam", "mse")
        model.fit(tf.zeros((64, 8)), tf.zeros((64, 1)))
        """,
    ),
    (
        "DOC-301",
        """
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        DEVICES = [d.name for d in tf.config.list_logical_devices("GPU")]
        def grad(x, y):
            with tf.GradientTape() as tape:
                with tf.device(DEVICES[1]):
                    loss = tf.reduce_mean((model(x) - y) ** 2)
            with tf.device(DEVICES[0]):
                return tape.gradient(loss, model.trainable_variables)  # finding: DOC-301
        """,
    ),
    (
        "DOC-302",
        """
        with tf.device("/GPU:1"):  # finding: DOC-302
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        model.fit(tf.zeros((64, 8)), tf.zeros((64, 1)))
        """,
    ),
    (
        "DOC-302",
        """
        def build():
            return keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model = build()
        with tf.device("/device:GPU:1"):  # finding: DOC-302
            model.compile("adam", "mse")
        model.fit(tf.zeros((64, 8)), tf.zeros((64, 1)))
        """,
    ),
    (
        "DOC-302",
        """
        inputs = keras.Input((8,))
        x = inputs
        for i in range(2):
            with tf.device(f"/GPU:{i}"):  # finding: DOC-302
                x = keras.layers.Dense(8)(x)
        model = keras.Model(inputs, x)
        """,
    ),
    (
        "DOC-302",
        """
        with tf.device("/GPU:1"):  # finding: DOC-302
            dataset = tf.data.Dataset.range(100).map(lambda i: i * 2).batch(10)
        """,
    ),
    ("DOC-305", trainer(build="pass", slots="  # finding: DOC-305")),
    (
        "DOC-305",
        HEAD.replace("    optimizer.build(model.trainable_variables)\n", "")
        + """
@tf.function
def train(x, y):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = mse(y, model(x))
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))  # finding: DOC-305
    strategy.run(step, args=(x, y))

for batch in dataset:
    train(*batch)
""",
    ),
    (
        "DOC-305",
        """
        a = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        b = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
        one, two = keras.optimizers.Adam(), keras.optimizers.Adam()
        @tf.function
        def step(model, opt, x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x))
            grads = tape.gradient(loss, model.trainable_variables)
            opt.apply_gradients(zip(grads, model.trainable_variables))  # finding: DOC-305
        step(a, one, tf.zeros((4, 8)))
        step(b, two, tf.zeros((4, 8)))
        """,
    ),
    ("RUN-010", trainer(show="print('loss', loss)  # finding: RUN-010")),
    ("RUN-010", trainer(show="print(f'{float(loss):.3f}')  # finding: RUN-010")),
    ("RUN-010", trainer(show="self.history = loss.numpy()  # finding: RUN-010")),
    (
        "RUN-010",
        trainer(show="print('loss %.3f' % tf.reduce_mean(loss))  # finding: RUN-010"),
    ),
    (
        "RUN-010",
        HEAD
        + """
for x, y in dataset:
    print(x.shape)  # finding: RUN-010
    strategy.run(lambda a: model(a), args=(x,))
""",
    ),
    (
        "RUN-010",
        HEAD
        + """
total = 0.0
for x, y in dataset:
    per_replica = strategy.run(lambda a, b: mse(b, model(a)), args=(x, y))
    total = total + per_replica  # finding: RUN-010
""",
    ),
    (
        "DOC-307",
        """
        BATCH = 4
        strategy = tf.distribute.MirroredStrategy()
        def build():
            x = inputs = keras.Input((8, 8, 3))
            x = keras.layers.Conv2D(4, 3)(x)
            x = keras.layers.BatchNormalization()(x)  # finding: DOC-307
            return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(x)))
        with strategy.scope():
            model = build()
            model.compile("adam", "mse")
        data = tf.data.Dataset.from_tensor_slices((tf.zeros((64, 8, 8, 3)), tf.zeros((64, 1))))
        model.fit(data.batch(BATCH))
        """,
    ),
    (
        "RUN-009",
        """
        from tensorflow.keras import layers as L
        import tensorflow as tf
        class Block(L.Layer):
            def call(self, x):
                return self.mix(L.Conv2D(4, 3)(x))  # finding: RUN-009
            def mix(self, x):
                norm = L.LayerNormalization()  # finding: RUN-009
                return norm(x)
        """,
    ),
    (
        "RUN-009",
        """
        class Scale(keras.layers.Layer):
            def call(self, x):
                w = tf.Variable(1.0)  # finding: RUN-009
                return x * w
        """,
    ),
    (
        "RUN-009",
        """
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        def train(dataset):
            for x, y in dataset:
                opt = keras.optimizers.Adam(1e-3)  # finding: RUN-009
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x) - y) ** 2)
                grads = tape.gradient(loss, model.trainable_variables)
                opt.apply_gradients(zip(grads, model.trainable_variables))
        """,
    ),
    (
        "DOC-308",
        """
        class Scale(keras.layers.Layer):
            def build(self, shape):
                self.w = tf.Variable(tf.random.normal((int(shape[-1]),)))  # finding: DOC-308
            def call(self, x):
                return x * self.w
        """,
    ),
    (
        "DOC-308",
        stepping("        loss = mse(y, model(x))\n").replace(
            "optimizer.apply_gradients(zip(grads, model.trainable_variables))",
            "optimizer.apply_gradients(zip(grads, model.weights[2:]))  # finding: DOC-308",
        ),
    ),
    (
        "DOC-308",
        """
        enc = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        dec = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
        opt = keras.optimizers.Adam()
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((dec(enc(x)) - x) ** 2)
            grads = tape.gradient(loss, dec.trainable_variables)
            opt.apply_gradients(zip(grads, enc.trainable_variables))  # finding: DOC-308
        """,
    ),
    (
        "DOC-308",
        """
        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.out = keras.layers.Dense(1)
            def call(self, x):
                return self.out(x)
        def main():
            net = Net()
            opt = keras.optimizers.SGD(0.1)
            weights = net.trainable_weights  # finding: DOC-308
            for x, y in tf.data.Dataset.from_tensors((tf.zeros((4, 8)), tf.zeros((4, 1)))):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((net(x) - y) ** 2)
                opt.apply_gradients(zip(tape.gradient(loss, weights), weights))
        main()
        """,
    ),
    (
        "DOC-308",
        """
        base = keras.applications.ResNet50(include_top=False, pooling="avg")
        base.trainable = False
        model = keras.Sequential([base, keras.layers.Dense(10)])
        model.compile("adam", "mse")
        model.fit(tf.zeros((8, 64, 64, 3)), tf.zeros((8, 10)), epochs=5)
        for layer in base.layers[-20:]:
            layer.trainable = True  # finding: DOC-308
        model.fit(tf.zeros((8, 64, 64, 3)), tf.zeros((8, 10)), epochs=5)
        """,
    ),
    ("DOC-309", "a = tf.constant(3) * tf.random.uniform((2,))  # finding: DOC-309"),
    (
        "DOC-309",
        """
        y = np.random.rand(64, 1)
        x = np.random.rand(64, 8).astype("float32")
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        for xb, yb in tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).batch(8):
            error = tf.square(yb - model(xb))  # finding: DOC-309
        """,
    ),
    (
        "DOC-309",
        """
        def accuracy(y, logits):
            right = tf.equal(tf.argmax(logits, axis=-1), tf.cast(y, tf.int64))
            return tf.reduce_mean(right)  # finding: DOC-309
        """,
    ),
    ("DOC-309", "step = tf.Variable(0)\nstep.assign_add(0.5)  # finding: DOC-309"),
    (
        "DOC-309",
        "mask = tf.cast(tf.ones((4,)) > 0, tf.int32)\na = tf.ones((4,)) * mask  # finding: DOC-309",
    ),
    (
        "DOC-310",
        """
        model = keras.Sequential()
        model.add(keras.Input((8, 8)))
        model.add(keras.layers.Flatten())
        model.add(keras.layers.Softmax())
        model.compile("adam", "mse")
        model.fit(tf.zeros((8, 8, 8)), tf.zeros((8, 64)))  # finding: DOC-310
        """,
    ),
    (
        "DOC-310",
        """
        def build():
            net = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            net.trainable = False
            return net
        model = build()
        model.compile("adam", "mse")
        model.fit(tf.zeros((8, 8)), tf.zeros((8, 1)))  # finding: DOC-310
        """,
    ),
]

QUIET = [
    ("ENG-066", stepping("        loss = mse(y, model(x))\n")),
    (
        "ENG-066",
        stepping(
            "        loss = tf.reduce_mean(tf.square(model(x) - y), axis=-1)\n"
            "        loss = tf.nn.compute_average_loss(loss, global_batch_size=GLOBAL_BATCH_SIZE)\n"
            "        loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))\n"
        ),
    ),
    (
        "ENG-066",
        stepping("        loss = tf.reduce_mean(mse(y, model(x)))\n"),
    ),
    (
        "ENG-066",
        stepping(
            "        loss = tf.reduce_mean((model(x) - y) ** 2)\n"
            "        loss *= 1.0 / strategy.num_replicas_in_sync\n"
        ),
    ),
    (
        "ENG-066",
        """
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        opt = keras.optimizers.SGD(0.1)
        @tf.function
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            grads = tape.gradient(loss, model.trainable_variables)
            opt.apply_gradients(zip(grads, model.trainable_variables))
            return loss
        for x, y in tf.data.Dataset.from_tensors((tf.zeros((4, 8)), tf.zeros((4, 1)))):
            step(x, y)
        """,
    ),
    (
        "DOC-304",
        stepping("        loss = tf.reduce_sum(each(y, model(x))) / GLOBAL_BATCH_SIZE\n"),
    ),
    (
        "DOC-304",
        stepping(
            "        loss = tf.reduce_mean(each(y, model(x))) / strategy.num_replicas_in_sync\n"
        ),
    ),
    (
        "DOC-304",
        trainer(loss="return self.loss_fn(y, pred)", show="pass"),
    ),
    ("ENG-064", fitted("def loss(y, p):\n    return K.mean(K.square(y - p), axis=-1)")),
    (
        "ENG-064",
        fitted(
            "def loss(y, p):\n    return tf.reduce_mean(tf.square(y - p)) "
            "/ strategy.num_replicas_in_sync"
        ),
    ),
    (
        "ENG-064",
        fitted(
            "def loss(y, p):\n    a = keras.losses.mean_squared_error(y, p)\n"
            "    return a + 0.1 * tf.reduce_mean(tf.abs(p), axis=-1)"
        ),
    ),
    (
        "ENG-064",
        """
        def loss(y, p):
            return tf.reduce_mean(tf.square(y - p))
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(128)])
        model.compile("adam", loss)
        model.fit(tf.zeros((64, 8)), tf.zeros((64, 128)))
        """,
    ),
    (
        "DOC-301",
        """
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        def step(x, y):
            with tf.GradientTape() as tape:
                with tf.device("/CPU:0"):
                    x = tf.reverse(x, [0])
                loss = tf.reduce_mean((model(x) - y) ** 2)
            return tape.gradient(loss, model.trainable_variables)
        """,
    ),
    (
        "DOC-302",
        """
        def train(model):
            model.compile("adam", "mse")
            model.fit(tf.zeros((64, 8)), tf.zeros((64, 1)))
        def build():
            return keras.Sequential([keras.Input((8,)), keras.layers.Dense(128)])
        with tf.device("/GPU:1"):
            train(build())
        """,
    ),
    (
        "DOC-302",
        """
        with tf.device("/CPU:0"):
            dataset = tf.data.Dataset.range(100).batch(10)
        with tf.device("/GPU:1"):
            a = tf.random.normal((4, 4))
            b = tf.matmul(a, a)
        """,
    ),
    ("DOC-305", trainer()),
    (
        "DOC-305",
        HEAD.replace("keras.optimizers.Adam()", "keras.optimizers.SGD(0.1)").replace(
            "    optimizer.build(model.trainable_variables)\n", ""
        )
        + "\ndef step(x, y):\n    with tf.GradientTape() as tape:\n        loss = mse(y, model(x))"
        + TAIL,
    ),
    (
        "DOC-305",
        trainer(build="pass")
        .replace("d.MirroredStrategy()", "evener.Strategy()")
        .replace("import keras\n", "import evener\nimport keras\n"),
    ),
    (
        "RUN-010",
        trainer(show="print(float(self.strategy.reduce('SUM', loss, axis=None))) if 0 else None"),
    ),
    (
        "RUN-010",
        HEAD
        + """
values = []
for x, y in dataset:
    out = strategy.run(lambda a: model(a), args=(x,))
    values.extend(strategy.experimental_local_results(out))
    whole = strategy.gather(out, axis=0)
    print(whole.shape)
    print(out.values) if hasattr(out, "values") else None
""",
    ),
    (
        "DOC-307",
        """
        strategy = tf.distribute.MirroredStrategy()
        with strategy.scope():
            model = keras.Sequential(
                [keras.Input((8,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
            )
            model.compile("adam", "mse")
        BATCH = 32 * strategy.num_replicas_in_sync
        data = tf.data.Dataset.from_tensor_slices((tf.zeros((640, 8)), tf.zeros((640, 1))))
        model.fit(data.batch(BATCH))
        """,
    ),
    (
        "RUN-009",
        """
        class Net(keras.Model):
            def __init__(self):
                super().__init__()
                self.blocks = [keras.layers.Dense(8) for _ in range(3)]
                self.head = None
            def build(self, shape):
                self.scale = self.add_weight(shape=(1,))
            def call(self, x):
                if self.head is None:
                    self.head = keras.layers.Dense(1)
                for block in self.blocks:
                    x = keras.layers.ReLU()(block(x))
                return self.head(keras.layers.Flatten()(x)) * self.scale
        def build_model():
            inputs = keras.Input((8,))
            return keras.Model(inputs, keras.layers.Dense(1)(inputs))
        for fold in range(5):
            model = build_model()
            model.compile(keras.optimizers.Adam(), "mse")
            model.fit(tf.zeros((64, 8)), tf.zeros((64, 1)))
        """,
    ),
    (
        "DOC-308",
        """
        class Averaged(keras.layers.Layer):
            def __init__(self):
                super().__init__()
                self.count = tf.Variable(0)
                self.mean = tf.Variable(0.0)
                self.fixed = tf.Variable([1.0, 2.0], trainable=False)
            def call(self, x):
                self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(x))
                return x - self.mean
        class Linear(tf.Module):
            def __init__(self):
                super().__init__()
                self.w = tf.Variable(tf.ones((8, 1)))
            def __call__(self, x):
                return x @ self.w
        """,
    ),
    (
        "DOC-308",
        """
        gen = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
        disc = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        g_opt, d_opt = keras.optimizers.Adam(), keras.optimizers.Adam()
        bce = keras.losses.BinaryCrossentropy(from_logits=True)
        @tf.function
        def step(real):
            with tf.GradientTape() as g_tape, tf.GradientTape() as d_tape:
                out = disc(gen(real))
                g_loss = bce(tf.ones_like(out), out)
                d_loss = bce(tf.zeros_like(out), out) + bce(tf.ones_like(out), disc(real))
            grads = g_tape.gradient(g_loss, gen.trainable_variables)
            g_opt.apply_gradients(zip(grads, gen.trainable_variables))
            grads = d_tape.gradient(d_loss, disc.trainable_variables)
            d_opt.apply_gradients(zip(grads, disc.trainable_variables))
        """,
    ),
    (
        "DOC-308",
        """
        base = keras.applications.ResNet50(include_top=False, pooling="avg")
        base.trainable = False
        model = keras.Sequential([base, keras.layers.Dense(10)])
        model.compile("adam", "mse")
        model.fit(tf.zeros((8, 64, 64, 3)), tf.zeros((8, 10)), epochs=5)
        base.trainable = True
        for layer in base.layers[:-20]:
            layer.trainable = False
        model.compile(keras.optimizers.Adam(1e-5), "mse")
        model.fit(tf.zeros((8, 64, 64, 3)), tf.zeros((8, 10)), epochs=5)
        """,
    ),
    (
        "DOC-309",
        """
        n = tf.constant(3)
        a = tf.constant(2.0) * 3
        b = tf.cast(n, tf.float32) * 0.5
        c = np.random.rand(4) * tf.ones((4,))
        d = n * 2 + tf.size(a)
        e = tf.reduce_mean(tf.cast(tf.equal(n, 3), tf.float32))
        f = keras.optimizers.SGD().iterations * 0.1
        """,
    ),
    (
        "DOC-310",
        """
        base = keras.applications.ResNet50(include_top=False, pooling="avg")
        for layer in base.layers:
            layer.trainable = False
        model = keras.Model(base.input, keras.layers.Dense(2)(base.output))
        model.compile("adam", "mse")
        model.fit(tf.zeros((8, 64, 64, 3)), tf.zeros((8, 2)))
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


@pytest.mark.parametrize("made", ["evener.Strategy()", "evener.Strategy(plan)"])
def test_under_eveners_strategy_an_unscaled_loss_is_right(made: str, tmp_path: Path) -> None:
    program = stepping("        loss = tf.reduce_mean((model(x) - y) ** 2)\n")
    program = program.replace("tf.distribute.MirroredStrategy()", made)
    path = write("import evener\n" + program, tmp_path)
    assert findings(path) == []


def test_variables_that_a_run_has_not_changed_are_named(tmp_path: Path) -> None:
    path = write("model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])", tmp_path)
    steps = Steps(
        num_steps=3, step_seconds=0.1, input_seconds=0.0, where=Line(file=str(path), line=4)
    )
    seen = Seen(outcome=Outcome.ENOUGH, seconds=1.0, steps=steps, untrained=("dense/bias",))
    (found,) = findings(path, seen=seen)
    assert (found.code, found.line) == ("DOC-308", 4)
    assert "dense/bias" in found.what


def test_gradients_that_a_run_has_counted_are_evidence(tmp_path: Path) -> None:
    path = write(dict(FINDS)["DOC-301"], tmp_path)
    work = (Work(device="GPU:0", num_operations=40, num_gradients=20),)
    seen = Seen(outcome=Outcome.ENOUGH, seconds=1.0, work=work)
    found = next(one for one in findings(path, seen=seen) if one.code == "DOC-301")
    assert any("20 gradient operations" in line for line in found.evidence)


def test_the_batch_that_a_run_has_seen_counts_for_batch_normalization(tmp_path: Path) -> None:
    program = next(program for code, program in QUIET if code == "DOC-307")
    path = write(program, tmp_path)
    steps = Steps(num_steps=3, step_seconds=0.1, input_seconds=0.0, batch_size=4, num_replicas=2)
    seen = Seen(outcome=Outcome.ENOUGH, seconds=1.0, steps=steps)
    assert [one.code for one in findings(path, seen=seen)] == ["DOC-307"]
