"""Kinds of things, such as models and datasets, and the calls, names and bases that give them."""

from __future__ import annotations

import enum


class Kind(enum.Enum):
    """Kinds of things that training programs are made of."""

    STRATEGY = "strategy"
    MODEL = "model"
    LAYER = "layer"
    OPTIMIZER = "optimizer"
    LOSS = "loss"
    METRIC = "metric"
    DATASET = "dataset"
    DISTRIBUTED = "distributed dataset"
    BATCH = "element of a dataset"
    PER_REPLICA = "value per replica"
    TAPE = "gradient tape"
    TENSOR = "tensor"
    VARIABLE = "variable"
    ARRAY = "array of NumPy"
    CHECKPOINT = "checkpoint"
    CHECKPOINT_MANAGER = "checkpoint manager"
    COORDINATOR = "cluster coordinator"


# Kind returned by each library call; the first match wins.
MADE_BY = (
    ("tf.distribute.*.*", None),
    ("tf.distribute.*Strategy", Kind.STRATEGY),
    ("tf.distribute.get_strategy", Kind.STRATEGY),
    ("evener.Strategy", Kind.STRATEGY),
    ("keras.Model", Kind.MODEL),
    ("keras.Sequential", Kind.MODEL),
    ("keras.applications.*", Kind.MODEL),
    ("keras.models.*", Kind.MODEL),
    ("keras.saving.load_model", Kind.MODEL),
    ("keras.Input", Kind.TENSOR),
    ("keras.losses.*", Kind.LOSS),
    ("keras.metrics.*", Kind.METRIC),
    ("keras.optimizers.schedules.*", None),
    ("keras.optimizers.*", Kind.OPTIMIZER),
    ("keras.mixed_precision.LossScaleOptimizer", Kind.OPTIMIZER),
    ("keras.layers.*", Kind.LAYER),
    ("keras.Layer", Kind.LAYER),
    ("keras.Variable", Kind.VARIABLE),
    ("keras.utils.*_dataset_from_directory", Kind.DATASET),
    ("keras.utils.timeseries_dataset_from_array", Kind.DATASET),
    ("tf.data.Dataset.*", Kind.DATASET),
    ("tf.data.TFRecordDataset", Kind.DATASET),
    ("tf.data.TextLineDataset", Kind.DATASET),
    ("tf.data.*", None),
    ("tfds.load", Kind.DATASET),
    ("tensorflow_datasets.load", Kind.DATASET),
    ("tf.GradientTape", Kind.TAPE),
    ("tf.Variable", Kind.VARIABLE),
    ("tf.train.Checkpoint", Kind.CHECKPOINT),
    ("tf.train.CheckpointManager", Kind.CHECKPOINT_MANAGER),
    ("tf.distribute.coordinator.ClusterCoordinator", Kind.COORDINATOR),
    ("tf.config.*", None),
    ("tf.io.gfile.*", None),
    ("tf.function", None),
    ("tf.device", None),
    ("tf.TensorSpec", None),
    ("tf.*", Kind.TENSOR),
    ("keras.ops.*", Kind.TENSOR),
    ("keras.random.*", Kind.TENSOR),
    ("np.*", Kind.ARRAY),
    ("keras.utils.to_categorical", Kind.ARRAY),
    ("keras.datasets.*.load_data", Kind.ARRAY),
    ("sklearn.*", Kind.ARRAY),
)
# Kind returned by each method.
METHOD_KINDS = {
    Kind.STRATEGY: {
        "run": Kind.PER_REPLICA,
        "experimental_distribute_dataset": Kind.DISTRIBUTED,
        "distribute_datasets_from_function": Kind.DISTRIBUTED,
        "experimental_distribute_datasets_from_function": Kind.DISTRIBUTED,
        "experimental_make_numpy_dataset": Kind.DATASET,
        "experimental_distribute_values_from_function": Kind.PER_REPLICA,
        "reduce": Kind.TENSOR,
        "gather": Kind.TENSOR,
    },
    Kind.DATASET: {"as_numpy_iterator": Kind.ARRAY, "cardinality": Kind.TENSOR},
    Kind.DISTRIBUTED: {"get_next": Kind.PER_REPLICA},
    Kind.MODEL: {
        "train_on_batch": None,
        "predict": Kind.ARRAY,
        "predict_on_batch": Kind.ARRAY,
        "fit": None,
        "evaluate": None,
        "get_layer": Kind.LAYER,
        "summary": None,
        "count_params": None,
        "get_weights": Kind.ARRAY,
    },
    Kind.METRIC: {"result": Kind.TENSOR},
    Kind.TAPE: {"gradient": Kind.TENSOR, "jacobian": Kind.TENSOR},
    Kind.ARRAY: {},
    Kind.COORDINATOR: {"create_per_worker_dataset": Kind.DISTRIBUTED},
}
# Kinds whose other methods return the same kind.
CLOSED_KINDS = (Kind.DATASET, Kind.ARRAY, Kind.TENSOR)
# Kind returned by calling an object.
CALL_KINDS = {
    Kind.MODEL: Kind.TENSOR,
    Kind.LAYER: Kind.TENSOR,
    Kind.LOSS: Kind.TENSOR,
    Kind.METRIC: Kind.TENSOR,
}
# Kind of the instances of a class, by its base.
BASE_KINDS = (
    ("keras.Model", Kind.MODEL),
    ("keras.Sequential", Kind.MODEL),
    ("keras.losses.*", Kind.LOSS),
    ("keras.metrics.*", Kind.METRIC),
    ("keras.optimizers.*", Kind.OPTIMIZER),
    ("keras.layers.*", Kind.LAYER),
    ("keras.Layer", Kind.LAYER),
    ("tf.Module", Kind.LAYER),
)
# Kind of the elements.
ELEMENT_KINDS = {
    Kind.DATASET: Kind.BATCH,
    Kind.DISTRIBUTED: Kind.PER_REPLICA,
    Kind.PER_REPLICA: Kind.PER_REPLICA,
    Kind.BATCH: Kind.BATCH,
    Kind.ARRAY: Kind.ARRAY,
    Kind.TENSOR: Kind.TENSOR,
}
# Methods that Keras calls with tensors.
TENSOR_METHODS = ("call", "train_step", "test_step", "predict_step", "compute_loss", "update_state")
# Kind of a parameter of which only the name is known.
NAMED_KINDS = {
    "strategy": Kind.STRATEGY,
    "optimizer": Kind.OPTIMIZER,
    "model": Kind.MODEL,
    "dataset": Kind.DATASET,
}
