"""Which layer the variables of a step belong to, and what they are for it.

::

    weight   trained: it may be, and the step writes it
    slot     the optimizer's: its name begins with the weight's, or one's update reads the other
    state    everything else, such as moving means and weights that are frozen
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from evener.engine.pipeline.stages import FORWARD, Scopes
from evener.engine.trace.graph import Node, Tensor
from evener.engine.trace.step import TracedStep
from evener.profiler.chain import Chain

Role = Literal["weight", "slot", "state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerVariable:
    """A variable that a step uses.

    Attributes:
        handle: The argument of the step that stands for it.
        name: TensorFlow's name of it.
        layer: The number of its layer; None if it belongs to the step, as a metric's total does.
        role: What it is for the layer.
        num_bytes: Of its value.
        shape: Of its value.
        dtype: Of its value.
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
        traced: The step.
        nodes: Of the step, in an order in which they can run.
        chain: Its layers.
        stages: The number of the layer of every node that the parts compute.
        passes: The pass of these nodes.
    """
    return list(_Reader(traced, nodes, chain, stages, passes).read())


class _Reader:
    """Finds the layers of variables by their users."""

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
        by_handle = {id(one.handle): one for one in traced.concrete.graph.variables}
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
        """Return the first layer that uses a variable; of trained ones also by what they feed."""
        if len(self._chain.names) == 1:
            return 0 if self._variables[handle].trainable else None
        layers = [self._chain.layer(self._scopes.path(one)) for one in self._using(handle)]
        layers = [one for one in layers if one is not None]
        if not layers and self._variables[handle].trainable:
            readers = [one for one in self._using(handle) if not one.has_side_effect]
            fed = [user for one in readers for t in one.outputs for user in self._users.get(t, [])]
            layers = [self._stages[one][0] for one in fed if self._passes.get(one) == FORWARD]
        return min(layers, default=None)

    def _slots(self, of_layers: set[Tensor]) -> dict[Tensor, Tensor]:
        """Return the weight of every slot: by its name, as Keras makes it, or by the updates."""
        weights = [one for one in of_layers if self._is_trained(one)]
        # Scalars are counts of steps, learning rates, totals of metrics.
        others = [one for one in self._variables if one not in of_layers and self._shape(one)]
        names = {_plain(self._variables[one].name): one for one in weights}
        is_told = len(names) == len(weights)
        found: dict[Tensor, Tensor] = {}
        near: dict[Tensor, tuple[bool, int]] = {}
        for slot in others:
            rest = _plain(self._variables[slot].name.partition("/")[2])
            fitting = [name for name in names if is_told and rest.startswith(f"{name}_")]
            if fitting:
                found[slot] = names[max(fitting, key=len)]
        for one in [*weights, *others]:
            for other, distance in self._read_for_update(one):
                slot, weight = (other, one) if one in of_layers else (one, other)
                if slot in found or slot in of_layers or weight not in of_layers:
                    continue
                rank = (self._shape(slot) != self._shape(weight), distance)
                if slot not in near or rank < near[slot]:
                    near[slot] = rank
                    self._nearest[slot] = weight
        return {**{one: self._nearest[one] for one in near}, **found}

    def _read_for_update(self, handle: Tensor) -> Iterator[tuple[Tensor, int]]:
        """Yield variables whose values the writes of one are computed from, and how directly."""
        writes = [one for one in self._using(handle) if one.has_side_effect]
        queue = deque((t, 1) for one in writes for t in one.inputs if t is not handle)
        seen: set[Tensor] = set()
        while queue:
            tensor, distance = queue.popleft()
            if tensor in seen:
                continue
            seen.add(tensor)
            if tensor in self._variables and self._shape(tensor):
                yield tensor, distance
            elif tensor.node not in self._passes:
                queue.extend((one, distance + 1) for one in tensor.node.inputs)

    def _shape(self, handle: Tensor) -> tuple[int, ...]:
        return tuple(self._variables[handle].shape.as_list())

    def _is_trained(self, handle: Tensor) -> bool:
        is_written = any(one.has_side_effect for one in self._using(handle))
        return is_written and self._variables[handle].trainable


def _plain(name: str) -> str:
    return name.removesuffix(":0").replace("/", "_")
