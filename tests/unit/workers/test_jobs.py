"""Settings of jobs: commands and environments of their workers."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest

from evener.errors import RunError
from evener.workers.launch import (
    Limits,
    RunCommand,
    SchedulerTask,
    job_settings,
    run_task,
    task_of,
    task_settings,
)
from evener.workers.supervisor import LaunchSettings

LOGS = Path("logs")
TF_CONFIG = json.dumps(
    {
        "cluster": {"chief": ["localhost:4000"], "worker": ["localhost:4001", "localhost:4002"]},
        "task": {"type": "worker", "index": 1},
    }
)
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}


def test_every_worker_runs_the_script_with_its_devices() -> None:
    command = RunCommand(
        target=("train.py", "--epochs", "3"),
        options=("--no-hoist",),
        devices=("cpu:2", "cpu:1"),
        report_file=Path("report.json"),
    )
    begin = (sys.executable, "-m", "evener", "run", "--no-hoist")
    end = ("train.py", "--epochs", "3")
    report = ("--report-file", "report.json")
    assert command.words(0) == (*begin, "--devices", "cpu:2", *report, *end)
    assert command.words(1) == (*begin, "--devices", "cpu:1", *end)


def test_a_device_spec_that_is_given_once_is_that_of_all() -> None:
    command = RunCommand(target=("train.py",), devices=("cpu:2",))
    assert command.words(0) == command.words(5)
    assert command.words(5)[-3:] == ("--devices", "cpu:2", "train.py")


def test_workers_of_this_machine_do_not_see_another_job() -> None:
    environ = {"TF_CONFIG": TF_CONFIG, "EVENER_JOB": "{}", "PATH": "/bin"}
    settings = job_settings(
        RunCommand(target=("train.py",)),
        2,
        environ=environ,
        logs=LOGS,
        limits=Limits(num_restarts=7, grace_seconds=3),
    )
    assert settings.environ == {"PATH": "/bin", "PYTHONUNBUFFERED": "1"}
    assert [worker.index for worker in settings.workers] == [0, 1]
    assert (settings.num_restarts, settings.heartbeat_seconds, settings.grace_seconds) == (7, 10, 3)


def test_the_worker_of_a_task_reads_tf_config() -> None:
    task = task_of({"TF_CONFIG": TF_CONFIG, "EVENER_JOB_SECRET": "word"})
    assert (task.index, task.num_workers) == (2, 3)
    limits = Limits(heartbeat_seconds=4)
    settings = task_settings(RunCommand(target=("a.py",)), task, logs=LOGS, limits=limits)
    assert [(worker.index, worker.is_shown) for worker in settings.workers] == [(2, False)]
    assert settings.environ["TF_CONFIG"] == TF_CONFIG
    assert settings.environ["EVENER_HEARTBEAT_SECONDS"] == "4"
    assert settings.num_restarts == 0


def test_the_worker_of_a_task_of_slurm_gets_tf_config() -> None:
    task = task_of({**SLURM, "EVENER_JOB_SECRET": "word"}, port_base=4000)
    assert (task.index, task.num_workers) == (1, 2)
    config = json.loads(task.environ["TF_CONFIG"])
    assert config["cluster"]["worker"] == ["n1:4000", "n2:4000"]


def test_other_machines_need_a_secret() -> None:
    with pytest.raises(RunError, match="EVENER_JOB_SECRET"):
        task_of(SLURM)


def test_a_task_alone_trains_alone() -> None:
    task = task_of({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"})
    assert (task.index, task.num_workers) == (0, 1)
    assert "TF_CONFIG" not in task.environ


def test_without_workers_and_scheduler_nothing_can_be_started() -> None:
    with pytest.raises(RunError, match=r"\[RUN-080\]"):
        task_of({"PATH": "/bin"})


def settings_of_task(index: int, script: str, logs: Path) -> LaunchSettings:
    task = SchedulerTask(index=index, num_workers=2, environ=dict(os.environ))
    settings = task_settings(RunCommand(target=("a.py",)), task, logs=logs, limits=Limits())
    words = (sys.executable, "-c", script)
    worker = dataclasses.replace(settings.workers[0], words=words)
    return dataclasses.replace(settings, workers=(worker,))


@pytest.mark.parametrize(("index", "printed"), [(0, "line\n"), (1, "")])
def test_the_first_task_prints_what_the_program_prints(
    index: int, printed: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run_task(settings_of_task(index, "print('line')", tmp_path)) == 0
    assert capfdbinary.readouterr().out.decode() == printed
    log = (tmp_path / f"worker-{index}.log").read_text(encoding="utf-8")
    assert log.endswith("\nline\n")


def test_a_task_ends_with_the_code_of_its_worker(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run_task(settings_of_task(1, "import sys; sys.exit('no disk')", tmp_path)) == 1
    assert b"[worker 1] no disk\n" in capfdbinary.readouterr().err
    kill = "import os; os.kill(os.getpid(), 9)"
    assert run_task(settings_of_task(1, kill, tmp_path)) == 1
