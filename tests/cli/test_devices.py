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
from evener.devices.inventories import join, print_inventory
from evener.devices.machine import Host, NvmlLink, NvmlMachine, TensorFlowView
from evener.devices.spec import parse_spec
from unit.devices.machines import EIGHT, HOST, ONE_LOST, TWO_EQUAL, gpu, machine, view

SOURCE = Path(evener.__file__).parents[1]
HEAVY = {"tensorflow", "keras", "numpy", "rich", "pynvml"}


def run(
    *words: str, env: Mapping[str, str | None] | None = None, python: tuple[str, ...] = ()
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
        [sys.executable, *python, "-m", "evener", *words],
        env={name: value for name, value in merged.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["devices", "--help"], []])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    done = run(*words, python=("-X", "importtime"))
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "evener.cli" in imported
    assert not HEAVY & {name.partition(".")[0] for name in imported}


def test_help_lists_the_commands() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "devices" in done.stdout
    assert done.stderr == ""


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"evener {evener.__version__}\n")


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


@pytest.mark.parametrize(
    ("words", "env", "says"),
    [
        (["--devices", "gpu0"], {}, "[DEV-002]"),
        ([], {"EVENER_DEVICES": "cpu:00"}, "[DEV-003] EVENER_DEVICES='cpu:00'"),
        # The argument comes before the environment.
        (
            ["--devices", "gpu:7"],
            {"EVENER_DEVICES": "gpu0"},
            "[DEV-010] There is no device 'gpu:7'.",
        ),
        (["--device", "all"], {}, "No such option"),
        (["more"], {}, "unexpected extra argument"),
    ],
)
def test_wrong_usage_ends_with_2(words: list[str], env: dict[str, str], says: str) -> None:
    done = run("devices", *words, env=env)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_spec_need_not_wait_for_tensorflow() -> None:
    done = run("devices", "--devices", "gpu0", python=("-X", "importtime"))
    assert done.returncode == 2
    assert "tensorflow" not in {
        line.rpartition("|")[2].strip() for line in done.stderr.splitlines()
    }


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
