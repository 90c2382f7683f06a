"""Calibration of a cost profile by the measured times of a run.

::

                     measured busy seconds of its devices in a step of the run
    factor of a kind = ------------------------------------------------------
       of device      predicted busy seconds for the plan of the run

All curves of the kind are multiplied by its factor. The profiler measures layers on an idle
machine; in a run, devices share memory, power and cores, and fetch weights while they compute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from evener.base.text import format_seconds
from evener.errors import PlanError, ProfileError
from evener.plan.profile import CostProfile
from evener.planner.assignment import assignment_of
from evener.planner.prediction import busy_seconds, predict, predict_plan
from evener.planner.run_times import MeasuredRun


def without_updates(run: MeasuredRun, profile: CostProfile) -> MeasuredRun:
    """Return a run whose busy seconds exclude updates.

    On one device without micro-batches, both are timed together. They are assumed to deviate from
    the prediction by the same factor, so passes are the same fraction of the measured as of the
    predicted time.
    """
    times = run.times
    if not times.with_updates:
        return run
    try:
        found = predict_plan(run.plan, profile, times.batch_size)
    except PlanError:
        return run
    (replica,) = found.replicas
    passes = replica.compute_seconds / replica.seconds if replica.seconds else 1.0
    busy = {name: seconds * passes for name, seconds in times.busy_seconds.items()}
    return dataclasses.replace(
        run, times=dataclasses.replace(times, busy_seconds=busy, with_updates=False)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Ratio of measured to predicted busy seconds of one kind of device."""

    # Predicted busy seconds of a step, summed over the devices of the kind
    predicted_seconds: float
    measured_seconds: float  # Measured busy seconds of a step, summed over the same devices

    @property
    def value(self) -> float:
        return self.measured_seconds / self.predicted_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    profile: CostProfile  # Profile with scaled times
    # Factors by kind of device, without kinds that computed nothing in the run
    factors: Mapping[str, Factor]
    step_seconds: float  # Prediction of the scaled profile for a step of the run
    run: MeasuredRun  # Measured run

    def lines(self) -> list[str]:
        found: list[str] = []
        for kind in self.profile.times:
            factor = self.factors.get(kind)
            if factor is None:
                found.append(f"{kind}: as it was, because it computed nothing in the run")
                continue
            measured = format_seconds(factor.measured_seconds)
            predicted = format_seconds(factor.predicted_seconds)
            found.append(f"{kind}: times {factor.value:.2f} (computed {measured}, not {predicted})")
        measured = format_seconds(self.run.times.step_seconds)
        predicted = format_seconds(self.step_seconds)
        return [*found, f"a step of the run took {measured}; with these times, {predicted}"]


def calibrate(profile: CostProfile, run: MeasuredRun) -> Calibrated:
    """Scale the times of a profile to those of a run, for each kind of device.

    Only forward and backward passes and the accumulation of gradients are scaled; updates, links
    and the overhead of a step stay.
    """
    kinds = {device.name: device.type for device in profile.cluster.devices}
    for name in run.times.busy_seconds:
        hardware = run.times.hardware.get(name, "")
        # The hardware name of a CPU has its threads, which a run on stand-ins does not set.
        is_other = name.startswith("gpu") and hardware != kinds.get(name)
        if name not in kinds or is_other:
            there = ", ".join(f"{device} ({kind})" for device, kind in kinds.items())
            raise ProfileError(
                "PROF-052",
                f"The run computed on {name} ({hardware}), which is no device of the profile.",
                why=f"The profile has {there}.",
                fix="Measure the script on the devices of the run, with --devices.",
            )
    plan = run.plan.with_shares(run.times.samples)
    try:
        found = assignment_of(plan, profile.model, profile.cluster, run.times.batch_size)
    except PlanError as error:
        raise ProfileError(
            "PROF-053",
            "The plan of the run is not one for the layers of the profile.",
            why=error.what,
            fix="Give the profile, or the script, that the plan of the run was made for.",
        ) from error
    predicted: dict[str, float] = {}
    measured: dict[str, float] = {}
    for index, seconds in busy_seconds(found, predict(found, profile)).items():
        device = profile.cluster.devices[index]
        predicted[device.type] = predicted.get(device.type, 0.0) + seconds
    for name, seconds in run.times.busy_seconds.items():
        measured[kinds[name]] = measured.get(kinds[name], 0.0) + seconds
    factors = {
        kind: Factor(predicted_seconds=seconds, measured_seconds=measured[kind])
        for kind, seconds in predicted.items()
        if seconds > 0 and measured.get(kind, 0.0) > 0
    }
    times = dict(profile.times)
    for kind, factor in factors.items():
        times[kind] = tuple(
            dataclasses.replace(
                layer.scaled(factor.value),
                accumulate_seconds=layer.accumulate_seconds * factor.value,
            )
            for layer in times[kind]
        )
    scaled = dataclasses.replace(profile, times=times)
    after = predict_plan(plan, scaled, run.times.batch_size).step_seconds
    return Calibrated(profile=scaled, factors=factors, step_seconds=after, run=run)
