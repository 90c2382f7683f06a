"""Paths of layers, and their match with the patterns of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from evener.plan.parts import Stage


def parts_of_path(path: str) -> list[str]:
    """Return the paths that may name a layer or an enclosing one, the outermost first.

    >>> parts_of_path("model/block")
    ['model', 'model/block', 'block']
    """
    names = path.split("/")
    return [
        "/".join(names[begin:end])
        for begin in range(len(names))
        for end in range(begin + 1, len(names) + 1)
    ]


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a layer, or an enclosing one, matches one of the patterns."""
    return any(fnmatchcase(part, p) for part in parts_of_path(path) for p in patterns)


def stage_of(path: str, stages: Sequence[Stage]) -> int | None:
    """Return the number of the stage of a layer: the outermost layer that a stage names decides.

    >>> stages = [Stage(device="cpu:0", layers=("a*",)), Stage(device="cpu:1", layers=("b",))]
    >>> stage_of("model/b/dense", stages), stage_of("head", stages)
    (1, None)
    """
    return next(
        (
            number
            for part in parts_of_path(path)
            for number, stage in enumerate(stages)
            if any(fnmatchcase(part, pattern) for pattern in stage.layers)
        ),
        None,
    )
