"""Programs that fail on one device: own steps, layers, losses, data and callbacks."""

import keras
import numpy as np
import tensorflow as tf


def batch(num_samples=24, num_features=4):
    return np.random.default_rng(0).normal(size=(num_samples, num_features)).astype("float32")


def compiled(*layers, loss="mse", shape=(4,), **options):
    model = keras.Sequential([keras.Input(shape), *layers])
    model.compile(keras.optimizers.SGD(0.01), loss, **options)
    return model


def trained(step, *batches):
    """Call a decorated step with batches, one after another."""
    for arrays in batches:
        step(*(tf.constant(array) for array in arrays))


def fails_lookup_beyond_table():
    table = keras.layers.Embedding(10, 4)
    head = keras.layers.Dense(1)
    optimizer = keras.optimizers.SGD()

    @tf.function
    def train_step(words, y):
        with tf.GradientTape() as tape:
            vectors = table(words)
            loss = tf.reduce_mean((head(tf.reduce_mean(vectors, 1)) - y) ** 2)
        weights = table.trainable_variables + head.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    words = np.random.default_rng(0).integers(0, 10, (24, 5))
    wrong = words.copy()
    wrong[1, 2] = 12
    trained(train_step, (words, batch(24, 1)), (wrong, batch(24, 1)))


def fails_embedding_in_fit():
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            keras.layers.Embedding(8, 2),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", "mse")
    model.fit(np.full((24, 3), 9), batch(24, 1), batch_size=12, verbose=0)


def fails_target_shape_in_fit():
    compiled(keras.layers.Dense(3)).fit(batch(), batch(24, 2), batch_size=12, verbose=0)


def fails_target_shape_in_step():
    model = compiled(keras.layers.Dense(3))

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            error = model(x, training=True) - y
            loss = tf.reduce_mean(error**2)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    trained(train_step, (batch(), batch(24, 2)))


def fails_target_shape_of_a_dataset():
    data = tf.data.Dataset.from_tensor_slices((batch(), batch(24, 2))).batch(10)
    compiled(keras.layers.Dense(3)).fit(data, verbose=0)


def fails_unknown_target_shape():
    def samples():
        for row in batch():
            yield row, np.zeros(2, "float32")

    signature = (tf.TensorSpec([4]), tf.TensorSpec([None]))
    data = tf.data.Dataset.from_generator(samples, output_signature=signature).batch(8)
    # In training, two operations fail, and TensorFlow tells either.
    compiled(keras.layers.Dense(3)).evaluate(data, verbose=0)


def fails_sparse_label_in_fit():
    model = compiled(keras.layers.Dense(3), loss="sparse_categorical_crossentropy")
    labels = np.random.default_rng(0).integers(0, 3, 24)
    labels[7] = 5
    model.compile(
        "sgd", lambda y, p: tf.nn.sparse_softmax_cross_entropy_with_logits(tf.reshape(y, [-1]), p)
    )
    model.fit(batch(), labels, batch_size=24, verbose=0)


def fails_check_numerics_in_step():
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def train_step(x):
        logarithm = tf.math.log(x)
        checked = tf.debugging.check_numerics(logarithm, "the logarithm has")
        weights.assign_sub(0.01 * tf.reduce_mean(checked, 0)[:, None])

    trained(train_step, (np.abs(batch()) + 1,), (-np.abs(batch()) - 1,))


def fails_assert_in_step():
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def train_step(x):
        tf.debugging.assert_less(tf.reduce_max(x), 100.0, message="too large")
        loss = tf.reduce_mean((x @ weights) ** 2)
        weights.assign_sub(0.01 * tf.gradients(loss, weights)[0])

    trained(train_step, (batch(),), (batch() + 200,))


def fails_assert_in_layer():
    @keras.saving.register_keras_serializable()
    class Bounded(keras.layers.Layer):
        def call(self, x):
            tf.debugging.assert_greater(x, -100.0, message="below the bound")
            return x

    model = compiled(Bounded(), keras.layers.Dense(1))
    model.fit(batch() - 500, batch(24, 1), batch_size=24, verbose=0)


