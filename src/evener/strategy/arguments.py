"""Arguments of a step: the tensors among them, and the axis of each that counts samples."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import tensorflow as tf

from evener._tf_private.tensors import CompositeTensor
from evener.errors import DataError

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
FOUND = "found"
"""For ``in_axes``: the axes are found by the sizes of the arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    structure: Any  # Nested arguments with markers instead of tensors; other leaves stay
    tensors: tuple[Any, ...]
    axes: tuple[int | None, ...]  # Axis of each tensor that counts samples
    # Indices of tensors whose first axis may count samples: its size is not known before the step
    # runs, and ``in_axes`` does not say
    unknown: tuple[int, ...] = ()

    @property
    def num_samples(self) -> int | None:
        """The number of samples, None if it is not known before the step runs."""
        return self.samples_along(self.axes)

    def samples_along(self, axes: Sequence[int | None]) -> int | None:
        """Return the number of samples, as `num_samples`, where other axes count them."""
        found: dict[int, int] = {}
        for index, (tensor, axis) in enumerate(zip(self.tensors, axes, strict=True)):
            size = None if axis is None else tensor.shape[axis]
            if size is not None:
                found.setdefault(size, index)
        if len(found) > 1:
            sizes = (f"{size} (tensor {index})" for size, index in found.items())
            raise different_sizes(", ".join(sizes))
        return next(iter(found), None)

    @property
    def has_composites(self) -> bool:
        return any(isinstance(leaf, _Composite) for leaf in tf.nest.flatten(self.structure))

    def names(self, function: Callable[..., Any]) -> list[str]:
        """Return the parameter of a function that each tensor is given to."""
        args, kwargs = self.structure
        try:
            parameters = [*inspect.signature(function).parameters.values()]
        except (TypeError, ValueError):
            parameters = []  # It is written in C.
        by_position = [p.name for p in parameters if p.kind in _POSITIONAL]
        by_position += [f"args_{k}" for k in range(len(args) - len(by_position))]
        given = [*zip(by_position, args, strict=False), *sorted(kwargs.items())]
        return [
            name
            for name, value in given
            for leaf in tf.nest.flatten(value)
            for _ in range(leaf.num_tensors if isinstance(leaf, _Composite) else leaf is _TENSOR)
        ]

    def pack(self, tensors: Sequence[Any]) -> Any:
        rest = iter(tensors)

        def value_of(leaf: Any) -> Any:
            if isinstance(leaf, _Composite):
                components = [next(rest) for _ in range(leaf.num_tensors)]
                return tf.nest.pack_sequence_as(leaf.spec, components, expand_composites=True)
            return next(rest) if leaf is _TENSOR else leaf

        leaves = [value_of(leaf) for leaf in tf.nest.flatten(self.structure)]
        return tf.nest.pack_sequence_as(self.structure, leaves)

    def key(self) -> Any:
        """Return what must be equal for a traced step to serve another call."""
        kinds = tuple((tensor.dtype, tensor.shape.rank) for tensor in self.tensors)
        return _Frozen(self.structure), self.axes, self.unknown, kinds


_TENSOR = object()
"""Stands for a tensor in the structure of arguments."""


class _Composite:
    """Stands for a ragged, sparse or other composite tensor in the structure of arguments."""

    def __init__(self, value: Any) -> None:
        spec: Any = tf.type_spec_from_value(value)
        # The number of rows changes from batch to batch.
        if isinstance(spec, tf.RaggedTensorSpec):
            ragged = cast(Any, spec)
            shape = [None, *ragged.shape[1:]]
            spec = tf.RaggedTensorSpec(
                shape, ragged.dtype, ragged.ragged_rank, ragged.row_splits_dtype
            )
        elif isinstance(spec, tf.SparseTensorSpec):
            sparse = cast(Any, spec)
            spec = tf.SparseTensorSpec([None, *sparse.shape[1:]], sparse.dtype)
        self.spec: Any = spec
        self.num_tensors = len(tf.nest.flatten(value, expand_composites=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Composite) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)


class _Frozen:
    """A structure as a key: equal if its leaves are equal, or the same object."""

    __slots__ = ("_leaves", "_text")

    def __init__(self, structure: Any) -> None:
        self._leaves = tf.nest.flatten(structure)
        self._text = repr(tf.nest.map_structure(lambda _: 0, structure))

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Frozen) or self._text != other._text:
            return False
        plain = bool | int | float | complex | str | bytes | type(None) | _Composite
        return all(
            a is b or (type(a) is type(b) and isinstance(a, plain) and a == b)
            for a, b in zip(self._leaves, other._leaves, strict=True)
        )


