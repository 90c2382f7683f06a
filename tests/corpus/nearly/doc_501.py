# machine: 1 GPU
"""What save returned is printed; names that are filled in are filled in again."""

import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf

folder = pathlib.Path(tempfile.mkdtemp())
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
pattern = str(folder / "model-{epoch:02d}.weights.h5")
x = np.random.rand(256, 4)
saver = keras.callbacks.ModelCheckpoint(pattern, save_weights_only=True)
model.fit(x, x[:, 0], batch_size=64, epochs=2, callbacks=[saver], verbose=0)
model.load_weights(pattern.format(epoch=2))

prefix = str(folder / "ckpt")
saved = tf.train.Checkpoint(model=model).save(prefix)
print("Saved", saved)
tf.train.Checkpoint(model=model).restore(saved).assert_existing_objects_matched()
tf.train.Checkpoint(model=model).write(prefix + "-last")
print("Written", prefix + "-last")
