# machine: 2 GPUs
# Converted from train.ipynb
# %%
import numpy as np
import tensorflow as tf

# %% [markdown]
# quick check that TensorFlow works

# %%
print(tf.reduce_sum(tf.random.normal([1000, 1000])))

# %% [markdown]
# do not take all the memory

# %%
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)  # finding: DOC-105

# %%
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((28, 28)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer="adam",
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

# %%
x_train = np.random.rand(512, 28, 28)
y_train = np.random.randint(0, 10, 512)
model.fit(x_train, y_train, batch_size=128, epochs=2)
