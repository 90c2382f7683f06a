"""Jobs to launch: commands and environments of workers, and tasks of Slurm."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from evener.errors import RunError
from evener.workers.job import job_from_environment
from evener.workers.launch import (
    Limits,
    RunCommand,
    SchedulerTask,
    expand_hosts,
    expand_tasks,
    job_settings,
    run_task,
    slurm_tf_config,
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
    # A spec that is given once is that of all.
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
    job = job_from_environment(task.environ)
    assert job is not None
    assert (task.index, job.index, job.count) == (2, 2, 3)
    limits = Limits(heartbeat_seconds=4)
    settings = task_settings(RunCommand(target=("a.py",)), task, logs=LOGS, limits=limits)
    assert [(worker.index, worker.is_shown) for worker in settings.workers] == [(2, False)]
    assert settings.environ["TF_CONFIG"] == TF_CONFIG
    assert settings.environ["EVENER_HEARTBEAT_SECONDS"] == "4"
    assert settings.num_restarts == 0


def test_the_worker_of_a_task_of_slurm_gets_tf_config() -> None:
    task = task_of({**SLURM, "EVENER_JOB_SECRET": "word"}, port_base=4000)
    assert task.index == 1
    config = json.loads(task.environ["TF_CONFIG"])
    assert config["cluster"]["worker"] == ["n1:4000", "n2:4000"]


def test_a_task_alone_trains_alone() -> None:
    environ = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    task = task_of(environ)
    assert task.index == 0
    assert job_from_environment(task.environ) is None
    assert "TF_CONFIG" not in task.environ
    assert slurm_tf_config(environ) is None


@pytest.mark.parametrize(("environ", "says"), [(SLURM, "EVENER_JOB_SECRET"), ({}, "RUN-080")])
def test_tasks_need_a_scheduler_and_a_secret(environ: dict[str, str], says: str) -> None:
    with pytest.raises(RunError, match=says):
        task_of({"PATH": "/bin", **environ})


def settings_of_task(index: int, script: str, logs: Path) -> LaunchSettings:
    task = SchedulerTask(index=index, environ=dict(os.environ))
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


STEP = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_NODELIST": "a[08-09],b1,c3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1(x2)",
}

SECRET = {"EVENER_JOB_SECRET": "word"}


def config_of(environ: Mapping[str, str], **options: int) -> tuple[list[str], int]:
    config = json.loads(slurm_tf_config(environ, **options))
    assert config["task"]["type"] == "worker"
    return config["cluster"]["worker"], config["task"]["index"]


@pytest.mark.parametrize(("rank", "port"), [*zip(range(6), [8888, 4000] * 3, strict=True)])
def test_the_addresses_are_those_of_tensorflow(
    monkeypatch: pytest.MonkeyPatch, rank: int, port: int
) -> None:
    import tensorflow as tf

    environ = {**STEP, "SLURM_PROCID": str(rank)}
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
        port_base=port, gpus_per_node=4, gpus_per_task=1, auto_set_gpu=False
    )
    expected = resolver.cluster_spec().as_dict()["worker"]
    _, index = resolver.get_task_info()
    assert config_of(environ, port_base=port) == (expected, index)


def test_hosts_keep_the_order_in_which_slurm_numbers_its_tasks() -> None:
    environ = {**SLURM, "SLURM_JOB_NODELIST": "n[9-10]", "SLURMD_NODENAME": "n10"}
    assert config_of(environ) == (["n9:8888", "n10:8888"], 1)


def test_a_script_of_sbatch_is_no_task() -> None:
    environ = {name: text for name, text in STEP.items() if "STEP" not in name}
    with pytest.raises(RunError, match="RUN-112") as caught:
        slurm_tf_config({**environ, "SLURM_NTASKS": "6"})
    assert "srun is missing" in caught.value.what
    assert caught.value.fix.endswith("srun evener launch train.py.")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-2],m5,o[3-4,6]", ["n1", "n2", "m5", "o3", "o4", "o6"]),
        ("n[008-011]", ["n008", "n009", "n010", "n011"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        ("gpu-1.example,gpu-2.example", ["gpu-1.example", "gpu-2.example"]),
    ],
)
def test_lists_of_hosts(text: str, hosts: list[str]) -> None:
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    ("expand", "texts"),
    [
        (expand_hosts, ["", "n[1-2", "n1]", "n[]", "n[a-b]", ",n1", "n1,", "n[1-2-3]"]),
        (expand_tasks, ["", "x", "2(3)", "2(x)", "1,,2"]),
    ],
)
def test_what_is_no_list_is_named(expand: Callable[[str], Any], texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(RunError, match=r"\[RUN-081\]") as caught:
            expand(text)
        assert repr(text) in caught.value.why


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST and SLURM_JOB_NODELIST are not set"),
        ({"SLURM_PROCID": "x"}, "'x' is no number for SLURM_PROCID"),
        ({"SLURM_PROCID": "6"}, "this is task 6 of 6"),
        ({"SLURM_STEP_NUM_TASKS": "5"}, "of 5, and the lists of hosts and tasks have 6 tasks"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, "it lists 4 hosts, but the tasks of 2"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused(
    changed: Mapping[str, str], says: str
) -> None:
    with pytest.raises(RunError, match=r"\[RUN-081\]") as caught:
        slurm_tf_config({**STEP, **changed})
    assert says in caught.value.why


def test_ports_beyond_the_largest_are_refused() -> None:
    assert config_of(STEP, port_base=65534)[0][1] == "a08:65535"
    with pytest.raises(RunError, match=r"\[RUN-081\]"):
        slurm_tf_config(STEP, port_base=65535)


def test_tasks_that_are_not_numbered_host_by_host_are_refused() -> None:
    slurm_tf_config({**STEP, "SLURMD_NODENAME": "a09"})
    with pytest.raises(RunError, match=r"\[RUN-082\] Slurm runs task 3 on b1"):
        slurm_tf_config({**STEP, "SLURMD_NODENAME": "b1"})
