from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from cli.commands import run
from evener.base.terminal import text_of
from evener.devices.inventories import join, print_inventory
from evener.devices.machine import Host, NvmlLink, NvmlMachine, TensorFlowView
from evener.devices.spec import parse_spec
from unit.devices.machines import EIGHT, HOST, ONE_LOST, TWO_EQUAL, gpu, machine, view


def test_table(tmp_path: Path) -> None:
    done = run("devices", folder=tmp_path, TF_CPP_MIN_LOG_LEVEL=None, EVENER_DEVICES=None)
    assert done.returncode == 0
    assert done.stderr == "", "TensorFlow's log stays away"
    assert "cpu:0" in done.stdout
    assert "Used with all: cpu:0" in done.stdout


@pytest.mark.long
def test_environment_means_the_same_and_json_is_all(tmp_path: Path) -> None:
    done = run("devices", "--json", folder=tmp_path, EVENER_DEVICES="cpu:3")
    assert done.returncode == 0
    said = json.loads(done.stdout)
    assert said["spec"] == "cpu:3"
    used = [device["name"] for device in said["devices"] if device["use"] == "compute"]
    assert used == ["cpu:0", "cpu:1", "cpu:2"]


def test_the_argument_comes_before_the_environment(tmp_path: Path) -> None:
    done = run("devices", "--devices", "gpu:7", folder=tmp_path, EVENER_DEVICES="gpu0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "[DEV-010] There is no device 'gpu:7'." in done.stderr
    assert "Traceback" not in done.stderr


def printed(
    spec: str,
    recorded: NvmlMachine,
    seen_so: TensorFlowView,
    *,
    host: Host = HOST,
    width: int = 140,
) -> str:
    found = join(parse_spec(spec), recorded, seen_so, host)
    return text_of(lambda console: print_inventory(found, console), width)


@pytest.mark.parametrize("name", ["Some CPU", "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"])
def test_a_narrow_terminal_folds_names_only(name: str) -> None:
    host = dataclasses.replace(HOST, name=name)
    text = printed("cpu:2", machine(), view(), host=host, width=80)
    rows = [line for line in text.splitlines() if line.startswith(" cpu:")]
    assert len(rows) == 2
    for row in rows:
        assert "8 cores   60.0 GiB / 64.0 GiB   yes, as a stand-in" in row


def test_names_of_gpus_stay_in_60_columns() -> None:
    text = printed("all", TWO_EQUAL, view(*TWO_EQUAL.gpus), width=60)
    table = text.split("Used with")[0].splitlines()[3:]
    first = next(number for number, line in enumerate(table) if line.startswith(" gpu:0 "))
    second = next(number for number, line in enumerate(table) if line.startswith(" gpu:1 "))
    name = " ".join(line[9:].split("  ")[0].strip() for line in table[first:second])
    assert name.replace(" ", "") == TWO_EQUAL.gpus[0].name.replace(" ", "")
    assert "yes" in table[first] and "GiB" in table[first]


def test_links_of_two_kinds_are_named() -> None:
    first = NvmlLink(to_index=1, kind="nvlink", count=4)
    far = [NvmlLink(to_index=index, kind="host") for index in (2, 3)]
    recorded = machine(gpu(0, links=[first, *far]), gpu(1), gpu(2), gpu(3))
    lines = printed("all", recorded, view(*recorded.gpus)).splitlines()
    start = next(number for number, line in enumerate(lines) if "gpu:0 " in line)
    assert "nvlink x4: gpu:1" in lines[start]
    assert "host: gpu:2, gpu:3" in lines[start + 1]


def test_reason_stands_in_the_row_and_below() -> None:
    text = printed("all", ONE_LOST, view(gpu(0)))
    row = next(line for line in text.splitlines() if line.strip().startswith("nvidia:1"))
    assert "no: The GPU does not answer." in row
    assert "[DEV-108] The GPU does not answer." in text


@pytest.mark.parametrize(
    ("spec", "recorded", "says"),
    [
        (
            "all",
            EIGHT,
            (
                "TensorFlow 2.21.0 for CUDA 12.5.1, NVIDIA driver 550.54.15",
                "which supports CUDA 12.4",
                "39.0 GiB / 40.0 GiB",
                "nvlink x12: all",
                "for input pipelines",
                "Used with all: gpu:0, gpu:1",
            ),
        ),
        ("gpu:1@10GiB", TWO_EQUAL, ("no: Not in the device spec.", "yes, up to 10.0 GiB")),
        ("cpu:2", TWO_EQUAL, ("yes, as a stand-in",)),
    ],
    ids=["links", "one of two", "stand-ins"],
)
def test_what_the_table_says(spec: str, recorded: NvmlMachine, says: tuple[str, ...]) -> None:
    text = printed(spec, recorded, view(*recorded.gpus))
    assert all(words in text for words in says)
    assert text.count("yes, as a stand-in") == (2 if spec == "cpu:2" else 0)
    # What was not asked for is no problem.
    assert "DEV-113" not in text
