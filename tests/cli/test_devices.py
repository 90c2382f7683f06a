from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

import evener
from cli.forked import Run
from evener.devices.inventories import join, print_inventory
from evener.devices.machine import Host, NvmlLink, NvmlMachine, TensorFlowView
from evener.devices.spec import parse_spec
from unit.devices.machines import EIGHT, HOST, ONE_LOST, TWO_EQUAL, gpu, machine, view

SOURCE = Path(evener.__file__).parents[1]


def run(
    *words: str, env: Mapping[str, str | None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line as a person would: no log level set, no GPU shown."""
    merged: dict[str, str | None] = {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": None,
        "EVENER_DEVICES": None,
        **(env or {}),
    }
    return subprocess.run(
        [sys.executable, "-m", "evener", *words],
        env={name: value for name, value in merged.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_help_lists_the_commands(command: Run) -> None:
    done = command("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "devices" in done.stdout


def test_version(command: Run) -> None:
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"evener {evener.__version__}\n")


def test_without_a_command_it_is_help(command: Run) -> None:
    done = command()
    assert "Usage: evener" in done.stdout + done.stderr


def test_table() -> None:
    done = run("devices")
    assert done.returncode == 0
    assert done.stderr == "", "TensorFlow's log stays away"
    assert "cpu:0" in done.stdout
    assert "Used with all: cpu:0" in done.stdout


@pytest.mark.long
def test_environment_means_the_same_and_json_is_all() -> None:
    done = run("devices", "--json", env={"EVENER_DEVICES": "cpu:3"})
    assert done.returncode == 0
    said = json.loads(done.stdout)
    assert said["spec"] == "cpu:3"
    used = [device["name"] for device in said["devices"] if device["use"] == "compute"]
    assert used == ["cpu:0", "cpu:1", "cpu:2"]


def test_the_argument_comes_before_the_environment() -> None:
    done = run("devices", "--devices", "gpu:7", env={"EVENER_DEVICES": "gpu0"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "[DEV-010] There is no device 'gpu:7'." in done.stderr
    assert "Traceback" not in done.stderr


def run_code(
    code: str, env: Mapping[str, str | None] | None = None
) -> subprocess.CompletedProcess[str]:
    merged: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(SOURCE), **(env or {})}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={name: value for name, value in merged.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("level", "ending", "says"),
    [
        (None, "", "after"),
        (None, "raise OSError", "log"),
        ("0", "", "log"),
        # An error of evener says enough.
        (None, "raise EvenerError('DEV-999', 'what', why='why', fix='fix')", "Traceback"),
        (None, "warn('DEV-999', 'Of evener.', why='why', fix='fix')", "Warning: [DEV-999]"),
    ],
)
def test_log_of_the_import_is_kept_back(level: str | None, ending: str, says: str) -> None:
    code = f"""
import os, warnings
import evener.cli
from evener.cli.conventions import quiet_tensorflow
from evener.errors import EvenerError, warn
warnings.showwarning = evener.cli._show_warning
with quiet_tensorflow(os.environ):
    os.write(2, b"log ")
    {ending}
os.write(2, b"after")
print(os.environ["TF_CPP_MIN_LOG_LEVEL"], end="")
"""
    done = run_code(code, {"TF_CPP_MIN_LOG_LEVEL": level})
    assert done.stderr.startswith(says)
    assert done.stdout == ("" if "raise" in ending else level or "3")


def test_failure_ends_with_1_and_warnings_take_one_line() -> None:
    code = """
import sys
import evener.cli
from evener.errors import EngineError, warn

def fail() -> None:
    warn("DEV-999", "Something.", why="of that.", fix="nothing.")
    raise EngineError("ENG-999", "Broken.", why="it is.", fix="mend it.")

evener.cli.app.command()(fail)
sys.argv = ["evener", "fail"]
evener.cli.main()
"""
    done = run_code(code)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "Warning: [DEV-999] Something. Why: of that. Fix: nothing.",
        "[ENG-999] Broken.",
        "Why: it is.",
        "Fix: mend it.",
    ]


class TestTable:
    """On recorded machines, in this process."""

    def printed(
        self,
        spec: str,
        recorded: NvmlMachine,
        seen_so: TensorFlowView,
        *,
        host: Host = HOST,
        width: int = 140,
    ) -> str:
        out = io.StringIO()
        found = join(parse_spec(spec), recorded, seen_so, host)
        print_inventory(found, Console(file=out, width=width))
        return out.getvalue()

    @pytest.mark.parametrize("name", ["Some CPU", "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"])
    def test_a_narrow_terminal_folds_names_only(self, name: str) -> None:
        host = dataclasses.replace(HOST, name=name)
        text = self.printed("cpu:2", machine(), view(), host=host, width=80)
        rows = [line for line in text.splitlines() if line.startswith(" cpu:")]
        assert len(rows) == 2
        for row in rows:
            assert "8 cores   60.0 GiB / 64.0 GiB   yes, as a stand-in" in row

    def test_names_of_gpus_stay_in_60_columns(self) -> None:
        text = self.printed("all", TWO_EQUAL, view(*TWO_EQUAL.gpus), width=60)
        table = text.split("Used with")[0].splitlines()[3:]
        first = next(number for number, line in enumerate(table) if line.startswith(" gpu:0 "))
        second = next(number for number, line in enumerate(table) if line.startswith(" gpu:1 "))
        name = " ".join(line[9:].split("  ")[0].strip() for line in table[first:second])
        assert name.replace(" ", "") == TWO_EQUAL.gpus[0].name.replace(" ", "")
        assert "yes" in table[first] and "GiB" in table[first]

    def test_gpus_with_links(self) -> None:
        text = self.printed("all", EIGHT, view(*EIGHT.gpus))
        assert "TensorFlow 2.21.0 for CUDA 12.5.1, NVIDIA driver 550.54.15" in text
        assert "which supports CUDA 12.4" in text
        assert "39.0 GiB / 40.0 GiB" in text
        assert "nvlink x12: all" in text
        assert "for input pipelines" in text
        assert "Used with all: gpu:0, gpu:1" in text

    def test_links_of_two_kinds_are_named(self) -> None:
        first = NvmlLink(to_index=1, kind="nvlink", count=4)
        far = [NvmlLink(to_index=index, kind="host") for index in (2, 3)]
        recorded = machine(gpu(0, links=[first, *far]), gpu(1), gpu(2), gpu(3))
        lines = self.printed("all", recorded, view(*recorded.gpus)).splitlines()
        start = next(number for number, line in enumerate(lines) if "gpu:0 " in line)
        assert "nvlink x4: gpu:1" in lines[start]
        assert "host: gpu:2, gpu:3" in lines[start + 1]

    def test_reason_stands_in_the_row_and_below(self) -> None:
        text = self.printed("all", ONE_LOST, view(gpu(0)))
        row = next(line for line in text.splitlines() if line.strip().startswith("nvidia:1"))
        assert "no: The GPU does not answer." in row
        assert "[DEV-108] The GPU does not answer." in text

    def test_what_was_not_asked_for_is_no_problem(self) -> None:
        text = self.printed("gpu:1@10GiB", TWO_EQUAL, view(*TWO_EQUAL.gpus))
        assert "no: Not in the device spec." in text
        assert "yes, up to 10.0 GiB" in text
        assert "DEV-113" not in text

    def test_stand_ins(self) -> None:
        text = self.printed("cpu:2", TWO_EQUAL, view(*TWO_EQUAL.gpus))
        assert text.count("yes, as a stand-in") == 2
