from __future__ import annotations

import json
from pathlib import Path

import pytest

from evener.errors import RunError
from evener.recording import reading as names
from evener.recording.record import RecordFolder


def test_a_line_is_there_when_it_was_added(tmp_path: Path) -> None:
    folder = RecordFolder(tmp_path / "a" / "run")
    folder.add(names.EVENTS, {"text": "é"})
    assert json.loads((folder.path / names.EVENTS).read_text()) == {"text": "é"}
    folder.close()
    folder.close()


def test_a_full_file_says_so_and_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(names.MOST_BYTES, names.STEPS, 100)
    folder = RecordFolder(tmp_path)
    for number in range(50):
        folder.add(names.STEPS, {"step": number})
    lines = (tmp_path / names.STEPS).read_text().splitlines()
    assert json.loads(lines[-1]) == names.FULL
    assert len(lines) < 12
    folder.close()


def test_a_record_is_never_overwritten(tmp_path: Path) -> None:
    folder = RecordFolder(tmp_path)
    folder.write_record({"version": 1})
    folder.close()
    with pytest.raises(RunError, match="RUN-100"):
        RecordFolder(tmp_path)


def test_of_two_runs_that_begin_at_once_one_has_the_folder(tmp_path: Path) -> None:
    RecordFolder(tmp_path).close()
    with pytest.raises(RunError, match="RUN-100"):
        RecordFolder(tmp_path)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunError, match="RUN-101"):
            RecordFolder(path)


def test_a_full_disk_ends_the_record_and_not_the_run(tmp_path: Path) -> None:
    class FullDisk:
        def write(self, text: str) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            pass

    folder = RecordFolder(tmp_path)
    folder._files[names.EVENTS].close()
    folder._files[names.EVENTS] = FullDisk()  # type: ignore[assignment]
    folder.add(names.EVENTS, {})
    folder.add(names.METRICS, {})
    assert folder.problem == "No space left on device"
    folder.close()
