# machine: 2 GPUs
"""A translation toy in two halves; all gradients are asked for on the first GPU."""

import keras
import numpy as np
import tensorflow as T


class TwoHalves(keras.Model):
    def __init__(self, vocabulary, width):
        super().__init__()
        with T.device("/gpu:0"):
            self.embedding = keras.layers.Embedding(vocabulary, width)
            self.embedding.build((None, None))
        with T.device("/gpu:1"):
            self.decoder = keras.layers.Dense(vocabulary)
            self.decoder.build((None, None, width))

    def call(self, tokens):
        with T.device("/gpu:0"):
            hidden = self.embedding(tokens)
        with T.device("/gpu:1"):
            return self.decoder(hidden)


class Fitter:
    def __init__(self, model):
        self.model = model
        self.optimizer = keras.optimizers.SGD(0.1)
        self.optimizer.build(model.trainable_variables)
        self.loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @T.function
    def step(self, source, target):
        with T.GradientTape() as tape:
            loss = self.loss(target, self.model(source))
        with T.device("/gpu:0"):  # may: DOC-301
            gradients = tape.gradient(  # finding: DOC-301
                loss, self.model.trainable_variables
            )
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))
        return loss


if __name__ == "__main__":
    source = np.random.randint(0, 100, size=(256, 10))
    fitter = Fitter(TwoHalves(100, 32))
    for i in range(0, 256, 64):
        loss = fitter.step(source[i : i + 64], source[i : i + 64, ::-1])
    print("loss", float(loss))