def read_arguments(args: Any, in_axes: Any = FOUND) -> Arguments:
    """Find the tensors among the arguments of a step, and the axes that count samples."""
    args = tf.nest.map_structure(
        lambda leaf: (
            tf.convert_to_tensor(np.asarray(leaf))
            if isinstance(leaf, np.ndarray | np.generic)
            else leaf
        ),
        args,
    )
    markers: list[Any] = []
    tensors: list[Any] = []
    leaf_indices: list[int | None] = []
    for index, leaf in enumerate(tf.nest.flatten(args)):
        if isinstance(leaf, tf.Tensor):
            markers.append(_TENSOR)
            tensors.append(leaf)
            leaf_indices.append(index)
        elif isinstance(leaf, CompositeTensor) and not isinstance(leaf, tf.Variable):
            markers.append(_Composite(leaf))
            # Their components do not have a row for every sample.
            components = tf.nest.flatten(leaf, expand_composites=True)
            tensors.extend(components)
            leaf_indices.extend([None] * len(components))
        else:
            markers.append(leaf)
    structure = tf.nest.pack_sequence_as(args, markers)
    unknown: tuple[int, ...] = ()
    if isinstance(in_axes, str) and in_axes == FOUND:
        # Axis 0 of tensors with the first size of the largest tensor. It is a matter of speed:
        # whether a tensor is taken for part of the batch changes no result.
        pairs = list(zip(tensors, leaf_indices, strict=True))
        candidates = [t for t, index in pairs if index is not None and t.shape.rank]
        size = None
        if all(t.shape[0] is not None for t in candidates):
            largest = max(candidates, key=lambda t: t.shape.num_elements() or 0, default=None)
            size = None if largest is None else largest.shape[0]
        axes = tuple(
            0 if index is not None and t.shape.rank and t.shape[0] == size else None
            for t, index in pairs
        )
        unknown = tuple(number for number, axis in enumerate(axes) if axis == 0 and size is None)
    else:
        by_leaf = _broadcast_prefix(in_axes, args)
        axes = tuple(None if index is None else by_leaf[index] for index in leaf_indices)
        for axis, tensor in zip(axes, tensors, strict=True):
            rank = tensor.shape.rank
            if axis is not None and rank is not None and not 0 <= axis < rank:
                known = f"The axes of this tensor are 0 to {rank - 1}." if rank else ""
                raise DataError(
                    "DATA-012",
                    f"in_axes names axis {axis} of a tensor of shape {tensor.shape}.",
                    why=known or "A scalar has no axis.",
                    fix="Give the axis that counts samples, or None.",
                )
    return Arguments(structure=structure, tensors=tuple(tensors), axes=axes, unknown=unknown)


def _broadcast_prefix(axes: Any, args: Any) -> list[int | None]:
    """Return an axis for every leaf: an axis of a nest holds for all leaves in it."""
    if axes is None or isinstance(axes, int):
        return [axes] * len(tf.nest.flatten(args))
    if isinstance(args, dict) and isinstance(axes, dict) and set(args) == set(axes):
        return [k for key in sorted(args) for k in _broadcast_prefix(axes[key], args[key])]
    if isinstance(args, list | tuple) and isinstance(axes, list | tuple):
        if len(args) == len(axes):
            pairs = zip(axes, args, strict=True)
            return [k for axis, arg in pairs for k in _broadcast_prefix(axis, arg)]
    outline = tf.nest.map_structure(
        lambda leaf: (
            f"{leaf.dtype.name}{list(leaf.shape)}"
            if isinstance(leaf, tf.Tensor)
            else type(leaf).__name__
        ),
        args,
    )
    raise DataError(
        "DATA-011",
        f"in_axes={axes!r} does not fit the arguments of the step.",
        why="It needs an axis or None for every argument, or a nest of them with the same "
        f"structure; the arguments here are {outline!r}.",
        fix="Give for example in_axes=(0, None) for a step of two arguments.",
    )


def different_sizes(sizes: str) -> DataError:
    return DataError(
        "DATA-010",
        f"The arguments have different numbers of samples: {sizes}.",
        why="The axes that count samples have the same size in all arguments.",
        fix="Give in_axes with None for arguments that are not part of the batch.",
    )


def feeds_itself(args: Any) -> bool:
    """Return whether a dataset or an iterator is among nested arguments."""
    feeds = tf.data.Dataset | tf.data.Iterator
    return any(isinstance(leaf, feeds) for leaf in tf.nest.flatten(args))


def has_batch(args: Any) -> bool:
    """Return whether tensors or arrays are among nested arguments, and nothing that feeds data.

    A function that is given an iterator or a dataset takes its batches itself.
    """
    leaves = tf.nest.flatten(args)
    distributed = tf.distribute.DistributedValues
    if feeds_itself(args) or any(isinstance(leaf, distributed) for leaf in leaves):
        return False
    return any(
        isinstance(leaf, tf.Tensor | np.ndarray | tf.RaggedTensor | tf.SparseTensor)
        and len(leaf.shape) > 0
        for leaf in leaves
        if not isinstance(leaf, tf.Variable)
    )
