"""Variables of a model and of other objects by path, and their comparison with a checkpoint.

They have the names by which plain `tf.train.Checkpoint` reads them: TensorFlow finds a variable by
its way from the root object, which the checkpoint describes in an entry of its own::

    model/_functional/_operations/1/bias/.ATTRIBUTES/VARIABLE_VALUE
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import keras
import msgspec
import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from evener.errors import CheckpointError, did_you_mean, listed

GRAPH_KEY = "_CHECKPOINTABLE_OBJECT_GRAPH"
_ATTRIBUTE = "VARIABLE_VALUE"
# A variable that `tf.train.Checkpoint` has besides what it is given.
COUNTER_KEY = f"save_counter/.ATTRIBUTES/{_ATTRIBUTE}"
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Whole number from 0, as JSON has it."""
_NUMBER = re.compile(r"_\d+(?=/|$|_)")


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableSpec:
    path: str
    shape: tuple[Count, ...]
    dtype: str
    key: str

    def __str__(self) -> str:
        return f"{self.path} {self.dtype}{list(self.shape)}"

    @property
    def kind(self) -> str:
        return f"{self.dtype} of shape {list(self.shape)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedVariable:
    spec: VariableSpec
    variable: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramVariables:
    named: tuple[NamedVariable, ...]
    graph: bytes


def variables_of(objects: Mapping[str, Any]) -> ProgramVariables:
    graph, keys = _describe(objects)
    seen, counted = set[int](), dict[str, int]()
    named: list[NamedVariable] = []
    for name, trackable in objects.items():
        for variable in _variables_in(trackable):
            if id(variable) in seen:
                continue
            seen.add(id(variable))
            path = f"{name}/{getattr(variable, 'path', variable.name)}"
            counted[path] = counted.get(path, 0) + 1
            if counted[path] > 1:
                path = f"{path}#{counted[path]}"
            spec = VariableSpec(
                path=path,
                shape=tuple(variable.shape),
                dtype=tf.as_dtype(variable.dtype).name,
                key=keys.get(id(variable), f"evener/{path}"),
            )
            named.append(NamedVariable(spec=spec, variable=variable))
    return ProgramVariables(named=tuple(named), graph=graph)


def _variables_in(trackable: Any) -> Iterator[Any]:
    if _is_variable(trackable):
        yield trackable
        return
    for attribute in ("variables", "metrics_variables"):
        found = getattr(trackable, attribute, ())
        yield from (variable for variable in found if _is_variable(variable))
    if not isinstance(trackable, keras.layers.Layer | keras.optimizers.Optimizer):
        found = tf.train.TrackableView(trackable).descendants()
        yield from (variable for variable in found if _is_variable(variable))


def matched(
    program: Sequence[NamedVariable], stored: Sequence[VariableSpec], where: str
) -> list[tuple[NamedVariable, VariableSpec]]:
    by_path = {spec.path: spec for spec in stored}
    if by_path.keys() == {item.spec.path for item in program}:
        pairs = [(item, by_path[item.spec.path]) for item in program]
    elif _unnumbered(item.spec for item in program) == _unnumbered(stored):
        pairs = list(zip(program, stored, strict=True))
    else:
        has = {item.spec.path: item.spec for item in program}
        missing = [spec for path, spec in has.items() if path not in by_path]
        extra = [spec for path, spec in by_path.items() if path not in has]
        hint = did_you_mean(missing[0].path, [each.path for each in extra]) if missing else ""
        raise CheckpointError(
            "CKPT-002",
            f"The checkpoint {where} is of another model.{hint}",
            why=f"Expected and not in the checkpoint: {listed([*map(str, missing)], 3) or 'none'}; "
            f"in the checkpoint and not expected: {listed([*map(str, extra)], 3) or 'none'}.",
            fix="Build the model and the optimizer as the run that wrote the checkpoint, or use "
            "another folder.",
        )
    for item, spec in pairs:
        if (item.spec.shape, item.spec.dtype) != (spec.shape, spec.dtype):
            raise CheckpointError(
                "CKPT-003",
                f"Variable {item.spec.path} is {item.spec.kind} in the program and {spec.kind} in "
                f"the checkpoint {where}.",
                why="A checkpoint is restored into variables of the same shapes and types.",
                fix="Build the model as the run that wrote the checkpoint, or use another folder.",
            )
    return pairs


def _unnumbered(specs: Iterable[VariableSpec]) -> list[str]:
    return [_NUMBER.sub("", spec.path) for spec in specs]


def _describe(objects: Mapping[str, Any]) -> tuple[bytes, dict[int, str]]:
    """Describe objects as ``tf.train.Checkpoint(**objects)`` does."""
    root = tf.train.Checkpoint(**objects)
    view = tf.train.TrackableView(root)
    graph = TrackableObjectGraph()
    graph.nodes.add()
    numbers, keys = {id(root): 0}, dict[int, str]()
    waiting: deque[tuple[Any, str]] = deque([(root, "")])
    while waiting:
        node, path = waiting.popleft()
        number = numbers[id(node)]
        if _is_variable(node):
            key = f"{path}/.ATTRIBUTES/{_ATTRIBUTE}"
            graph.nodes[number].attributes.add(
                name=_ATTRIBUTE, full_name=node.name, checkpoint_key=key
            )
            keys[id(node)] = key
            continue
        for name, child in view.children(node).items():
            if id(child) not in numbers:
                numbers[id(child)] = len(graph.nodes)
                graph.nodes.add()
                escaped = name.replace(".", "..").replace("/", ".S")
                waiting.append((child, f"{path}/{escaped}" if path else escaped))
            graph.nodes[number].children.add(node_id=numbers[id(child)], local_name=name)
    graph.nodes[0].children.add(node_id=len(graph.nodes), local_name="save_counter")
    graph.nodes.add().attributes.add(
        name=_ATTRIBUTE, full_name="save_counter", checkpoint_key=COUNTER_KEY
    )
    return graph.SerializeToString(), keys


def _is_variable(value: object) -> bool:
    return isinstance(value, keras.Variable | tf.Variable)
