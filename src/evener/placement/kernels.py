"""Whether an operation has a GPU kernel, and if not, why.

TensorFlow's full wheel knows its GPU kernels on every machine; the ``tensorflow-cpu`` wheel
has none, so there a table answers that was written from the full wheel.
"""

from __future__ import annotations

import functools
import gzip
import importlib.resources
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from evener import _tf_private
from evener.placement.parts import Reason

# A kernel for every kind of device is registered as one for "DEFAULT".
_ON_GPUS = ("GPU", "DEFAULT")
TABLE = "gpu_kernels.json.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel that runs an operation on a GPU device.

    Args:
        dtypes: For each attribute that it restricts, the names of the dtypes it is for.
        on_host: Whether all tensors it takes and gives are in the host's memory.
    """

    dtypes: Mapping[str, tuple[str, ...]]
    on_host: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why an operation does not compute on a GPU.

    Args:
        reason: The reason.
        why: The same in words.
    """

    reason: Reason
    why: str


def source() -> Literal["TensorFlow", "table"]:
    """Return who answers: the installed TensorFlow, or the table."""
    return "TensorFlow" if _has_gpu_kernels() else "table"


def kernels_for(op_type: str) -> tuple[Kernel, ...] | None:
    """Return the kernels that run a type of operation on a GPU; None if it is not known."""
    if source() == "table":
        return table().get(op_type)
    return _installed(op_type) if _is_known(op_type) else None


def _is_known(op_type: str) -> bool:
    """Return whether TensorFlow itself runs an operation, not XLA alone."""
    return any(
        kernel.device_type in ("CPU", *_ON_GPUS)
        for kernel in _tf_private.registered_kernels(op_type)
    )


def verdict(op_type: str, dtypes: Mapping[str, str]) -> Verdict | None:
    """Return why an operation would not compute on a GPU, or None if it would.

    Args:
        op_type: Such as ``"MatMul"``.
        dtypes: Its attributes that are dtypes, such as ``{"T": "int32"}``.

    >>> verdict("MatMul", {"T": "float32"}) is None
    True
    >>> verdict("MatMul", {"T": "int32"}).reason
    'no_kernel_for_dtype'
    """
    known = kernels_for(op_type)
    if known is None:
        return None
    if not known:
        return Verdict(reason="no_gpu_kernel", why=f"{op_type} has no GPU kernel")
    wrong = [_mismatches(kernel, dtypes) for kernel in known]
    fitting = [kernel for kernel, mismatches in zip(known, wrong, strict=True) if not mismatches]
    if not fitting:
        return _for_no_dtype(op_type, dtypes, wrong, known)
    if all(kernel.on_host for kernel in fitting):
        said = _said(dtypes)
        return Verdict(
            reason="host_memory",
            why=f"the GPU kernel of {op_type}{said} works in the host's memory, on the CPU",
        )
    return None


def _for_no_dtype(
    op_type: str,
    dtypes: Mapping[str, str],
    wrong: list[list[str]],
    known: tuple[Kernel, ...],
) -> Verdict:
    name = min(wrong, key=len)[0]
    others = [
        kernel
        for kernel, mismatches in zip(known, wrong, strict=True)
        if mismatches == [name] and not kernel.on_host
    ]
    has = sorted({dtype for kernel in others for dtype in kernel.dtypes[name]})
    instead = f"; it has for {', '.join(has)}" if has else ""
    return Verdict(
        reason="no_kernel_for_dtype",
        why=f"{op_type} has no GPU kernel for {name}={dtypes[name]}{instead}",
    )


def _mismatches(kernel: Kernel, dtypes: Mapping[str, str]) -> list[str]:
    return [
        name
        for name, allowed in kernel.dtypes.items()
        if dtypes.get(name, allowed[0]) not in allowed
    ]


def _said(dtypes: Mapping[str, str]) -> str:
    return f" for {', '.join(sorted(set(dtypes.values())))}" if dtypes else ""


@functools.cache
def _has_gpu_kernels() -> bool:
    return any(kernel.device_type == "GPU" for kernel in _tf_private.registered_kernels("MatMul"))


@functools.cache
def _installed(op_type: str) -> tuple[Kernel, ...]:
    definition = _tf_private.operation_definition(op_type)
    return merged(
        Kernel(
            dtypes={
                one.name: tuple(
                    tf.dtypes.as_dtype(dtype).name for dtype in one.allowed_values.list.type
                )
                for one in kernel.constraint
            },
            on_host=_is_on_host(kernel, definition),
        )
        for kernel in _tf_private.registered_kernels(op_type)
        if kernel.device_type in _ON_GPUS and not kernel.label
    )


def _is_on_host(kernel: Any, definition: Any) -> bool:
    """Return whether nothing but handles of variables is on the device."""
    names = [
        argument.name
        for argument in (*definition.input_arg, *definition.output_arg)
        if argument.type != tf.resource.as_datatype_enum
    ]
    return bool(names) and set(names) <= set(kernel.host_memory_arg)


def merged(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Return the same kernels as few as possible: one for all dtypes that it is for."""
    found = list(kernels)
    for name in sorted({name for kernel in found for name in kernel.dtypes}):
        found = _merged_by(name, found)
    return tuple(sorted(found, key=repr))


def _merged_by(name: str, kernels: Iterable[Kernel]) -> list[Kernel]:
    """Join kernels that differ in the dtypes of one attribute only."""
    groups: dict[Any, set[str]] = {}
    left = []
    for kernel in kernels:
        if name not in kernel.dtypes:
            left.append(kernel)
            continue
        others = tuple(sorted((n, d) for n, d in kernel.dtypes.items() if n != name))
        groups.setdefault((kernel.on_host, others), set()).update(kernel.dtypes[name])
    joined = [
        Kernel(
            dtypes=dict(sorted({**dict(others), name: tuple(sorted(dtypes))}.items())), on_host=h
        )
        for (h, others), dtypes in groups.items()
    ]
    return left + joined


@functools.cache
def table() -> dict[str, tuple[Kernel, ...]]:
    """Return the table that is part of evener: the kernels of every type of operation."""
    packed = importlib.resources.files("evener.placement").joinpath(TABLE).read_bytes()
    return {
        op_type: tuple(
            Kernel(dtypes={n: tuple(d) for n, d in dtypes.items()}, on_host=on_host)
            for dtypes, on_host in entries
        )
        for op_type, entries in json.loads(gzip.decompress(packed)).items()
    }


def installed() -> dict[str, tuple[Kernel, ...]]:
    """Return what `table` returns, of the installed TensorFlow."""
    return {name: _installed(name) for name in _tf_private.operation_names() if _is_known(name)}


def packed_table() -> bytes:
    """Return the table of the installed TensorFlow as it is stored."""
    found = {
        name: [[kernel.dtypes, kernel.on_host] for kernel in kernels]
        for name, kernels in installed().items()
    }
    text = json.dumps(found, sort_keys=True, separators=(",", ":"))
    return gzip.compress(text.encode(), 9, mtime=0)
