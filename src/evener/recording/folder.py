"""Folder of a record, while it is written: each line is whole and on the disk's way at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from evener.errors import RunError
from evener.recording.format import EVENTS, FULL, LOSSES, METRICS, MOST_BYTES, RECORD, STEPS


class RecordFolder:
    """Folder that a run writes.

    A full disk ends the record, not the run: `problem` has the reason then.

    Args:
        path: Folder, made if it is not there.

    Attributes:
        path: Folder.
        problem: Reason why nothing is written any more; empty if all is well.

    Raises:
        RunError: RUN-100 if the folder holds a record already; RUN-101 if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.problem = ""
        self._lock = threading.Lock()
        self._files: dict[str, IO[str]] = {}
        self._sizes: dict[str, int] = {}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if (self.path / RECORD).exists():
                raise _holds_a_record(path)
            for name in (EVENTS, METRICS, LOSSES, STEPS):
                # Exclusive: another run may have come first.
                self._files[name] = (self.path / name).open("x", encoding="utf-8")
                self._sizes[name] = 0
        except FileExistsError as error:
            self.close()
            if self.path.is_dir():
                raise _holds_a_record(path) from None
            raise _cannot_be_written(path, error) from error
        except OSError as error:
            self.close()
            raise _cannot_be_written(path, error) from error

    def write_record(self, fields: Mapping[str, Any]) -> None:
        """Write the description of the run; a reader sees all of it or none."""
        beside = self.path / f"{RECORD}.part"
        try:
            beside.write_text(json.dumps(fields, indent=1), encoding="utf-8")
            beside.replace(self.path / RECORD)
        except OSError as error:
            raise _cannot_be_written(self.path, error) from error

    def add(self, name: str, line: Mapping[str, Any]) -> None:
        """Add a line to one of the files, unless that is full.

        Args:
            name: Name of the file.
            line: Fields of the line.
        """
        with self._lock:
            file = self._files.get(name)
            if file is None or self.problem:
                return
            text = json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n"
            is_full = self._sizes[name] + len(text) > MOST_BYTES[name]
            try:
                file.write(json.dumps(FULL) + "\n" if is_full else text)
                file.flush()
            except OSError as error:
                self.problem = error.strerror or str(error)
                return
            self._sizes[name] += len(text)
            if is_full:
                self._files.pop(name).close()

    def close(self) -> None:
        """Close the files. Safe to call again."""
        with self._lock:
            while self._files:
                _, file = self._files.popitem()
                try:
                    file.close()
                except OSError as error:
                    self.problem = self.problem or error.strerror or str(error)


def _holds_a_record(path: Path) -> RunError:
    return RunError(
        "RUN-100",
        f"{path} holds the record of a run already.",
        why="A record is never overwritten.",
        fix="Give another folder, or remove this one.",
    )


def _cannot_be_written(path: Path, error: OSError) -> RunError:
    return RunError(
        "RUN-101",
        f"The record of the run cannot be written to {path}.",
        why=f"{error.strerror or error}.",
        fix="Give a folder that this user can write to, on a disk with space.",
    )
