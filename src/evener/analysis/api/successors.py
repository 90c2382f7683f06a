"""Names and arguments that TensorFlow and Keras no longer have, and what takes their place.

A test holds every row to the installed packages: what is gone is gone, what is named instead
is there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gone:
    """A name that was removed, with all names below it.

    Args:
        old: The dotted name: ``tf.`` for TensorFlow, ``keras.`` for Keras and `tf.keras`.
        new: Successor; ``""`` if there is no single one. Names below the old one are looked up
            below the new one first.
        fix: Advice, if the new name alone is not enough.
        is_alias: Whether the new name takes the same arguments, so that all rules treat both
            alike.
        is_there: Whether the name still exists, but raises when it is used.
    """

    old: str
    new: str = ""
    fix: str = ""
    is_alias: bool = False
    is_there: bool = False


@dataclass(frozen=True, slots=True)
class GoneMember:
    """A method or attribute that objects of a kind no longer have.

    Args:
        kind: The value of the `Kind` of the object.
        name: The name.
        fix: Code to write instead.
        is_unmistakable: Whether no other kind has a member of this name, so that the member
            alone tells the kind.
    """

    kind: str
    name: str
    fix: str
    is_unmistakable: bool = False


@dataclass(frozen=True, slots=True)
class GoneArgument:
    """An argument that a call no longer takes.

    Args:
        called: Callee: a pattern of full names, or ``"kind.method"`` with the value of a
            `Kind`.
        name: The argument.
        fix: Code to write instead.
        is_ignored: Whether Keras warns and goes on without it.
    """

    called: str
    name: str
    fix: str
    is_ignored: bool = False


_ADAM = "keras.optimizers.Adam"
_MAP = "Use `dataset.map(...)` and `dataset.batch(...)`."
_SESSION = "Delete the session: TensorFlow 2 runs operations at once, or in a `tf.function`."
_GROWTH = "Use `tf.config.experimental.set_memory_growth(gpu, True)` for every GPU."
_ESTIMATOR = "Train a `keras.Model` with `fit`, or with a loop of your own."

NAMES: tuple[Gone, ...] = (
    # ---- distribution
    Gone("tf.contrib.distribute", "tf.distribute", is_alias=True),
    Gone("tf.contrib.distribute.AllReduceCrossTowerOps", "tf.distribute.HierarchicalCopyAllReduce"),
    Gone(
        "tf.contrib.distribute.CollectiveAllReduceStrategy",
        "tf.distribute.MultiWorkerMirroredStrategy",
    ),
    Gone(
        "tf.contrib.distribute.DistributeConfig",
        fix=f"{_ESTIMATOR} Create and compile it in `with strategy.scope():`.",
    ),
    Gone("tf.distribute.CollectiveAllReduceStrategy", "tf.distribute.MultiWorkerMirroredStrategy"),
    Gone(
        "keras.utils.multi_gpu_model",
        "tf.distribute.MirroredStrategy",
        "Create and compile the model in `with tf.distribute.MirroredStrategy().scope():`.",
    ),
    Gone(
        "keras.utils.training_utils.multi_gpu_model",
        "tf.distribute.MirroredStrategy",
        "Create and compile the model in `with tf.distribute.MirroredStrategy().scope():`.",
    ),
    # ---- mixed precision
    Gone(
        "keras.mixed_precision.experimental.set_policy",
        "keras.mixed_precision.set_global_policy",
        is_alias=True,
    ),
    Gone(
        "keras.mixed_precision.set_policy", "keras.mixed_precision.set_global_policy", is_alias=True
    ),
    Gone("keras.mixed_precision.experimental", "keras.mixed_precision", is_alias=True),
    Gone(
        "tf.train.experimental.enable_mixed_precision_graph_rewrite",
        "keras.mixed_precision.set_global_policy",
        'Call `keras.mixed_precision.set_global_policy("mixed_float16")` before the model is made.',
    ),
    # ---- Keras
    Gone("keras.layers.experimental.preprocessing", "keras.layers", is_alias=True),
    Gone(
        "keras.layers.experimental.SyncBatchNormalization",
        "keras.layers.BatchNormalization",
        "Use `keras.layers.BatchNormalization(synchronized=True)`.",
    ),
    Gone("keras.layers.core", "keras.layers", is_alias=True),
    Gone("keras.layers.convolutional", "keras.layers", is_alias=True),
    Gone("keras.layers.pooling", "keras.layers", is_alias=True),
    Gone("keras.layers.recurrent", "keras.layers", is_alias=True),
    Gone("keras.layers.embeddings", "keras.layers", is_alias=True),
    Gone("keras.layers.normalization", "keras.layers", is_alias=True),
    Gone("keras.layers.advanced_activations", "keras.layers", is_alias=True),
    Gone("keras.layers.wrappers", "keras.layers", is_alias=True),
    Gone("keras.layers.noise", "keras.layers", is_alias=True),
    Gone("keras.layers.merge", "keras.layers", is_alias=True),
    Gone(
        "keras.layers.CuDNNLSTM",
        "keras.layers.LSTM",
        "Use `keras.layers.LSTM`: with its default arguments it uses cuDNN on a GPU.",
    ),
    Gone(
        "keras.layers.CuDNNGRU",
        "keras.layers.GRU",
        "Use `keras.layers.GRU`: with its default arguments it uses cuDNN on a GPU.",
    ),
    Gone("keras.optimizers.experimental", "keras.optimizers", is_alias=True),
    Gone(
        "keras.optimizers.legacy",
        "keras.optimizers",
        "Use the optimizer of the same name in `keras.optimizers`.",
        is_alias=True,
        is_there=True,
    ),
    Gone("keras.estimator", "keras.Model", _ESTIMATOR),
    Gone("keras.layers.DenseFeatures", "keras.utils.FeatureSpace"),
    Gone("keras.experimental.export_saved_model", fix="Use `model.export(path)`."),
    Gone(
        "keras.wrappers.scikit_learn",
        "keras.wrappers",
        "Use `keras.wrappers.SKLearnClassifier` or `keras.wrappers.SKLearnRegressor`.",
    ),
    Gone(
        "keras.losses.Reduction.AUTO",
        is_there=True,
        fix='Use `reduction="sum_over_batch_size"`, which is the default.',
    ),
    Gone("keras.losses.mse", "keras.losses.mean_squared_error"),
    Gone("keras.losses.mae", "keras.losses.mean_absolute_error"),
    Gone("keras.utils.np_utils", "keras.utils"),
    Gone("keras.utils.generic_utils", "keras.utils"),
    Gone("keras.utils.vis_utils", "keras.utils"),
    Gone("keras.utils.data_utils", "keras.utils"),
    Gone("keras.engine.topology", "keras.layers"),
    Gone("keras.engine.training", "keras.models"),
    Gone("keras.engine", "keras.layers"),
    Gone("keras.backend.tensorflow_backend", fix=f"Delete it. {_GROWTH}"),
    Gone("keras.backend.set_session", fix=f"{_SESSION} {_GROWTH}"),
    Gone("keras.backend.get_session", fix=_SESSION),
    Gone(
        "keras.backend.set_learning_phase",
        fix="Call the model with `training=True` or `training=False`.",
    ),
    Gone("keras.backend.learning_phase", fix="Give `training` to `call`, as Keras passes it on."),
    Gone(
        "keras.backend.function", "keras.Model", "Use `keras.Model(inputs, outputs)` and call it."
    ),
    Gone(
        "keras.backend.set_value",
        fix="Use `variable.assign(value)`; for the learning rate "
        "`optimizer.learning_rate = value`.",
    ),
    Gone("keras.backend.get_value", "keras.ops.convert_to_numpy"),
    # ---- TensorFlow 1 names with a successor of another name
    Gone(
        "tf.contrib",
        fix="`tf.contrib` was removed in TensorFlow 2. Check for the successor in `tf`, `keras` or "
        "a package of its own, such as tf_slim, tensorflow_addons or tensorflow_probability.",
    ),
    Gone("tf.contrib.data", "tf.data.experimental"),
    Gone("tf.contrib.data.AUTOTUNE", "tf.data.AUTOTUNE", is_alias=True),
    Gone("tf.contrib.data.map_and_batch", fix=_MAP),
    Gone("tf.contrib.layers", "keras.layers"),
    Gone("tf.contrib.rnn", "keras.layers"),
    Gone("tf.contrib.lite", "tf.lite"),
    Gone("tf.contrib.keras", "keras"),
    Gone("tf.nn.rnn_cell", "keras.layers"),
    Gone("tf.nn.dynamic_rnn", "keras.layers.RNN"),
    Gone("tf.contrib.eager", "tf", "Use the function of the same name in `tf`."),
    Gone("tf.contrib.slim", fix="Use the package tf_slim, or `keras.layers`."),
    Gone(
        "tf.estimator",
        "keras.Model",
        f"`tf.estimator` was removed in TensorFlow 2.16. {_ESTIMATOR}",
    ),
    Gone("tf.Session", fix=_SESSION),
    Gone("tf.InteractiveSession", fix=_SESSION),
    Gone("tf.ConfigProto", fix=f"Use the functions of `tf.config`. {_GROWTH}"),
    Gone("tf.GPUOptions", fix=_GROWTH),
    Gone("tf.placeholder", fix="Make it an argument of a `tf.function`."),
    Gone("tf.get_variable", "tf.Variable"),
    Gone("tf.variable_scope", "keras.layers.Layer"),
    Gone(
        "tf.global_variables_initializer",
        fix="Delete it: TensorFlow 2 initializes variables when they are made.",
    ),
    Gone(
        "tf.initialize_all_variables",
        fix="Delete it: TensorFlow 2 initializes variables when they are made.",
    ),
    Gone("tf.layers", "keras.layers"),
    Gone("tf.app.flags", fix="Use `absl.flags`, or `argparse`."),
    Gone("tf.flags", fix="Use `absl.flags`, or `argparse`."),
    Gone("tf.app", fix="Use `absl.app.run(main)`, or call `main()`."),
    Gone("tf.logging", fix="Use `logging` of Python, or `tf.get_logger()`."),
    Gone("tf.gfile", "tf.io.gfile"),
    Gone("tf.gfile.Open", "tf.io.gfile.GFile"),
    Gone("tf.python_io.TFRecordWriter", "tf.io.TFRecordWriter"),
    Gone("tf.set_random_seed", "tf.random.set_seed"),
    Gone("tf.random.set_random_seed", "tf.random.set_seed"),
    Gone("tf.random_normal", "tf.random.normal"),
    Gone("tf.random_uniform", "tf.random.uniform"),
    Gone("tf.truncated_normal", "tf.random.truncated_normal"),
    Gone("tf.enable_eager_execution", fix="Delete it: TensorFlow 2 runs eagerly."),
    Gone("tf.log", "tf.math.log"),
    Gone("tf.div", "tf.math.divide"),
    Gone("tf.mul", "tf.multiply"),
    Gone("tf.sub", "tf.subtract"),
    Gone("tf.neg", "tf.negative"),
    Gone("tf.pack", "tf.stack"),
    Gone("tf.unpack", "tf.unstack"),
    Gone("tf.select", "tf.where"),
    Gone("tf.batch_matmul", "tf.matmul"),
    Gone("tf.to_float", fix="Use `tf.cast(x, tf.float32)`."),
    Gone("tf.to_double", fix="Use `tf.cast(x, tf.float64)`."),
    Gone("tf.to_int32", fix="Use `tf.cast(x, tf.int32)`."),
    Gone("tf.to_int64", fix="Use `tf.cast(x, tf.int64)`."),
    Gone("tf.py_func", "tf.numpy_function"),
    Gone("tf.Print", "tf.print"),
    Gone("tf.assign", fix="Use `variable.assign(value)`."),
    Gone("tf.assign_add", fix="Use `variable.assign_add(value)`."),
    Gone("tf.assign_sub", fix="Use `variable.assign_sub(value)`."),
    Gone("tf.trainable_variables", fix="Use `model.trainable_variables`."),
    Gone("tf.global_variables", fix="Use `model.variables`."),
    Gone("tf.get_default_graph", fix="Delete it: TensorFlow 2 has no default graph."),
    Gone("tf.reset_default_graph", "keras.utils.clear_session"),
    Gone("tf.image.resize_images", "tf.image.resize"),
    Gone("tf.image.resize_bilinear", "tf.image.resize"),
    Gone("tf.summary.FileWriter", "tf.summary.create_file_writer"),
    Gone(
        "tf.summary.merge_all",
        fix="Delete it: write each value by `tf.summary.scalar` in `with writer.as_default():`.",
    ),
    Gone("tf.train.Saver", "tf.train.Checkpoint"),
    Gone("tf.train.AdamOptimizer", _ADAM, is_alias=True),
    Gone("tf.train.GradientDescentOptimizer", "keras.optimizers.SGD", is_alias=True),
    Gone("tf.train.MomentumOptimizer", "keras.optimizers.SGD", is_alias=True),
    Gone("tf.train.RMSPropOptimizer", "keras.optimizers.RMSprop", is_alias=True),
    Gone("tf.train.AdagradOptimizer", "keras.optimizers.Adagrad", is_alias=True),
    Gone("tf.train.get_or_create_global_step", fix="Use `optimizer.iterations`."),
    Gone("tf.train.get_global_step", fix="Use `optimizer.iterations`."),
    Gone("tf.data.make_one_shot_iterator", fix="Use `iter(dataset)`, or `for batch in dataset:`."),
    Gone(
        "tf.data.make_initializable_iterator",
        fix="Use `iter(dataset)`, or `for batch in dataset:`.",
    ),
    Gone("tf.config.experimental_list_devices", "tf.config.list_logical_devices"),
    Gone("tf.examples", "keras.datasets"),
    Gone("tf.compat.v1.estimator", "keras.Model", _ESTIMATOR),
    Gone(
        "tf.compat.v1.layers",
        "keras.layers",
        "Use `keras.layers`: the functions of `tf.compat.v1.layers` raise with Keras 3.",
        is_there=True,
    ),
    Gone(
        "tf.compat.v1.nn.rnn_cell",
        "keras.layers",
        "Use the cells of `keras.layers`: those of `tf.compat.v1.nn` raise with Keras 3.",
        is_there=True,
    ),
)

_GENERATOR = "Give the generator, or a `keras.utils.PyDataset`, to `{}`."
_WEIGHTS = "Give the path a name that ends in `.weights.h5`."

MEMBERS: tuple[GoneMember, ...] = (
    GoneMember(
        "strategy",
        "experimental_run_v2",
        "Use `strategy.run` with the same arguments.",
        is_unmistakable=True,
    ),
    GoneMember(
        "strategy",
        "experimental_make_numpy_dataset",
        "Use `tf.data.Dataset.from_tensor_slices(...)`, batch it, and give it to "
        "`strategy.experimental_distribute_dataset`.",
        is_unmistakable=True,
    ),
    GoneMember("strategy", "call_for_each_replica", "Use `strategy.run(fn, args=...)`."),
    GoneMember("strategy", "call_for_each_tower", "Use `strategy.run(fn, args=...)`."),
    GoneMember(
        "strategy",
        "distribute_dataset",
        "Use `strategy.distribute_datasets_from_function(dataset_fn)`.",
    ),
    GoneMember("model", "fit_generator", _GENERATOR.format("model.fit"), is_unmistakable=True),
    GoneMember(
        "model", "evaluate_generator", _GENERATOR.format("model.evaluate"), is_unmistakable=True
    ),
    GoneMember(
        "model", "predict_generator", _GENERATOR.format("model.predict"), is_unmistakable=True
    ),
    GoneMember("model", "predict_classes", "Use `model.predict(x).argmax(axis=-1)`."),
    GoneMember("model", "predict_proba", "Use `model.predict(x)`."),
    GoneMember(
        "model", "reset_states", "Call `layer.reset_state()` of the recurrent layers of the model."
    ),
    GoneMember("model", "to_yaml", "Use `model.to_json()`."),
    GoneMember(
        "model",
        "_make_predict_function",
        "Delete it: Keras makes the function when it is first used.",
    ),
    GoneMember(
        "layer",
        "add_update",
        "Assign to the variable in `call`: Keras keeps such updates by itself.",
    ),
    GoneMember("metric", "reset_states", "Use `metric.reset_state()`."),
    GoneMember(
        "optimizer", "get_scaled_loss", "Use `optimizer.scale_loss(loss)`.", is_unmistakable=True
    ),
    GoneMember(
        "optimizer",
        "get_unscaled_gradients",
        "Give the scaled gradients to `optimizer.apply_gradients`: it unscales them.",
        is_unmistakable=True,
    ),
    GoneMember(
        "optimizer",
        "minimize",
        "Use `tf.GradientTape`, `tape.gradient` and `optimizer.apply_gradients`.",
    ),
    GoneMember("optimizer", "lr", "Use `optimizer.learning_rate`."),
    GoneMember(
        "optimizer", "get_weights", "Use `optimizer.variables`; `tf.train.Checkpoint` saves them."
    ),
    GoneMember("optimizer", "weights", "Use `optimizer.variables`."),
    GoneMember(
        "optimizer", "_create_all_weights", "Use `optimizer.build(model.trainable_variables)`."
    ),
    GoneMember("optimizer", "_decayed_lr", "Use `optimizer.learning_rate`."),
    GoneMember(
        "dataset",
        "make_one_shot_iterator",
        "Use `iter(dataset)`, or `for batch in dataset:`.",
        is_unmistakable=True,
    ),
    GoneMember(
        "dataset",
        "make_initializable_iterator",
        "Use `iter(dataset)`, or `for batch in dataset:`.",
        is_unmistakable=True,
    ),
    GoneMember("dataset", "output_shapes", "Use `dataset.element_spec`."),
    GoneMember("dataset", "output_types", "Use `dataset.element_spec`."),
)

_UPDATE = "Override `update_step(gradient, variable, learning_rate)`."

OVERRIDES: tuple[GoneMember, ...] = (
    GoneMember("optimizer", "get_updates", _UPDATE),
    GoneMember("optimizer", "_resource_apply_dense", _UPDATE),
    GoneMember("optimizer", "_resource_apply_sparse", _UPDATE),
    GoneMember(
        "optimizer",
        "_create_slots",
        "Override `build(variables)`, and create the slots there by `add_variable_from_reference`.",
    ),
)
"""Methods that Keras 2 called in subclasses, and Keras 3 does not."""

_PYDATASET = "Give it to the constructor of a `keras.utils.PyDataset`."
_DECAY = (
    "Use a schedule of `keras.optimizers.schedules` as learning rate; for decay of the weights "
    "`weight_decay=`."
)


def _loading() -> list[GoneArgument]:
    return [
        GoneArgument(f"model.{method}", name, _PYDATASET)
        for method in ("fit", "evaluate", "predict")
        for name in ("workers", "use_multiprocessing", "max_queue_size")
    ]


ARGUMENTS: tuple[GoneArgument, ...] = (
    *_loading(),
    GoneArgument("model.fit", "nb_epoch", "Use `epochs=`."),
    GoneArgument("model.compile", "experimental_run_tf_function", "Delete it."),
    GoneArgument(
        "model.compile", "experimental_steps_per_execution", "Use `steps_per_execution=`."
    ),
    GoneArgument(
        "model.compile",
        "sample_weight_mode",
        "Delete it: weights per time step have the shape of the targets.",
    ),
    GoneArgument(
        "model.compile", "distribute", "Create and compile the model in `with strategy.scope():`."
    ),
    GoneArgument(
        "model.train_on_batch",
        "reset_metrics",
        "Delete it, and call `model.reset_metrics()` where metrics are reset.",
    ),
    GoneArgument("model.save_weights", "save_format", f"Delete it. {_WEIGHTS}"),
    GoneArgument(
        "optimizer.apply_gradients",
        "experimental_aggregate_gradients",
        "Delete it, and do not sum the gradients over the replicas yourself: "
        "`apply_gradients` does.",
    ),
    GoneArgument(
        "keras.utils.to_categorical", "dtype", "Delete it, and add `.astype(...)` to the result."
    ),
    GoneArgument("keras.optimizers.*", "lr", "Use `learning_rate=`."),
    GoneArgument("keras.optimizers.*", "decay", _DECAY, is_ignored=True),
    GoneArgument(
        "keras.mixed_precision.LossScaleOptimizer",
        "loss_scale",
        "Delete it for dynamic loss scaling; for a fixed factor give `loss_scale_factor=` to "
        "the inner optimizer.",
    ),
    GoneArgument(
        "keras.mixed_precision.Policy",
        "loss_scale",
        "Delete it: `compile` adds loss scaling for mixed_float16.",
    ),
    GoneArgument(
        "keras.callbacks.ModelCheckpoint",
        "period",
        'Use `save_freq="epoch"`, or a number of batches.',
    ),
    GoneArgument("keras.callbacks.TensorBoard", "write_grads", "Delete it."),
    GoneArgument("keras.callbacks.TensorBoard", "batch_size", "Delete it."),
    GoneArgument("keras.layers.BatchNormalization", "fused", "Delete it."),
    GoneArgument(
        "keras.layers.*",
        "batch_input_shape",
        "Put `keras.Input(batch_shape=...)` before the layer.",
    ),
    GoneArgument("keras.Model", "input", "Use `inputs=`."),
    GoneArgument("keras.Model", "output", "Use `outputs=`."),
    GoneArgument(
        "tf.distribute.MirroredStrategy",
        "num_gpus",
        'Use `devices=["GPU:0", "GPU:1"]`, or leave it out for all GPUs.',
    ),
)

# Former names of methods, and their successors. The first takes the same arguments; the second
# takes an iterator instead of `args`, and still exists.
METHOD_ALIASES = {"experimental_run_v2": "run", "experimental_run": "run"}
# Pairs of an old and a new name that all rules treat alike.
NAME_ALIASES = tuple((row.old, row.new) for row in NAMES if row.is_alias)
