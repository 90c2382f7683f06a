"""Removed names, members and arguments with one exact successor: same arguments, same results.

What is in `successors` and not here is advice: its successor takes other arguments, computes in
another way, or depends on the rest of the program. A test holds every name to the installed
packages.
"""

from __future__ import annotations

from dataclasses import dataclass

_LAYERS = {
    "core": "Dense Dropout Activation Flatten Reshape Permute RepeatVector Lambda Masking "
    "ActivityRegularization SpatialDropout1D SpatialDropout2D SpatialDropout3D",
    "convolutional": "ZeroPadding1D ZeroPadding2D ZeroPadding3D UpSampling1D UpSampling2D "
    "UpSampling3D Cropping1D Cropping2D Cropping3D MaxPooling1D MaxPooling2D MaxPooling3D "
    "AveragePooling1D AveragePooling2D AveragePooling3D Conv1D Conv2D Conv3D Conv2DTranspose "
    "SeparableConv2D",
    "pooling": "MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D "
    "AveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D "
    "GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D",
    "embeddings": "Embedding",
    "normalization": "BatchNormalization LayerNormalization",
    "noise": "GaussianNoise GaussianDropout",
    "merge": "Add Subtract Multiply Average Maximum Minimum Concatenate Dot add subtract multiply "
    "average maximum minimum concatenate dot",
    "wrappers": "TimeDistributed Bidirectional",
    # Not CategoryEncoding and the lookups, whose arguments changed.
    "experimental.preprocessing": "Rescaling Resizing CenterCrop Normalization RandomFlip "
    "RandomRotation RandomTranslation RandomZoom RandomContrast RandomCrop",
}
_UTILS = {
    "np_utils": "to_categorical normalize",
    "generic_utils": "Progbar get_custom_objects CustomObjectScope custom_object_scope",
    "vis_utils": "plot_model model_to_dot",
    "data_utils": "Sequence get_file",
}


def _moved(parts: dict[str, str], below: str) -> dict[str, str]:
    return {
        f"{below}.{part}.{name}": f"{below}.{name}"
        for part, names in parts.items()
        for name in names.split()
    }


NAMES: dict[str, str] = {
    **_moved(_LAYERS, "keras.layers"),
    **_moved(_UTILS, "keras.utils"),
    "keras.engine.topology.Layer": "keras.layers.Layer",
    "keras.engine.topology.Input": "keras.layers.Input",
    "keras.engine.Layer": "keras.layers.Layer",
    "keras.engine.InputSpec": "keras.layers.InputSpec",
    "keras.engine.training.Model": "keras.models.Model",
    "keras.mixed_precision.experimental.Policy": "keras.mixed_precision.Policy",
    "keras.mixed_precision.experimental.global_policy": "keras.mixed_precision.global_policy",
    "keras.mixed_precision.experimental.set_policy": "keras.mixed_precision.set_global_policy",
    "keras.mixed_precision.set_policy": "keras.mixed_precision.set_global_policy",
    # Not RMSprop and Adagrad, whose epsilon is now within the square root.
    "keras.optimizers.legacy.Adam": "keras.optimizers.Adam",
    "keras.optimizers.legacy.SGD": "keras.optimizers.SGD",
    **{
        f"keras.optimizers.experimental.{name}": f"keras.optimizers.{name}"
        for name in ("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam")
    },
    "keras.losses.mse": "keras.losses.mean_squared_error",
    "keras.losses.mae": "keras.losses.mean_absolute_error",
    "tf.contrib.data.AUTOTUNE": "tf.data.AUTOTUNE",
    "tf.gfile.GFile": "tf.io.gfile.GFile",
    "tf.gfile.Open": "tf.io.gfile.GFile",
    "tf.python_io.TFRecordWriter": "tf.io.TFRecordWriter",
    "tf.set_random_seed": "tf.random.set_seed",
    "tf.random.set_random_seed": "tf.random.set_seed",
    "tf.random_normal": "tf.random.normal",
    "tf.random_uniform": "tf.random.uniform",
    "tf.truncated_normal": "tf.random.truncated_normal",
    "tf.log": "tf.math.log",
    "tf.mul": "tf.multiply",
    "tf.sub": "tf.subtract",
    "tf.neg": "tf.negative",
    "tf.pack": "tf.stack",
    "tf.unpack": "tf.unstack",
    "tf.py_func": "tf.numpy_function",
}
"""Successor by full name, written as in `successors`."""


POSITIONAL: dict[str, int] = dict.fromkeys(
    ("Conv1D", "Conv2D", "Conv3D", "Conv2DTranspose", "SeparableConv2D"), 2
)
"""Largest number of arguments by position for which a class is the same, by its last name.

Keras 2 read ``Conv2D(32, 3, 3)`` as a kernel of 3 x 3, Keras 3 as strides of 3.
"""


@dataclass(frozen=True, slots=True)
class Renamed:
    """An argument of another name.

    Args:
        new: Its name now.
        position: Position at which a call may give it too.
    """

    new: str
    position: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """An argument without effect.

    Args:
        values: Values for which the call means the same without it; None for all.
    """

    values: tuple[object, ...] | None = None


_LOADING = {
    "workers": Dropped((1,)),
    "use_multiprocessing": Dropped((False,)),
    "max_queue_size": Dropped((10,)),
}
ARGUMENTS: dict[tuple[str, str], Renamed | Dropped] = {
    **{
        (f"model.{method}", name): row
        for method in ("fit", "evaluate", "predict")
        for name, row in _LOADING.items()
    },
    ("model.fit", "nb_epoch"): Renamed("epochs", 3),
    ("model.compile", "experimental_run_tf_function"): Dropped(),
    ("model.compile", "experimental_steps_per_execution"): Renamed("steps_per_execution", 6),
    ("model.compile", "sample_weight_mode"): Dropped((None,)),
    ("keras.optimizers.*", "lr"): Renamed("learning_rate", 0),
    ("keras.optimizers.*", "decay"): Dropped((0, 0.0)),
    ("keras.mixed_precision.LossScaleOptimizer", "loss_scale"): Dropped(("dynamic",)),
    ("keras.callbacks.ModelCheckpoint", "period"): Dropped((1,)),
    ("keras.callbacks.TensorBoard", "write_grads"): Dropped(),
    ("keras.callbacks.TensorBoard", "batch_size"): Dropped(),
    ("keras.layers.BatchNormalization", "fused"): Dropped(),
    ("keras.Model", "input"): Renamed("inputs", 0),
    ("keras.Model", "output"): Renamed("outputs", 1),
}
"""By callee and name, as in `successors`."""

MEMBERS: dict[tuple[str, str], str] = {
    ("strategy", "experimental_run_v2"): "run",
    ("metric", "reset_states"): "reset_state",
    ("model", "predict_proba"): "predict",
    ("optimizer", "_create_all_weights"): "build",
}
"""Method with the same arguments, by kind and name."""

_STEPS = ("generator", "steps", "callbacks", "verbose")
GENERATORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fit_generator": (
        "fit",
        (
            *("generator", "steps_per_epoch", "epochs", "verbose", "callbacks", "validation_data"),
            *("validation_steps", "validation_freq", "class_weight", "shuffle", "initial_epoch"),
        ),
    ),
    "evaluate_generator": ("evaluate", _STEPS),
    "predict_generator": ("predict", _STEPS),
}
"""Successor of a method that takes a generator, and the arguments that both take by name."""
