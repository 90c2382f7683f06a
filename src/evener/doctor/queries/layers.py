"""Classes that are layers or models of Keras, and Keras layers without weights."""

from __future__ import annotations

import ast

from evener.analysis import Kind, Module, Program

_WITHOUT = frozenset(
    (
        "Activation Add Average AveragePooling1D AveragePooling2D AveragePooling3D Concatenate "
        "Cropping1D Cropping2D Cropping3D Dot ELU Flatten GaussianDropout GaussianNoise "
        "AlphaDropout Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D "
        "GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D GlobalMaxPooling1D "
        "GlobalMaxPooling2D GlobalMaxPooling3D Identity Input InputLayer Lambda LeakyReLU Masking "
        "MaxPooling1D MaxPooling2D MaxPooling3D Maximum Minimum Multiply Permute ReLU "
        "RepeatVector Rescaling Reshape Resizing Softmax Subtract UnitNormalization UpSampling1D "
        "UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D CenterCrop MaxPool1D "
        "MaxPool2D MaxPool3D AvgPool1D AvgPool2D GlobalAvgPool1D GlobalAvgPool2D GlobalMaxPool1D "
        "GlobalMaxPool2D ActivityRegularization RandomFlip RandomRotation RandomZoom RandomCrop "
        "RandomContrast RandomTranslation RandomBrightness RandomHeight RandomWidth InputSpec "
        "CategoryEncoding Discretization Hashing TextVectorization StringLookup IntegerLookup "
        "Normalization concatenate add average dot maximum minimum multiply subtract"
    ).split()
)


def is_weightless(name: str) -> bool:
    """Return whether a layer of Keras has nothing that training changes.

    Args:
        name: Its full name, such as ``"keras.layers.Flatten"``.
    """
    base, _, plain = name.rpartition(".")
    return name == "keras.Input" or (base == "keras.layers" and plain in _WITHOUT)


def is_of_keras(program: Program, module: Module, definition: ast.ClassDef) -> bool:
    """Return whether a class of the program is a layer or model of Keras, and no `tf.Module`."""
    if program.kind_of_class(module, definition) not in (Kind.LAYER, Kind.MODEL):
        return False
    names = {
        base
        for where, base_definition in program.classes.with_bases(module, definition)
        for _, base in program.classes.bases(where, base_definition)
        if isinstance(base, str)
    }
    return "tf.Module" not in names and any(name.startswith("keras.") for name in names)
