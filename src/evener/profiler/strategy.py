"""A strategy that hands over the first step that trains, traced, instead of running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from evener.engine.arguments import Arguments
from evener.engine.distribute import DistributedStep
from evener.engine.extended import Extended
from evener.engine.prepared import PreparedStep
from evener.engine.strategy import Strategy
from evener.engine.trace.step import TracedStep, trace_step
from evener.plan import Plan

OnStep = Callable[[TracedStep, int | None], object]
"""Called with the first traced step that trains, and the samples of its batch if they are known."""


class CostingStep(DistributedStep[Any, Any]):
    """A step of a `CostingStrategy`; other steps than the first that trains run as ever."""

    on_step: OnStep
    datasets: list[Any]

    def _trace(
        self,
        arguments: Arguments,
        specs: Sequence[tf.TensorSpec],
        num_samples: int | None = None,
    ) -> PreparedStep:
        def flat(*tensors: Any) -> Any:
            args, kwargs = arguments.pack(tensors)
            return self._step(*args, **kwargs)

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
        return super()._trace(arguments, specs, num_samples)


class CostingExtended(Extended):
    """Updates variables without the device of their owner.

    All owners are the host here; with its device in the trace, the arithmetic of an update would
    belong to the host and not to the layer whose update it is.
    """

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        result = fn(var, *args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)


def costing_strategy(device: str, on_step: OnStep) -> Strategy:
    """Return a strategy that keeps all variables on the host, and costs the first training step.

    Args:
        device: The name of a device in use, where other steps than the first that trains run.
        on_step: Called with that step. If it returns, the step runs.
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

    # Two micro-batches: steps of one device in one part are not traced.
    return CostingStrategy(Plan.data_parallel([device], num_micro_batches=2, owners="central"))


def _samples_of_first_batch(datasets: Sequence[Any], specs: Sequence[tf.TensorSpec]) -> int | None:
    """Return how many samples a step is first given; None if that is not certain.

    Data whose last batch is smaller does not say how large the others are. A batch is taken from
    it: the step that is costed is not run. It is not certain if the tensors of the step come from
    elsewhere too, or if several data sets fit that begin with batches of unlike sizes.

    Args:
        datasets: What the program hands to the strategy.
        specs: Of all tensors of the step.
    """
    found: set[int | None] = set()
    for dataset in datasets:
        parts = tf.nest.flatten(dataset.element_spec, expand_composites=True)
        if len(parts) == len(specs) and all(map(_is_compatible, parts, specs)):
            for batch in dataset.take(1):
                tensors = tf.nest.flatten(batch, expand_composites=True)
                found.update(one.shape[0] if one.shape.rank else None for one in tensors)
    return found.pop() if len(found) == 1 else None


def _is_compatible(part: Any, spec: tf.TensorSpec) -> bool:
    return part.dtype == spec.dtype and part.shape.is_compatible_with(spec.shape)
