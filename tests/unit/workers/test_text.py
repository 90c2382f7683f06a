"""Text files of several workers, one of which dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evener.workers.files import Claim, SharedText
from unit.workers.members import Alone, Job


def opened(job: Job, path: Path, before: str = "") -> list[Any]:
    """Return the file as both workers have it."""
    paths = dict.fromkeys(job.members, str(path))
    members = [job.worker(index) for index in job.members]
    return [
        SharedText(Alone(member), str(path), Claim(member, str(path), paths), before)  # pyright: ignore[reportArgumentType]
        for member in members
    ]


def test_the_chief_writes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for file in opened(Job(), path):
        file.write("a\n")
        file.flush()
    assert path.read_text() == "a\n"


def test_the_next_chief_has_each_line_once(tmp_path: Path) -> None:
    """The first has written a line that the second has not come to, or the other way round."""
    for first_lines, second_lines in ((2, 1), (1, 2), (0, 2)):
        job, path = Job(), tmp_path / f"{first_lines}{second_lines}"
        first, second = opened(job, path, before="old\n")
        for file, count in ((first, first_lines), (second, second_lines)):
            for line in range(count):
                file.write(f"{line}\n")
            file.flush()
        job.lose(0)
        for line in range(second_lines, 3):
            second.write(f"{line}\n")
        second.close()
        assert path.read_text() == "old\n0\n1\n2\n"


def test_a_chief_that_dies_before_its_last_line(tmp_path: Path) -> None:
    job, path = Job(), tmp_path / "log"
    first, second = opened(job, path)
    first.write("0\n")
    first.flush()
    second.write("0\n")
    second.write("1\n")
    job.lose(0)
    second.close()
    assert path.read_text() == "0\n1\n"


def test_a_replacement_does_not_write(tmp_path: Path) -> None:
    job, path = Job(), tmp_path / "log"
    member = job.worker(0)
    member.is_late = True
    file = SharedText(Alone(member), str(path), Claim(member, str(path), {0: str(path)}), "")  # pyright: ignore[reportArgumentType]
    file.write("0\n")
    assert not path.exists()
