# machine: 1 GPU
"""Meters and a progress line as in PyTorch: each step waits for its loss."""

import keras
import numpy as np
import tensorflow as tf


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


def train_one_epoch(model, loader, optimizer, criterion, epoch):
    losses, accs = AverageMeter(), AverageMeter()

    @tf.function  # may: DOC-403
    def train_step(x, y):
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = criterion(y, logits)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        return loss, logits

    for i, (x, y) in enumerate(loader):
        loss, logits = train_step(x, y)
        losses.update(loss.numpy(), len(x))  # finding: DOC-402
        pred = np.argmax(logits, axis=1)  # may: DOC-402
        accs.update(np.mean(pred == y.numpy()), len(x))  # may: DOC-402
    print(f"epoch {epoch}: loss {losses.avg:.4f} acc {accs.avg:.3f}")


def main():
    x = np.random.normal(size=(2048, 20)).astype("float32")
    y = np.argmax(x[:, :4], axis=1)
    loader = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(2048).batch(64).prefetch(2)
    model = keras.Sequential(
        [keras.Input((20,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(4)]
    )
    optimizer = keras.optimizers.Adam(1e-3)
    criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for epoch in range(2):
        train_one_epoch(model, loader, optimizer, criterion, epoch)  # may: DOC-403


if __name__ == "__main__":
    main()
