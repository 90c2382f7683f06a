"""Programs that fail on one device: loops, conditions, XLA, metrics, wrong use, several batches."""

import keras
import numpy as np
import tensorflow as tf


def batch(num_samples=24, num_features=4):
    return np.random.default_rng(1).normal(size=(num_samples, num_features)).astype("float32")


def compiled(*layers, loss="mse", shape=(4,), **options):
    model = keras.Sequential([keras.Input(shape), *layers])
    model.compile(keras.optimizers.SGD(0.01), loss, **options)
    return model


def fails_in_while_loop():
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def train_step(x, positions):
        total = tf.zeros([])
        for k in tf.range(3):
            total += tf.reduce_sum(tf.gather(weights, positions + k))
        weights.assign_sub(0.01 * total * tf.ones([4, 1]) * tf.reduce_mean(x))

    train_step(tf.constant(batch()), tf.constant([1, 2]))


def fails_in_branch():
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def train_step(x):
        loss = tf.reduce_mean(x @ weights)
        if loss > -1e9:
            loss = tf.reshape(loss, [tf.cast(loss * 0, tf.int32) + 3])
        weights.assign_sub(0.01 * tf.reduce_sum(loss) * tf.ones([4, 1]))

    train_step(tf.constant(batch()))


def fails_two_shapes_in_branch():
    @tf.function
    def train_step(x):
        if tf.reduce_mean(x) > 0:
            loss = tf.zeros([2])
        else:
            loss = "none"
        return loss

    train_step(tf.constant(batch()))


def fails_undefined_in_branch():
    @tf.function
    def train_step(x):
        if tf.reduce_mean(x) > 0:
            loss = tf.reduce_mean(x)
        return loss

    train_step(tf.constant(batch()))


def fails_matmul_of_unknown_width():
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def train_step(x):
        weights.assign_sub(0.01 * tf.reduce_mean(x @ weights) * tf.ones([4, 1]))

    train_step(tf.constant(batch()))
    train_step(tf.constant(batch(24, 5)))


def fails_signature():
    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def train_step(x):
        return tf.reduce_mean(x)

    train_step(tf.constant(batch(24, 5)))


def fails_concat_of_rows():
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def train_step(x, other):
        rows = tf.concat([x, other], axis=1)
        weights.assign_sub(0.01 * tf.reduce_mean(rows) * tf.ones([4, 1]))

    train_step(tf.constant(batch(24)), tf.constant(batch(21)))


def fails_division_of_integers():
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def train_step(x, counts):
        parts = tf.constant([10, 20]) // counts
        weights.assign_sub(
            0.01 * tf.reduce_mean(x) * tf.cast(parts[0], tf.float32) * tf.ones([4, 1])
        )

    train_step(tf.constant(batch()), tf.constant([1, 0]))


def fails_sparse_labels_in_step():
    model = compiled(keras.layers.Dense(3))

    @tf.function
    def train_step(x, labels):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(x))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    train_step(tf.constant(batch()), tf.zeros([24, 1], tf.int32))


def fails_assert_rank():
    @tf.function
    def train_step(x):
        tf.debugging.assert_rank(x, 3, message="images expected")
        return tf.reduce_mean(x)

    train_step(tf.constant(batch()))


def fails_assert_of_every_sample():
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def train_step(x, y):
        tf.Assert(tf.reduce_all(y >= 0), ["a label is negative"])
        weights.assign_sub(0.01 * tf.reduce_mean(x) * tf.ones([4, 1]))

    train_step(tf.constant(batch()), tf.constant(np.arange(24)))
    train_step(tf.constant(batch()), tf.constant(np.arange(24) - 1))


def fails_in_metric():
    class Rate(keras.metrics.Metric):
        def __init__(self):
            super().__init__()
            self.total = self.add_variable((), "zeros", name="total")

        def update_state(self, y, prediction, sample_weight=None):
            tf.debugging.assert_equal(tf.shape(prediction)[-1], 2, "two outputs expected")

        def result(self):
            return self.total

    compiled(keras.layers.Dense(1), metrics=[Rate()]).fit(
        keras.ops.ones((24, 4)), keras.ops.ones((24,)), batch_size=12, verbose=0
    )


def fails_early_in_callback():
    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise RuntimeError(f"epoch {epoch} is enough")

    compiled(keras.layers.Dense(1)).fit(batch(), batch(24, 1), verbose=0, callbacks=[Stops()])


def fails_model_of_other_width():
    compiled(keras.layers.Dense(1)).fit(batch(24, 5), batch(24, 1), verbose=0)


def fails_number_of_targets():
    compiled(keras.layers.Dense(1)).fit(batch(), [batch(24, 1), batch(24, 1)], verbose=0)


def fails_sizes_of_arrays():
    compiled(keras.layers.Dense(1)).fit(batch(24), batch(23, 1), verbose=0)


def fails_not_compiled():
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]).fit(batch(), batch(24, 1))


def fails_unknown_loss():
    compiled(keras.layers.Dense(1), loss="mean_squared").fit(batch(), batch(24, 1), verbose=0)


def fails_text_as_data():
    compiled(keras.layers.Dense(1)).fit(np.array([["a"] * 4] * 24), batch(24, 1), verbose=0)


def fails_shape_by_xla():
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function(jit_compile=True)
    def train_step(x):
        return x @ tf.transpose(weights)

    train_step(tf.constant(batch()))


def fails_in_nested_function():
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def penalty(x):
        return tf.debugging.check_numerics(tf.sqrt(x), "the root")

    @tf.function
    def train_step(x):
        loss = tf.reduce_mean(penalty(x))
        weights.assign_sub(0.01 * loss * tf.ones([4, 1]))

    train_step(tf.constant(np.abs(batch())))
    train_step(tf.constant(-np.abs(batch())))


def fails_in_custom_gradient():
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.custom_gradient
    def bounded(x):
        def gradient(dy):
            return tf.debugging.check_numerics(dy / 0.0, "gradient of the bound")

        return tf.identity(x), gradient

    @tf.function
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(bounded(x @ weights))
        weights.assign_sub(0.01 * tape.gradient(loss, weights))

    train_step(tf.constant(batch()))


def fails_in_last_layer_of_evaluate():
    class Checked(keras.layers.Layer):
        def call(self, x):
            return tf.ensure_shape(tf.reshape(x, [-1, 1]), [5, 1])

    model = compiled(keras.layers.Dense(1), Checked())
    model.evaluate(batch(), batch(24, 1), batch_size=6, verbose=0)


def fails_in_predict():
    model = keras.Sequential([keras.Input((2,), dtype="int32"), keras.layers.Embedding(4, 2)])
    model.predict(np.full((12, 2), 7), batch_size=6, verbose=0)


def fails_in_eager_step():
    weights = tf.Variable(tf.ones([4, 1]))
    for x in (batch(), batch(24, 3)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.constant(x) @ weights) ** 2)
        weights.assign_sub(0.01 * tape.gradient(loss, weights))
