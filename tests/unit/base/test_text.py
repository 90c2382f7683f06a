from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evener.base.text import format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0),
        ("17", 17),
        ("17B", 17),
        ("10GiB", 10 * 2**30),
        ("10gib", 10 * 2**30),
        ("512 MB", 512 * 10**6),
        ("  1.5 KiB ", 1536),
        ("2TB", 2 * 10**12),
        ("0.3B", 0),
    ],
)
def test_a_size_is_read(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1GiB", "10 Gi", "10XB", "1e3", "1.GiB", ".5GiB", "1GiB 2", "inf", "10G"]
)
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size; write for example 10GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (-2048, "-2.0 KiB"),
        (11.9 * 2**30, "11.9 GiB"),
        (3 * 2**40, "3.0 TiB"),
        (5000 * 2**40, "5000.0 TiB"),
    ],
)
def test_bytes_are_written(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@settings(max_examples=200)
@given(st.integers(min_value=0, max_value=2**50))
def test_what_is_written_is_read_back(num_bytes: int) -> None:
    # One decimal is written, so at most 0.05 of at least 1.0 is lost.
    assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=0.05)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 µs"),
        (25e-6, "25 µs"),
        (1e-3, "1.0 ms"),
        (0.25, "250.0 ms"),
        (1.0, "1.0 s"),
        (59.9, "59.9 s"),
        (60.0, "1 min 0 s"),
        (119.7, "2 min 0 s"),
        (3600.0, "1 h 0 min"),
        (7384.0, "2 h 3 min"),
        # A value just below a unit keeps its unit.
        (0.9999e-3, "1000 µs"),
        (0.99999, "1000.0 ms"),
        (59.99, "60.0 s"),
    ],
)
def test_seconds_are_written(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
