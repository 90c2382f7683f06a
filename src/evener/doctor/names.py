"""Names of the libraries: one full name for each thing, and the kind of what it gives."""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase

# Names that mean the same, applied one after the other; the longer ones first.
_SAME = (
    ("tensorflow.python.keras", "keras"),
    ("tensorflow", "tf"),
    ("numpy", "np"),
    ("tf_keras", "keras"),
    ("tensorflow_datasets", "tfds"),
    ("tf.compat.v2", "tf"),
    ("tf.contrib.distribute", "tf.distribute"),
    ("tf.keras", "keras"),
    ("tf.distribute.experimental", "tf.distribute"),
    ("tf.config.experimental", "tf.config"),
    ("tf.data.experimental.AUTOTUNE", "tf.data.AUTOTUNE"),
    ("tf.optimizers", "keras.optimizers"),
    ("tf.losses", "keras.losses"),
    ("tf.metrics", "keras.metrics"),
    ("keras.api", "keras"),
    ("keras.optimizers.legacy", "keras.optimizers"),
    ("keras.optimizers.experimental", "keras.optimizers"),
    ("keras.mixed_precision.experimental.set_policy", "keras.mixed_precision.set_global_policy"),
    ("keras.models.Model", "keras.Model"),
    ("keras.models.Sequential", "keras.Sequential"),
    ("keras.models.load_model", "keras.saving.load_model"),
    ("keras.layers.Layer", "keras.Layer"),
    ("keras.layers.Input", "keras.Input"),
)
# Kind of what a call of the libraries gives; the first match wins.
_MADE_BY = (
    ("tf.distribute.*.*", ""),
    ("tf.distribute.*Strategy", "strategy"),
    ("tf.distribute.get_strategy", "strategy"),
    ("evener.Strategy", "strategy"),
    ("keras.Model", "model"),
    ("keras.Sequential", "model"),
    ("keras.applications.*.*_*", ""),
    ("keras.applications.*", "model"),
    ("keras.models.*", "model"),
    ("keras.saving.load_model", "model"),
    ("keras.optimizers.schedules.*", ""),
    ("keras.optimizers.*", "optimizer"),
    ("keras.mixed_precision.LossScaleOptimizer", "optimizer"),
    ("keras.utils.*_dataset_from_directory", "dataset"),
    ("keras.utils.timeseries_dataset_from_array", "dataset"),
    ("tf.data.Dataset.*", "dataset"),
    ("tf.data.TFRecordDataset", "dataset"),
    ("tf.data.TextLineDataset", "dataset"),
    ("tfds.load", "dataset"),
    ("tf.GradientTape", "tape"),
    ("strategy.run", "per_replica"),
    ("strategy.experimental_distribute_dataset", "distributed"),
    ("strategy.distribute_datasets_from_function", "distributed"),
    ("dataset.as_numpy_iterator", ""),
    ("dataset.cardinality", ""),
    ("dataset.make_one_shot_iterator", ""),
    ("dataset.*", "dataset"),
    ("iterator.get_next", "batch"),
)
# Kind of the elements of a thing of a kind.
ELEMENTS = {
    "dataset": "batch",
    "distributed": "per_replica",
    "per_replica": "per_replica",
    "batch": "batch",
}


@functools.cache
def canonical(dotted: str) -> str:
    """Return the one name of a thing of the libraries.

    >>> canonical("tensorflow.keras.layers.Dense"), canonical("tensorflow.keras")
    ('keras.layers.Dense', 'keras')
    >>> canonical("tensorflow.distribute.experimental.CentralStorageStrategy")
    'tf.distribute.CentralStorageStrategy'
    >>> canonical("tensorflow.keras.layers.LayerNormalization")
    'keras.layers.LayerNormalization'
    """
    for other, usual in _SAME:
        if f"{dotted}.".startswith(f"{other}."):
            dotted = usual + dotted[len(other) :]
    return dotted


@functools.cache
def kind_made_by(name: str) -> str:
    """Return the kind of what a call gives, ``""`` if it is none of those that matter.

    >>> kind_made_by("keras.optimizers.Adam"), kind_made_by("dataset.batch")
    ('optimizer', 'dataset')
    """
    return next((kind for pattern, kind in _MADE_BY if fnmatchcase(name, pattern)), "")
