"""Jobs whose workers are started by a scheduler, one process per task.

Training operators of Kubernetes set ``TF_CONFIG``; under Slurm it is made of Slurm's variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evener.errors import RunError
from evener.launch.slurm import PORT_BASE, is_slurm_task, slurm_tf_config
from evener.workers.job import job_from_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The worker of this task."""

    index: int
    num_workers: int
    environ: Mapping[str, str] = field(repr=False)


def task_of(environ: Mapping[str, str], *, port_base: int = PORT_BASE) -> Task:
    """Return the worker that a scheduler asks this process to run; RUN-080 without one.

    ``port_base`` is the port of the first task of every host, under Slurm.
    """
    own = {name: text for name, text in environ.items() if name != "EVENER_JOB"}
    if not own.get("TF_CONFIG", "").strip():
        if not is_slurm_task(own):
            raise RunError(
                "RUN-080",
                "It is not said how many workers to start.",
                why="--workers is missing, and neither TF_CONFIG nor Slurm's variables are set.",
                fix="On one machine: evener launch --workers 2 SCRIPT; under Slurm: srun evener "
                "launch SCRIPT; elsewhere set TF_CONFIG for every worker.",
            )
        config = slurm_tf_config(own, port_base=port_base)
        if config is not None:
            own["TF_CONFIG"] = config
    job = job_from_environment(own)
    if job is None:
        return Task(index=0, num_workers=1, environ=own)
    return Task(index=job.index, num_workers=job.count, environ=own)
