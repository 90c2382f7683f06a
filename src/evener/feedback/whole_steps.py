"""Runs on one device without micro-batches, whose passes and updates are timed together."""

from __future__ import annotations

import dataclasses

from evener.cost_model.prediction import predict_plan
from evener.errors import PlanError
from evener.feedback.run_times import MeasuredRun
from evener.profile import CostProfile


def without_updates(run: MeasuredRun, profile: CostProfile) -> MeasuredRun:
    """Return a run whose busy seconds exclude updates.

    Passes and updates are assumed to deviate from the prediction by the same factor, so passes are
    the same fraction of the measured as of the predicted time.

    Args:
        run: Measured run. It is returned unchanged if its busy seconds exclude updates already, or
            if its plan does not match the profile, which `calibrate` reports.
        profile: Profile of the model and the devices of the run.
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
