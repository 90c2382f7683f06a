"""Runs on one device in one part, whose passes and updates were timed together."""

from __future__ import annotations

import dataclasses

from evener.cost_model.prediction import predict_plan
from evener.errors import PlanError
from evener.feedback.run_times import MeasuredRun
from evener.profile import CostProfile


def without_updates(run: MeasuredRun, profile: CostProfile) -> MeasuredRun:
    """Return a run whose devices' seconds are those of forward and backward passes alone.

    The device is taken to be as much slower, or faster, than predicted in its passes as in its
    updates: of what was measured, passes are the part that they are of the prediction.

    Args:
        run: Returned as it is if its passes were timed alone, or if its plan is none for the
            profile, of which `evener.feedback.calibration.calibrate` says more.
        profile: Of the model and the devices of the run.
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
