"""Custom loop with MirroredStrategy. Without GPUs two logical CPUs stand in for them."""

import numpy as np
import tensorflow as tf

gpus = tf.config.list_physical_devices("GPU")
if len(gpus) < 2:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    devices = ["CPU:0", "CPU:1"]
else:
    devices = None

strategy = tf.distribute.MirroredStrategy(devices)
print("replicas:", strategy.num_replicas_in_sync)

PER_REPLICA = 32
GLOBAL_BATCH = PER_REPLICA * strategy.num_replicas_in_sync
EPOCHS = 4


def two_spirals(n, seed):
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, n)
    r = rng.uniform(0.1, 1, n)
    phi = r * 5 + label * 2 * np.pi / 3 + rng.normal(0, 0.15, n)
    xy = np.stack([r * np.cos(phi), r * np.sin(phi)], 1)
    features = np.concatenate([xy, xy**2, np.sin(3 * xy), np.cos(3 * xy)], axis=1)
    return features.astype("float32"), label.astype("int64")


train = tf.data.Dataset.from_tensor_slices(two_spirals(6400, 0))
train = train.shuffle(6400).batch(GLOBAL_BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
test = tf.data.Dataset.from_tensor_slices(two_spirals(1280, 1)).batch(GLOBAL_BATCH)
train_dist = strategy.experimental_distribute_dataset(train)
test_dist = strategy.experimental_distribute_dataset(test)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8,)),
            tf.keras.layers.Dense(256, activation="relu"),
            tf.keras.layers.Dropout(0.1),
            tf.keras.layers.Dense(256, activation="relu"),
            tf.keras.layers.Dense(3),
        ]
    )
    optimizer = tf.keras.optimizers.Adam(2e-3)
    optimizer.build(model.trainable_variables)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy()


def compute_loss(labels, logits):
    per_example = loss_object(labels, logits)
    return tf.nn.compute_average_loss(per_example, global_batch_size=GLOBAL_BATCH)


def train_step(inputs):
    features, labels = inputs
    with tf.GradientTape() as tape:
        logits = model(features, training=True)
        loss = compute_loss(labels, logits)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


def test_step(inputs):
    features, labels = inputs
    accuracy.update_state(labels, model(features, training=False))


@tf.function
def distributed_train_step(batch):
    losses = strategy.run(train_step, args=(batch,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


@tf.function
def distributed_test_step(batch):
    strategy.run(test_step, args=(batch,))


for epoch in range(EPOCHS):
    total, steps = 0.0, 0
    for batch in train_dist:
        total += distributed_train_step(batch)
        steps += 1
    for batch in test_dist:
        distributed_test_step(batch)
    print(
        f"epoch {epoch}: loss {float(total) / steps:.4f}, "
        f"test accuracy {float(accuracy.result()):.4f}"
    )
    accuracy.reset_state()
