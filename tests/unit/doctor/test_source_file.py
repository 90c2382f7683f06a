"""Edited files keep their bytes outside of the edits, and are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.doctor import source_file as files
from evener.doctor.edit import Edit
from evener.doctor.source_file import edited, source_file, write_all
from evener.errors import RunError

PATH = "/train.py"


def edit(line: int, start: int, end: int, old: str, new: str) -> Edit:
    return Edit(path=PATH, start=(line, start), end=(line, end), old=old, new=new)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"a\n\tbad = '\"'  # c\n", b"a\n\tgood = '\"'  # c\n"),
        (b"a\r\n\tbad \r\n\r\n", b"a\r\n\tgood \r\n\r\n"),
        (b"a\r\tbad\r", b"a\r\tgood\r"),
        (b"a\r\n\tbad\nmixed", b"a\r\n\tgood\nmixed"),
        (b"\xef\xbb\xbfa\n\tbad", b"\xef\xbb\xbfa\n\tgood"),
        (b"# coding: latin-1\n\tbad \xe9\n", b"# coding: latin-1\n\tgood \xe9\n"),
        (b"a\x0c\x0b\x1c\n\tbad\n", b"a\x0c\x0b\x1c\n\tgood\n"),
        ("'\u2028\x85'\n\tbad".encode(), "'\u2028\x85'\n\tgood".encode()),
    ],
)
def test_the_rest_of_a_file_stays(content: bytes, wanted: bytes) -> None:
    source = source_file(PATH, content)
    assert source is not None and source.content == content
    result = edited(source, [edit(2, 1, 4, "bad", "good")])
    assert result is not None and result.content == wanted


def test_a_new_line_ends_as_the_file_does() -> None:
    source = source_file(PATH, b"a\r\nb\r\n")
    assert source is not None
    result = edited(source, [edit(2, 0, 0, "", "new\n")])
    assert result is not None and result.content == b"a\r\nnew\r\nb\r\n"


def test_columns_are_bytes() -> None:
    source = source_file(PATH, "é = 1; bad\n".encode())
    assert source is not None
    result = edited(source, [edit(1, 8, 11, "bad", "ü")])
    assert result is not None and result.content == "é = 1; ü\n".encode()


@pytest.mark.parametrize(
    "wrong",
    [
        edit(2, 0, 3, "bat", "x"),  # another text
        edit(9, 0, 0, "", "x"),  # no such line
        edit(2, 0, 3, "bad", "\u4e2d"),  # no character of the encoding
        edit(2, 5, 5, "", "x"),  # within a character
    ],
)
def test_an_edit_that_does_not_fit_is_not_made(wrong: Edit) -> None:
    source = source_file(PATH, b"# coding: latin-1\nbad \xe9\n")
    assert source is not None
    assert edited(source, [wrong]) is None


@pytest.mark.parametrize("content", [b"\xff\xfe", b"# coding: gone\n", b"# coding: utf-8\n\xe9"])
def test_bytes_that_cannot_be_given_back_are_not_edited(content: bytes) -> None:
    assert source_file(PATH, content) is None


@given(st.lists(st.text(st.sampled_from("ab é\t\x0c\u2028"), max_size=6), min_size=1), st.data())
def test_edits_change_their_spans_alone(lines: list[str], data: st.DataObject) -> None:
    ending = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    chosen = data.draw(st.sets(st.integers(0, len(lines) - 1)))
    edits, wanted = [], list(lines)
    for index in chosen:
        line = lines[index]
        start = data.draw(st.integers(0, len(line)))
        end = data.draw(st.integers(start, len(line)))
        span = len(line[:start].encode()), len(line[:end].encode())
        edits.append(edit(index + 1, *span, line[start:end], "new"))
        wanted[index] = line[:start] + "new" + line[end:]
    source = source_file(PATH, ending.join(lines).encode())
    assert source is not None
    result = edited(source, edits)
    assert result is not None and result.content == ending.join(wanted).encode()


# ---- writing


def test_files_are_replaced_with_their_permissions(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"old")
    path.chmod(0o751)
    write_all({str(path): (b"old", b"new")}, tmp_path.resolve())
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o751
    assert list(tmp_path.iterdir()) == [path]


def refused(contents: dict[Path, tuple[bytes, bytes]], folder: Path, code: str) -> RunError:
    with pytest.raises(RunError, match=code) as caught:
        write_all({str(path): both for path, both in contents.items()}, folder.resolve())
    return caught.value


def test_no_file_is_written_if_one_has_changed(tmp_path: Path) -> None:
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    first.write_bytes(b"old")
    second.write_bytes(b"other")
    error = refused({first: (b"old", b"new"), second: (b"old", b"new")}, tmp_path, "RUN-015")
    assert str(second) in error.what
    assert (first.read_bytes(), second.read_bytes()) == (b"old", b"other")
    assert sorted(tmp_path.iterdir()) == [first, second]


def test_a_read_only_file_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"old")
    path.chmod(0o444)
    assert "read-only" in refused({path: (b"old", b"new")}, tmp_path, "RUN-016").why
    assert path.read_bytes() == b"old"


def test_a_file_that_is_elsewhere_is_not_written(tmp_path: Path) -> None:
    library, project = tmp_path / "library.py", tmp_path / "project"
    library.write_bytes(b"old")
    project.mkdir()
    (project / "a.py").symlink_to(library)
    assert "outside" in refused({project / "a.py": (b"old", b"new")}, project, "RUN-016").why
    assert library.read_bytes() == b"old"


def test_a_disk_that_is_full_leaves_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.py"
    path.write_bytes(b"old")
    monkeypatch.setattr(files.os, "fsync", fails)
    assert "No space" in refused({path: (b"old", b"new")}, tmp_path, "RUN-016").why
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
