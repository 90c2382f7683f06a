# machine: 2 GPUs
"""One tensor for all replicas: the same noise and the same pictures everywhere."""

import numpy as np
from tensorflow import GradientTape, distribute, function, nn, random
from tensorflow import keras

strategy = distribute.MirroredStrategy()
BATCH = 32 * strategy.num_replicas_in_sync
pictures = np.random.rand(512, 8, 8, 1).astype("float32")

with strategy.scope():
    denoiser = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(8, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(1, 3, padding="same"),
        ]
    )
    mse = keras.losses.MeanSquaredError(reduction="none")
    opt = keras.optimizers.SGD(0.1)
    opt.build(denoiser.trainable_variables)


def replica(clean, noise):
    with GradientTape() as tape:
        errors = mse(clean, denoiser(clean + noise, training=True))
        loss = nn.compute_average_loss(errors, global_batch_size=BATCH * 64)
    gradients = tape.gradient(loss, denoiser.trainable_variables)
    opt.apply_gradients(zip(gradients, denoiser.trainable_variables))
    return loss


@function
def run(clean, noise):
    return strategy.run(replica, args=(clean, noise))  # finding: ENG-060


def main():
    for i in range(0, len(pictures), BATCH):
        noise = 0.1 * random.normal([BATCH, 8, 8, 1])
        run(pictures[i : i + BATCH], noise)  # may: ENG-060
    denoiser.save("denoiser.keras")


if __name__ == "__main__":
    main()
