"""TF_CONFIG from the environment of Slurm, compared with TensorFlow's resolver."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from evener.errors import RunError
from evener.workers.launch import expand_hosts, expand_tasks, slurm_tf_config

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


@pytest.mark.parametrize("rank", range(6))
@pytest.mark.parametrize("port", [8888, 4000])
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
    environ = {
        "SLURM_PROCID": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_JOB_NODELIST": "n[9-10]",
        "SLURM_TASKS_PER_NODE": "1(x2)",
        "SLURMD_NODENAME": "n10",
    }
    assert config_of(environ) == (["n9:8888", "n10:8888"], 1)


def test_a_script_of_sbatch_is_no_task() -> None:
    environ = {name: text for name, text in STEP.items() if "STEP" not in name}
    with pytest.raises(RunError, match="RUN-112") as caught:
        slurm_tf_config({**environ, "SLURM_NTASKS": "6"})
    assert "srun is missing" in caught.value.what
    assert caught.value.fix.endswith("srun evener launch train.py.")


def test_the_only_task_needs_no_cluster() -> None:
    assert slurm_tf_config({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) is None


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


@pytest.mark.parametrize("text", ["", "n[1-2", "n1]", "n[]", "n[a-b]", ",n1", "n1,", "n[1-2-3]"])
def test_what_is_no_list_of_hosts_is_named(text: str) -> None:
    with pytest.raises(RunError, match=r"\[RUN-081\]") as caught:
        expand_hosts(text)
    assert repr(text) in caught.value.why


@pytest.mark.parametrize("text", ["", "x", "2(3)", "2(x)", "1,,2"])
def test_what_is_no_list_of_tasks_is_named(text: str) -> None:
    with pytest.raises(RunError, match=r"\[RUN-081\]") as caught:
        expand_tasks(text)
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
