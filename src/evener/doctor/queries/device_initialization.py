"""Calls that start TensorFlow's devices, after which their configuration is fixed.

Measured with TensorFlow 2.21 and Keras 3.15. The import starts nothing, nor do listing physical
devices, seeds, policies, layers without weights of their own, and models without an input shape.
"""

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from functools import lru_cache

from evener.analysis import Call, Kind, Program

_TENSORS = (
    "device Variable constant convert_to_tensor zeros zeros_like ones ones_like fill eye range "
    "linspace cast reshape stack concat matmul square add one_hot expand_dims reduce_* math.* "
    "linalg.* random.normal random.uniform random.truncated_normal random.shuffle "
    "random.stateless_* random.Generator.* io.read_file io.decode_* image.* strings.* "
    "data.Dataset.* data.TFRecordDataset data.TextLineDataset saved_model.load "
    "summary.create_file_writer distribute.*Strategy config.list_logical_devices "
    "config.get_memory_info config.get_memory_usage"
).split()
_LAYERS = "Dropout Random* TextVectorization StringLookup IntegerLookup".split()
_STARTS = (
    *(f"tf.{name}" for name in _TENSORS),
    *(f"keras.layers.{name}" for name in _LAYERS),
    *("keras.Variable", "keras.applications.*", "keras.models.load_model"),
    *("keras.saving.load_model", "keras.utils.*_dataset_from_directory"),
    *("keras.utils.timeseries_dataset_from_array", "evener.Strategy"),
    *("tfds.load", "tensorflow_datasets.load", "hub.load", "tensorflow_hub.load"),
    "tensorflow_hub.KerasLayer",
)
_NOT = (
    "tf.distribute.get_strategy",
    "keras.applications.*.preprocess_input",
    "keras.applications.*.decode_predictions",
    "keras.optimizers.schedules.*",
    "keras.optimizers.get",
    "keras.optimizers.deserialize",
    "keras.metrics.get",
    "tf.distribute.*.*",
)
_BY_CLASS = ("keras.optimizers.*", "keras.metrics.*")
# Asking for the physical devices starts CUDA, which reads its own variables then.
CUDA_STARTS = (
    "tf.config.list_physical_devices",
    "tf.config.get_visible_devices",
    "tf.config.set_visible_devices",
    "tf.config.set_memory_growth",
    "tf.config.get_device_details",
    "tf.test.is_gpu_available",
    "tf.test.gpu_device_name",
    "tensorflow.python.client.device_lib.list_local_devices",
    "device_lib.list_local_devices",
)


@lru_cache(maxsize=4)
def starting_calls(program: Program) -> tuple[Call, ...]:
    """Return the calls that start the devices if they did not run yet, in their order."""
    found = [call for call in program.all_calls if _starts(program, call)]
    return _in_order(program, found)


def is_too_late(program: Program, node: ast.AST) -> bool:
    """Return whether a call or statement about the devices runs after they have been started."""
    starting = starting_calls(program)
    return bool(starting) and program.order.is_before(starting[0].node, node)


@lru_cache(maxsize=4)
def cuda_calls(program: Program) -> tuple[Call, ...]:
    """Return the calls that start CUDA, in their order."""
    found = [
        call
        for call in program.all_calls
        if call.name in CUDA_STARTS or call.name.endswith("device_lib.list_local_devices")
    ]
    return _in_order(program, [*found, *starting_calls(program)])


def _in_order(program: Program, calls: list[Call]) -> tuple[Call, ...]:
    numbered = [(program.order.of(call.node), index) for index, call in enumerate(calls)]
    known = sorted((number, index) for number, index in numbered if number is not None)
    return tuple(calls[index] for _, index in known)


def _starts(program: Program, call: Call) -> bool:
    name = call.name
    if any(fnmatchcase(name, pattern) for pattern in _NOT):
        return False
    if any(fnmatchcase(name, pattern) for pattern in _STARTS):
        return True
    if any(fnmatchcase(name, pattern) for pattern in _BY_CLASS):
        return name.rpartition(".")[2][:1].isupper()
    if name in ("keras.Sequential", "keras.Model"):
        return _has_input(call)
    if call.method in ("fit", "predict") and call.owner is not None:
        return Kind.MODEL in program.kinds(call.module, call.owner)
    return False


def _has_input(call: Call) -> bool:
    if call.name == "keras.Model":
        return bool(call.node.args or call.node.keywords)
    text = ast.unparse(call.node)
    return "input_shape" in text or "Input(" in text or "InputLayer" in text
