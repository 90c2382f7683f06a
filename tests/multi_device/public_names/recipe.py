"""The words of the tables: how a public name is called on a batch of samples.

A table maps names of one namespace to recipes. ``B`` stands for the size of the batch; along the
first axis of that size an argument is sharded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from unit.graph.ops.op_case import Arg, B, f32, i32, ints, positive

Function = Callable[..., Any]
Table = dict[str, "Recipe"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """A call of a public name.

    Attributes:
        make: Returns the function to be traced; layers and metrics are made by it.
        args: Templates of the arguments of the function.
        tolerance: Largest difference of numbers, relative to the largest magnitude.
        gradient: Whether gradients are taken.
        by: The first argument that gradients are taken by.
        compared: Whether the numbers are those of one device in every run.
    """

    make: Callable[[], Function]
    args: tuple[Arg, ...]
    tolerance: float = 2e-5
    gradient: bool = True
    by: int = 0
    compared: bool = True


def call(fn: Function, *args: Arg, **options: Any) -> Recipe:
    """Return a recipe of a function as it is."""
    return Recipe(make=lambda: fn, args=args, **options)


def each(module: Any, names: str, *args: Arg, **options: Any) -> Table:
    """Return recipes of functions that are called with nothing but the arguments."""
    return {name: call(getattr(module, name), *args, **options) for name in names.split()}


def segments(op: Function, data: Arg, ids: Arg) -> Recipe:
    """Return the recipe of sums, or the like, by labels from 0 to 2."""
    return call(lambda x, labels: op(x, labels, 3), data, ids)


def merged(op: Function, *args: Arg) -> Recipe:
    return call(lambda *tensors: op(list(tensors)), *args)


def layer(make: Callable[[], Function], *args: Arg, **options: Any) -> Recipe:
    """Return a recipe of an object that is made once and then called, such as a layer."""
    return Recipe(make=make, args=args, **options)


def complex64(*shape: int | str) -> Arg:
    """Return complex numbers whose imaginary part is 0."""
    return Arg(shape, dtype="complex64")


X = f32(B, 4)
TIME = f32(B, 5, 4)
IMAGE = f32(B, 8, 8, 3, values=positive)
VOLUME = f32(B, 4, 4, 4, 2)
WHOLE = i32(B, 4, values=ints(0, 6))
BOOLS = Arg((B, 4), ints(0, 2), "bool")
