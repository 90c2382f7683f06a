"""Rules on gradients and numbers, in the styles in which people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.doctor.table import check_finds, check_quiet

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
        "DOC-214",
        stepping("        loss = tf.reduce_mean((model(x) - y) ** 2)  # finding: DOC-214\n"),
    ),
    ("DOC-214", stepping("        loss = keras.ops.mean(each(y, model(x)))  # finding: DOC-214\n")),
    (
        "DOC-214",
        stepping(
            "        errors = tf.square(model(x) - y)\n"
            "        loss = tf.reduce_mean(errors)  # finding: DOC-214\n"
            "        loss = optimizer.scale_loss(loss)\n"
        ),
    ),
    (
        "DOC-214",
        stepping(
            "        loss = tf.nn.sigmoid_cross_entropy_with_logits(y, model(x))\n"
            "        loss = tf.math.reduce_mean(loss)  # finding: DOC-214\n"
        ),
    ),
    ("DOC-214", trainer(loss="return tf.reduce_mean(tf.abs(y - pred))  # finding: DOC-214")),
    (
        "DOC-214",
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
                    loss = tf.reduce_mean(tf.square(self(x) - y))  # finding: DOC-214
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
        "ENG-064",
        fitted(
            "SIZE = 32\ndef loss(y, p):\n"
            "    return tf.reduce_sum(abs(y - p)) / SIZE  # finding: ENG-064"
        ),
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
    ("DOC-309", "a = tf.constant(3) * tf.random.uniform((2,))  # finding: DOC-309"),
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
    ("DOC-214", stepping("        loss = mse(y, model(x))\n")),
    (
        "DOC-214",
        stepping("        loss = tf.reduce_mean((model(x) - y) ** 2)\n")
        .replace("tf.distribute.MirroredStrategy()", "evener.Strategy()")
        .replace("import keras\n", "import evener\nimport keras\n"),
    ),
    (
        "DOC-214",
        stepping("        loss = tf.reduce_mean((model(x) - y) ** 2)\n").replace(
            "    optimizer.apply",
            "    grads = [g / strategy.num_replicas_in_sync for g in grads]\n    optimizer.apply",
        ),
    ),
    (
        "DOC-214",
        stepping(
            "        loss = tf.reduce_mean(tf.square(model(x) - y), axis=-1)\n"
            "        loss = tf.nn.compute_average_loss(loss, global_batch_size=GLOBAL_BATCH_SIZE)\n"
            "        loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))\n"
        ),
    ),
    (
        "DOC-214",
        stepping("        loss = tf.reduce_mean(mse(y, model(x)))\n"),
    ),
    (
        "DOC-214",
        stepping(
            "        loss = tf.reduce_mean((model(x) - y) ** 2)\n"
            "        loss *= 1.0 / strategy.num_replicas_in_sync\n"
        ),
    ),
    (
        "DOC-214",
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
    (
        "ENG-064",
        fitted("def loss(y, p):\n    return tf.reduce_sum(tf.square(y - p)) / GLOBAL_BATCH_SIZE"),
    ),
    (
        "ENG-064",
        fitted(
            "BATCH = 64\ndef loss(y, p):\n    each = tf.square(y - p)\n"
            "    return tf.reduce_sum(each) / BATCH"
        ).replace("batch_size=64", "batch_size=BATCH"),
    ),
    (
        "ENG-064",
        fitted(
            "GLOBAL_BATCH = 64\ndef loss(y, p):\n"
            "    return tf.reduce_sum(tf.square(y - p)) * (1.0 / GLOBAL_BATCH)"
        ),
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
