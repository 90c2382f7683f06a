"""Stages in a run: every layer computes on the device of its stage, micro-batch by micro-batch.

Under a plan with micro-batches, the function given to ``run`` is called once for each of them:
to the function, a micro-batch is a replica. Layers go to the devices of their stages by their
paths, as under ``fit``; what is computed between layers goes to the latest stage among its
inputs; gradients go where the forward pass was (`evener.locality`).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine.ownership import tf_device
from evener.engine.staged.loops.again import compute_again
from evener.engine.staged.loops.entered import Entered
from evener.engine.staged.loops.order import Order
from evener.engine.staged.pieces import pieces_of
from evener.engine.staged.stages.assignment import in_no_stage, is_leaf, matching, stage_of_path
from evener.engine.staged.stages.pins import check_pin
from evener.engine.staged.stages.trace import layer_paths
from evener.locality.homes import home_of_tensor
from evener.plan import Plan, Replica


class _Call:
    """A call of a layer that has not returned.

    Args:
        layer: The layer.
        path: Names of the layers from the outermost down to it, which is left out.
        stage: Its stage, or None.
        again: Number of the outermost call around whose activations are computed again, or None.
    """

    def __init__(self, layer: keras.Layer, path: str, stage: int | None, again: int | None) -> None:
        self.layer, self.path, self.stage, self.again = layer, path, stage, again


class Stages:
    """The stages of one run.

    Args:
        plan: The plan; it cuts batches or models.
        graph: In which the function is called for every piece; None if it runs eagerly.
    """

    def __init__(self, plan: Plan, graph: tf.Graph | None) -> None:
        self._plan = plan
        self._graph = graph
        self._pieces = pieces_of(plan)
        self._entered: dict[tf.Graph | None, Entered] = defaultdict(Entered)
        self._sums: dict[tf.Operation, list[tf.Operation]] = defaultdict(list)
        self._num_again = 0
        self._here = threading.local()
        self._paths: dict[int, dict[int, str]] = {}

    @contextlib.contextmanager
    def piece(self, number: int) -> Iterator[None]:
        """Place what is made inside, for a piece of the batch."""
        here = self._here
        here.piece, here.calls, here.gradients = number, [], 0
        if self._graph is None:
            yield
            return
        with self._graph.device(self._device_of):
            yield

    @contextlib.contextmanager
    def gradient(self) -> Iterator[None]:
        """Know what is made inside for the backward pass."""
        self._here.gradients += 1
        try:
            yield
        finally:
            self._here.gradients -= 1

    def call(self, original: Callable[..., Any], layer: Any, args: Any, kwargs: Any) -> Any:
        """Call a layer on the device of its stage."""
        calls = self._here.calls
        call = self._begun(layer, args, kwargs)
        calls.append(call)
        try:
            if call.stage is None:
                return original(layer, *args, **kwargs)
            with tf.device(self._device(call.stage)):
                return original(layer, *args, **kwargs)
        finally:
            calls.pop()

    def add_up(self, column: Sequence[Any]) -> list[Any]:
        """Return the gradients of one variable, added up over the micro-batches of each replica.

        Each is added as soon as it is there, and no more of them are kept than micro-batches
        are in flight. Slices are left to be joined at the end.

        Args:
            column: One gradient per piece.
        """
        parts: list[Any] = []
        pairs = zip(self._pieces, column, strict=True)
        for _, group in itertools.groupby(pairs, key=lambda pair: pair[0].replica):
            gradients = [gradient for _, gradient in group if gradient is not None]
            if all(isinstance(g, tf.Tensor) for g in gradients):
                parts.extend(self._total(gradients))
            else:
                parts.extend(gradients)
        return parts

    def end(self, results: Any) -> bool:
        """Let the pieces run in the order of the schedule, and layers be computed again.

        Args:
            results: What the replicas have returned.

        Returns:
            Whether the order could be kept: False if more micro-batches will be in memory at
            once than the plan says.
        """
        if self._graph is None:
            return True
        if self._plan.recompute:
            leaves = tf.nest.flatten(results, expand_composites=True)
            compute_again(
                self._entered[self._graph], [t for leaf in leaves for t in _tensors(leaf)]
            )
        entered = self._entered[self._graph]
        return Order(self._plan, self._pieces, entered, self._sums, self._graph).enforce()

    def _total(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        total = None
        for gradient in gradients:
            before, total = total, gradient
            if before is None:
                continue
            with tf.control_dependencies(None), tf.device(home_of_tensor(gradient)):
                total = before + gradient
            if self._graph is not None:
                self._sums[gradient.op].append(total.op)
        return [] if total is None else [total]

    @property
    def _replica(self) -> Replica:
        return self._plan.replicas[self._pieces[self._here.piece].replica]

    def _device(self, stage: int) -> str:
        return tf_device(self._replica.stages[stage].device)

    def _begun(self, layer: keras.Layer, args: Any, kwargs: Any) -> _Call:
        calls = self._here.calls
        patterns = [stage.layers for stage in self._replica.stages]
        if not calls:
            path, stage = "", stage_of_path(layer.name, patterns)
        else:
            root, outer = calls[0].layer, calls[-1].stage
            path = self._path(root, layer)
            stage = stage_of_path(path, patterns)
            if stage is None:
                stage = stage_of_path(f"{root.name}/{path}", patterns)
            stage = outer if stage is None else stage
        again = calls[-1].again if calls else None
        # A model that the function calls is what its layers are found in, and no layer itself.
        is_layer = calls or not isinstance(layer, keras.Model)
        if again is None and is_layer and matching(path or layer.name, self._plan.recompute):
            again = self._num_again = self._num_again + 1
        if stage is None:
            if is_leaf(layer):
                raise in_no_stage([path or layer.name])
            return _Call(layer, path, None, again)
        check_pin(layer, path or layer.name, stage, self._replica.stages)
        return _Call(layer, path, self._in_line(stage, args, kwargs), again)

    def _in_line(self, stage: int, args: Any, kwargs: Any) -> int:
        """Return the stage, or that of the inputs if it is later: samples never come back."""
        if self._graph is None:
            return stage
        leaves = tf.nest.flatten((args, kwargs), expand_composites=True)
        given = [leaf for leaf in leaves if isinstance(leaf, tf.Tensor) and hasattr(leaf, "op")]
        latest = self._entered[tf.compat.v1.get_default_graph()].stage_of(given)
        return stage if latest is None else max(stage, latest)

    def _path(self, root: keras.Layer, layer: keras.Layer) -> str:
        paths = self._paths.get(id(root), {})
        if id(layer) not in paths:
            # Layers may be made while an outer one is called for the first time.
            paths = self._paths[id(root)] = layer_paths(root)
        return paths.get(id(layer)) or str(layer.name)

    def _device_of(self, op: tf.Operation) -> str:
        """Return the device for an operation that was just made; TensorFlow asks."""
        here = self._here
        call = here.calls[-1] if here.calls else None
        stage = self._entered[op.graph].enter(
            op,
            piece=here.piece,
            stages=self._replica.stages,
            stage=None if call is None else call.stage,
            in_gradient=here.gradients > 0,
            again=None if call is None else call.again,
        )
        return op.device or ("" if stage is None else self._device(stage))


def _tensors(leaf: Any) -> list[tf.Tensor]:
    values = _tf_private.local_values(leaf)
    flat = tf.nest.flatten(values, expand_composites=True)
    return [tensor for tensor in flat if isinstance(tensor, tf.Tensor)]
