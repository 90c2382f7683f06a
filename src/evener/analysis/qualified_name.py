"""One full name for each object of the libraries, however a program imports it."""

from __future__ import annotations

from evener.analysis.api.successors import NAME_ALIASES

_PREFIXES = (
    ("tensorflow.python.keras", "keras"),
    ("tensorflow", "tf"),
    ("numpy", "np"),
    ("tf_keras", "keras"),
)
# Names that mean the same; the longer ones first.
_SAME = (
    ("tf.compat.v2.", "tf."),
    ("tf.keras.", "keras."),
    ("tf.distribute.experimental.", "tf.distribute."),
    ("tf.config.experimental.", "tf.config."),
    ("tf.data.experimental.AUTOTUNE", "tf.data.AUTOTUNE"),
    ("tf.optimizers.", "keras.optimizers."),
    ("tf.losses.", "keras.losses."),
    ("tf.metrics.", "keras.metrics."),
    ("tf.initializers.", "keras.initializers."),
    ("keras.api.", "keras."),
    ("keras.optimizers.legacy.", "keras.optimizers."),
    ("keras.optimizers.experimental.", "keras.optimizers."),
    ("keras.models.Model", "keras.Model"),
    ("keras.models.Sequential", "keras.Sequential"),
    ("keras.layers.Layer", "keras.Layer"),
    ("keras.layers.Input", "keras.Input"),
    ("keras.engine.training.Model", "keras.Model"),
)
# What is gone, and took the same arguments as what took its place.
_GONE = tuple(sorted(NAME_ALIASES, key=lambda pair: -len(pair[0])))


def canonical(dotted: str) -> str:
    """Return the one name of a thing of the libraries.

    Example:
        >>> canonical("tensorflow.keras.layers.Dense")
        'keras.layers.Dense'
        >>> canonical("tensorflow.distribute.experimental.CentralStorageStrategy")
        'tf.distribute.CentralStorageStrategy'
        >>> canonical("tensorflow.keras")
        'keras'
        >>> canonical("tensorflow.keras.layers.LayerNormalization")
        'keras.layers.LayerNormalization'
        >>> canonical("tensorflow.contrib.distribute.MirroredStrategy")
        'tf.distribute.MirroredStrategy'
    """
    for long, short in _PREFIXES:
        if dotted == long or dotted.startswith(long + "."):
            dotted = short + dotted[len(long) :]
            break
    for other, usual in (*_SAME[:2], *_GONE, *_SAME[2:]):
        # keras.layers.LayerNormalization begins with keras.layers.Layer, and is another thing.
        if dotted == other or dotted.startswith(other if other.endswith(".") else other + "."):
            dotted = usual + dotted[len(other) :]
        elif other.endswith(".") and dotted == other[:-1]:
            dotted = usual[:-1]
    return dotted
