"""Reading the memory of another process, which may end or let go of it meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.workers.wire import PeerMemory, Window, WindowAddress, segments_of

# Offers numbers in exchange 5; a line of its standard input closes the window.
OTHER = """
import json, sys
from dataclasses import astuple
import numpy as np
from evener.workers.wire import Window, segments_of
window, numbers = Window(), np.arange(100_000, dtype=np.int32)
window.open(5)
print(json.dumps([astuple(window.address), segments_of([memoryview(numbers)])]), flush=True)
sys.stdin.readline()
window.close()
print("closed", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", OTHER]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True) as process:
        yield process
        process.kill()


def test_arrays_of_another_process(other: subprocess.Popen[str]) -> None:
    address, segments = json.loads(other.stdout.readline())
    memory = PeerMemory(WindowAddress(*address))
    found = np.empty(100_000, np.int32)
    views = [memoryview(found[:30]).cast("B"), memoryview(found[30:]).cast("B")]
    assert memory.is_readable()
    memory.read(5, segments, views)
    assert np.array_equal(found, np.arange(100_000))
    with pytest.raises(ConnectionError, match="has left the exchange"):
        memory.read(6, segments, views)
    print(file=other.stdin, flush=True)
    assert other.stdout.readline() == "closed\n"
    with pytest.raises(ConnectionError, match="has left the exchange"):
        memory.read(5, segments, views)
    other.kill()
    other.wait()
    with pytest.raises(ConnectionError, match="No such process"):
        memory.read(5, segments, views)
    assert not memory.is_readable()


def test_a_window_of_another_machine_is_not_readable() -> None:
    window = Window()
    process, address, token = astuple(window.address)
    assert PeerMemory(WindowAddress(process, address, token)).is_readable()
    assert not PeerMemory(WindowAddress(process, address, token + 1)).is_readable()
    assert not PeerMemory(WindowAddress(process, 0, token)).is_readable()


@given(
    sizes=st.lists(st.integers(0, 50), max_size=40),
    cuts=st.lists(st.integers(0, 2000), max_size=40),
)
def test_segments_and_buffers_of_unlike_sizes(sizes: list[int], cuts: list[int]) -> None:
    window = Window()
    window.open(1)
    sent = [np.full(size, k, np.uint8) for k, size in enumerate(sizes)]
    expected = np.concatenate([np.empty(0, np.uint8), *sent])
    found = np.zeros_like(expected)
    parts = np.split(found, sorted(cut for cut in cuts if cut <= found.size))
    segments = segments_of([memoryview(array) for array in sent])
    PeerMemory(window.address).read(1, segments, [memoryview(part) for part in parts])
    assert np.array_equal(found, expected)


def test_many_segments() -> None:
    """More than the system takes in a call."""
    window = Window()
    window.open(1)
    sent = [np.full(3, k, np.int64) for k in range(3000)]
    found = [np.empty(3, np.int64) for _ in sent]
    segments = segments_of([memoryview(array).cast("B") for array in sent])
    into = [memoryview(array).cast("B") for array in found]
    PeerMemory(window.address).read(1, segments, into)
    assert all(np.array_equal(a, b) for a, b in zip(sent, found, strict=True))
    assert os.getpid() == window.address.process
