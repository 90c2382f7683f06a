"""Whether an operation has a GPU kernel, and if not, why.

TensorFlow's full wheel registers its GPU kernels on every machine; the ``tensorflow-cpu`` wheel
has none, so a table written from the full wheel is used with it.
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

from evener._tf_private.graphs import operation_definition, operation_names, registered_kernels
from evener.auditing import Reason

# A kernel for every kind of device is registered as one for "DEFAULT".
_ON_GPUS = ("GPU", "DEFAULT")
TABLE = "gpu_kernels.json.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuKernel:
    # Names of the supported dtypes, for each attribute that it restricts
    dtypes: Mapping[str, tuple[str, ...]]
    on_host: bool  # Whether all its inputs and outputs are in host memory


@dataclass(frozen=True, slots=True, kw_only=True)
class NotOnGpu:
    reason: Reason  # The reason, a word of a fixed set
    why: str  # The reason as a sentence


def kernel_source() -> Literal["TensorFlow", "table"]:
    return "TensorFlow" if _has_gpu_kernels() else "table"


def kernels_for(op_type: str) -> tuple[GpuKernel, ...] | None:
    """Return the GPU kernels of a type of operation; None if the type is unknown."""
    if kernel_source() == "table":
        return table().get(op_type)
    return _installed(op_type) if _is_known(op_type) else None


def _is_known(op_type: str) -> bool:
    """Return whether TensorFlow has a kernel for an operation, not only XLA."""
    return any(kernel.device_type in ("CPU", *_ON_GPUS) for kernel in registered_kernels(op_type))


def why_not_on_gpu(op_type: str, dtypes: Mapping[str, str]) -> NotOnGpu | None:
    """Return why an operation does not run on a GPU, or None if it does."""
    known = kernels_for(op_type)
    if known is None:
        return None
    if not known:
        return NotOnGpu(reason="no_gpu_kernel", why=f"{op_type} has no GPU kernel")
    # The attributes of each kernel whose dtypes do not fit.
    wrong = [
        [n for n, allowed in kernel.dtypes.items() if dtypes.get(n, allowed[0]) not in allowed]
        for kernel in known
    ]
    pairs = list(zip(known, wrong, strict=True))
    fitting = [kernel for kernel, names in pairs if not names]
    if not fitting:
        name = min(wrong, key=len)[0]
        others = [k for k, names in pairs if names == [name] and not k.on_host]
        has = sorted({dtype for kernel in others for dtype in kernel.dtypes[name]})
        instead = f"; it has for {', '.join(has)}" if has else ""
        return NotOnGpu(
            reason="no_kernel_for_dtype",
            why=f"{op_type} has no GPU kernel for {name}={dtypes[name]}{instead}",
        )
    if all(kernel.on_host for kernel in fitting):
        suffix = f" for {', '.join(sorted(set(dtypes.values())))}" if dtypes else ""
        return NotOnGpu(
            reason="host_memory",
            why=f"the GPU kernel of {op_type}{suffix} uses host memory, on the CPU",
        )
    return None


@functools.cache
def _has_gpu_kernels() -> bool:
    return any(kernel.device_type == "GPU" for kernel in registered_kernels("MatMul"))


@functools.cache
def _installed(op_type: str) -> tuple[GpuKernel, ...]:
    definition = operation_definition(op_type)
    # Only handles of variables are on the device where all others are in host memory.
    arguments = (*definition.input_arg, *definition.output_arg) if definition else ()
    names = {
        argument.name for argument in arguments if argument.type != tf.resource.as_datatype_enum
    }
    return merged(
        GpuKernel(
            dtypes={
                constraint.name: tuple(
                    tf.dtypes.as_dtype(dtype).name for dtype in constraint.allowed_values.list.type
                )
                for constraint in kernel.constraint
            },
            on_host=bool(names) and names <= set(kernel.host_memory_arg),
        )
        for kernel in registered_kernels(op_type)
        if kernel.device_type in _ON_GPUS and not kernel.label
    )


def merged(kernels: Iterable[GpuKernel]) -> tuple[GpuKernel, ...]:
    """Merge kernels that differ in the dtypes of one attribute, for each attribute."""
    kernels = list(kernels)
    for name in sorted({name for kernel in kernels for name in kernel.dtypes}):
        groups: dict[Any, set[str]] = {}
        for kernel in kernels:
            if name in kernel.dtypes:
                others = tuple(sorted((n, d) for n, d in kernel.dtypes.items() if n != name))
                groups.setdefault((kernel.on_host, others), set()).update(kernel.dtypes[name])
        joined = [
            GpuKernel(
                dtypes=dict(sorted({**dict(others), name: tuple(sorted(dtypes))}.items())),
                on_host=on_host,
            )
            for (on_host, others), dtypes in groups.items()
        ]
        kernels = [kernel for kernel in kernels if name not in kernel.dtypes] + joined
    return tuple(sorted(kernels, key=repr))


@functools.cache
def table() -> dict[str, tuple[GpuKernel, ...]]:
    """Return the table that evener ships: the GPU kernels of every type of operation."""
    packed = importlib.resources.files("evener.strategy").joinpath(TABLE).read_bytes()
    return {
        op_type: tuple(
            GpuKernel(dtypes={n: tuple(d) for n, d in dtypes.items()}, on_host=on_host)
            for dtypes, on_host in entries
        )
        for op_type, entries in json.loads(gzip.decompress(packed)).items()
    }


def installed() -> dict[str, tuple[GpuKernel, ...]]:
    """Return the GPU kernels of the installed TensorFlow, in the form of `table`."""
    return {name: _installed(name) for name in operation_names() if _is_known(name)}


def packed_table() -> bytes:
    found = {
        name: [[kernel.dtypes, kernel.on_host] for kernel in kernels]
        for name, kernels in installed().items()
    }
    text = json.dumps(found, sort_keys=True, separators=(",", ":"))
    return gzip.compress(text.encode(), 9, mtime=0)
