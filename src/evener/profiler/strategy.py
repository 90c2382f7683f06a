"""Strategy that passes the first traced training step to a callback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from evener.engine.trace.draws import StreamState
from evener.engine.trace.step import TracedStep, trace_step
from evener.plan import Plan
from evener.strategy.arguments import Arguments
from evener.strategy.distributed_step import DistributedStep
from evener.strategy.extended import Extended
from evener.strategy.prepared import PreparedStep
from evener.strategy.strategy import Strategy

OnStep = Callable[[TracedStep, int | None], object]
"""Callback with the first traced training step, and the samples of its batch or None."""


class CostingStep(DistributedStep[Any, Any]):
    """Step of a `CostingStrategy`; all steps but the first training step run as usual."""

    on_step: OnStep
    datasets: list[Any]

    def _trace(
        self,
        arguments: Arguments,
        specs: Sequence[tf.TensorSpec],
        num_samples: int | None,
        streams: StreamState,
        *,
        first_draw: int | None = None,
    ) -> PreparedStep:
        def flat(*tensors: Any) -> Any:
            args, kwargs = arguments.pack(tensors)
            with streams.tracing(counts=False):
                return self._converted(*args, **kwargs)

        traced = trace_step(
            flat,
            specs,
            arguments.axes,
            autograph=True,
            unknown=arguments.unknown,
            num_samples=num_samples,
            with_layers=True,
        )
        if traced.trains:
            with tf.init_scope():
                known = num_samples or arguments.num_samples
                self.on_step(traced, known or _samples_of_first_batch(self.datasets, specs))
        return super()._trace(arguments, specs, num_samples, streams, first_draw=first_draw)


class CostingExtended(Extended):
    """Extended strategy that updates variables without setting the device of their owner.

    All owners are the host here. With its device in the trace, the arithmetic of an update would
    belong to the host instead of the layer.
    """

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        result = fn(var, *args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)


def costing_strategy(device: str, on_step: OnStep) -> Strategy:
    """Return a strategy that keeps all variables on the host, and reports the first training step.

    Args:
        device: Name of a device in use, on which the other steps run.
        on_step: Callback with the first training step. If it returns, the step runs.
    """
    datasets: list[Any] = []
    step = type(
        "CostingStep", (CostingStep,), {"on_step": staticmethod(on_step), "datasets": datasets}
    )

    class CostingStrategy(Strategy):
        _step_type = step
        _extended_type = CostingExtended

        def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
            datasets.append(dataset)
            return super().experimental_distribute_dataset(dataset, options)

    # Two micro-batches, because a step on one device without micro-batches is not traced.
    return CostingStrategy(Plan.data_parallel([device], num_micro_batches=2, owners="central"))


def _samples_of_first_batch(datasets: Sequence[Any], specs: Sequence[tf.TensorSpec]) -> int | None:
    """Return the samples of the first batch of a step; None if they are uncertain.

    The specs of data whose last batch is smaller have no batch size, so a batch is taken from the
    data. The size is uncertain if tensors of the step have another source too, or if several data
    sets match that begin with batches of different sizes.

    Args:
        datasets: Data sets that the program distributes with the strategy.
        specs: Specs of all tensors of the step.
    """
    found: set[int | None] = set()
    for dataset in datasets:
        parts = tf.nest.flatten(dataset.element_spec, expand_composites=True)
        if len(parts) == len(specs) and all(map(_is_compatible, parts, specs)):
            for batch in dataset.take(1):
                tensors = tf.nest.flatten(batch, expand_composites=True)
                found.update(tensor.shape[0] if tensor.shape.rank else None for tensor in tensors)
    return found.pop() if len(found) == 1 else None


def _is_compatible(part: Any, spec: tf.TensorSpec) -> bool:
    return part.dtype == spec.dtype and part.shape.is_compatible_with(spec.shape)
