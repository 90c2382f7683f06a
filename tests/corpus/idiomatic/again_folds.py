# machine: 2 GPUs
"""A notebook of a competition as a script: folds, seeds, an average of the guesses."""

# %% [markdown]
# ## Setup
# %%
import gc

import numpy as np
import tensorflow as tf
import tensorflow.keras.layers as L

SEED, FOLDS, EPOCHS = 42, 3, 1
strategy = tf.distribute.MirroredStrategy()
REPLICAS = strategy.num_replicas_in_sync
BATCH = 64 * REPLICAS
AUTO = tf.data.AUTOTUNE
print("REPLICAS:", REPLICAS)

# %%
rng = np.random.default_rng(SEED)
train_x = rng.normal(size=(1500, 30)).astype("float32")
train_y = (train_x[:, :3].sum(1) > 0).astype("float32")
test_x = rng.normal(size=(300, 30)).astype("float32")


# %%
def noisy(x, y):
    return x + tf.random.normal(tf.shape(x), stddev=0.01), y


def get_dataset(x, y=None, train=False):
    ds = tf.data.Dataset.from_tensor_slices(x if y is None else (x, y))
    if train:
        ds = ds.shuffle(2048, seed=SEED).map(noisy, num_parallel_calls=AUTO)
    return ds.batch(BATCH).prefetch(AUTO)


def get_model():
    inp = L.Input((30,))
    h = inp
    for units in (128, 64):
        h = L.Dropout(0.1)(L.Dense(units, activation="relu")(h))
    model = tf.keras.Model(inp, L.Dense(1, activation="sigmoid")(h))
    model.compile(tf.keras.optimizers.Adam(2e-3), "binary_crossentropy", metrics=["AUC"])
    return model


# %%
oof, preds = np.zeros(len(train_x)), np.zeros(len(test_x))
for fold in range(FOLDS):
    valid = np.arange(len(train_x)) % FOLDS == fold
    tf.keras.backend.clear_session()
    with strategy.scope():
        model = get_model()
    model.fit(
        get_dataset(train_x[~valid], train_y[~valid], train=True),
        validation_data=get_dataset(train_x[valid], train_y[valid]),
        epochs=EPOCHS,
        verbose=2,
        callbacks=[tf.keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)],
    )
    oof[valid] = model.predict(get_dataset(train_x[valid]), verbose=0).ravel()
    preds += model.predict(get_dataset(test_x), verbose=0).ravel() / FOLDS
    del model
    gc.collect()
print("OOF accuracy", ((oof > 0.5) == train_y).mean())