def fails_layer_without_shape():
    class Doubled(keras.layers.Layer):
        def call(self, x):
            return tf.concat([x, tf.ones([3, 2])], axis=1)

    model = compiled(Doubled(), keras.layers.Dense(1))
    model.fit(batch(), batch(24, 1), batch_size=12, verbose=0)


def fails_dtype_in_step():
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def train_step(x):
        return tf.reduce_mean(x @ weights)

    trained(train_step, (batch().astype("float64"),))


def fails_python_error_in_step():
    @tf.function
    def train_step(x):
        total = tf.reduce_sum(x)
        return {"loss": total}["los"]

    trained(train_step, (batch(),))


def fails_zero_division_in_callback():
    class Rate(keras.callbacks.Callback):
        def on_batch_end(self, batch, logs=None):
            return 1 / (batch - batch)

    compiled(keras.layers.Dense(1)).fit(
        batch(), batch(24, 1), batch_size=12, verbose=0, callbacks=[Rate()]
    )


def fails_in_map():
    def parsed(x, y):
        return x, tf.strings.to_number(tf.where(y > 0, "1.5", "a word"))

    data = tf.data.Dataset.from_tensor_slices((batch(), batch(24, 1))).map(parsed).batch(8)
    compiled(keras.layers.Dense(1)).fit(data, verbose=0)


def fails_in_py_function():
    def loaded(x):
        raise OSError(f"cannot read the file of {len(x)} numbers")

    def parsed(x, y):
        return tf.ensure_shape(tf.py_function(loaded, [x], tf.float32), [4]), y

    data = tf.data.Dataset.from_tensor_slices((batch(), batch(24, 1))).map(parsed).batch(8)
    compiled(keras.layers.Dense(1)).fit(data, verbose=0)


def fails_in_generator():
    def samples():
        for number, row in enumerate(batch()):
            yield row, [1.0] if number < 20 else {}["missing"]

    signature = (tf.TensorSpec([4]), tf.TensorSpec([1]))
    data = tf.data.Dataset.from_generator(samples, output_signature=signature).batch(8)
    compiled(keras.layers.Dense(1)).fit(data, verbose=0)


def fails_missing_file_in_data():
    data = tf.data.TextLineDataset("no_such_file.csv").map(lambda line: (tf.ones([4]), [1.0]))
    compiled(keras.layers.Dense(1)).fit(data.batch(8), verbose=0)


def fails_py_function_in_step():
    weights = tf.Variable(tf.ones([4, 1]))

    def measured(total):
        raise ValueError("the sum is not wanted")

    @tf.function
    def train_step(x):
        loss = tf.reduce_sum(x @ weights)
        weights.assign_sub(0.01 * tf.ones([4, 1]))
        return loss + tf.py_function(measured, [loss], tf.float32)

    trained(train_step, (batch(),))


def fails_no_gradient():
    model = compiled(keras.layers.Dense(1))

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.stop_gradient(model(x)) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    trained(train_step, (batch(), batch(24, 1)))


def fails_reshape_in_step():
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def train_step(x, count):
        rows = tf.reshape(x, [count, 5])
        weights.assign_sub(0.01 * tf.reduce_mean(rows) * tf.ones([4, 1]))

    trained(train_step, (batch(), np.int32(7)))


def fails_gather_of_rows():
    weights = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def train_step(x, wanted):
        rows = tf.gather(x @ weights, wanted, axis=1)
        weights.assign_sub(0.01 * tf.reduce_mean(rows) * tf.ones([4, 1]))

    trained(train_step, (batch(), np.array([0, 3])))


def fails_custom_loss_in_fit():
    def loss(y, prediction):
        return tf.reduce_mean(tf.linalg.matvec(prediction, y))

    compiled(keras.layers.Dense(3), loss=loss).fit(batch(), batch(24, 2), verbose=0)


def fails_own_train_step():
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = keras.layers.Dense(1)

        def call(self, x):
            return self.head(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            gradients = [tf.debugging.check_numerics(g, "gradient") for g in gradients]
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    model = Model()
    model.compile("sgd", "mse")
    model.fit(batch() / 0.0, batch(24, 1), batch_size=12, verbose=0)
