"""Files for schedulers in the examples: what they set is read as several workers."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from evener.workers.job import job_from_environment

MACHINES = Path(__file__).parents[3] / "examples" / "machines"


def kubernetes_objects() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MACHINES / "kubernetes.yaml").read_text(encoding="utf-8")))


@pytest.mark.parametrize("version", ["1.28", kubernetes_validate.latest_version()])
def test_kubernetes_knows_every_field(version: str) -> None:
    objects = kubernetes_objects()
    assert [found["kind"] for found in objects] == ["Service", "Secret", "Job"]
    for found in objects:
        kubernetes_validate.validate(found, version, strict=True)
    # A field with another name is refused, however deep.
    variable = objects[-1]["spec"]["template"]["spec"]["containers"][0]["env"][0]
    variable["valueFroms"] = variable.pop("valueFrom")
    with pytest.raises(kubernetes_validate.ValidationError, match="valueFroms"):
        kubernetes_validate.validate(objects[-1], version, strict=True)


def test_kubernetes_sets_a_tf_config_of_all_pods() -> None:
    text = (MACHINES / "kubernetes.yaml").read_text()
    lines = re.findall(r"^ +(workers=.*|export TF_CONFIG=.*)$", text, re.MULTILINE)
    script = "\n".join([*lines, 'printf "%s" "$TF_CONFIG"'])
    for index in range(4):
        done = subprocess.run(
            ["/bin/sh", "-c", script],
            env={"PATH": "/usr/bin:/bin", "JOB_COMPLETION_INDEX": str(index)},
            capture_output=True,
            text=True,
            check=True,
        )
        addresses = json.loads(done.stdout)["cluster"]["worker"]
        assert addresses == [f"evener-{k}.evener:8888" for k in range(4)]
        job = job_from_environment({"TF_CONFIG": done.stdout, "EVENER_JOB_SECRET": "word"})
        assert job is not None
        assert (job.index, job.count, job.hosts_coordinator) == (index, 4, index == 0)


@pytest.mark.parametrize("name", ["ray.sh", "slurm.sh"])
def test_the_file_is_a_shell_script(name: str) -> None:
    done = subprocess.run(["bash", "-n", str(MACHINES / name)], check=False)
    assert done.returncode == 0


def test_the_file_for_ray_starts_nodes_trains_and_ends_them(tmp_path: Path) -> None:
    """Commands that print what they are given stand for Ray, ssh and evener."""
    calls = tmp_path / "calls"
    for name in ("ray", "ssh", "evener"):
        command = tmp_path / name
        command.write_text(f'#!/bin/sh\necho {name} "$@" >> {calls}\n')
        command.chmod(0o755)
    (tmp_path / "hostname").write_text("#!/bin/sh\necho 10.0.0.1\n")
    (tmp_path / "hostname").chmod(0o755)
    subprocess.run(
        ["bash", str(MACHINES / "ray.sh"), "n2", "n3"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        check=True,
    )
    assert calls.read_text().splitlines() == [
        "ray start --head --port=6379 --disable-usage-stats",
        "ssh n2 ray start --address=10.0.0.1:6379 --disable-usage-stats",
        "ssh n3 ray start --address=10.0.0.1:6379 --disable-usage-stats",
        "evener launch --ray 10.0.0.1:6379 --workers 3 --ray-resources CPU=4,GPU=2 "
        "train.py /shared/run",
        "ssh n2 ray stop",
        "ssh n3 ray stop",
        "ray stop",
    ]
