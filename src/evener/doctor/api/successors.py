"""Names and arguments that TensorFlow and Keras no longer have, and what takes their place.

A test holds every row to the installed packages: what is gone is gone, what is named instead
is there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A name that was removed, with all names below it.

    Args:
        old: The dotted name: ``tf.`` for TensorFlow, ``keras.`` for Keras and `tf.keras`.
        new: What takes its place; ``""`` if nothing has that role under one name. Names below
            the old one are looked for below the new one first.
        fix: What to do, where the new name alone does not say it.
        is_alias: Whether the new name takes the same arguments, so that all rules may read one
            for the other.
        is_there: Whether the name can still be looked up, and raises when it is used.
    """

    old: str
    new: str = ""
    fix: str = ""
    is_alias: bool = False
    is_there: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneMember:
    """A method or attribute that objects of a kind no longer have.

    Args:
        kind: The value of the `Kind` of the object.
        name: The name.
        fix: What to write instead.
        is_unmistakable: Whether nothing else has a member of this name, so that it says what
            the object is where nothing else does.
    """

    kind: str
    name: str
    fix: str
    is_unmistakable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneArgument:
    """An argument that a call no longer takes.

    Args:
        called: What is called: a pattern of full names, or ``"kind.method"`` with the value of
            a `Kind`.
        name: The argument.
        fix: What to write instead.
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
    Gone(old="tf.contrib.distribute", new="tf.distribute", is_alias=True),
    Gone(
        old="tf.contrib.distribute.AllReduceCrossTowerOps",
        new="tf.distribute.HierarchicalCopyAllReduce",
    ),
    Gone(
        old="tf.contrib.distribute.CollectiveAllReduceStrategy",
        new="tf.distribute.MultiWorkerMirroredStrategy",
    ),
    Gone(
        old="tf.contrib.distribute.DistributeConfig",
        fix=f"{_ESTIMATOR} Create and compile it in `with strategy.scope():`.",
    ),
    Gone(
        old="tf.distribute.CollectiveAllReduceStrategy",
        new="tf.distribute.MultiWorkerMirroredStrategy",
    ),
    Gone(
        old="keras.utils.multi_gpu_model",
        new="tf.distribute.MirroredStrategy",
        fix="Create and compile the model in `with tf.distribute.MirroredStrategy().scope():`.",
    ),
    Gone(
        old="keras.utils.training_utils.multi_gpu_model",
        new="tf.distribute.MirroredStrategy",
        fix="Create and compile the model in `with tf.distribute.MirroredStrategy().scope():`.",
    ),
    # ---- mixed precision
    Gone(
        old="keras.mixed_precision.experimental.set_policy",
        new="keras.mixed_precision.set_global_policy",
        is_alias=True,
    ),
    Gone(
        old="keras.mixed_precision.set_policy",
        new="keras.mixed_precision.set_global_policy",
        is_alias=True,
    ),
    Gone(old="keras.mixed_precision.experimental", new="keras.mixed_precision", is_alias=True),
    Gone(
        old="tf.train.experimental.enable_mixed_precision_graph_rewrite",
        new="keras.mixed_precision.set_global_policy",
        fix='Call `keras.mixed_precision.set_global_policy("mixed_float16")` before the model is '
        "made.",
    ),
    # ---- Keras
    Gone(old="keras.layers.experimental.preprocessing", new="keras.layers", is_alias=True),
    Gone(
        old="keras.layers.experimental.SyncBatchNormalization",
        new="keras.layers.BatchNormalization",
        fix="Use `keras.layers.BatchNormalization(synchronized=True)`.",
    ),
    Gone(old="keras.layers.core", new="keras.layers", is_alias=True),
    Gone(old="keras.layers.convolutional", new="keras.layers", is_alias=True),
    Gone(old="keras.layers.pooling", new="keras.layers", is_alias=True),
    Gone(old="keras.layers.recurrent", new="keras.layers", is_alias=True),
    Gone(old="keras.layers.embeddings", new="keras.layers", is_alias=True),
    Gone(old="keras.layers.normalization", new="keras.layers", is_alias=True),
    Gone(old="keras.layers.advanced_activations", new="keras.layers", is_alias=True),
    Gone(old="keras.layers.wrappers", new="keras.layers", is_alias=True),
    Gone(old="keras.layers.noise", new="keras.layers", is_alias=True),
    Gone(old="keras.layers.merge", new="keras.layers", is_alias=True),
    Gone(
        old="keras.layers.CuDNNLSTM",
        new="keras.layers.LSTM",
        fix="Use `keras.layers.LSTM`: with its default arguments it uses cuDNN on a GPU.",
    ),
    Gone(
        old="keras.layers.CuDNNGRU",
        new="keras.layers.GRU",
        fix="Use `keras.layers.GRU`: with its default arguments it uses cuDNN on a GPU.",
    ),
    Gone(old="keras.optimizers.experimental", new="keras.optimizers", is_alias=True),
    Gone(
        old="keras.optimizers.legacy",
        new="keras.optimizers",
        is_alias=True,
        is_there=True,
        fix="Use the optimizer of the same name in `keras.optimizers`.",
    ),
    Gone(old="keras.estimator", new="keras.Model", fix=_ESTIMATOR),
    Gone(old="keras.layers.DenseFeatures", new="keras.utils.FeatureSpace"),
    Gone(
        old="keras.experimental.export_saved_model",
        fix="Use `model.export(path)`.",
    ),
    Gone(
        old="keras.wrappers.scikit_learn",
        new="keras.wrappers",
        fix="Use `keras.wrappers.SKLearnClassifier` or `keras.wrappers.SKLearnRegressor`.",
    ),
    Gone(
        old="keras.losses.Reduction.AUTO",
        is_there=True,
        fix='Use `reduction="sum_over_batch_size"`, which is the default.',
    ),
    Gone(old="keras.losses.mse", new="keras.losses.mean_squared_error"),
    Gone(old="keras.losses.mae", new="keras.losses.mean_absolute_error"),
    Gone(old="keras.utils.np_utils", new="keras.utils"),
    Gone(old="keras.utils.generic_utils", new="keras.utils"),
    Gone(old="keras.utils.vis_utils", new="keras.utils"),
    Gone(old="keras.utils.data_utils", new="keras.utils"),
    Gone(old="keras.engine.topology", new="keras.layers"),
    Gone(old="keras.engine.training", new="keras.models"),
    Gone(old="keras.engine", new="keras.layers"),
    Gone(
        old="keras.backend.tensorflow_backend",
        fix=f"Delete it. {_GROWTH}",
    ),
    Gone(old="keras.backend.set_session", fix=f"{_SESSION} {_GROWTH}"),
    Gone(old="keras.backend.get_session", fix=_SESSION),
    Gone(
        old="keras.backend.set_learning_phase",
        fix="Call the model with `training=True` or `training=False`.",
    ),
    Gone(
        old="keras.backend.learning_phase",
        fix="Give `training` to `call`, as Keras passes it on.",
    ),
    Gone(
        old="keras.backend.function",
        new="keras.Model",
        fix="Use `keras.Model(inputs, outputs)` and call it.",
    ),
    Gone(
        old="keras.backend.set_value",
        fix="Use `variable.assign(value)`; for the learning rate "
        "`optimizer.learning_rate = value`.",
    ),
    Gone(
        old="keras.backend.get_value",
        new="keras.ops.convert_to_numpy",
    ),
    # ---- TensorFlow 1 names with a successor of another name
    Gone(
        old="tf.contrib",
        fix="`tf.contrib` was removed in TensorFlow 2. Look for the successor in `tf`, `keras` or "
        "a package of its own, such as tf_slim, tensorflow_addons or tensorflow_probability.",
    ),
    Gone(old="tf.contrib.data", new="tf.data.experimental"),
    Gone(old="tf.contrib.data.AUTOTUNE", new="tf.data.AUTOTUNE", is_alias=True),
    Gone(old="tf.contrib.data.map_and_batch", fix=_MAP),
    Gone(old="tf.contrib.layers", new="keras.layers"),
    Gone(old="tf.contrib.rnn", new="keras.layers"),
    Gone(old="tf.contrib.lite", new="tf.lite"),
    Gone(old="tf.contrib.keras", new="keras"),
    Gone(old="tf.nn.rnn_cell", new="keras.layers"),
    Gone(old="tf.nn.dynamic_rnn", new="keras.layers.RNN"),
    Gone(old="tf.contrib.eager", new="tf", fix="Use the function of the same name in `tf`."),
    Gone(
        old="tf.contrib.slim",
        fix="Use the package tf_slim, or `keras.layers`.",
    ),
    Gone(
        old="tf.estimator",
        new="keras.Model",
        fix=f"`tf.estimator` was removed in TensorFlow 2.16. {_ESTIMATOR}",
    ),
    Gone(old="tf.Session", fix=_SESSION),
    Gone(old="tf.InteractiveSession", fix=_SESSION),
    Gone(old="tf.ConfigProto", fix=f"Use the functions of `tf.config`. {_GROWTH}"),
    Gone(old="tf.GPUOptions", fix=_GROWTH),
    Gone(old="tf.placeholder", fix="Make it an argument of a `tf.function`."),
    Gone(old="tf.get_variable", new="tf.Variable"),
    Gone(old="tf.variable_scope", new="keras.layers.Layer"),
    Gone(
        old="tf.global_variables_initializer",
        fix="Delete it: TensorFlow 2 initializes variables when they are made.",
    ),
    Gone(
        old="tf.initialize_all_variables",
        fix="Delete it: TensorFlow 2 initializes variables when they are made.",
    ),
    Gone(old="tf.layers", new="keras.layers"),
    Gone(old="tf.app.flags", fix="Use `absl.flags`, or `argparse`."),
    Gone(old="tf.flags", fix="Use `absl.flags`, or `argparse`."),
    Gone(old="tf.app", fix="Use `absl.app.run(main)`, or call `main()`."),
    Gone(old="tf.logging", fix="Use `logging` of Python, or `tf.get_logger()`."),
    Gone(old="tf.gfile", new="tf.io.gfile"),
    Gone(old="tf.gfile.Open", new="tf.io.gfile.GFile"),
    Gone(old="tf.python_io.TFRecordWriter", new="tf.io.TFRecordWriter"),
    Gone(old="tf.set_random_seed", new="tf.random.set_seed"),
    Gone(old="tf.random.set_random_seed", new="tf.random.set_seed"),
    Gone(old="tf.random_normal", new="tf.random.normal"),
    Gone(old="tf.random_uniform", new="tf.random.uniform"),
    Gone(old="tf.truncated_normal", new="tf.random.truncated_normal"),
    Gone(
        old="tf.enable_eager_execution",
        fix="Delete it: TensorFlow 2 runs eagerly.",
    ),
    Gone(old="tf.log", new="tf.math.log"),
    Gone(old="tf.div", new="tf.math.divide"),
    Gone(old="tf.mul", new="tf.multiply"),
    Gone(old="tf.sub", new="tf.subtract"),
    Gone(old="tf.neg", new="tf.negative"),
    Gone(old="tf.pack", new="tf.stack"),
    Gone(old="tf.unpack", new="tf.unstack"),
    Gone(old="tf.select", new="tf.where"),
    Gone(old="tf.batch_matmul", new="tf.matmul"),
    Gone(old="tf.to_float", fix="Use `tf.cast(x, tf.float32)`."),
    Gone(old="tf.to_double", fix="Use `tf.cast(x, tf.float64)`."),
    Gone(old="tf.to_int32", fix="Use `tf.cast(x, tf.int32)`."),
    Gone(old="tf.to_int64", fix="Use `tf.cast(x, tf.int64)`."),
    Gone(old="tf.py_func", new="tf.numpy_function"),
    Gone(old="tf.Print", new="tf.print"),
    Gone(old="tf.assign", fix="Use `variable.assign(value)`."),
    Gone(old="tf.assign_add", fix="Use `variable.assign_add(value)`."),
    Gone(old="tf.assign_sub", fix="Use `variable.assign_sub(value)`."),
    Gone(
        old="tf.trainable_variables",
        fix="Use `model.trainable_variables`.",
    ),
    Gone(old="tf.global_variables", fix="Use `model.variables`."),
    Gone(old="tf.get_default_graph", fix="Delete it: TensorFlow 2 has no default graph."),
    Gone(old="tf.reset_default_graph", new="keras.utils.clear_session"),
    Gone(old="tf.image.resize_images", new="tf.image.resize"),
    Gone(old="tf.image.resize_bilinear", new="tf.image.resize"),
    Gone(old="tf.summary.FileWriter", new="tf.summary.create_file_writer"),
    Gone(
        old="tf.summary.merge_all",
        fix="Delete it: write each value by `tf.summary.scalar` in `with writer.as_default():`.",
    ),
    Gone(old="tf.train.Saver", new="tf.train.Checkpoint"),
    Gone(old="tf.train.AdamOptimizer", new=_ADAM, is_alias=True),
    Gone(old="tf.train.GradientDescentOptimizer", new="keras.optimizers.SGD", is_alias=True),
    Gone(old="tf.train.MomentumOptimizer", new="keras.optimizers.SGD", is_alias=True),
    Gone(old="tf.train.RMSPropOptimizer", new="keras.optimizers.RMSprop", is_alias=True),
    Gone(old="tf.train.AdagradOptimizer", new="keras.optimizers.Adagrad", is_alias=True),
    Gone(
        old="tf.train.get_or_create_global_step",
        fix="Use `optimizer.iterations`.",
    ),
    Gone(old="tf.train.get_global_step", fix="Use `optimizer.iterations`."),
    Gone(
        old="tf.data.make_one_shot_iterator",
        fix="Use `iter(dataset)`, or `for batch in dataset:`.",
    ),
    Gone(
        old="tf.data.make_initializable_iterator",
        fix="Use `iter(dataset)`, or `for batch in dataset:`.",
    ),
    Gone(
        old="tf.config.experimental_list_devices",
        new="tf.config.list_logical_devices",
    ),
    Gone(old="tf.examples", new="keras.datasets"),
    Gone(old="tf.compat.v1.estimator", new="keras.Model", fix=_ESTIMATOR),
    Gone(
        old="tf.compat.v1.layers",
        new="keras.layers",
        is_there=True,
        fix="Use `keras.layers`: the functions of `tf.compat.v1.layers` raise with Keras 3.",
    ),
    Gone(
        old="tf.compat.v1.nn.rnn_cell",
        new="keras.layers",
        is_there=True,
        fix="Use the cells of `keras.layers`: those of `tf.compat.v1.nn` raise with Keras 3.",
    ),
)

_GENERATOR = "Give the generator, or a `keras.utils.PyDataset`, to `{}`."
_WEIGHTS = "Give the path a name that ends in `.weights.h5`."

MEMBERS: tuple[GoneMember, ...] = (
    GoneMember(
        kind="strategy",
        name="experimental_run_v2",
        fix="Use `strategy.run` with the same arguments.",
        is_unmistakable=True,
    ),
    GoneMember(
        kind="strategy",
        name="experimental_make_numpy_dataset",
        fix="Use `tf.data.Dataset.from_tensor_slices(...)`, batch it, and give it to "
        "`strategy.experimental_distribute_dataset`.",
        is_unmistakable=True,
    ),
    GoneMember(
        kind="strategy", name="call_for_each_replica", fix="Use `strategy.run(fn, args=...)`."
    ),
    GoneMember(
        kind="strategy", name="call_for_each_tower", fix="Use `strategy.run(fn, args=...)`."
    ),
    GoneMember(
        kind="strategy",
        name="distribute_dataset",
        fix="Use `strategy.distribute_datasets_from_function(dataset_fn)`.",
    ),
    GoneMember(
        kind="model",
        name="fit_generator",
        fix=_GENERATOR.format("model.fit"),
        is_unmistakable=True,
    ),
    GoneMember(
        kind="model",
        name="evaluate_generator",
        fix=_GENERATOR.format("model.evaluate"),
        is_unmistakable=True,
    ),
    GoneMember(
        kind="model",
        name="predict_generator",
        fix=_GENERATOR.format("model.predict"),
        is_unmistakable=True,
    ),
    GoneMember(
        kind="model",
        name="predict_classes",
        fix="Use `model.predict(x).argmax(axis=-1)`.",
    ),
    GoneMember(kind="model", name="predict_proba", fix="Use `model.predict(x)`."),
    GoneMember(
        kind="model",
        name="reset_states",
        fix="Call `layer.reset_state()` of the recurrent layers of the model.",
    ),
    GoneMember(kind="model", name="to_yaml", fix="Use `model.to_json()`."),
    GoneMember(
        kind="model",
        name="_make_predict_function",
        fix="Delete it: Keras makes the function when it is first used.",
    ),
    GoneMember(
        kind="layer",
        name="add_update",
        fix="Assign to the variable in `call`: Keras keeps such updates by itself.",
    ),
    GoneMember(kind="metric", name="reset_states", fix="Use `metric.reset_state()`."),
    GoneMember(
        kind="optimizer",
        name="get_scaled_loss",
        fix="Use `optimizer.scale_loss(loss)`.",
        is_unmistakable=True,
    ),
    GoneMember(
        kind="optimizer",
        name="get_unscaled_gradients",
        fix="Give the scaled gradients to `optimizer.apply_gradients`: it unscales them.",
        is_unmistakable=True,
    ),
    GoneMember(
        kind="optimizer",
        name="minimize",
        fix="Use `tf.GradientTape`, `tape.gradient` and `optimizer.apply_gradients`.",
    ),
    GoneMember(kind="optimizer", name="lr", fix="Use `optimizer.learning_rate`."),
    GoneMember(
        kind="optimizer",
        name="get_weights",
        fix="Use `optimizer.variables`; `tf.train.Checkpoint` saves them.",
    ),
    GoneMember(kind="optimizer", name="weights", fix="Use `optimizer.variables`."),
    GoneMember(
        kind="optimizer",
        name="_create_all_weights",
        fix="Use `optimizer.build(model.trainable_variables)`.",
    ),
    GoneMember(
        kind="optimizer",
        name="_decayed_lr",
        fix="Use `optimizer.learning_rate`.",
    ),
    GoneMember(
        kind="dataset",
        name="make_one_shot_iterator",
        fix="Use `iter(dataset)`, or `for batch in dataset:`.",
        is_unmistakable=True,
    ),
    GoneMember(
        kind="dataset",
        name="make_initializable_iterator",
        fix="Use `iter(dataset)`, or `for batch in dataset:`.",
        is_unmistakable=True,
    ),
    GoneMember(kind="dataset", name="output_shapes", fix="Use `dataset.element_spec`."),
    GoneMember(kind="dataset", name="output_types", fix="Use `dataset.element_spec`."),
)

_PYDATASET = "Give it to the constructor of a `keras.utils.PyDataset`."
_DECAY = (
    "Use a schedule of `keras.optimizers.schedules` as learning rate; for decay of the weights "
    "`weight_decay=`."
)


def _loading() -> list[GoneArgument]:
    return [
        GoneArgument(called=f"model.{method}", name=name, fix=_PYDATASET)
        for method in ("fit", "evaluate", "predict")
        for name in ("workers", "use_multiprocessing", "max_queue_size")
    ]


ARGUMENTS: tuple[GoneArgument, ...] = (
    *_loading(),
    GoneArgument(called="model.fit", name="nb_epoch", fix="Use `epochs=`."),
    GoneArgument(
        called="model.compile",
        name="experimental_run_tf_function",
        fix="Delete it.",
    ),
    GoneArgument(
        called="model.compile",
        name="experimental_steps_per_execution",
        fix="Use `steps_per_execution=`.",
    ),
    GoneArgument(
        called="model.compile",
        name="sample_weight_mode",
        fix="Delete it: weights per time step have the shape of the targets.",
    ),
    GoneArgument(
        called="model.compile",
        name="distribute",
        fix="Create and compile the model in `with strategy.scope():`.",
    ),
    GoneArgument(
        called="model.train_on_batch",
        name="reset_metrics",
        fix="Delete it, and call `model.reset_metrics()` where metrics start anew.",
    ),
    GoneArgument(
        called="model.save_weights",
        name="save_format",
        fix=f"Delete it. {_WEIGHTS}",
    ),
    GoneArgument(
        called="optimizer.apply_gradients",
        name="experimental_aggregate_gradients",
        fix="Delete it, and do not sum the gradients over the replicas yourself: "
        "`apply_gradients` does.",
    ),
    GoneArgument(called="keras.optimizers.*", name="lr", fix="Use `learning_rate=`."),
    GoneArgument(called="keras.optimizers.*", name="decay", fix=_DECAY, is_ignored=True),
    GoneArgument(
        called="keras.mixed_precision.LossScaleOptimizer",
        name="loss_scale",
        fix="Delete it for dynamic loss scaling; for a fixed factor give `loss_scale_factor=` to "
        "the inner optimizer.",
    ),
    GoneArgument(
        called="keras.mixed_precision.Policy",
        name="loss_scale",
        fix="Delete it: `compile` adds loss scaling for mixed_float16.",
    ),
    GoneArgument(
        called="keras.callbacks.ModelCheckpoint",
        name="period",
        fix='Use `save_freq="epoch"`, or a number of batches.',
    ),
    GoneArgument(called="keras.callbacks.TensorBoard", name="write_grads", fix="Delete it."),
    GoneArgument(called="keras.callbacks.TensorBoard", name="batch_size", fix="Delete it."),
    GoneArgument(called="keras.layers.BatchNormalization", name="fused", fix="Delete it."),
    GoneArgument(
        called="keras.layers.*",
        name="batch_input_shape",
        fix="Put `keras.Input(batch_shape=...)` before the layer.",
    ),
    GoneArgument(called="keras.Model", name="input", fix="Use `inputs=`."),
    GoneArgument(called="keras.Model", name="output", fix="Use `outputs=`."),
    GoneArgument(
        called="tf.distribute.MirroredStrategy",
        name="num_gpus",
        fix='Use `devices=["GPU:0", "GPU:1"]`, or leave it out for all GPUs.',
    ),
)

# Methods that do what those do that took their place. The first takes the same arguments; the
# second an iterator instead of `args`, and TensorFlow still has it.
METHOD_ALIASES = {"experimental_run_v2": "run", "experimental_run": "run"}
# The other names of what other rules know by one name, as pairs of old and new.
NAME_ALIASES = tuple((one.old, one.new) for one in NAMES if one.is_alias)
