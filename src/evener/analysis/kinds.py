"""Kind inference: model, layer, strategy, dataset and the like, of an expression."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from evener.analysis.api.successors import METHOD_ALIASES
from evener.analysis.binding import Step
from evener.analysis.dataflow import DISTRIBUTING, Value
from evener.analysis.memo import RecursionSafeMemo
from evener.analysis.module import FUNCTIONS, Module

if TYPE_CHECKING:
    from evener.analysis.program import Program


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


# What making or calling a thing of the libraries gives; the first that fits.
_MADE_BY = (
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
# What a method of a thing gives.
_METHODS = {
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
# Things of which any method gives the same kind again.
_STAY = (Kind.DATASET, Kind.ARRAY, Kind.TENSOR)
# What calling a thing gives.
_CALLED = {
    Kind.MODEL: Kind.TENSOR,
    Kind.LAYER: Kind.TENSOR,
    Kind.LOSS: Kind.TENSOR,
    Kind.METRIC: Kind.TENSOR,
}
_BASES = (
    ("keras.Model", Kind.MODEL),
    ("keras.Sequential", Kind.MODEL),
    ("keras.losses.*", Kind.LOSS),
    ("keras.metrics.*", Kind.METRIC),
    ("keras.optimizers.*", Kind.OPTIMIZER),
    ("keras.layers.*", Kind.LAYER),
    ("keras.Layer", Kind.LAYER),
    ("tf.Module", Kind.LAYER),
)
# What an element of a thing is.
_ELEMENTS = {
    Kind.DATASET: Kind.BATCH,
    Kind.DISTRIBUTED: Kind.PER_REPLICA,
    Kind.PER_REPLICA: Kind.PER_REPLICA,
    Kind.BATCH: Kind.BATCH,
    Kind.ARRAY: Kind.ARRAY,
    Kind.TENSOR: Kind.TENSOR,
}
# What the methods that Keras calls are given.
_GIVEN = ("call", "train_step", "test_step", "predict_step", "compute_loss", "update_state")
_USUAL_NAMES = {
    "strategy": Kind.STRATEGY,
    "optimizer": Kind.OPTIMIZER,
    "model": Kind.MODEL,
    "dataset": Kind.DATASET,
}
# The depth of recursive queries.
_DEEPEST = 60


class Kinds:
    """Infers the kinds of expressions of a program.

    Args:
        program: The program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._memo: RecursionSafeMemo[tuple[ast.AST, tuple[Step, ...]], frozenset[Kind]]
        self._memo = RecursionSafeMemo(frozenset(), deepest=_DEEPEST)

    def of(self, module: Module, node: ast.AST, steps: tuple[Step, ...] = ()) -> frozenset[Kind]:
        """Return the kinds that an expression may have; empty if nothing is known."""
        return self._memo.get((node, steps), lambda: self._found(module, node, steps))

    def _found(self, module: Module, node: ast.AST, steps: tuple[Step, ...]) -> frozenset[Kind]:
        values = self._program.origins(module, node, steps)
        return frozenset(kind for value in values for kind in self._of_value(value))

    def of_class(self, module: Module, definition: ast.ClassDef) -> Kind | None:
        """Return what instances of a class of the program are, by its bases."""
        for where, base_definition in self._program.classes.with_bases(module, definition):
            for _, base in self._program.classes.bases(where, base_definition):
                if isinstance(base, str):
                    kind = next((k for pattern, k in _BASES if fnmatchcase(base, pattern)), None)
                    if kind is not None:
                        return kind
        return None

    def _of_value(self, value: Value) -> Iterator[Kind]:
        plain = tuple(self._of_node(value.module, value.node))
        for kind in plain:
            stepped: Kind | None = kind
            for step in value.steps:
                if stepped is not None and step != "enter":
                    stepped = _ELEMENTS.get(stepped)
            if stepped is not None:
                yield stepped

    def _of_node(self, module: Module, node: ast.AST) -> Iterator[Kind]:
        if isinstance(node, ast.Call):
            yield from self._of_call(module, node)
        elif isinstance(node, ast.BinOp | ast.UnaryOp):
            sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.operand,)
            kinds = {kind for side in sides for kind in self.of(module, side)}
            strongest = (Kind.PER_REPLICA, Kind.TENSOR, Kind.VARIABLE, Kind.BATCH, Kind.ARRAY)
            first = next((kind for kind in strongest if kind in kinds), None)
            if first is not None:
                yield Kind.TENSOR if first is Kind.VARIABLE else first
        elif isinstance(node, ast.arg):
            yield from self._of_parameter(module, node)
        elif isinstance(node, ast.Name) and node.id == "self":
            yield from self._of_self(module, node)
        elif isinstance(node, ast.Attribute):
            if self._program.name_of(module, node):
                return
            kinds = self.of(module, node.value)
            if Kind.MODEL in kinds and node.attr == "optimizer":
                yield Kind.OPTIMIZER
            elif node.attr == "model" and self._is_callback(module, node.value):
                yield Kind.MODEL

    def _of_call(self, module: Module, node: ast.Call) -> Iterator[Kind]:
        name = self._program.callee(module, node)
        for pattern, kind in _MADE_BY:
            if fnmatchcase(name, pattern):
                if kind is not None:
                    yield kind
                return
        for where, target in self._program.targets(module, node):
            if isinstance(target, ast.ClassDef):
                kind = self.of_class(where, target)
                if kind is not None:
                    yield kind
        if isinstance(node.func, ast.Attribute):
            if node.func.attr in DISTRIBUTING:
                yield Kind.DISTRIBUTED
            for kind in self.of(module, node.func.value):
                method = METHOD_ALIASES.get(node.func.attr, node.func.attr)
                given = _METHODS.get(kind, {}).get(method, kind if kind in _STAY else None)
                if given is not None:
                    yield given
        for kind in self.of(module, node.func):
            if kind in _CALLED:
                yield _CALLED[kind]

    def _of_parameter(self, module: Module, node: ast.arg) -> Iterator[Kind]:
        """Infer a parameter from its annotation, the method's name, or its own name."""
        if node.annotation is not None:
            name = self._program.name_of(module, node.annotation)
            patterns = (*_BASES, *_MADE_BY)
            kind = next((k for pattern, k in patterns if name and fnmatchcase(name, pattern)), None)
            if kind is not None:
                yield kind
                return
        function = next(outer for outer in module.around(node) if isinstance(outer, FUNCTIONS))
        definition = next(
            (outer for outer in module.around(function) if isinstance(outer, ast.ClassDef)), None
        )
        if definition is not None and node.arg != "self":
            kind = self.of_class(module, definition)
            if kind is not None and getattr(function, "name", "") in _GIVEN:
                yield Kind.TENSOR
                return
        elif definition is not None:
            kind = self.of_class(module, definition)
            if kind is not None:
                yield kind
            return
        if node.arg in _USUAL_NAMES:
            yield _USUAL_NAMES[node.arg]

    def _is_callback(self, module: Module, node: ast.AST) -> bool:
        classes = self._program.classes
        return any(
            isinstance(base, str) and base.startswith("keras.callbacks.")
            for where, definition in classes.of(module, node)
            for _, base in classes.bases(where, definition)
        )

    def _of_self(self, module: Module, node: ast.Name) -> Iterator[Kind]:
        for where, definition in self._program.classes.of(module, node):
            kind = self.of_class(where, definition)
            if kind is not None:
                yield kind
