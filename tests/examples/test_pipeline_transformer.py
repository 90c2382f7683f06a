"""The transformer in stages, run as a person runs it, but smaller and for a shorter time."""

from __future__ import annotations

import re

import pytest

from .running import run
from .test_scripts import SMALL_TRANSFORMER, TRANSFORMER


@pytest.fixture(scope="module")
def small_run() -> tuple[int, str, str]:
    return run(TRANSFORMER, *SMALL_TRANSFORMER, "--steps", "8")


def mebibytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"KiB": 2**-10, "MiB": 1, "GiB": 2**10}[unit]


@pytest.mark.long
def test_it_fits_in_stages_alone_learns_and_agrees(small_run: tuple[int, str, str]) -> None:
    code, out, err = small_run
    assert code == 0, out + err
    assert "It does not fit, as expected: OOM when allocating tensor" in out
    assert "within the tolerance of 1e-04" in out and "NOT" not in out
    losses = re.search(r"Loss on text not trained on: (\S+) before, (\S+) after 8 steps", out)
    assert losses is not None and float(losses[2]) < float(losses[1]) - 0.5
    words = " ".join(out.split())
    assert "pydoc_data.topics" in words and "licence PSF-2.0" in words
    # Without a terminal, it is plain and quiet.
    assert err == ""
    assert "\x1b" not in out
    assert len(re.findall(r"^epoch 1/1 .* samples/s", out, re.MULTILINE)) == 2


@pytest.mark.long
def test_every_device_owns_its_stage_and_keeps_its_cap(small_run: tuple[int, str, str]) -> None:
    _, out, _ = small_run
    rows = re.findall(r"^ (cpu:\d) +(\S.*?)  +([\d.]+ .iB) +([\d.]+ .iB)", out, re.MULTILINE)
    assert [(device, layers) for device, layers, _, _ in rows] == [
        ("cpu:0", "embedding, block_0"),
        ("cpu:1", "block_1"),
        ("cpu:2", "block_2, norm, head"),
    ]
    owned = [mebibytes(cells[2]) for cells in rows]
    # The stage in the middle has one block: weights, and Adam's two numbers for each.
    block = 3 * 4 * (12 * 128**2 + 9 * 128) / 2**20
    assert owned[1] == pytest.approx(block, abs=0.05)
    assert min(owned) == owned[1] and max(owned) < mebibytes(rows[0][3])


@pytest.mark.long
def test_the_memory_of_all_is_measured_against_the_cap(small_run: tuple[int, str, str]) -> None:
    _, out, _ = small_run
    together = re.search(r"all of them together: ([\d.]+ .iB) of ([\d.]+ .iB)\.", out)
    cap = re.search(r"1\. One device of ([\d.]+ .iB)", out)
    alone = re.search(r"One device used up to ([\d.]+ .iB)\.", out)
    assert together is not None and cap is not None and alone is not None
    assert mebibytes(together[2]) == 3 * mebibytes(cap[1])
    assert 0 < mebibytes(together[1]) <= mebibytes(together[2])
    assert mebibytes(alone[1]) > 1.5 * mebibytes(cap[1])


@pytest.mark.long
def test_if_one_device_is_enough_it_says_so_and_fails() -> None:
    code, out, _ = run(TRANSFORMER, *SMALL_TRANSFORMER, "--cap", "2GiB")
    assert code == 1
    assert "It does NOT need stages" in out and "2. In stages" not in out
