# machine: 1 GPU
"""Competition boilerplate: TPU, else GPUs, else the CPU."""

# %%
import numpy as np
import tensorflow as tf
import tensorflow.keras.backend as K
from tensorflow.keras import layers


# %%
def get_strategy():
    try:
        strategy = tf.distribute.MirroredStrategy()
        print("several GPUs")
    except (ValueError, RuntimeError):  # finding: DOC-209
        strategy = tf.distribute.get_strategy()
        print("no GPU, default strategy")
    return strategy


STRATEGY = get_strategy()
BATCH = 32 * STRATEGY.num_replicas_in_sync
FOLDS, EPOCHS = 2, 1


# %%
def build():
    inp = layers.Input((64,))
    x = layers.Dense(128, activation="relu")(inp)
    return tf.keras.Model(inp, layers.Dense(1, activation="sigmoid")(x))


# %%
x = np.random.normal(size=(1000, 64)).astype("float32")
y = (x[:, 0] > 0).astype("float32")
oof = np.zeros(len(x))
for fold in range(FOLDS):
    K.clear_session()
    valid = np.arange(len(x)) % FOLDS == fold
    with STRATEGY.scope():
        model = build()
        model.compile("adam", "binary_crossentropy")
    model.fit(x[~valid], y[~valid], batch_size=BATCH, epochs=EPOCHS, verbose=0)
    oof[valid] = model.predict(x[valid], batch_size=BATCH, verbose=0)[:, 0]
print(((oof > 0.5) == y).mean())
