from __future__ import annotations

import os
from pathlib import Path

import pytest

from evener.errors import RunError
from evener.run.first_step import Output
from evener.run.session import WorkerLog


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (b"", ""),
        (b"one\ntwo\n", "one\ntwo"),
        (b"\x1b[1mInput 0\x1b[0m of layer\n", "Input 0 of layer"),
        # A progress bar that is written again and again.
        (b"\r1/2 ...\r2/2 done\nnext\r\nlast", "2/2 done\nnext\nlast"),
        (b"\xff of no alphabet", "\ufffd of no alphabet"),
    ],
)
def test_the_end_of_an_output_is_text_without_colours(written: bytes, kept: str) -> None:
    output = Output()
    os.write(output.sink, written)
    output.start()
    output.wait(10)
    assert output.tail.rstrip("\n") == kept
    assert output.num_bytes == len(written)


def test_only_the_end_is_kept() -> None:
    output = Output(kept_bytes=4)
    os.write(output.sink, b"0123456789")
    output.start()
    output.wait(10)
    assert (output.tail, output.num_bytes) == ("6789", 10)


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "log"
    with pytest.raises(RunError, match="RUN-014") as caught:
        WorkerLog(path)
    assert str(path) in str(caught.value)
