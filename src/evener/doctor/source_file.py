"""A file of a program that is edited: its bytes stay as they are outside of the edits."""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import tempfile
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from evener.doctor.edit import Edit, Position
from evener.errors import RunError

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
_LINE_END = re.compile(r"\r\n|\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """The text of a Python file, with its encoding and line ends.

    Args:
        path: Absolute path.
        text: Text with the line ends of the file.
        encoding: Encoding that the file declares.
    """

    path: str
    text: str
    encoding: str

    @property
    def content(self) -> bytes:
        """Bytes of the file."""
        return self.text.encode(self.encoding)


def source_file(path: str, content: bytes) -> SourceFile | None:
    """Return the text of a file; None if its bytes cannot be given back unchanged.

    Args:
        path: Absolute path.
        content: Bytes of a Python file.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        source = SourceFile(path=path, text=content.decode(encoding), encoding=encoding)
        return source if source.content == content else None
    except (SyntaxError, UnicodeError, LookupError):
        return None


def edited(source: SourceFile, edits: Iterable[Edit]) -> SourceFile | None:
    """Return a file with edits made; None if one does not fit.

    Args:
        source: The file.
        edits: Edits of the file that do not overlap.
    """
    lines = [match.group() for match in _LINE.finditer(source.text)]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    text = source.text
    for edit in sorted(set(edits), key=lambda edit: (edit.start, edit.end), reverse=True):
        start, end = _offset(lines, starts, edit.start), _offset(lines, starts, edit.end)
        if start is None or end is None or _LINE_END.sub("\n", text[start:end]) != edit.old:
            return None
        text = text[:start] + edit.new.replace("\n", _line_end(lines, edit.start)) + text[end:]
    try:
        text.encode(source.encoding)
    except UnicodeError:
        return None
    return SourceFile(path=source.path, text=text, encoding=source.encoding)


def _offset(lines: list[str], starts: list[int], position: Position) -> int | None:
    """Return the index of a position in the text."""
    line, column = position
    if not 1 <= line <= len(lines):
        return None
    try:
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())
    except UnicodeError:
        return None


def _line_end(lines: list[str], position: Position) -> str:
    """Return the line end at a position; that of the first line if there is none."""
    for line in (lines[position[0] - 1], lines[0]):
        ending = line[len(line.rstrip("\r\n")) :]
        if ending:
            return ending
    return "\n"


def write_all(contents: dict[str, tuple[bytes, bytes]], folder: Path) -> None:
    """Replace files, each atomically; none of them if one must not or cannot be written.

    Args:
        contents: The bytes that were read and the bytes to write, by absolute path.
        folder: Resolved folder outside of which nothing is written.

    Raises:
        RunError: RUN-015 if a file has changed since it was read; RUN-016 if it is outside of the
            folder or cannot be written.
    """
    temporaries: list[tuple[Path, Path, bytes]] = []
    try:
        for name, (before, after) in contents.items():
            path = Path(name).resolve()
            _check(path, before, folder)
            temporaries.append((_temporary(path, after), path, before))
        for temporary, path, before in temporaries:
            # Again, as near to the replacement as possible.
            _check(path, before, folder)
            temporary.replace(path)
    except OSError as error:
        raise _cannot(error.filename or folder, error.strerror or str(error)) from error
    finally:
        for temporary, _, _ in temporaries:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def _check(path: Path, before: bytes, folder: Path) -> None:
    if not path.is_relative_to(folder):
        raise _cannot(path, f"it is outside of {folder}, the folder of the script")
    if not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(
        path, os.W_OK
    ):
        raise _cannot(path, "it is read-only")
    if path.read_bytes() != before:
        raise RunError(
            "RUN-015",
            f"{path} has changed since it was read.",
            why="The fixes are for the text that was read. This file was not written.",
            fix="Run `evener doctor --fix --write` again.",
        )


def _temporary(path: Path, content: bytes) -> Path:
    """Write a file beside another, with its permissions."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        status = path.stat()
        if hasattr(os, "chown"):
            with contextlib.suppress(PermissionError):
                os.chown(name, status.st_uid, status.st_gid)
        Path(name).chmod(stat.S_IMODE(status.st_mode))
    except BaseException:
        Path(name).unlink()
        raise
    return Path(name)


def _cannot(path: object, reason: str) -> RunError:
    return RunError(
        "RUN-016",
        f"Fixes cannot be written to {path}.",
        why=f"{reason[:1].upper()}{reason[1:]}.",
        fix="Make the file writable, or apply the output of `evener doctor --fix` by `patch -p0`.",
    )
