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
    """An argument: its shape in numbers and `B`, `T`, `S`; integers are below `high`."""

    shape: tuple[str, ...]
    high: int | None

    def spec(self) -> tf.TensorSpec:
        dtype = tf.float32 if self.high is None else tf.int32
        return tf.TensorSpec([int(size) if size.isdigit() else None for size in self.shape], dtype)

    def draw(self, rng: np.random.Generator, run: Run) -> tf.Tensor:
        shape = [int(size) if size.isdigit() else run[size] for size in self.shape]
        if self.high is None:
            return tf.constant(rng.uniform(0.5, 1.5, shape), tf.float32)
        return tf.cast(rng.integers(0, self.high, shape), tf.int32)

    @property
    def batch_axis(self) -> int | None:
        return self.shape.index(B) if B in self.shape else None


def arguments(shapes: str) -> list[Arg]:
    """Read shapes: "B T 3, int B, int<40" is floats, integers below 3, and a number below 40."""
    found = []
    for words in map(str.split, shapes.split(",")):
        if words[0].startswith("int"):
            found.append(Arg(tuple(words[1:]), int(words[0].removeprefix("int").strip("<") or 3)))
        else:
            found.append(Arg(tuple(words), None))
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A function of tensors."""

    name: str
    shapes: str
    function: Callable[..., Any]
    runs: Sequence[Run] = RUNS

    @property
    def args(self) -> list[Arg]:
        return arguments(self.shapes)


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
