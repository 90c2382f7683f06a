"""Two workers on one core each, whose data is decoded from JPEG: samples per second, in turns.

    python benchmarks/costly_maps.py --rounds 3 [--predict]

Each row is a pair of processes, one pinned to each of two cores, that train the same small CNN:

    solo                      each alone on half of the batch: the limit is the sum
    evener                    Keras's `fit`; each worker decodes the rows that it computes
    evener, whole batches     the same program with ``.shuffle(1)`` behind its map, which changes
                              nothing, but hides the map: each worker decodes all rows
    MultiWorkerMirrored       TensorFlow's strategy, a custom loop (its `fit` fails in Keras 3);
                              it decodes all elements, and each worker skips those of others

With ``--predict`` the model is not trained: it predicts, and `MultiWorkerMirrored` is left out.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from workers import begin_on_core, print_rates, run_pair

KINDS = ("solo", "evener", "evener, whole batches", "MultiWorkerMirrored")
BATCH, IMAGES, SIZE, SIDE = 64, 256, 320, 64
WARM_UP, STEPS = 8, 24


def images_of(batch_size: int, *, hides_map: bool = False) -> Any:
    """Return a dataset of decoded, cropped and flipped images, in batches."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (IMAGES, 20, 20, 3), np.uint8)
    files = [
        tf.io.encode_jpeg(tf.cast(tf.image.resize(image, (SIZE, SIZE)), tf.uint8))
        for image in coarse
    ]
    labels = rng.integers(0, 10, IMAGES)

    def decode(number: Any, element: Any) -> Any:
        file, label = element
        image = tf.cast(tf.io.decode_jpeg(file, 3), tf.float32) / 255
        seed = tf.stack([number, 1])
        image = tf.image.stateless_random_crop(image, (SIZE - 32, SIZE - 32, 3), seed)
        image = tf.image.stateless_random_flip_left_right(image, seed)
        return tf.image.resize(image, (SIDE, SIDE)), label

    elements = tf.data.Dataset.from_tensor_slices((tf.stack(files), labels)).repeat()
    elements = elements.shuffle(IMAGES, seed=1).enumerate()
    images = elements.map(decode, num_parallel_calls=2)
    images = images.shuffle(1, seed=1) if hides_map else images
    return images.batch(batch_size).prefetch(2)


def work(kind: str, index: int, *, predicts: bool) -> None:
    """Train or predict as one of two workers, and print the samples per second."""
    strategy = begin_on_core(index, kind)
    if strategy is None and kind != "solo":
        import evener

        strategy = evener.Strategy(devices="cpu:1", shares="even")
    import keras

    keras.utils.set_random_seed(1)

    def build() -> Any:
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 3)),
                layers.Conv2D(16, 3, 2, activation="relu"),
                layers.Conv2D(32, 3, 2, activation="relu"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(10),
            ]
        )
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
        return model, optimizer

    if strategy is None:
        model, optimizer = build()
    else:
        with strategy.scope():
            model, optimizer = build()
    batch_size = BATCH // 2 if kind == "solo" else BATCH
    data = images_of(batch_size, hides_map=kind == "evener, whole batches")
    if kind == "MultiWorkerMirrored":
        print(rate_of_loop(strategy, model, optimizer, data))
        return
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=False)
    if predicts:
        print(rate_of_predict(model, data.map(lambda images, _: images), batch_size))
        return
    model.fit(data, steps_per_epoch=WARM_UP, verbose=0)
    clock = Clock()
    model.fit(data, steps_per_epoch=WARM_UP + STEPS, verbose=0, callbacks=[clock.callback()])
    print(STEPS * batch_size / clock.seconds)


def rate_of_predict(model: Any, data: Any, batch_size: int) -> float:
    """Return the samples per second of Keras's `predict`."""
    import keras

    model.predict(data, steps=WARM_UP, verbose=0)
    begins: list[float] = []
    mark = keras.callbacks.LambdaCallback(
        on_predict_batch_end=lambda batch, logs: begins.append(time.perf_counter())
    )
    model.predict(data, steps=WARM_UP + STEPS, verbose=0, callbacks=[mark])
    return STEPS * batch_size / (begins[-1] - begins[WARM_UP - 1])


class Clock:
    """Seconds of the last steps of a fit, without the first ones, which fill buffers."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Seconds of the last `STEPS` steps."""
        return self.end - self.begin

    def callback(self) -> Any:
        """Return a callback of Keras that reads the clock."""
        import keras

        def read(batch: int, logs: Any = None) -> None:
            if batch == WARM_UP - 1:
                self.begin = time.perf_counter()
            self.end = time.perf_counter()

        return keras.callbacks.LambdaCallback(on_train_batch_end=read)


def rate_of_loop(strategy: Any, model: Any, optimizer: Any, data: Any) -> float:
    """Return the samples per second of a custom loop under TensorFlow's strategy."""
    import keras
    import tensorflow as tf

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = keras.ops.sparse_categorical_crossentropy(
                y, model(x, training=True), from_logits=True
            )
            value = tf.reduce_mean(losses)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    @tf.function
    def run(x: Any, y: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(step, (x, y)), None)

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = iter(strategy.experimental_distribute_dataset(data.with_options(options)))
    for _ in range(2 * WARM_UP):
        float(run(*next(batches)))
    begin = time.perf_counter()
    for _ in range(STEPS):
        value = run(*next(batches))
    float(value)
    return STEPS * BATCH / (time.perf_counter() - begin)


def main() -> None:
    """Run all kinds in turns, and print the medians."""
    parser = argparse.ArgumentParser(description="Two one-core workers that decode their data.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--predict", action="store_true", help="predict instead of training")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(options.kind, options.worker, predicts=options.predict)
        return
    kinds, given = (KINDS[:-1], ["--predict"]) if options.predict else (KINDS, [])
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(options.rounds):
        for kind in kinds:
            rates[kind].append(run_pair(__file__, kind, given))
    print_rates(rates, BATCH, peer=kinds[-1])


if __name__ == "__main__":
    main()
