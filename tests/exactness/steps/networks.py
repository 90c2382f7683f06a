"""Whole small networks: images, sequences, attention, and layers of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from exactness.models import sequential

from .case import (
    Batch,
    BuiltStep,
    adam,
    case,
    columns,
    integers,
    learn,
    learned,
    mlp,
    normal,
    normals,
    of_shape,
    sgd,
    state,
    to_classify,
    to_regress,
    trained,
    whole,
    written,
)

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
            model = sequential(shape, *function(), layers.Dense(5))
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


@learned(
    "vision/convolutional_recurrence",
    images(3, 5, 5, 1),
    lambda: sequential((3, 5, 5, 1), layers.ConvLSTM2D(2, 3), layers.Flatten(), layers.Dense(5)),
)
def recurrence(model: Any, x: Any, y: Any) -> Any:
    return ENTROPY(y, model(x, training=True))


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


@written(
    "vision/pixels_shuffled_up",
    of_shape(8, 8, 1),
    lambda: (
        *trained(
            sequential(
                (4, 4, 1),
                layers.Conv2D(6, 3, padding="same", activation="tanh"),
                layers.Conv2D(4, 3, padding="same"),
            )
        ),
        keras.metrics.Mean(),
    ),
)
def pixel_shuffle(model: Any, optimizer: Any, psnr: Any, fine: Any) -> Any:
    coarse = tf.image.resize(fine, [4, 4], method="area")
    with tf.GradientTape() as tape:
        made = tf.nn.depth_to_space(model(coarse), 2)
        across = tf.reduce_mean(tf.image.total_variation(made))
        loss = tf.reduce_mean(tf.sqrt(tf.square(fine - made) + 1e-3)) + 1e-3 * across
    optimizer.apply(tape.gradient(loss, model.trainable_variables))
    psnr.update_state(tf.image.psnr(fine, made, max_val=2.0))
    return {"loss": loss, "psnr": psnr.result(), "made": made}


@case("vision/style_of_features")
def style() -> BuiltStep:
    features = layers.Conv2D(5, 3, activation="tanh", trainable=False)
    features.build((None, 8, 8, 2))
    model = sequential((8, 8, 2), layers.Conv2D(2, 3, padding="same"))

    def gram(x: Any) -> Any:
        places = tf.cast(tf.shape(x)[1] * tf.shape(x)[2], tf.float32)
        return tf.einsum("bijc,bijd->bcd", x, x) / places

    def loss_of(content: Any, wanted: Any) -> Any:
        made = features(model(content))
        near = tf.reduce_mean((made - features(content)) ** 2)
        return near + 0.5 * tf.add_n([tf.reduce_mean((gram(made) - gram(features(wanted))) ** 2)])

    return learn(loss_of, model, columns(normals(8, 8, 2), normals(8, 8, 2)))


@case("vision/boxes_with_hard_negatives")
def boxes() -> BuiltStep:
    model = sequential(
        (8, 8, 2),
        layers.Conv2D(5, 4, strides=2, padding="same", activation="tanh"),
        layers.Conv2D(6, 1),
        layers.Reshape((16, 6)),
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


@learned(
    "vision/rays_through_a_volume",
    columns(normals(3), normals(3), normals(3)),
    lambda: sequential((3,), layers.Dense(12, "tanh"), layers.Dense(4)),
)
def rays(model: Any, origins: Any, directions: Any, colours: Any) -> Any:
    depths = tf.linspace(0.5, 2.0, 6)
    points = origins[:, None] + directions[:, None] * depths[None, :, None]
    outputs = tf.reshape(model(tf.reshape(points, [-1, 3])), [-1, 6, 4])
    opacity = 1.0 - tf.exp(-tf.nn.softplus(outputs[..., 3]) * 0.3)
    left = tf.math.cumprod(1.0 - opacity + 1e-4, axis=1, exclusive=True)
    made = tf.reduce_sum((opacity * left)[..., None] * tf.sigmoid(outputs[..., :3]), axis=1)
    return tf.reduce_mean((made - colours) ** 2)


sequences = columns(normals(7, 4), whole(5))


def words(rng: Any, n: int) -> tuple[Any, ...]:
    """Return sequences of unlike lengths, padded with zeros, with labels out of five."""
    tokens = 1 + integers(rng, 11, n, 7)
    lengths = rng.integers(2, 8, size=(n, 1))
    return np.where(np.arange(7)[None] < lengths, tokens, 0).astype("int32"), integers(rng, 5, n)


def classifier(*middle: Any) -> Any:
    return sequential((7, 4), *middle, layers.Dense(5))


@learned("sequence/lstm", sequences, lambda: classifier(layers.LSTM(6)))
def lstm(model: Any, x: Any, y: Any) -> Any:
    return ENTROPY(y, model(x, training=True))


@learned(
    "sequence/gru_with_recurrent_dropout",
    sequences,
    lambda: classifier(layers.GRU(6, dropout=0.2, recurrent_dropout=0.2, seed=2)),
)
def gru(model: Any, x: Any, y: Any) -> Any:
    return ENTROPY(y, model(x, training=True))


@learned(
    "sequence/stacked_cells",
    sequences,
    lambda: classifier(layers.RNN([layers.LSTMCell(5), layers.GRUCell(4)])),
)
def stacked_cells(model: Any, x: Any, y: Any) -> Any:
    return ENTROPY(y, model(x, training=True))


@learned(
    "sequence/bidirectional_with_mask",
    words,
    lambda: sequential(
        (7,),
        layers.Embedding(12, 5, mask_zero=True),
        layers.Bidirectional(layers.LSTM(4)),
        layers.Dense(5),
        dtype="int32",
    ),
)
def bidirectional(model: Any, x: Any, y: Any) -> Any:
    return ENTROPY(y, model(x, training=True))


@case("sequence/state_kept_from_batch_to_batch")
def cell_by_hand() -> BuiltStep:
    cell, head = layers.GRUCell(6), layers.Dense(4)
    cell.build((None, 4))
    head.build((None, 6))
    weights = [*cell.trainable_variables, *head.trainable_variables]
    start = tf.Variable(tf.zeros([1, 6]))
    optimizer = sgd(weights)

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.repeat(start, tf.shape(x)[0], axis=0)
            loss = 0.0
            for time in range(x.shape[1] - 1):
                output, hidden = cell(x[:, time], hidden)
                loss += tf.reduce_mean(tf.square(head(output) - x[:, time + 1]))
            loss = loss / (x.shape[1] - 1)
        optimizer.apply(tape.gradient(loss, weights), weights)
        start.assign(tf.reduce_mean(hidden, axis=0, keepdims=True))
        return loss, hidden

    return BuiltStep(
        step=step,
        batch=lambda rng, n: (normal(rng, n, 7, 4),),
        variables=[*weights, *optimizer.variables, start],
    )


@learned(
    "sequence/while_loop_over_time",
    sequences,
    lambda: (
        tf.Variable(0.5 * tf.random.stateless_normal([10, 6], seed=[1, 2])),
        tf.Variable(tf.random.stateless_normal([6, 5], seed=[3, 4])),
    ),
)
def while_loop(w: Any, head: Any, x: Any, y: Any) -> Any:
    by_time = tf.transpose(x, [1, 0, 2])

    def body(time: Any, hidden: Any) -> Any:
        both = tf.concat([by_time[time], hidden], axis=1)
        return time + 1, tf.tanh(both @ w)

    _, hidden = tf.while_loop(
        lambda time, _: time < tf.shape(by_time)[0],
        body,
        (tf.constant(0), tf.zeros([tf.shape(x)[0], 6])),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, 6])),
    )
    return ENTROPY(y, hidden @ head)


@written(
    "sequence/array_written_in_a_loop",
    of_shape(7, 4),
    lambda: tf.Variable(0.5 * tf.random.stateless_normal([4, 4], seed=[1, 2])),
)
def tensor_array(w: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        by_time = tf.transpose(x, [1, 0, 2])
        outputs = tf.TensorArray(tf.float32, size=7)
        hidden = tf.zeros_like(by_time[0])
        for time in tf.range(7):
            hidden = tf.tanh(by_time[time] + hidden @ w)
            outputs = outputs.write(time, hidden)
        made = tf.transpose(outputs.stack(), [1, 0, 2])
        loss = tf.reduce_mean(tf.square(made[:, :-1] - x[:, 1:]))
    w.assign_sub(0.3 * tape.gradient(loss, w))
    return {"loss": loss, "outputs": made}


def scanned(loss_of: Callable[[Any, Any], Any]) -> BuiltStep:
    """Return a step with a linear recurrence by `tf.scan`, and a loss of its states and ``x``."""
    rate = tf.Variable(tf.random.stateless_normal([4], seed=[1, 2]))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            decay = tf.sigmoid(rate)
            states = tf.scan(
                lambda s, now: decay * s + (1 - decay) * now, tf.transpose(x, [1, 0, 2])
            )
            loss = loss_of(states, x)
        rate.assign_sub(tape.gradient(loss, rate))
        return loss

    return BuiltStep(step=step, batch=lambda rng, n: (normal(rng, n, 7, 4),), variables=[rate])


@case("sequence/scan_of_a_linear_model")
def scan() -> BuiltStep:
    def loss_of(states: Any, x: Any) -> Any:
        return tf.reduce_mean(tf.square(states[:-1] - tf.transpose(x, [1, 0, 2])[1:]))

    return scanned(loss_of)


@case("sequence/scan_with_the_size_of_the_batch")
def scan_with_size() -> BuiltStep:
    return scanned(lambda states, x: tf.reduce_sum(tf.square(states)) / x.shape[0])


@case("sequence/lstm_with_the_size_of_the_batch")
def lstm_with_size() -> BuiltStep:
    model = classifier(layers.LSTM(6, return_sequences=True), layers.GRU(4))
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    return learn(lambda x, y: losses(y, model(x, training=True)) / x.shape[0], model, sequences)


@case("sequence/attention_between_encoder_and_decoder")
def attention() -> BuiltStep:
    encoder, decoder = layers.GRU(6, return_sequences=True, return_state=True), layers.GRUCell(6)
    embed, attend = layers.Embedding(10, 5), layers.AdditiveAttention()
    head = layers.Dense(10)
    parts = (encoder, decoder, embed, attend, head)
    encoder.build((None, 7, 4))
    decoder.build((None, 11))
    embed.build((None,))
    attend.build([(None, 1, 6), (None, 7, 6)])
    head.build((None, 6))
    weights = [v for part in parts for v in part.trainable_variables]
    optimizer = adam(weights)

    def step(x: Any, y: Any) -> Any:
        loss = 0.0
        with tf.GradientTape() as tape:
            memory, hidden = encoder(x)
            for time in range(2):
                context = attend([hidden[:, None], memory])[:, 0]
                inputs = tf.concat([context, embed(y[:, time])], axis=1)
                output, hidden = decoder(inputs, hidden)
                mask = tf.cast(y[:, time + 1] != 0, tf.float32)
                each = keras.losses.sparse_categorical_crossentropy(
                    y[:, time + 1], head(output), from_logits=True
                )
                loss += tf.reduce_mean(each * mask)
            batch_loss = loss / 3.0
        optimizer.apply(tape.gradient(loss, weights), weights)
        return batch_loss

    return BuiltStep(
        step=step,
        batch=lambda rng, n: (normal(rng, n, 7, 4), integers(rng, 10, n, 3)),
        variables=[*weights, *optimizer.variables],
    )


@case("sequence/decoder_with_lookups_in_loops")
def decoder_by_hand() -> BuiltStep:
    """An encoder and a decoder with attention, written by hand: rows of tables in every round."""
    shapes = {"read": (11, 6), "written": (11, 6), "encode": (14, 8), "ask": (8, 8)}
    shapes |= {"decode": (22, 8), "guess": (8, 11)}
    weights = {
        name: tf.Variable(0.4 * tf.random.stateless_normal(shape, seed=[seed, 1]), name=name)
        for seed, (name, shape) in enumerate(shapes.items())
    }
    optimizer = adam(list(weights.values()))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden, states = tf.zeros([tf.shape(x)[0], 8]), tf.TensorArray(tf.float32, 4)
            for time in tf.range(4):
                row = tf.nn.embedding_lookup(weights["read"], x[:, time])
                hidden = tf.tanh(tf.concat([row, hidden], 1) @ weights["encode"])
                states = states.write(time, hidden)
            memory = tf.transpose(states.stack(), [1, 0, 2])
            total, time = tf.constant(0.0), tf.constant(1)
            while time < 5:
                row = tf.gather(weights["written"], y[:, time - 1])
                scores = tf.einsum("bsh,bh->bs", memory, hidden @ weights["ask"])
                seen = tf.einsum("bs,bsh->bh", tf.nn.softmax(scores), memory)
                hidden = tf.tanh(tf.concat([row, hidden, seen], 1) @ weights["decode"])
                total += ENTROPY(y[:, time], hidden @ weights["guess"])
                total += 0.01 * tf.nn.l2_loss(weights["guess"])
                time += 1
        of_all = tape.gradient(total, list(weights.values()))
        optimizer.apply(of_all, list(weights.values()))
        return total

    return BuiltStep(
        step=step,
        batch=lambda rng, n: (integers(rng, 11, n, 4), integers(rng, 11, n, 5)),
        variables=[*weights.values(), *optimizer.variables],
    )


@case("sequence/ctc_of_tf_nn")
def ctc() -> BuiltStep:
    model = sequential((7, 4), layers.GRU(6, return_sequences=True), layers.Dense(6))

    def loss_of(x: Any, y: Any, label_length: Any, logit_length: Any) -> Any:
        each = tf.nn.ctc_loss(
            y, model(x), label_length, logit_length, logits_time_major=False, blank_index=-1
        )
        return tf.reduce_mean(each)

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        lengths = rng.integers(1, 4, size=n).astype("int32")
        return normal(rng, n, 7, 4), integers(rng, 4, n, 3), lengths, np.full([n], 7, "int32")

    return learn(loss_of, model, batch)


@case("sequence/ctc_of_keras")
def keras_ctc() -> BuiltStep:
    model = classifier(layers.LSTM(6, return_sequences=True))
    loss = keras.losses.CTC()
    return learn(
        lambda x, y: 0.1 * loss(y, model(x)),
        model,
        lambda rng, n: (normal(rng, n, 7, 4), 1 + integers(rng, 4, n, 3)),
    )


@learned(
    "sequence/chain_of_tags_by_forward_algorithm",
    columns(normals(7, 4), whole(5, 7)),
    lambda: (
        sequential((7, 4), layers.Dense(5)),
        tf.Variable(0.1 * tf.random.stateless_normal([5, 5], seed=[1, 2])),
    ),
)
def crf(emit: Any, moves: Any, x: Any, tags: Any) -> Any:
    scores = emit(x)
    alpha = scores[:, 0]
    for time in range(1, 7):
        alpha = tf.reduce_logsumexp(alpha[:, :, None] + moves[None], axis=1) + scores[:, time]
    total = tf.reduce_logsumexp(alpha, axis=1)
    chosen = tf.reduce_sum(tf.gather(scores, tags, axis=2, batch_dims=2), axis=1)
    steps = tf.stack([tags[:, :-1], tags[:, 1:]], axis=2)
    chosen += tf.reduce_sum(tf.gather_nd(moves, steps), axis=1)
    return tf.reduce_mean(total - chosen)


@written(
    "sequence/best_beams",
    to_classify(),
    lambda: tf.Variable(tf.random.stateless_normal([6, 5], seed=[1, 2])),
)
def beams(w: Any, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = ENTROPY(y, x @ w)
    w.assign_sub(0.2 * tape.gradient(loss, w))
    logs = tf.nn.log_softmax(x @ w)
    scores, tokens = tf.math.top_k(logs, k=2)
    paths = tokens[:, :, None]
    for decay in (0.7, 0.4):
        every = scores[:, :, None] + tf.gather(logs[:, None], [0, 0], axis=1) * decay
        scores, flat = tf.math.top_k(tf.reshape(every, [-1, 10]), k=2)
        before = tf.gather(paths, flat // 5, batch_dims=1)
        paths = tf.concat([before, (flat % 5)[:, :, None]], axis=2)
    return {"paths": paths, "scores": scores}


def tokens(rng: Any, n: int) -> tuple[Any, ...]:
    """Return tokens of unlike numbers, padded with zeros."""
    every = 1 + integers(rng, 11, n, 7)
    lengths = rng.integers(3, 8, size=(n, 1))
    return (np.where(np.arange(7)[None] < lengths, every, 0).astype("int32"),)


def block(x: Any, **call: Any) -> Any:
    """Return a block of attention and a feed-forward part, normalised before.

    Attention goes without biases: that of the keys would have a gradient of rounding alone.
    """
    before = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(2, 4, use_bias=False)(before, before, **call)
    before = layers.LayerNormalization()(x)
    return x + layers.Dense(8)(layers.Dense(16, activation="gelu")(before))


@case("transformers/causal_with_tied_embedding")
def causal() -> BuiltStep:
    embed = layers.Embedding(12, 8)
    inputs = keras.Input((6,), dtype="int32")
    x = block(embed(inputs), use_causal_mask=True)
    model = keras.Model(inputs, layers.LayerNormalization()(x))

    def loss_of(every: Any) -> Any:
        targets = every[:, 1:]
        mask = tf.cast(targets != 0, tf.float32)
        hidden = model(every[:, :-1], training=True)
        logits = tf.matmul(hidden, embed.embeddings, transpose_b=True)
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        loss = tf.reduce_sum(each * mask) / tf.reduce_sum(mask)
        return {"loss": loss, "perplexity": tf.exp(loss), "tokens": tf.reduce_sum(mask)}

    return learn(loss_of, model, tokens, optimizer=adam)


@case("transformers/padding_mask_and_mean_over_tokens")
def padded() -> BuiltStep:
    inputs = keras.Input((7,), dtype="int32")
    mask = keras.ops.not_equal(inputs, 0)
    x = layers.Embedding(12, 8)(inputs)
    x = block(x, attention_mask=mask[:, None])
    weight = keras.ops.cast(mask, "float32")[..., None]
    pooled = keras.ops.sum(x * weight, axis=1) / keras.ops.sum(weight, axis=1)
    model = keras.Model(inputs, layers.Dense(5)(layers.Dropout(0.1, seed=1)(pooled)))

    def batch(rng: Any, n: int) -> tuple[Any, ...]:
        return *tokens(rng, n), integers(rng, 5, n)

    return learn(lambda x, y: ENTROPY(y, model(x, training=True)), model, batch, optimizer=adam)


@case("transformers/masked_words")
def masked_words() -> BuiltStep:
    inputs = keras.Input((7,), dtype="int32")
    x = layers.Embedding(13, 8)(inputs)
    model = keras.Model(inputs, layers.Dense(13)(block(x)))
    optimizer = adam(model.trainable_variables)
    seeds = keras.random.SeedGenerator(6)
    tracker = keras.metrics.Mean()

    def step(every: Any) -> Any:
        hidden = keras.random.uniform(tf.shape(every), seed=seeds) < 0.3
        hidden &= every != 0
        with tf.GradientTape() as tape:
            logits = model(tf.where(hidden, 12, every), training=True)
            rows = tf.where(hidden)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(
                tf.gather_nd(every, rows), tf.gather_nd(logits, rows)
            )
            number = tf.maximum(tf.shape(rows)[0], 1)
            loss = tf.reduce_sum(each) / tf.cast(number, tf.float32)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        tracker.update_state(loss, sample_weight=tf.shape(rows)[0])
        return tracker.result()

    return BuiltStep(
        step=step, batch=tokens, variables=[*state(model, optimizer, tracker), seeds.state]
    )


@case("transformers/attention_by_hand_with_einsum")
def by_hand() -> BuiltStep:
    shapes = {"q": [4, 2, 3], "k": [4, 2, 3], "v": [4, 2, 3], "o": [2, 3, 4]}
    w = {
        name: tf.Variable(0.5 * tf.random.stateless_normal(shape, seed=[i, 1]))
        for i, (name, shape) in enumerate(shapes.items())
    }
    optimizer = adam(list(w.values()))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            q, k, v = (tf.einsum("btd,dhf->bthf", x, w[name]) for name in "qkv")
            scores = tf.einsum("bqhf,bkhf->bhqk", q, k) / tf.sqrt(3.0)
            future = tf.linalg.band_part(tf.ones([6, 6]), -1, 0)
            scores = tf.where(future > 0, scores, -1e9)
            mixed = tf.einsum("bhqk,bkhf->bqhf", tf.nn.softmax(scores), v)
            made = x + tf.einsum("bqhf,hfd->bqd", mixed, w["o"])
            loss = tf.reduce_mean(tf.square(made[:, :-1] - x[:, 1:]))
        gradients = tape.gradient(loss, w)
        optimizer.apply([gradients[name] for name in w], list(w.values()))
        return loss, scores

    return BuiltStep(
        step=step,
        batch=lambda rng, n: (normal(rng, n, 6, 4),),
        variables=[*w.values(), *optimizer.variables],
    )


@case("transformers/patches_with_class_token")
def patches() -> BuiltStep:
    class ClassToken(layers.Layer):
        def build(self, shape: Any) -> None:
            self.token = self.add_weight(shape=(1, 1, 8), initializer="random_normal")

        def call(self, x: Any) -> Any:
            return tf.concat([tf.repeat(self.token, tf.shape(x)[0], axis=0), x], axis=1)

    class Positions(layers.Layer):
        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=(1, 5, 8), initializer="random_normal")

        def call(self, x: Any) -> Any:
            return x + self.table

    inputs = keras.Input((8, 8, 2))
    x = layers.Conv2D(8, 4, strides=4)(inputs)
    x = Positions()(ClassToken()(layers.Reshape((4, 8))(x)))
    model = keras.Model(inputs, layers.Dense(5)(block(x)[:, 0]))

    return learn(
        lambda x, y: ENTROPY(y, model(x, training=True)),
        model,
        columns(normals(8, 8, 2), whole(5)),
        optimizer=adam,
        # The class token is small, and normalising it magnifies rounding.
        tolerance=1e-4,
    )


@case("transformers/patches_of_tf_image_rebuilt_where_masked")
def masked_patches() -> BuiltStep:
    encoder, decoder = layers.Dense(8, activation="gelu"), layers.Dense(32)
    encoder.build((None, 32))
    decoder.build((None, 8))
    empty = tf.Variable(0.1 * tf.random.stateless_normal([8], seed=[1, 2]))
    count = tf.Variable(0, trainable=False)

    def loss_of(images: Any) -> Any:
        sizes = [1, 4, 4, 1]
        parts = tf.image.extract_patches(images, sizes, sizes, [1, 1, 1, 1], "VALID")
        parts = tf.reshape(parts, [-1, 4, 32])
        draw = tf.random.stateless_uniform(tf.shape(parts)[:2], seed=tf.stack([count, 1]))
        order = tf.argsort(draw, axis=1)
        kept, hidden = order[:, :2], order[:, 2:]
        count.assign_add(1)
        seen = encoder(tf.gather(parts, kept, batch_dims=1))
        filler = tf.broadcast_to(empty, tf.shape(seen))
        back = tf.argsort(order, axis=1)
        whole = tf.gather(tf.concat([seen, filler], axis=1), back, batch_dims=1)
        whole += tf.reduce_mean(seen, axis=1, keepdims=True)
        made = tf.gather(decoder(whole), hidden, batch_dims=1)
        wanted = tf.gather(parts, hidden, batch_dims=1)
        return tf.reduce_mean(tf.square(made - wanted))

    return learn(
        loss_of, (encoder, decoder, empty), of_shape(8, 8, 2), optimizer=adam, extra=[count]
    )


@case("transformers/recurrent_language_model")
def recurrent() -> BuiltStep:
    model = sequential(
        (7,),
        layers.Embedding(12, 6, mask_zero=True),
        layers.GRU(6, return_sequences=True),
        layers.Dense(12),
        dtype="int32",
    )
    optimizer = adam(model.trainable_variables)
    perplexity, accuracy = keras.metrics.Mean(), keras.metrics.SparseCategoricalAccuracy()

    def step(every: Any) -> Any:
        inputs, targets = tf.pad(every[:, :-1], [[0, 0], [1, 0]], constant_values=1), every
        mask = tf.cast(tf.not_equal(targets, 0), tf.float32)
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
            loss = tf.reduce_sum(each * mask) / tf.reduce_sum(mask)
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        perplexity.update_state(tf.exp(loss))
        accuracy.update_state(targets, logits, sample_weight=mask)
        return perplexity.result(), accuracy.result()

    return BuiltStep(
        step=step, batch=tokens, variables=state(model, optimizer, perplexity, accuracy)
    )


def around(name: str, **settings: Any) -> Callable[[Callable[[], Any]], Any]:
    """Register a step that trains a classifier with a layer in its middle, and its losses."""

    def add(layer: Callable[[], Any]) -> Any:
        @case(name)
        def build() -> BuiltStep:
            middle = layer()
            model = sequential((6,), layers.Dense(8, activation="tanh"), middle, layers.Dense(5))

            def loss_of(x: Any, y: Any) -> Any:
                logits = model(x, training=True)
                return ENTROPY(y, logits) + sum(model.losses)

            extra = [middle.size] if isinstance(middle, Watched) else []
            return learn(loss_of, model, to_classify(), extra=extra, **settings)

        return layer

    return add


@around("layers/trainable_weight_assigned_in_call")
class UnitRows(layers.Layer):
    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], 6), initializer="random_normal")

    def call(self, x: Any) -> Any:
        self.kernel.assign(tf.math.l2_normalize(self.kernel, axis=0))
        return x @ self.kernel


@around("layers/spectral_normalisation")
def spectral() -> Any:
    return layers.SpectralNormalization(layers.Dense(6, activation="tanh"))


@around("layers/running_mean_assigned_in_call")
class Centred(layers.Layer):
    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, axis=0))
            self.seen.assign_add(ops.cast(ops.shape(x)[0], "float32"))
        return x - self.mean


@around("layers/scaled_by_the_largest_of_the_batch")
class Scaled(layers.Layer):
    def call(self, x: Any) -> Any:
        return x / (ops.max(ops.abs(x)) + 0.1)


@around("layers/centred_over_the_batch_with_keras_ops")
def centred() -> Any:
    def centre(x: Any) -> Any:
        mean, variance = ops.moments(x, axes=[0], keepdims=True)
        return (x - mean) * ops.rsqrt(variance + 1e-2)

    return layers.Lambda(centre)


@around("layers/whitened_over_the_batch", tolerance=0.0001)
class Whitened(layers.Layer):
    def call(self, x: Any) -> Any:
        x = x - tf.reduce_mean(x, axis=0)
        size = tf.cast(tf.shape(x)[0], tf.float32)
        covariance = tf.matmul(x, x, transpose_a=True) / size + 0.5 * tf.eye(8)
        root = tf.linalg.cholesky(covariance)
        return tf.transpose(tf.linalg.triangular_solve(root, tf.transpose(x)))


@around("layers/batch_renormalised")
class Renormalised(layers.Layer):
    def build(self, shape: Any) -> None:
        width = shape[-1]
        self.scale = self.add_weight(shape=(width,), initializer="ones")
        self.mean = self.add_weight(shape=(width,), initializer="zeros", trainable=False)
        self.deviation = self.add_weight(shape=(width,), initializer="ones", trainable=False)

    def call(self, x: Any) -> Any:
        mean, variance = tf.nn.moments(x, axes=[0])
        deviation = tf.sqrt(variance + 1e-2)
        r = tf.stop_gradient(tf.clip_by_value(deviation / self.deviation, 0.4, 2.5))
        d = tf.stop_gradient(tf.clip_by_value((mean - self.mean) / self.deviation, -2.0, 2.0))
        self.mean.assign_add(0.2 * (mean - self.mean))
        self.deviation.assign_add(0.2 * (deviation - self.deviation))
        return self.scale * ((x - mean) / deviation * r + d)


@around("layers/added_loss_of_the_batch")
class Sparse(layers.Layer):
    def call(self, x: Any) -> Any:
        share = ops.clip(ops.mean(ops.sigmoid(x), axis=0), 1e-3, 1 - 1e-3)
        divergence = 0.1 * ops.log(0.1 / share) + 0.9 * ops.log(0.9 / (1 - share))
        self.add_loss(0.1 * ops.sum(divergence))
        return x


@around("layers/metric_updated_in_call")
class Watched(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.size = keras.metrics.Mean(name="size")

    def call(self, x: Any) -> Any:
        self.size.update_state(tf.norm(x, axis=-1))
        return x


@around("layers/reduced_by_a_replica_context")
class Synchronised(layers.Layer):
    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        mean = tf.reduce_mean(x, axis=0)
        context = tf.distribute.get_replica_context()
        if context is not None:
            mean = context.all_reduce(tf.distribute.ReduceOp.MEAN, mean)
        self.mean.assign(0.9 * self.mean + 0.1 * mean)
        return x - mean


@around("layers/scale_set_from_the_first_batch")
class ActNorm(layers.Layer):
    def build(self, shape: Any) -> None:
        self.shift = self.add_weight(shape=(shape[-1],), initializer="zeros")
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")
        self.ready = self.add_weight(shape=(), initializer="zeros", dtype="int32", trainable=False)

    def call(self, x: Any) -> Any:
        def first() -> tuple[Any, Any]:
            mean, variance = tf.nn.moments(x, axes=[0])
            return -mean, 1.0 / tf.sqrt(variance + 1e-2)

        def later() -> tuple[Any, Any]:
            return tf.identity(self.shift.value), tf.identity(self.scale.value)

        shift, scale = tf.cond(tf.equal(self.ready.value, 0), first, later)
        self.shift.assign(shift)
        self.scale.assign(scale)
        self.ready.assign(1)
        return (x + self.shift) * self.scale


@around("layers/routed_capsules")
class Capsules(layers.Layer):
    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(4, 2, 5, 3), initializer="glorot_uniform")

    def call(self, x: Any) -> Any:
        votes = tf.einsum("bif,ifjd->bijd", tf.reshape(x, [-1, 4, 2]), self.kernel)
        logits = tf.zeros(tf.shape(votes)[:3])
        for _ in range(3):
            mixed = tf.reduce_sum(tf.nn.softmax(logits, axis=2)[..., None] * votes, axis=1)
            squares = tf.reduce_sum(mixed**2, axis=-1, keepdims=True)
            poses = squares / (1 + squares) * mixed / tf.sqrt(squares + 1e-4)
            logits += tf.reduce_sum(votes * poses[:, None], axis=-1)
        return tf.reshape(poses, [-1, 15])


@case("layers/gradient_reversed_for_a_domain")
def reversed_gradient() -> BuiltStep:
    @tf.custom_gradient
    def reverse(x: Any) -> Any:
        return tf.identity(x), lambda upstream: -0.3 * upstream

    body, head, domain = mlp(6, 10, 6), mlp(6, 5), mlp(6, 6, 1)
    weights = [v for part in (body, head, domain) for v in part.trainable_variables]
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        half = tf.shape(x)[0] // 2 + 1
        with tf.GradientTape() as tape:
            hidden = tf.tanh(body(x))
            of_class = ENTROPY(y[:half], head(hidden[:half]))
            place = tf.cast(tf.range(tf.shape(x)[0]) < half, tf.float32)[:, None]
            logits = domain(reverse(hidden))
            of_domain = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=place, logits=logits)
            )
            loss = of_class + of_domain
        optimizer.apply(tape.gradient(loss, weights), weights)
        return of_class, of_domain

    return BuiltStep(step=step, batch=to_classify(), variables=[*weights, *optimizer.variables])


@case("layers/multi_task_with_learned_uncertainty")
def uncertainty() -> BuiltStep:
    body, heads = mlp(6, 10, 8), [mlp(8, 1) for _ in range(3)]
    logs = [keras.Variable(0.0, name=f"log_{i}") for i in range(3)]
    weights = [v for part in (body, *heads) for v in part.trainable_variables] + logs
    optimizer = sgd(weights)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = tf.nn.gelu(body(x))
            loss, each = 0.0, {}
            for i, (head, log) in enumerate(zip(heads, logs, strict=True)):
                part = tf.reduce_mean(tf.square(y[:, i] - head(hidden)[:, 0]))
                each[f"task_{i}"] = part
                loss += 0.5 * tf.exp(-log) * part + 0.5 * log
        optimizer.apply(tape.gradient(loss, weights), weights)
        return each

    return BuiltStep(
        step=step, batch=to_regress(outputs=3), variables=[*weights, *optimizer.variables]
    )


@case("layers/module_of_tensorflow_alone")
def module() -> BuiltStep:
    class Net(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(tf.random.stateless_normal([6, 8], [1, 2]), name="w")
            self.v = tf.Variable(tf.random.stateless_normal([8, 4], [3, 4]), name="v")

        @tf.Module.with_name_scope
        def __call__(self, x: Any) -> Any:
            return tf.tanh(x @ self.w) @ self.v

    net = Net()

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = 0.5 * tf.reduce_mean((y - net(x)) ** 2)
        for v, g in zip(
            net.trainable_variables, tape.gradient(loss, net.trainable_variables), strict=True
        ):
            v.assign_sub(0.05 * g)
        return loss

    return BuiltStep(step=step, batch=to_regress(), variables=net.variables)
