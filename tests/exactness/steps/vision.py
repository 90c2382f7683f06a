"""Convolutions, pooling, normalisation and shapes of images in whole small networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from .case import Batch, BuiltStep, case, integers, learn, normal, of_shape, sgd, state

ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def images(*shape: int) -> Batch:
    """Return what makes arrays of a shape, with labels out of five."""

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, *shape), integers(rng, 5, n)

    return batch


def network(name: str, *shape: int, **settings: Any) -> Callable[[Any], Any]:
    """Register a classifier of images made of the layers that a function returns."""

    def add(function: Callable[[], list[Any]]) -> Any:
        @case(f"vision/{name}")
        def build() -> BuiltStep:
            model = keras.Sequential([keras.Input(shape), *function(), layers.Dense(5)])
            return learn(
                lambda x, y: ENTROPY(y, model(x, training=True)), model, images(*shape), **settings
            )

        return function

    return add


@network("batchnorm", 8, 8, 2)
def batchnorm() -> list[Any]:
    return [
        layers.Conv2D(4, 3, use_bias=False),
        layers.BatchNormalization(momentum=0.8),
        layers.Activation("gelu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
    ]


@network("batchnorm_of_dense_and_of_sequences", 6, 4)
def other_batchnorm() -> list[Any]:
    return [
        layers.BatchNormalization(),
        layers.Conv1D(5, 3, activation="tanh", padding="causal"),
        layers.BatchNormalization(axis=1),
        layers.GlobalMaxPooling1D(),
        layers.Dense(6, use_bias=False),
        layers.BatchNormalization(scale=False),
    ]


@network("group_and_layer_norm", 8, 8, 2)
def other_norms() -> list[Any]:
    return [
        layers.Conv2D(4, 3),
        layers.GroupNormalization(2),
        layers.Activation("silu"),
        layers.Conv2D(4, 3, strides=2),
        layers.LayerNormalization(),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.RMSNormalization(),
        layers.UnitNormalization(),
    ]


@network("separable_and_depthwise", 8, 8, 3)
def separable() -> list[Any]:
    return [
        layers.SeparableConv2D(4, 3, activation="tanh"),
        layers.DepthwiseConv2D(3, depth_multiplier=2, activation="tanh"),
        layers.Conv2D(4, 3, dilation_rate=1, groups=2, activation="tanh"),
        layers.GlobalAveragePooling2D(),
    ]


@network("volumes", 4, 4, 4, 2)
def volumes() -> list[Any]:
    return [
        layers.Conv3D(4, 2, activation="tanh"),
        layers.MaxPooling3D(2, padding="same"),
        layers.Flatten(),
    ]


@network("padding_cropping_and_resizing", 7, 7, 2)
def resizing() -> list[Any]:
    return [
        layers.ZeroPadding2D(1),
        layers.Cropping2D(((1, 0), (0, 1))),
        layers.UpSampling2D(2, interpolation="bilinear"),
        layers.Conv2D(4, 3, strides=2, activation="tanh"),
        layers.Resizing(4, 4),
        layers.Permute((3, 1, 2)),
        layers.Flatten(),
    ]


@network("sequence_layers", 8, 4)
def sequence_layers() -> list[Any]:
    return [
        layers.TimeDistributed(layers.Dense(5, activation="tanh")),
        layers.SeparableConv1D(6, 3, activation="tanh"),
        layers.AveragePooling1D(2),
        layers.Conv1DTranspose(4, 3),
        layers.GlobalAveragePooling1D(),
    ]


@case("vision/convolutional_recurrence")
def recurrence() -> BuiltStep:
    model = keras.Sequential(
        [keras.Input((3, 5, 5, 1)), layers.ConvLSTM2D(2, 3), layers.Flatten(), layers.Dense(5)]
    )
    return learn(lambda x, y: ENTROPY(y, model(x, training=True)), model, images(3, 5, 5, 1))


@case("vision/residual_blocks_with_squeeze_and_excitation")
def residual() -> BuiltStep:
    inputs = keras.Input((8, 8, 2))
    x = layers.Conv2D(4, 3, padding="same")(inputs)
    for _ in range(2):
        y = layers.Conv2D(4, 3, padding="same", use_bias=False)(x)
        y = layers.Activation("gelu")(layers.BatchNormalization()(y))
        gate = layers.Dense(4, activation="sigmoid")(layers.GlobalAveragePooling2D()(y))
        x = layers.Add()([x, layers.Multiply()([y, layers.Reshape((1, 1, 4))(gate)])])
    model = keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling2D()(x)))
    return learn(lambda x, y: ENTROPY(y, model(x, training=True)), model, images(8, 8, 2))


@case("vision/u_net")
def u_net() -> BuiltStep:
    inputs = keras.Input((8, 8, 1))
    fine = layers.Conv2D(4, 3, padding="same", activation="gelu")(inputs)
    coarse = layers.Conv2D(6, 3, padding="same", activation="gelu")(layers.MaxPooling2D()(fine))
    up = layers.Conv2DTranspose(4, 2, strides=2)(coarse)
    joined = layers.Concatenate()([up, fine])
    model = keras.Model(inputs, layers.Conv2D(1, 1)(joined))
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    def loss_of(x: Any, y: Any) -> Any:
        logits = model(x, training=True)
        shares = tf.sigmoid(logits)
        dice = (2 * tf.reduce_sum(shares * y) + 1) / (tf.reduce_sum(shares) + tf.reduce_sum(y) + 1)
        return entropy(y, logits) + 1 - dice

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 8, 8, 1), integers(rng, 2, n, 8, 8, 1).astype("float32")

    return learn(loss_of, model, batch)


@case("vision/pixels_shuffled_up")
def pixel_shuffle() -> BuiltStep:
    model = keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            layers.Conv2D(6, 3, padding="same", activation="tanh"),
            layers.Conv2D(4, 3, padding="same"),
        ]
    )
    psnr = keras.metrics.Mean()
    optimizer = sgd(model.trainable_variables)

    def step(fine: Any) -> Any:
        coarse = tf.image.resize(fine, [4, 4], method="area")
        with tf.GradientTape() as tape:
            made = tf.nn.depth_to_space(model(coarse), 2)
            across = tf.reduce_mean(tf.image.total_variation(made))
            loss = tf.reduce_mean(tf.sqrt(tf.square(fine - made) + 1e-3)) + 1e-3 * across
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        psnr.update_state(tf.image.psnr(fine, made, max_val=2.0))
        return {"loss": loss, "psnr": psnr.result(), "made": made}

    return BuiltStep(step=step, batch=of_shape(8, 8, 1), variables=state(model, optimizer, psnr))


@case("vision/style_of_features")
def style() -> BuiltStep:
    features = layers.Conv2D(5, 3, activation="tanh", trainable=False)
    features.build((None, 8, 8, 2))
    model = keras.Sequential([keras.Input((8, 8, 2)), layers.Conv2D(2, 3, padding="same")])

    def gram(x: Any) -> Any:
        places = tf.cast(tf.shape(x)[1] * tf.shape(x)[2], tf.float32)
        return tf.einsum("bijc,bijd->bcd", x, x) / places

    def loss_of(content: Any, wanted: Any) -> Any:
        made = features(model(content))
        near = tf.reduce_mean((made - features(content)) ** 2)
        return near + 0.5 * tf.add_n([tf.reduce_mean((gram(made) - gram(features(wanted))) ** 2)])

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 8, 8, 2), normal(rng, n, 8, 8, 2)

    return learn(loss_of, model, batch)


@case("vision/boxes_with_hard_negatives")
def boxes() -> BuiltStep:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(5, 4, strides=2, padding="same", activation="tanh"),
            layers.Conv2D(6, 1),
            layers.Reshape((16, 6)),
        ]
    )

    def loss_of(x: Any, anchors: Any, classes: Any) -> Any:
        outputs = model(x)
        positive = tf.cast(classes > 0, tf.float32)
        number = tf.maximum(tf.reduce_sum(positive), 1.0)
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, outputs[..., :2])
        negative = tf.reshape(each * (1 - positive), [-1])
        wanted = tf.minimum(tf.cast(3 * number, tf.int32), tf.size(negative))
        hardest = tf.math.top_k(negative, k=wanted).values
        confidence = tf.reduce_sum(each * positive) + tf.reduce_sum(hardest)
        apart = tf.reduce_sum(keras.losses.huber(anchors, outputs[..., 2:]) * positive)
        return (confidence + apart) / number

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        classes = (rng.uniform(size=(n, 16)) < 0.15).astype("int32")
        return normal(rng, n, 8, 8, 2), normal(rng, n, 16, 4), classes

    return learn(loss_of, model, batch)


@case("vision/rays_through_a_volume")
def rays() -> BuiltStep:
    model = keras.Sequential([keras.Input((3,)), layers.Dense(12, "tanh"), layers.Dense(4)])

    def loss_of(origins: Any, directions: Any, colours: Any) -> Any:
        depths = tf.linspace(0.5, 2.0, 6)
        points = origins[:, None] + directions[:, None] * depths[None, :, None]
        outputs = tf.reshape(model(tf.reshape(points, [-1, 3])), [-1, 6, 4])
        opacity = 1.0 - tf.exp(-tf.nn.softplus(outputs[..., 3]) * 0.3)
        left = tf.math.cumprod(1.0 - opacity + 1e-4, axis=1, exclusive=True)
        made = tf.reduce_sum((opacity * left)[..., None] * tf.sigmoid(outputs[..., :3]), axis=1)
        return tf.reduce_mean((made - colours) ** 2)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return normal(rng, n, 3), normal(rng, n, 3), normal(rng, n, 3)

    return learn(loss_of, model, batch)
