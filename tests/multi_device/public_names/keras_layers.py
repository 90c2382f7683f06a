"""Calls of ``keras.layers``."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from multi_device.public_names.recipe import (
    IMAGE,
    TIME,
    VOLUME,
    WHOLE,
    B,
    Function,
    Recipe,
    Table,
    X,
    call,
    layer,
    merged,
)
from unit.graph.ops.op_case import Arg, f32, i32, ints, positive

ly = keras.layers
FRAMES = f32(B, 3, 6, 6, 2)
COLOURS = f32(B, 8, 8, 3, values=lambda r, s, b: r.uniform(0, 255, s))


def made(
    name: str, *args: Arg, training: bool = False, options: Any = None, **kwargs: Any
) -> Recipe:
    """Return the recipe of a layer that is called with one tensor, or a list of them."""

    def make() -> Function:
        built = getattr(ly, name)(**kwargs)

        def function(*tensors: Any) -> Any:
            given = tensors[0] if len(tensors) == 1 else list(tensors)
            return built(given, training=True) if training else built(given)

        return function

    return layer(make, *args, **(options or {}))


def random(name: str, *args: Arg, gradient: bool = False, **kwargs: Any) -> Recipe:
    """Return the recipe of a layer that draws numbers while training."""
    kwargs = {"seed": 3, **kwargs}
    return made(name, *args, training=True, options={"gradient": gradient}, **kwargs)


def sizes(name: str, *args: Any, **kwargs: Any) -> Table:
    """Return recipes of a layer of one, two and three axes of space."""
    given = (f32(B, 8, 3), IMAGE, VOLUME)
    return {name.format(k + 1): made(name.format(k + 1), given[k], **kwargs) for k in range(3)}


def attention(make: Function, *args: Arg, **options: Any) -> Recipe:
    def function() -> Function:
        built = make()
        return lambda q, v: built(q, v)

    return layer(function, *args, **options)


def cell(make: Function, num_states: int) -> Recipe:
    def function() -> Function:
        built = make()
        return lambda x, *states: built(x, list(states))

    return layer(function, X, *[f32(B, 3)] * num_states)


def adapted(make: Function, data: Any, *args: Arg, **options: Any) -> Recipe:
    def function() -> Function:
        built = make()
        built.adapt(data)
        return built

    return layer(function, *args, **options)


def words(rng: Any, shape: tuple[int, ...], batch: int) -> Any:
    return np.array([b"a", b"bb", b"a ccc"])[rng.integers(0, 3, shape)]


TEXT = Arg((B, 2), words, "S")
MERGES = "Add Average Concatenate Maximum Minimum Multiply"

TABLE: Table = {
    **{name: made(name, X, X) for name in MERGES.split()},
    **{
        name: merged(getattr(ly, name), X, X)
        for name in "add average concatenate maximum minimum multiply subtract".split()
    },
    **{name: made(name, X) for name in "ELU Flatten Identity LeakyReLU PReLU ReLU Softmax".split()},
    **{
        name: made(name, TIME)
        for name in "LayerNormalization Masking RMSNormalization UnitNormalization Flatten".split()
    },
    **sizes("Conv{}D", filters=2, kernel_size=3),
    **sizes("Conv{}DTranspose", filters=2, kernel_size=3, strides=2),
    **sizes("AveragePooling{}D", pool_size=2),
    **sizes("MaxPooling{}D"),
    **sizes("GlobalAveragePooling{}D"),
    **sizes("GlobalMaxPooling{}D"),
    **sizes("AdaptiveAveragePooling{}D", output_size=2),
    **sizes("AdaptiveMaxPooling{}D", output_size=2),
    **sizes("Cropping{}D"),
    **sizes("ZeroPadding{}D"),
    **sizes("UpSampling{}D"),
    **sizes("SpatialDropout{}D", rate=0.3, training=True, seed=3),
    **{name: made(name, f32(B, 8, 3), kernel_size=3) for name in ["DepthwiseConv1D"]},
    "DepthwiseConv2D": made("DepthwiseConv2D", IMAGE, kernel_size=3),
    "SeparableConv1D": made("SeparableConv1D", f32(B, 8, 3), filters=2, kernel_size=3),
    "SeparableConv2D": made("SeparableConv2D", IMAGE, filters=2, kernel_size=3),
    "ConvLSTM1D": made("ConvLSTM1D", f32(B, 3, 6, 2), filters=2, kernel_size=3),
    "ConvLSTM2D": made("ConvLSTM2D", FRAMES, filters=2, kernel_size=3),
    "ConvLSTM3D": made("ConvLSTM3D", f32(B, 2, 4, 4, 4, 2), filters=2, kernel_size=3),
    "Activation": made("Activation", X, activation="tanh"),
    "ActivityRegularization": made("ActivityRegularization", X, l2=0.1),
    "AdditiveAttention": made("AdditiveAttention", TIME, TIME),
    "AlphaDropout": random("AlphaDropout", X, rate=0.3, gradient=True),
    "Attention": made("Attention", TIME, TIME),
    "BatchNormalization": made(
        "BatchNormalization", IMAGE, training=True, options={"tolerance": 2e-4}
    ),
    "Bidirectional": layer(lambda: ly.Bidirectional(ly.GRU(3)), TIME),
    "CategoryEncoding": made("CategoryEncoding", WHOLE, num_tokens=6, output_mode="multi_hot"),
    "CenterCrop": made("CenterCrop", IMAGE, height=5, width=6),
    "ContrastLimitedAdaptiveHistogramEqualization": made(
        "ContrastLimitedAdaptiveHistogramEqualization",
        COLOURS,
        tile_grid_size=(2, 2),
        options={"gradient": False},
    ),
    "Dense": made("Dense", TIME, units=3),
    "Discretization": made("Discretization", X, bin_boundaries=[-1.0, 0.0, 1.0]),
    "Dot": made("Dot", TIME, TIME, axes=2),
    "dot": call(lambda x, y: ly.dot([x, y], axes=2), TIME, TIME),
    "Dropout": random("Dropout", X, rate=0.3, gradient=True),
    "EinsumDense": made("EinsumDense", TIME, equation="btc,cd->btd", output_shape=(None, 3)),
    "Embedding": made("Embedding", WHOLE, input_dim=6, output_dim=3),
    "Equalization": made("Equalization", COLOURS, options={"gradient": False}),
    "GRU": made("GRU", TIME, units=3, return_sequences=True),
    "GRUCell": cell(lambda: ly.GRUCell(3), 1),
    "GaussianDropout": random("GaussianDropout", X, rate=0.3, gradient=True),
    "GaussianNoise": random("GaussianNoise", X, stddev=0.3, gradient=True),
    "GroupNormalization": made(
        "GroupNormalization", f32(B, 4, 4, 6), groups=3, options={"tolerance": 2e-4}
    ),
    "GroupQueryAttention": attention(lambda: ly.GroupQueryAttention(4, 4, 2), TIME, TIME),
    "HashedCrossing": layer(
        lambda: (lambda built: lambda x, y: built((x, y)))(ly.HashedCrossing(5)),
        i32(B, 1, values=ints(0, 5)),
        i32(B, 1, values=ints(0, 5)),
    ),
    "Hashing": made("Hashing", WHOLE, num_bins=5),
    "IntegerLookup": made("IntegerLookup", Arg((B, 4), ints(0, 6), "int64"), vocabulary=[1, 2, 3]),
    "LSTM": made("LSTM", TIME, units=3, return_sequences=True),
    "LSTMCell": cell(lambda: ly.LSTMCell(3), 2),
    "Lambda": layer(lambda: ly.Lambda(lambda x: x * 2.0), X),
    "MaxNumBoundingBoxes": layer(
        lambda: (
            lambda built: (
                lambda b, k: built.transform_bounding_boxes({"boxes": b, "labels": k}, None)
            )
        )(ly.MaxNumBoundingBoxes(3)),
        f32(B, 5, 4, values=positive),
        i32(B, 5, values=ints(0, 3)),
    ),
    "MelSpectrogram": made(
        "MelSpectrogram",
        f32(B, 64),
        fft_length=16,
        sequence_stride=8,
        num_mel_bins=4,
        options={"tolerance": 1e-3},
    ),
    "MultiHeadAttention": attention(lambda: ly.MultiHeadAttention(2, 3), TIME, TIME),
    "Normalization": adapted(ly.Normalization, np.arange(12.0).reshape(3, 4), X),
    "Permute": made("Permute", TIME, dims=(2, 1)),
    "Pipeline": layer(lambda: ly.Pipeline([ly.Rescaling(0.5), ly.CenterCrop(5, 5)]), IMAGE),
    "RNN": layer(lambda: ly.RNN(ly.SimpleRNNCell(3)), TIME),
    "RepeatVector": made("RepeatVector", X, n=3),
    "Rescaling": made("Rescaling", X, scale=0.5),
    "Reshape": made("Reshape", TIME, target_shape=(4, -1)),
    "Resizing": made("Resizing", IMAGE, height=5, width=6),
    "ReversibleEmbedding": layer(
        lambda: (lambda built: lambda x, i: (built(i), built(x, reverse=True)))(
            ly.ReversibleEmbedding(6, 4)
        ),
        X,
        WHOLE,
    ),
    "STFTSpectrogram": made(
        "STFTSpectrogram", f32(B, 64, 1), frame_length=16, frame_step=8, options={"tolerance": 1e-3}
    ),
    "SimpleRNN": made("SimpleRNN", TIME, units=3),
    "SimpleRNNCell": cell(lambda: ly.SimpleRNNCell(3), 1),
    "Solarization": made("Solarization", COLOURS, options={"gradient": False}),
    "SpectralNormalization": layer(
        lambda: (lambda built: lambda x: built(x, training=True))(
            ly.SpectralNormalization(ly.Dense(3))
        ),
        X,
    ),
    "StackedRNNCells": layer(
        lambda: ly.RNN(ly.StackedRNNCells([ly.GRUCell(3), ly.SimpleRNNCell(2)])), TIME
    ),
    "StringLookup": made("StringLookup", TEXT, vocabulary=["a", "bb"]),
    "Subtract": made("Subtract", X, X),
    "TextVectorization": layer(
        lambda: ly.TextVectorization(vocabulary=["a", "bb"], output_sequence_length=3),
        Arg((B,), words, "S"),
    ),
    "TimeDistributed": layer(lambda: ly.TimeDistributed(ly.Dense(2)), TIME),
    # Layers that draw numbers for every image.
    "AugMix": made(
        "AugMix",
        COLOURS,
        training=True,
        # It draws with Python while it is traced.
        options={"gradient": False, "compared": False},
        seed=3,
    ),
    "AutoContrast": made("AutoContrast", COLOURS, training=True, options={"gradient": False}),
    "CutMix": layer(
        lambda: (lambda built: lambda x, y: built({"images": x, "labels": y}, training=True))(
            ly.CutMix(seed=3)
        ),
        COLOURS,
        f32(B, 3),
        gradient=False,
    ),
    "MixUp": layer(
        lambda: (lambda built: lambda x, y: built({"images": x, "labels": y}, training=True))(
            ly.MixUp(seed=3)
        ),
        COLOURS,
        f32(B, 3),
        gradient=False,
    ),
    "RandAugment": random("RandAugment", COLOURS),
    "RandomBrightness": random("RandomBrightness", COLOURS, factor=0.2),
    "RandomColorDegeneration": random("RandomColorDegeneration", COLOURS, factor=0.5),
    "RandomColorJitter": random(
        "RandomColorJitter",
        COLOURS,
        brightness_factor=0.2,
        contrast_factor=0.3,
        saturation_factor=0.6,
        hue_factor=0.2,
    ),
    "RandomContrast": random("RandomContrast", COLOURS, factor=0.3),
    "RandomCrop": random("RandomCrop", COLOURS, height=5, width=6),
    "RandomElasticTransform": random("RandomElasticTransform", COLOURS),
    "RandomErasing": random("RandomErasing", COLOURS),
    "RandomFlip": random("RandomFlip", COLOURS),
    "RandomGaussianBlur": random("RandomGaussianBlur", COLOURS),
    "RandomGrayscale": random("RandomGrayscale", COLOURS),
    "RandomHue": random("RandomHue", COLOURS, factor=0.3),
    "RandomInvert": random("RandomInvert", COLOURS),
    "RandomPerspective": random("RandomPerspective", COLOURS),
    "RandomPosterization": random("RandomPosterization", COLOURS, factor=3),
    "RandomRotation": random("RandomRotation", COLOURS, factor=0.2, gradient=True),
    "RandomSaturation": random("RandomSaturation", COLOURS, factor=0.3),
    "RandomSharpness": random("RandomSharpness", COLOURS, factor=0.3),
    "RandomShear": random("RandomShear", COLOURS, x_factor=0.2),
    "RandomTranslation": random(
        "RandomTranslation", COLOURS, height_factor=0.2, width_factor=0.2, gradient=True
    ),
    "RandomZoom": random("RandomZoom", COLOURS, height_factor=0.2, gradient=True),
}
_OTHER = "runs another library"
NOT_CALLED = {
    **dict.fromkeys("FlaxLayer JaxLayer TorchModuleWrapper TFSMLayer".split(), _OTHER),
    **dict.fromkeys("Input InputLayer InputSpec Layer Wrapper".split(), "computes nothing"),
    **dict.fromkeys(
        "deserialize serialize".split(), "creates or serializes an object; it computes nothing"
    ),
}
