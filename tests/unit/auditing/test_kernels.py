"""Kernels of GPUs, and the frames that an audit leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from evener.strategy import kernels, placed_graph, step_audit
from evener.strategy.kernels import GpuKernel, merged


@pytest.mark.long
def test_the_table_agrees_with_the_full_wheel() -> None:
    if kernels.kernel_source() != "TensorFlow":
        pytest.skip("this TensorFlow has no GPU kernels to compare with")
    assert kernels.table() == kernels.installed()
    assert len(kernels.table()) > 1000


def test_the_table_is_small() -> None:
    assert len(kernels.packed_table()) < 40_000


@pytest.mark.parametrize("source", ["TensorFlow", "table"])
@pytest.mark.parametrize(
    ("op_type", "dtypes", "reason"),
    [
        ("MatMul", {"T": "float32"}, None),
        ("MatMul", {"T": "int32"}, "no_kernel_for_dtype"),
        ("AddV2", {"T": "int32"}, "host_memory"),
        ("AddV2", {"T": "int64"}, None),
        ("Angle", {"T": "complex64", "Tout": "float32"}, None),
        ("UniqueV2", {"T": "float32", "Taxis": "int64"}, "no_gpu_kernel"),
        ("ReadVariableOp", {"dtype": "float32"}, None),
        ("NoSuchOperation", {}, None),
    ],
)
def test_the_wheel_and_the_table_answer_alike(
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    op_type: str,
    dtypes: dict[str, str],
    reason: str | None,
) -> None:
    monkeypatch.setattr(kernels, "_has_gpu_kernels", lambda: source == "TensorFlow")
    found = kernels.why_not_on_gpu(op_type, dtypes)
    assert (None if found is None else found.reason) == reason


def test_kernels_that_differ_in_one_dtype_become_one() -> None:
    single = [
        GpuKernel(dtypes={"T": (t,), "I": (i,)}, on_host=False)
        for t in ("float32", "float16")
        for i in ("int32", "int64")
    ]
    host = GpuKernel(dtypes={"T": ("int32",)}, on_host=True)
    assert set(map(repr, merged([*single, host]))) == {
        repr(
            GpuKernel(dtypes={"I": ("int32", "int64"), "T": ("float16", "float32")}, on_host=False)
        ),
        repr(host),
    }
    # Only two of four: nothing may be joined that is not there.
    assert len(merged([single[0], single[3]])) == 2


def test_the_file_of_the_audit_is_the_one_that_calls_the_step() -> None:
    # Frames outside of it are the call of the audit, and no line of the step.
    assert Path(placed_graph._AUDIT) == Path(step_audit.__file__)
