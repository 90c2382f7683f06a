"""Description of a span: which task a device computed, and what it waited for."""

from __future__ import annotations

from dataclasses import dataclass

UPDATE, ONCE, STEP = "update", "once", "step"
"""Kinds of spans that no single part has: tasks that write variables, other tasks that are computed
once, and steps that are timed as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanInfo:
    """Static description of a span.

    Attributes:
        device: Name of the device in the plan.
        kind: ``"forward"``, ``"backward"``, ``"forward + backward"``, ``"weights"``, ``UPDATE``,
            ``ONCE`` or ``STEP``.
        replica: Number of the replica; None for a task that is computed once.
        stage: Number of the stage in its replica; None without stages.
        micro_batch: Number of the micro-batch in its replica; None if there is one.
        after: Numbers of the spans whose results it needs.
        joins: Whether it needs results of other workers, which have no spans here.
    """

    device: str
    kind: str
    replica: int | None = None
    stage: int | None = None
    micro_batch: int | None = None
    after: tuple[int, ...] = ()
    joins: bool = False
