"""A strategy that hands over the first step that trains, traced, instead of running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from evener.engine.arguments import Arguments
from evener.engine.distribute import DistributedStep
from evener.engine.prepared import PreparedStep
from evener.engine.strategy import Strategy
from evener.engine.trace.step import TracedStep, trace_step
from evener.plan import Plan

OnStep = Callable[[TracedStep, int | None], object]
"""Called with the first traced step that trains, and the samples of its batch if they are known."""


class CostingStep(DistributedStep[Any, Any]):
    """A step of a `CostingStrategy`; other steps than the first that trains run as ever."""

    on_step: OnStep

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
            num_samples=num_samples,
            with_layers=True,
        )
        if traced.trains:
            with tf.init_scope():
                self.on_step(traced, num_samples or arguments.num_samples)
        return super()._trace(arguments, specs, num_samples)


def costing_strategy(device: str, on_step: OnStep) -> Strategy:
    """Return a strategy that keeps all variables on the host, and costs the first training step.

    Args:
        device: The name of a device in use, where other steps than the first that trains run.
        on_step: Called with that step. If it returns, the step runs.
    """
    step = type("CostingStep", (CostingStep,), {"on_step": staticmethod(on_step)})
    kind = type("CostingStrategy", (Strategy,), {"_step_type": step})
    # Two micro-batches: steps of one device in one part are not traced.
    return kind(Plan.data_parallel([device], num_micro_batches=2, owners="central"))
