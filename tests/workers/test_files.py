"""Files that several workers write, as processes: each once, whichever of them dies."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import tensorflow as tf

PROGRAM = Path(__file__).parent / "writing.py"
EPOCHS = 4


def launched(folder: Path, moment: str, *, num_workers: int = 2) -> tuple[str, dict[str, str]]:
    words = ["-m", "evener", "launch", "--workers", str(num_workers), "--devices", "cpu:1"]
    logs = folder.parent / f"{folder.name}-logs"
    done = subprocess.run(
        [sys.executable, *words, "--logs", logs, PROGRAM, folder, str(EPOCHS), moment],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr, {path.name: path.read_text() for path in logs.glob("*")}


def files_in(folder: Path) -> list[str]:
    """Return the files below a folder, without what differs between event files."""
    found = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return sorted(re.sub(r"tfevents.*", "tfevents", str(path)) for path in found)


def scalars_in(folder: Path) -> Counter[tuple[str, int]]:
    """Return how often each scalar is there, by tag and step."""
    return Counter(
        (value.tag, event.step)
        for path in folder.rglob("*tfevents*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    )


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "written"
    words = [sys.executable, PROGRAM, folder, str(EPOCHS), "never"]
    subprocess.run(words, check=True, timeout=300, capture_output=True)
    return folder


def hold(folder: Path, expected: Path) -> None:
    assert set(files_in(folder)) == set(files_in(expected))
    rows, expected_rows = ((f / "log.csv").read_text().split() for f in (folder, expected))
    assert len(rows) == len(expected_rows) == EPOCHS + 1
    for row, expected_row in zip(rows[1:], expected_rows[1:], strict=True):
        numbers, expected_numbers = row.split(",")[:2], expected_row.split(",")[:2]
        assert [*map(float, numbers)] == pytest.approx([*map(float, expected_numbers)], rel=1e-5)
    found = scalars_in(folder)
    assert found == scalars_in(expected)
    assert set(found.values()) == {1}


@pytest.mark.long
def test_every_file_is_written_once(on_one_device: Path, tmp_path: Path) -> None:
    output, logs = launched(tmp_path / "written", "never")
    hold(tmp_path / "written", on_one_device)
    assert "FileNotFoundError" in output
    assert "use seed" not in output
    ends = [text.splitlines()[-1] for text in logs.values()]
    # Also what NumPy has drawn without a seed.
    assert len(ends) == 2 and ends[0] == ends[1] and ends[0].startswith("drawn")
    events = [*(tmp_path / "written" / "logs").rglob("*tfevents*")]
    assert len(events) == 1


@pytest.mark.long
@pytest.mark.parametrize("moment", ["write", "step"])
def test_the_chief_dies(on_one_device: Path, tmp_path: Path, moment: str) -> None:
    launched(tmp_path / "written", moment, num_workers=3)
    assert (tmp_path / "killed").exists()
    hold(tmp_path / "written", on_one_device)


@pytest.mark.long
def test_a_seed_for_all(tmp_path: Path) -> None:
    """The seed that is told gives the same training to a program that sets it."""
    output, logs = launched(tmp_path / "written", "unseeded")
    [seed] = re.findall(r"use seed (\d+)", output)
    ends = {text.splitlines()[-1] for text in logs.values()}
    assert len(ends) == 1
    source = PROGRAM.read_text().replace("set_random_seed(1)", f"set_random_seed({seed})")
    program = tmp_path / "seeded.py"
    program.write_text(source)
    words = [sys.executable, program, tmp_path / "seeded", str(EPOCHS), "never"]
    done = subprocess.run(words, check=True, timeout=300, capture_output=True, text=True)
    expected = [float(n) for n in re.findall(r"-?\d\.\d+", done.stdout.splitlines()[-1])[1:]]
    found = [float(n) for n in re.findall(r"-?\d\.\d+", ends.pop())[1:]]
    assert found == pytest.approx(expected, rel=1e-4)
