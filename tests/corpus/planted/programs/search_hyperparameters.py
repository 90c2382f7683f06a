"""Random search over width, depth and learning rate for wine quality (made-up measurements)."""

import gc
import json

import numpy as np
import keras
import tensorflow as tf
from keras import layers

SEED = 12
TRIALS = 5
EPOCHS = 4
BATCH = 64
keras.utils.set_random_seed(SEED)


def wines(n):
    rng = np.random.default_rng(SEED)
    x = rng.normal(0, 1, (n, 11))
    hidden = np.tanh(x @ rng.normal(0, 0.6, (11, 6)))
    quality = np.digitize(hidden @ rng.normal(0, 1, 6) + rng.normal(0, 0.1, n), [-1.0, 1.0])
    return x.astype("float32"), quality.astype("int32")


x, y = wines(4000)
x_train, y_train = x[:3000], y[:3000]
x_valid, y_valid = x[3000:], y[3000:]


def build_model(width, depth, dropout):
    model = keras.Sequential([keras.Input((11,))])
    for _ in range(depth):
        model.add(layers.Dense(width, activation="relu"))
        model.add(layers.Dropout(dropout))
    model.add(layers.Dense(3))
    return model


def sample_config(rng):
    return {
        "width": int(rng.choice([32, 64, 128])),
        "depth": int(rng.integers(1, 4)),
        "dropout": float(rng.choice([0.0, 0.1, 0.3])),
        "lr": float(10 ** rng.uniform(-3, -2)),
    }


def run_trial(config):
    model = build_model(config["width"], config["depth"], config["dropout"])
    model.compile(
        optimizer=keras.optimizers.Adam(config["lr"]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        x_train,
        y_train,
        validation_data=(x_valid, y_valid),
        batch_size=BATCH,
        epochs=EPOCHS,
        verbose=0,
    )
    return max(history.history["val_accuracy"]), model.count_params()


rng = np.random.default_rng(SEED)
results = []
for trial in range(TRIALS):
    config = sample_config(rng)
    accuracy, parameters = run_trial(config)
    results.append({**config, "accuracy": accuracy, "parameters": parameters})
    print(f"trial {trial}: accuracy {accuracy:.3f} with {parameters} parameters, {config}")
    keras.backend.clear_session()
    gc.collect()

results.sort(key=lambda r: -r["accuracy"])
with open("search.json", "w") as file:
    json.dump(results, file, indent=2)
print("best:", results[0], "on TensorFlow", tf.__version__)
