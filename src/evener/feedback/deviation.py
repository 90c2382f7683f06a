"""Deviation of a run from the prediction of its plan.

::

    step   |  a device computes (busy)  |  everything else: transfers of weights, gradients,  |
           |                            |  devices wait for each other and for data, updates  |

The part with the largest difference is reported: the busy time of a device, or everything else on
the device that computes longest. On one device without micro-batches, passes and updates are timed
together::

    step   |  the device computes and updates variables  |  waiting for data and for Python  |

The plan has no prediction for the second part.
"""

from __future__ import annotations

from dataclasses import dataclass

from evener.feedback.run_times import LEAST_STEPS, RunTimes
from evener.plan.parts import Predicted
from evener.units import format_seconds

TOLERANCE = 0.15
"""Tolerated error, as a fraction of the predicted step time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Part of a step.

    Args:
        device: Device that computes; None for everything but computation.
        predicted_seconds: Prediction of the plan.
        measured_seconds: Seconds in the median step.
        with_updates: Whether the busy time of devices includes updates.
    """

    device: str | None
    predicted_seconds: float
    measured_seconds: float
    with_updates: bool = False

    @property
    def off_seconds(self) -> float:
        """Absolute error of the prediction."""
        return abs(self.measured_seconds - self.predicted_seconds)

    def __str__(self) -> str:
        """Return one sentence without a full stop.

        >>> print(Part(device="gpu:1", predicted_seconds=0.08, measured_seconds=0.124))
        gpu:1 computed for 124.0 ms of a step, and 80.0 ms were predicted
        """
        measured = format_seconds(self.measured_seconds)
        predicted = format_seconds(self.predicted_seconds)
        if self.device is not None:
            computed = "computed passes and updates" if self.with_updates else "computed"
            what = f"{self.device} {computed} for"
        elif self.with_updates:
            what = "waiting for data and for Python took"
        else:
            what = "communication, updates and waiting (for other devices, for data) took"
        return f"{what} {measured} of a step, and {predicted} were predicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """Deviation of the step time from the prediction.

    Args:
        predicted_seconds: Predicted seconds of a step.
        measured_seconds: Seconds of the median step.
        num_steps: Number of timed steps.
        worst: Part with the largest error; None if the plan predicts no parts.
    """

    predicted_seconds: float
    measured_seconds: float
    num_steps: int
    worst: Part | None

    @property
    def what(self) -> str:
        """The deviation, in one sentence."""
        return (
            f"A step took {format_seconds(self.measured_seconds)}, and the plan predicted "
            f"{format_seconds(self.predicted_seconds)}."
        )

    @property
    def why(self) -> str:
        """The part of the prediction with the largest error."""
        steps = f"Median of {self.num_steps} steps."
        if self.worst is None:
            return f"{steps} The plan does not predict how long each device computes."
        return f"{steps} What differs most: {self.worst}."


def deviation(predicted: Predicted, times: RunTimes | None) -> Deviation | None:
    """Return the deviation of a run from a prediction, or None.

    Args:
        predicted: Prediction of the plan of the run.
        times: Times of the run; None if it was not timed.

    Returns:
        The deviation; None for fewer than `LEAST_STEPS` steps, for another batch size than the
        predicted one, and for steps within `TOLERANCE`.
    """
    if times is None or times.num_steps < LEAST_STEPS or predicted.step_seconds <= 0:
        return None
    if predicted.batch_size not in (None, times.batch_size):
        return None
    if abs(times.step_seconds - predicted.step_seconds) <= TOLERANCE * predicted.step_seconds:
        return None
    parts = _parts(predicted, times)
    return Deviation(
        predicted_seconds=predicted.step_seconds,
        measured_seconds=times.step_seconds,
        num_steps=times.num_steps,
        worst=max(parts, key=lambda part: part.off_seconds, default=None),
    )


def _parts(predicted: Predicted, times: RunTimes) -> list[Part]:
    if times.with_updates:
        return _parts_of_whole_steps(predicted, times)
    expected, measured = predicted.busy_seconds, times.busy_seconds
    if not expected or not measured:
        return []
    parts = [
        Part(device=name, predicted_seconds=seconds, measured_seconds=measured.get(name, 0.0))
        for name, seconds in expected.items()
    ]
    waiting = Part(
        device=None,
        predicted_seconds=max(0.0, predicted.step_seconds - max(expected.values())),
        measured_seconds=max(0.0, times.step_seconds - max(measured.values())),
    )
    return [*parts, waiting]


def _parts_of_whole_steps(predicted: Predicted, times: RunTimes) -> list[Part]:
    """Return the parts of steps on one device, whose busy time includes updates."""
    ((device, busy),) = times.busy_seconds.items()
    computed = Part(
        device=device,
        predicted_seconds=predicted.step_seconds,
        measured_seconds=busy,
        with_updates=True,
    )
    waited = max(0.0, times.step_seconds - busy)
    waiting = Part(device=None, predicted_seconds=0.0, measured_seconds=waited, with_updates=True)
    return [computed, waiting]
