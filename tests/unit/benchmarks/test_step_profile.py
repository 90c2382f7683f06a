"""Figures of a profile: of a GPU's streams that are made here, and of a step that runs here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
from side_by_side.step_profile import profiled, profiles_of

MS = 10**9
"""Picoseconds."""


def plane_of(name: str, lines: dict[str, list[tuple[str, float, float]]]) -> Any:
    """Return a plane with events: their names, begins and durations in milliseconds."""
    plane = xplane_pb2.XPlane(name=name)
    numbers: dict[str, int] = {}
    for line_name, events in lines.items():
        line = plane.lines.add(name=line_name, timestamp_ns=5_000_000)
        for event, begin, duration in events:
            number = numbers.setdefault(event, len(numbers) + 1)
            plane.event_metadata[number].name = event
            line.events.add(
                metadata_id=number, offset_ps=int(begin * MS), duration_ps=int(duration * MS)
            )
    return plane


def test_kernels_copies_and_gaps_of_a_stream() -> None:
    gpu = plane_of(
        "/device:GPU:0",
        {
            "Stream #13(Compute)": [
                ("gemm", 0, 2),
                # It runs beside the first for a millisecond.
                ("gemm", 1, 2),
                ("relu", 5, 1),
                ("MemcpyH2D", 6, 0.5),
                ("gemm", 10, 2),
            ],
            "TensorFlow Ops": [("MatMul", 0, 12), ("Relu", 0, 12)],
        },
    )
    host = plane_of("/host:CPU", {"tf_Compute/1": [("a/MatMul:MatMul", 0, 9), ("b:B", 9, 1)]})
    space = xplane_pb2.XSpace(planes=[host, gpu])
    [found] = profiles_of(space.SerializeToString(), num_steps=2)
    assert found.name == "gpu:0 Stream #13(Compute)"
    assert (found.num_kernels, found.num_copies) == (2, 0.5)
    assert found.kernel_ms == pytest.approx((3 + 1 + 2) / 2)
    assert found.copy_ms == pytest.approx(0.25)
    # From 3 to 5, and from 6.5 to 10.
    assert found.idle_ms == pytest.approx((2 + 3.5) / 2)
    assert found.longest_gap_ms == pytest.approx(3.5)
    assert found.costliest[0] == ("gemm", pytest.approx(3.0))


def test_an_operation_alone_in_its_thread_counts() -> None:
    threads = {
        "tf_Compute/1": [("a/MatMul:MatMul", 0.0, 9.0), ("b:B", 9.0, 1.0)],
        "tf_Compute/2": [("c/Sum:Sum", 2.0, 1.0)],
    }
    space = xplane_pb2.XSpace(planes=[plane_of("/host:CPU", threads)])
    found = profiles_of(space.SerializeToString(), num_steps=1)
    assert [stream.num_kernels for stream in found] == [2, 1]
    assert found[1].idle_ms == 0


def test_operations_of_the_host_where_there_is_no_gpu() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.matmul(x, x))

    x = tf.ones([50, 50])
    step(x)
    found = profiled(lambda count: [float(step(x)) for _ in range(count)])
    assert round(sum(stream.num_kernels for stream in found)) >= 2
    assert any("MatMul" in name for stream in found for name, _ in stream.costliest)
