"""Customer churn, yes or no. Tabular data with numbers and categories, Keras functional API."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

rng = np.random.default_rng(3)
N = 12000
CONTRACTS = ["month", "year", "two_years"]

# what the CRM export looks like
age = rng.integers(18, 90, N).astype("float32")
monthly = rng.normal(65, 30, N).clip(5).astype("float32")
tenure = rng.exponential(30, N).astype("float32")
contract = rng.choice(CONTRACTS, N)
score = 0.03 * (monthly - 65) - 0.05 * tenure + 1.5 * (contract == "month") - 0.01 * (age - 50)
churned = (score + rng.normal(0, 0.5, N) > 0).astype("float32")

numbers = np.stack([age, monthly, tenure], axis=1)
order = rng.permutation(N)
numbers, contract, churned = numbers[order], contract[order], churned[order]

split = int(0.8 * N)
train = ({"numbers": numbers[:split], "contract": contract[:split]}, churned[:split])
val = ({"numbers": numbers[split:], "contract": contract[split:]}, churned[split:])


def lookup(features, label):
    """Turns the contract into its index; strings stay out of the model."""
    index = table(features["contract"])
    return {"numbers": features["numbers"], "contract": index}, label


table = layers.StringLookup(vocabulary=CONTRACTS)
train_ds = tf.data.Dataset.from_tensor_slices(train).shuffle(split, seed=1).batch(128)
train_ds = train_ds.map(lookup, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
val_ds = tf.data.Dataset.from_tensor_slices(val).batch(512)
val_ds = val_ds.map(lookup, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

normalizer = layers.Normalization()
normalizer.adapt(numbers[:split])

numbers_in = keras.Input((3,), name="numbers")
contract_in = keras.Input((), name="contract", dtype="int64")
x = layers.Concatenate()(
    [normalizer(numbers_in), layers.Embedding(len(CONTRACTS) + 1, 4)(contract_in)]
)
x = layers.Dense(64, activation="relu")(x)
x = layers.Dense(32, activation="relu")(x)
churn = layers.Dense(1, activation="sigmoid")(x)
model = keras.Model({"numbers": numbers_in, "contract": contract_in}, churn)

model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss="binary_crossentropy",
    metrics=["accuracy", keras.metrics.AUC(name="auc")],
)

stop = keras.callbacks.EarlyStopping(monitor="val_auc", mode="max", patience=3)
model.fit(train_ds, validation_data=val_ds, epochs=6, callbacks=[stop], verbose=2)

loss, acc, auc = model.evaluate(val_ds, verbose=0)
print(f"validation: loss {loss:.3f} accuracy {acc:.3f} auc {auc:.3f}")

# who leaves next?
risk = model.predict(val_ds, verbose=0)[:, 0]
for i in np.argsort(-risk)[:5]:
    print(
        f"customer {i}: {risk[i]:.2f} ({val[0]['contract'][i]}, tenure {numbers[split + i, 2]:.0f})"
    )
