"""Settings that a step shares with the bodies of its loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from evener.engine.partition.emit import PartitionedStep
from evener.engine.pipeline.layout import Layout
from evener.strategy.share_controller import ShareController


class Prepared(Protocol):
    """Step that was traced, and has not run yet."""

    @property
    def trains(self) -> bool:
        """Whether it writes variables by gradients."""
        ...

    @property
    def variables(self) -> list[tf.Variable]:
        """Variables that it uses."""
        ...

    def can_change_plan(self) -> bool:
        """Return whether another trace can go on where this one was, also after a failure."""
        ...

    def draws_numbers(self) -> bool:
        """Return whether it may draw random numbers, of which XLA has others than TensorFlow."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """Settings that a step shares with the bodies of its loops.

    Attributes:
        layout: Devices, stages and micro-batches of each replica.
        controller: Shares that can change between the runs of a graph, with the times of the
            devices; None for shares of the step alone.
        verify: See `evener.distribute`.
        owned_bytes: Function that returns the bytes of all variables on each device, such as
            ``"gpu:0"``; None for those of the step alone.
        when_traced: Function that is called with every partitioned step that is kept.
        when_prepared: Function that is called with every step that was traced, before it runs.
        paths: Function that returns the paths of the variables of the program, whose layers a plan
            may name.
        owner_of_handle: Function that returns the owner of a variable in the common partition of
            several workers, by its handle; None for the device where it is.
    """

    layout: Layout
    controller: ShareController | None = None
    verify: bool | None = None
    owned_bytes: Callable[[], Mapping[str, int]] | None = None
    when_traced: Callable[[PartitionedStep], object] | None = None
    when_prepared: Callable[[Prepared], object] | None = None
    paths: Callable[[], Iterable[str]] = tuple
    owner_of_handle: Callable[[Any], str | None] = lambda _: None
