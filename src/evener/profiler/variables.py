"""Layers and roles of the variables of a step.

::

    weight   trained: trainable, and the step writes it
    slot     optimizer state: its name has the weight's name, or one update reads the other variable
    state    everything else, such as moving means and frozen weights
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from evener.engine.pipeline.passes import FORWARD
from evener.engine.pipeline.scopes import Scopes
from evener.engine.trace.step import TracedStep
from evener.graph.nodes import Node, Tensor
from evener.profiler.chain import Chain

Role = Literal["weight", "slot", "state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVariable:
    """Variable that a step uses.

    Attributes:
        handle: Resource argument of the step.
        name: TensorFlow name.
        layer: Number of its layer; None if it belongs to no layer, such as the total of a metric.
        role: Role of the variable in its layer.
        num_bytes: Bytes of its value.
        shape: Shape of its value.
        dtype: Dtype of its value.
    """

    handle: Tensor
    name: str
    layer: int | None
    role: Role
    num_bytes: int
    shape: tuple[int, ...]
    dtype: tf.DType


def find_variables(
    traced: TracedStep,
    nodes: Sequence[Node],
    chain: Chain,
    stages: Mapping[Node, tuple[int, ...]],
    passes: Mapping[Node, str],
) -> list[LayerVariable]:
    """Return the variables of a step, in the order in which it captures them.

    Args:
        traced: Traced step.
        nodes: Nodes of the step, in topological order.
        chain: Chain of its layers.
        stages: Layer number of each sharded node.
        passes: Pass of each sharded node.
    """
    return list(_Reader(traced, nodes, chain, stages, passes).read())


class _Reader:
    """Search for the layers of variables by their users."""

    def __init__(
        self,
        traced: TracedStep,
        nodes: Sequence[Node],
        chain: Chain,
        stages: Mapping[Node, tuple[int, ...]],
        passes: Mapping[Node, str],
    ) -> None:
        self._traced = traced
        self._chain = chain
        self._scopes = Scopes(traced.scopes)
        self._stages, self._passes = stages, passes
        self._users: dict[Tensor, list[Node]] = {}
        for node in nodes:
            for tensor in dict.fromkeys(node.inputs):
                self._users.setdefault(tensor, []).append(node)
        by_handle = {id(variable.handle): variable for variable in traced.concrete.graph.variables}
        pairs = zip(traced.capture_inputs, traced.captures, strict=True)
        self._variables: dict[Tensor, Any] = {
            tensor: by_handle[id(capture)] for tensor, capture in pairs if id(capture) in by_handle
        }
        self._layers: dict[Tensor, int] = {}
        self._nearest: dict[Tensor, Tensor] = {}

    def read(self) -> Iterator[LayerVariable]:
        """Yield all variables."""
        for handle in self._variables:
            layer = self._layer_by_use(handle)
            if layer is not None:
                self._layers[handle] = layer
        of_layers = set(self._layers)
        slots = self._slots(of_layers)
        self._layers.update((slot, self._layers[weight]) for slot, weight in slots.items())
        for handle, variable in self._variables.items():
            layer = self._layers.get(handle)
            role: Role = "state"
            if layer is not None and handle not in of_layers:
                role = "slot"
            elif self._is_trained(handle):
                role = "weight"
            yield LayerVariable(
                handle=handle,
                name=variable.name.removesuffix(":0"),
                layer=layer,
                role=role,
                num_bytes=variable.shape.num_elements() * variable.dtype.size,
                shape=self._shape(handle),
                dtype=variable.dtype,
            )

    def _using(self, handle: Tensor) -> list[Node]:
        return self._users.get(handle, [])

    def _layer_by_use(self, handle: Tensor) -> int | None:
        """Return the first layer that uses a variable; a trained one also through its readers."""
        if len(self._chain.names) == 1:
            return 0 if self._variables[handle].trainable else None
        layers = [self._chain.layer(self._scopes.path(user)) for user in self._using(handle)]
        layers = [layer for layer in layers if layer is not None]
        if not layers and self._variables[handle].trainable:
            readers = [reader for reader in self._using(handle) if not reader.has_side_effect]
            fed = [
                user
                for reader in readers
                for t in reader.outputs
                for user in self._users.get(t, [])
            ]
            layers = [self._stages[user][0] for user in fed if self._passes.get(user) == FORWARD]
        return min(layers, default=None)

    def _slots(self, of_layers: set[Tensor]) -> dict[Tensor, Tensor]:
        """Return the weight of every slot, by its Keras name or by the updates."""
        weights = [handle for handle in of_layers if self._is_trained(handle)]
        # Scalars are step counters, learning rates or metric totals.
        others = [
            handle for handle in self._variables if handle not in of_layers and self._shape(handle)
        ]
        names = {_plain(self._variables[weight].name): weight for weight in weights}
        are_names_unique = len(names) == len(weights)
        found: dict[Tensor, Tensor] = {}
        near: dict[Tensor, tuple[bool, int]] = {}
        for slot in others:
            rest = _plain(self._variables[slot].name.partition("/")[2])
            fitting = [name for name in names if are_names_unique and rest.startswith(f"{name}_")]
            if fitting:
                found[slot] = names[max(fitting, key=len)]
        for handle in [*weights, *others]:
            for other, distance in self._read_for_update(handle):
                slot, weight = (other, handle) if handle in of_layers else (handle, other)
                if slot in found or slot in of_layers or weight not in of_layers:
                    continue
                rank = (self._shape(slot) != self._shape(weight), distance)
                if slot not in near or rank < near[slot]:
                    near[slot] = rank
                    self._nearest[slot] = weight
        return {**{slot: self._nearest[slot] for slot in near}, **found}

    def _read_for_update(self, handle: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Yield the variables that the writes of a variable depend on, and their distance."""
        writes = [write for write in self._using(handle) if write.has_side_effect]
        queue = deque((t, 1) for write in writes for t in write.inputs if t is not handle)
        seen: set[Tensor] = set()
        while queue:
            tensor, distance = queue.popleft()
            if tensor in seen:
                continue
            seen.add(tensor)
            if tensor in self._variables and self._shape(tensor):
                yield tensor, distance
            elif tensor.node not in self._passes:
                queue.extend((read, distance + 1) for read in tensor.node.inputs)

    def _shape(self, handle: Tensor) -> tuple[int, ...]:
        return tuple(self._variables[handle].shape.as_list())

    def _is_trained(self, handle: Tensor) -> bool:
        is_written = any(user.has_side_effect for user in self._using(handle))
        return is_written and self._variables[handle].trainable


def _plain(name: str) -> str:
    return name.removesuffix(":0").replace("/", "_")
