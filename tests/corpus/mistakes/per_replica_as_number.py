# machine: 2 GPUs
"""The validation loss of each replica is added up as if it were one number."""

import keras
import numpy as np
import tensorflow as T


class Evaluator:
    def __init__(self, strategy, model, batch_size):
        self.strategy = strategy
        self.model = model
        self.batch_size = batch_size

    def _loss(self, x, y):
        losses = keras.losses.mean_absolute_error(y, self.model(x, training=False))
        return T.nn.compute_average_loss(losses, global_batch_size=self.batch_size)

    def evaluate(self, dataset):
        total = 0.0
        count = 0
        for x, y in self.strategy.experimental_distribute_dataset(dataset):
            loss = self.strategy.run(self._loss, args=(x, y))
            total += float(loss)  # finding: RUN-010  # may: DOC-402
            count += 1
        return total / count


def main():
    strategy = T.distribute.MirroredStrategy()
    batch_size = 64 * strategy.num_replicas_in_sync
    x = np.random.rand(512, 8).astype("float32")
    y = x.mean(axis=1, keepdims=True)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mae")
    model.fit(x, y, batch_size=batch_size, epochs=2, verbose=0)
    held_out = T.data.Dataset.from_tensor_slices((x, y)).batch(batch_size).prefetch(2)
    print("mae", Evaluator(strategy, model, batch_size).evaluate(held_out))


if __name__ == "__main__":
    main()
