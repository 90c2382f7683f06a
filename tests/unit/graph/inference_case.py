"""The words of the tables of functions that `test_inference` traces and runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

B, T, S = "B", "T", "S"
"""The batch, and two sizes that are not the same in every call either."""

Run = dict[str, int]
RUNS: tuple[Run, ...] = ({B: 4, T: 3, S: 2}, {B: 1, T: 4, S: 5})
EVEN: tuple[Run, ...] = ({B: 4, T: 6, S: 2}, {B: 2, T: 2, S: 4})


@dataclasses.dataclass(frozen=True)
class Arg:
    """An argument: its shape in numbers and `B`, `T`, `S`; whole numbers are below `high`."""

    shape: tuple[int | str, ...]
    dtype: tf.DType = tf.float32
    high: int = 3

    def spec(self) -> tf.TensorSpec:
        return tf.TensorSpec(
            [size if isinstance(size, int) else None for size in self.shape], self.dtype
        )

    def draw(self, rng: np.random.Generator, run: Run) -> tf.Tensor:
        shape = [size if isinstance(size, int) else run[size] for size in self.shape]
        if self.dtype.is_floating or self.dtype.is_complex:
            return tf.constant(rng.uniform(0.5, 1.5, shape), self.dtype)
        return tf.cast(rng.integers(0, self.high, shape), self.dtype)

    @property
    def batch_axis(self) -> int | None:
        return self.shape.index(B) if B in self.shape else None


def f32(*shape: int | str) -> Arg:
    return Arg(shape)


def i32(*shape: int | str, high: int = 3) -> Arg:
    return Arg(shape, tf.int32, high)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A function of tensors."""

    name: str
    function: Callable[..., Any]
    args: tuple[Arg, ...]
    runs: Sequence[Run] = RUNS


def case(name: str, function: Callable[..., Any], *args: Arg, runs: Sequence[Run] = RUNS) -> Case:
    return Case(name, function, args, runs)


def size(x: tf.Tensor, axis: int = 0) -> tf.Tensor:
    return tf.shape(x)[axis]


def gradient_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that also returns the gradients of the sum of what it returns."""

    def both(*args: Any) -> Any:
        floats = [arg for arg in args if arg.dtype.is_floating]
        with tf.GradientTape() as tape:
            for arg in floats:
                tape.watch(arg)
            result = function(*args)
        return result, tape.gradient(result, floats)

    return both
