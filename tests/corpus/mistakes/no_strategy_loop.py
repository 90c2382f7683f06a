# machine: 4 GPUs
"""The loop of the guide "Writing a training loop from scratch", on a server with four GPUs."""

import numpy as np
import tensorflow as T

BATCH = 256

inputs = T.keras.Input(shape=(784,), name="digits")
hidden = T.keras.layers.Dense(64, activation="relu", name="dense_1")(inputs)
outputs = T.keras.layers.Dense(10, name="predictions")(hidden)
model = T.keras.Model(inputs=inputs, outputs=outputs)  # may: DOC-201

optimizer = T.keras.optimizers.Adam(learning_rate=1e-3)
loss_fn = T.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
train_acc = T.keras.metrics.SparseCategoricalAccuracy()

x = np.random.rand(2048, 784).astype("float32")
y = np.random.randint(0, 10, 2048)
dataset = T.data.Dataset.from_tensor_slices((x, y)).shuffle(2048).batch(BATCH).prefetch(2)


@T.function
def train_step(x, y):
    with T.GradientTape() as tape:
        logits = model(x, training=True)
        loss_value = loss_fn(y, logits)
    grads = tape.gradient(loss_value, model.trainable_weights)
    optimizer.apply_gradients(zip(grads, model.trainable_weights))
    train_acc.update_state(y, logits)
    return loss_value


for epoch in range(2):  # may: DOC-201
    for step, (x_batch, y_batch) in enumerate(dataset):  # may: DOC-201
        loss_value = train_step(x_batch, y_batch)  # finding: DOC-201
    print("epoch", epoch, "accuracy", float(train_acc.result()))
    train_acc.reset_state()
