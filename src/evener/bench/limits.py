"""Limits of a run, by the figures of its record."""

from __future__ import annotations

from evener.recording.summary import Summary

_LEAST = 0.15
"""Fraction of a step from which a limit is named."""


def limit_of(summary: Summary) -> str:
    """Return a sentence on what takes the largest part of a step beside computing.

    Args:
        summary: Figures of a run on several devices.
    """
    step, inside = summary.step_seconds, summary.inside_seconds
    if not step or not inside or not summary.inside:
        return "Not known: no step was recorded."
    parts: list[tuple[float, str]] = []
    outside = max(0.0, step - inside) / step
    parts.append(
        (
            outside,
            "is outside of the step: input data, callbacks and Python. Larger batches, "
            "steps_per_execution in compile, and Dataset.prefetch make it smaller",
        )
    )
    for device, time in summary.inside.items():
        length = (time.length or inside) / (1.0 - outside or 1.0)
        parts += [
            (
                seconds / length,
                f"{device} waits for {other}. Other shares may help",
            )
            for other, seconds in time.wait.items()
        ]
        parts.append(
            (
                time.copy / length,
                f"{device} waits for copies and sums. Larger batches need fewer of them",
            )
        )
        parts.append((time.update / length, f"{device} updates variables"))
        parts.append((time.once / length, f"{device} computes what is not divided"))
    fraction, words = max(parts)
    if fraction < _LEAST:
        return "The devices compute for most of the step: more or faster devices would help."
    return f"{fraction:.0%} of a step ".replace("%", " %") + words + "."
