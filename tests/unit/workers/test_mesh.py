"""Exchanges over a mesh, against NumPy: arrays as bytes, memory that is used again or read."""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from itertools import chain
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from evener.errors import RunError
from evener.workers.mesh import (
    MERGES,
    Buffers,
    Mesh,
    PeerLost,
    PeerMemory,
    Window,
    WindowAddress,
    pack,
    segments_of,
    unpack,
)

NUMBERS = (np.bool_, np.int8, np.uint64, np.float16, np.float32, np.float64, np.complex128)

ARRAYS = st.sampled_from(NUMBERS).flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0, max_side=3))
)


def assert_same(expected: np.ndarray, found: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tolist() == expected.tolist() or found.tobytes() == expected.tobytes()


@given(st.lists(st.lists(ARRAYS, max_size=3), max_size=3))
def test_numbers(groups: list[list[np.ndarray]]) -> None:
    found = unpack(pack(groups))
    assert [len(group) for group in found] == [len(group) for group in groups]
    for expected, actual in zip(chain(*groups), chain(*found), strict=True):
        assert_same(expected, actual)
        assert actual.flags.writeable


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_types_that_numpy_lacks(dtype: Any) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    assert_same(array, unpack(pack([[array]]))[0][0])


@given(st.lists(st.binary(max_size=4), max_size=4))
def test_texts(texts: list[bytes]) -> None:
    array = np.empty(len(texts), object)
    array[:] = texts
    assert_same(array, unpack(pack([[array, np.arange(2)]]))[0][0])


def test_parts_of_arrays() -> None:
    array = np.arange(12).reshape(3, 4)
    for part in (array.T, array[::2, 1::2], array[::-1]):
        assert_same(part, unpack(pack([[part]]))[0][0])


def address(array: np.ndarray) -> int:
    return array.ctypes.data


@pytest.mark.parametrize("shape", [(3,), (), (200, 300)])
def test_arrays_are_aligned(shape: tuple[int, ...]) -> None:
    for dtype in (np.float32, np.int8, np.complex128):
        made = Buffers().take(shape, dtype)
        assert (made.shape, made.dtype) == (shape, np.dtype(dtype))
        assert address(made) % 64 == 0


def test_memory_is_used_again_when_nobody_has_it() -> None:
    buffers = Buffers()
    first = buffers.take([100], np.float32)
    where = address(first)
    view = first.reshape(10, 10)[2:]
    del first
    other = buffers.take([100], np.float32)
    assert address(other) != where
    del view
    assert address(buffers.take([200], np.int16)) == where


def test_memory_of_a_tensor_is_not_used_again() -> None:
    buffers = Buffers()
    addresses: list[int] = []

    def make() -> np.ndarray:
        made = buffers.take([100_000], np.float32)
        addresses.append(address(made))
        made[:] = 1.0
        return made

    @tf.function
    def step() -> tf.Tensor:
        return tf.numpy_function(make, [], tf.float32)

    tensor = step()
    ctypes.c_float.from_address(addresses[0]).value = 5.0
    assert tensor.numpy()[0] == 5.0, "TensorFlow has copied it"
    for _ in range(3):
        buffers.take([100_000], np.float32)[:] = 2.0
    assert tensor.numpy()[:2].tolist() == [5.0, 1.0]


def test_memory_that_nobody_asks_for_is_given_up() -> None:
    buffers = Buffers()
    for size in range(3000):
        buffers.take([size], np.int8)
    assert sum(map(len, buffers._kept.values())) <= 1001


# Offers numbers in exchange 5; a line of its standard input closes the window.
OTHER = """
import json, sys
import numpy as np
from evener.workers.mesh import Window, segments_of
window, numbers = Window(), np.arange(100_000, dtype=np.int32)
window.open(5)
print(json.dumps([window.address, segments_of([memoryview(numbers)])]), flush=True)
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
    process, address, token = window.address
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


TYPES = (
    np.float32,
    np.float16,
    np.float64,
    np.int32,
    np.uint64,
    np.complex64,
    np.int8,
    ml_dtypes.bfloat16,
)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = socket.create_connection(server.getsockname())
        return first, server.accept()[0]


@contextmanager
def meshes(
    count: int, patience_seconds: float = 60.0, *, reads: bool = True
) -> Iterator[list[Mesh]]:
    ends: list[dict[int, socket.socket]] = [{} for _ in range(count)]
    for a, b in itertools.combinations(range(count), 2):
        ends[a][b], ends[b][a] = tcp_pair()
    made = [Mesh(k, ends[k], patience_seconds=patience_seconds) for k in range(count)]
    try:
        if reads and patience_seconds:
            assert together(*(mesh.find_readers for mesh in made)) == [None] * count
        yield made
    finally:
        for mesh in made:
            mesh.close()


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Return what functions return, or raise, that run at the same time."""
    found: list[Any] = [None] * len(calls)

    def run(number: int) -> None:
        try:
            found[number] = calls[number]()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    return found


def on_each(made: Sequence[Mesh], call: Callable[..., Any], given: Sequence[Any]) -> list[Any]:
    """Call a function on each mesh at the same time, with what is given for it."""
    return together(
        *(functools.partial(call, mesh, each) for mesh, each in zip(made, given, strict=True))
    )


def summed(mesh: Mesh, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return mesh.reduce("sum", arrays, "sum")


def gathered(mesh: Mesh, array: np.ndarray) -> list[np.ndarray]:
    return mesh.gather("x", array)


def numbers(rng: np.random.Generator, shape: Sequence[int], dtype: Any) -> np.ndarray:
    return np.asarray(rng.integers(0, 9, size=shape)).astype(dtype)


@given(
    count=st.integers(1, 5),
    dtype=st.sampled_from(TYPES),
    merge=st.sampled_from(["sum", "prod", "max", "min"]),
    shapes=st.lists(
        st.sampled_from([(), (0,), (3,), (2, 0, 4), (70, 90), (1,)]), min_size=1, max_size=4
    ),
    seed=st.integers(0, 99),
    reads=st.booleans(),
)
def test_reduce_as_numpy_in_the_order_of_the_members(
    count: int, dtype: Any, merge: str, shapes: list[tuple[int, ...]], seed: int, reads: bool
) -> None:
    rng = np.random.default_rng(seed)
    given_ = [[numbers(rng, shape, dtype) for shape in shapes] for _ in range(count)]
    with meshes(count, reads=reads) as made:
        found = on_each(made, lambda mesh, arrays: mesh.reduce("x", arrays, merge), given_)
    for number in range(len(shapes)):
        expected = reduce(MERGES[merge], [arrays[number] for arrays in given_])
        for results in found:
            assert not isinstance(results, Exception), results
            assert results[number].dtype == np.dtype(dtype)
            assert results[number].shape == shapes[number]
            assert np.asarray(expected).tobytes() == results[number].tobytes()


@pytest.mark.parametrize("size", [3, 60_000])
def test_sums_that_overflow_are_no_warning(size: int) -> None:
    """As in TensorFlow: gradients overflow when a loss scale is found."""
    largest = np.finfo(np.float32).max
    with meshes(2) as made:
        for values in ((np.inf, -np.inf), (largest, largest)):
            arrays = [[np.full(size, value, np.float32)] for value in values]
            for [total] in on_each(made, summed, arrays):
                assert not np.isfinite(total).any()


@pytest.mark.parametrize(("count", "rounds"), [(3, 1), (9, 2)])
def test_what_everyone_is_sent_does_not_grow_with_the_square_of_the_members(
    count: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: set[str] = set()
    exchange = Mesh.exchange
    monkeypatch.setattr(
        Mesh,
        "exchange",
        lambda own, label, *rest: (labels.add(label), exchange(own, label, *rest))[1],
    )
    arrays = [np.full(3000, k, np.float64) for k in range(count)]
    with meshes(count, reads=False) as made:
        for [total] in on_each(made, summed, [[array] for array in arrays]):
            np.testing.assert_array_equal(total, sum(arrays))
    assert len(labels) == rounds


@pytest.mark.parametrize(
    ("merge", "expected"), [("all", [True, False, False]), ("any", [True, True, False])]
)
def test_reduce_of_truth(merge: str, expected: list[bool]) -> None:
    given_ = [np.array([True, True, False]), np.array([True, False, False])]
    with meshes(2) as made:
        found = on_each(made, lambda mesh, array: mesh.reduce("x", [array], merge), given_)
    assert [results[0].tolist() for results in found] == [expected] * 2


@pytest.mark.parametrize("reads", [True, False])
def test_reduce_of_parts_of_arrays(reads: bool) -> None:
    large = np.arange(40000, dtype=np.float32).reshape(200, 200)
    with meshes(3, reads=reads) as made:
        found = on_each(made, summed, [[large.T, large[::2]]] * 3)
    for transposed, rows in found:
        np.testing.assert_array_equal(transposed, 3 * large.T)
        np.testing.assert_array_equal(rows, 3 * large[::2])


@given(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5), width=st.sampled_from([0, 1, 3]))
def test_gather_of_unlike_sizes(sizes: list[int], width: int) -> None:
    given_ = [np.full([size, width], k, np.float16) for k, size in enumerate(sizes)]
    with meshes(len(sizes)) as made:
        for results in on_each(made, gathered, given_):
            assert [array.shape for array in results] == [array.shape for array in given_]
            assert all(np.array_equal(a, b) for a, b in zip(results, given_, strict=True))


@pytest.mark.parametrize("reads", [True, False])
def test_large_arrays_are_read_where_memory_is_shared(
    reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have more bytes than the system holds between two workers."""
    read_bytes = []
    read = PeerMemory.read

    def counted(memory: PeerMemory, exchange: int, segments: Any, into: Any) -> None:
        read_bytes.append(sum(count for _, count in segments))
        read(memory, exchange, segments, into)

    monkeypatch.setattr(PeerMemory, "read", counted)
    large = np.arange(1 << 22, dtype=np.float32)
    with meshes(2, reads=reads) as made:
        on_each(made, summed, [[large]] * 2)
        # Both read half of the other's array, and half of the sums.
        assert read_bytes == [large.nbytes // 2] * 4 * reads
        found = on_each(made, gathered, [large] * 2)
    assert all(np.array_equal(array, large) for results in found for array in results)


def test_arrays_may_be_read_during_an_exchange_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end and its failure close the window: nobody takes what is in the memory afterwards."""
    large = np.ones(1 << 16, np.float32)
    with meshes(2) as made:
        window = made[0]._window
        memory = PeerMemory(window.address)
        is_open = []
        read = PeerMemory.read

        def looked(other: PeerMemory, *given: Any) -> None:
            is_open.append(bool(window._words[1]))
            read(other, *given)

        with monkeypatch.context() as patched:
            patched.setattr(PeerMemory, "read", looked)
            on_each(made, gathered, [large] * 2)
        assert any(is_open)
        made[0].abort()
        with pytest.raises(PeerLost):
            made[0].gather("y", large)
        for exchange in range(1, 6):
            with pytest.raises(ConnectionError, match="has left the exchange"):
                memory.read(exchange, [], [])


@pytest.mark.parametrize(
    ("label", "array"), [("another", np.ones(3)), ("x", np.ones(4)), ("x", np.ones(30000))]
)
def test_other_steps_are_refused(label: str, array: np.ndarray) -> None:
    with meshes(2) as made:
        first, second = made

        def other() -> Any:
            try:
                return second.reduce(label, [array], "sum")
            finally:
                second.close()

        found = together(lambda: first.reduce("x", [np.ones(3)], "sum"), other)
    assert any(isinstance(error, RunError) and error.code == "RUN-090" for error in found), found
    assert all(isinstance(error, RunError | PeerLost) for error in found)


def test_patience_ends() -> None:
    with meshes(2, patience_seconds=0.0) as made, pytest.raises(RunError) as caught:
        made[0].reduce("x", [np.ones(3)], "sum")
    assert caught.value.code == "RUN-091"
    assert "workers 1" in str(caught.value)


def test_a_closed_mesh_ends_that_of_the_others() -> None:
    with meshes(3) as made:
        made[2].close()
        found = on_each(made[:2], gathered, [np.ones(3)] * 2)
    assert all(isinstance(error, PeerLost) for error in found)


def test_a_member_that_has_left_ends_those_who_wait_for_it_but_not_what_it_has_sent() -> None:
    with meshes(2) as made:

        def leave() -> list[np.ndarray]:
            found = made[1].gather("x", np.ones(3))
            made[1].end_sending()
            return found

        found = together(lambda: made[0].gather("x", np.ones(3)), leave)
        assert [len(arrays) for arrays in found] == [2, 2]
        with pytest.raises(PeerLost, match="worker 1 is gone"):
            made[0].gather("y", np.ones(3))


def test_abort_wakes_one_who_waits() -> None:
    with meshes(2) as made:
        is_waiting = threading.Event()

        def wait() -> Any:
            is_waiting.set()
            return made[0].gather("x", np.ones(3))

        def abort() -> None:
            assert is_waiting.wait(60.0)
            made[0].abort()

        error, _ = together(wait, abort)
        assert isinstance(error, PeerLost)
        with pytest.raises(PeerLost):
            made[0].gather("y", np.ones(3))


def test_a_worker_alone_learns_that_its_view_is_over() -> None:
    """Else a replacement would wait for as long as the last worker computes."""
    with meshes(1) as [alone]:
        ones = [np.ones(3)]
        assert alone.reduce("sum", ones, "sum") == ones
        alone.abort()
        for exchange in (alone.find_readers, lambda: alone.reduce("sum", ones, "sum")):
            with pytest.raises(PeerLost):
                exchange()
