"""The words of the tables: templates of arguments, cases of operations, what is drawn of them.

A case names a function of tensors and templates of its arguments. In a template the symbol `B`
stands for the size of the batch. A test chooses the state of every argument (see `trials`):
sharded along one of the axes of size B, replicated, or a partial sum. So a table says what an
operation is, and no table says it again for every state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

B = "B"
PARTIAL = "partial"

Size = int | str
Shape = tuple[Size, ...]
# The axis along which an argument is sharded, PARTIAL, or None for replicated.
State = int | str | None
States = tuple[State, ...]
Draw = Callable[[Any], Any]
Values = Callable[[np.random.Generator, tuple[int, ...], int], np.ndarray]
# "sharded" and "partial": nothing may be gathered. "gathered": something must be. "any".
Expect = str | Callable[[States], str]

# Samples of each of three devices: uneven, one without a sample, a single sample.
SHARES = ((5, 1, 3), (4, 0, 3), (0, 1, 0))
# The same for operations that need an even number of samples.
EVEN_SHARES = ((5, 1, 2), (4, 0, 2), (0, 2, 0))


def normal(rng: np.random.Generator, shape: tuple[int, ...], batch: int) -> np.ndarray:
    return rng.normal(size=shape)


def positive(rng: np.random.Generator, shape: tuple[int, ...], batch: int) -> np.ndarray:
    return rng.uniform(0.5, 1.5, shape)


def inside(rng: np.random.Generator, shape: tuple[int, ...], batch: int) -> np.ndarray:
    """Between -1 and 1, away from both."""
    return rng.uniform(-0.8, 0.8, shape)


def above_one(rng: np.random.Generator, shape: tuple[int, ...], batch: int) -> np.ndarray:
    return rng.uniform(1.2, 2.5, shape)


def off(rng: np.random.Generator, shape: tuple[int, ...], batch: int) -> np.ndarray:
    """Away from whole and half numbers, for functions with steps."""
    return rng.integers(-3, 3, shape) + rng.uniform(0.1, 0.4, shape)


def distinct(rng: np.random.Generator, shape: tuple[int, ...], batch: int) -> np.ndarray:
    """No two are equal or close, for functions of the order."""
    size = int(np.prod(shape))
    return rng.permutation(size).reshape(shape) / 4 - size / 8 + 0.0625


def ties(rng: np.random.Generator, shape: tuple[int, ...], batch: int) -> np.ndarray:
    """Whole numbers, many of them equal. Their sums are exact."""
    return rng.integers(0, 3, shape).astype("float64")


def bools(rng: np.random.Generator, shape: tuple[int, ...], batch: int) -> np.ndarray:
    return rng.integers(0, 2, shape).astype(bool)


def ints(low: int, high: Size) -> Values:
    """Whole numbers from `low` to below `high`, which may be B."""

    def values(rng: np.random.Generator, shape: tuple[int, ...], batch: int) -> np.ndarray:
        return rng.integers(low, batch if high == B else high, shape)

    return values


def sorted_ints(low: int, high: Size) -> Values:
    """As `ints`, in rising order along the first axis."""

    def values(rng: np.random.Generator, shape: tuple[int, ...], batch: int) -> np.ndarray:
        return np.sort(ints(low, high)(rng, shape, batch), axis=0)

    return values


@dataclasses.dataclass(frozen=True)
class Arg:
    """A template of an argument.

    `states` are those it may be in; None means along every axis of size B, replicated and, of
    floats, a partial sum.
    """

    shape: Shape
    values: Values = normal
    dtype: str = "float32"
    states: States | None = None

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype

    def all_states(self) -> States:
        if self.states is not None:
            return self.states
        axes = tuple(axis for axis, size in enumerate(self.shape) if size == B)
        return (*axes, None, PARTIAL) if self.is_float else (*axes, None)


def f32(*shape: Size, values: Values = normal, states: States | None = None) -> Arg:
    return Arg(shape, values, "float32", states)


def i32(*shape: Size, values: Values, states: States | None = None) -> Arg:
    return Arg(shape, values, "int32", states)


def below(high: Size, *shape: Size) -> Arg:
    """Integers from 0 to below `high`, which may be B."""
    return i32(*shape, values=ints(0, high))


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A function with its attributes, templates of its arguments, and what is expected.

    `expect_gradient` is what is expected of the gradients alone, if that is something else.
    `reset` is called before every run; functions with a state bring it back to the start.
    """

    fn: Callable[..., Any]
    args: tuple[Arg, ...]
    expect: Expect = "sharded"
    expect_gradient: Expect | None = None
    reset: Callable[[], None] = lambda: None


@dataclasses.dataclass(frozen=True)
class OpCase:
    """One operation, or a few that belong together.

    `draw` draws attributes and shapes. Floats are compared to `tolerance` times the largest
    magnitude, or to the bit if the case is `exact`. Without `gradient` no gradient is taken.
    """

    name: str
    draw: Callable[[Draw], Drawn]
    gradient: bool = True
    tolerance: float = 1e-5
    exact: bool = False
    shares: tuple[tuple[int, ...], ...] = SHARES


def arguments(shapes: str) -> tuple[Arg, ...]:
    """Read shapes: "B 4, positive 4, int<5 B" has two floats, the second positive, and integers."""
    words = {value.__name__: value for value in (positive, inside, distinct, ties, bools)}
    found = []
    for kind, *sizes in map(str.split, shapes.split(",")):
        shape = tuple(int(size) if size.isdigit() else size for size in sizes)
        if kind.startswith("int<"):
            high = kind.removeprefix("int<")
            found.append(below(int(high) if high.isdigit() else high, *shape))
        elif kind in words:
            found.append(Arg(shape, words[kind], "bool" if kind == "bools" else "float32"))
        else:
            found.append(f32(int(kind) if kind.isdigit() else kind, *shape))
    return tuple(found)


def case(
    name: str,
    args: str | Sequence[Arg],
    fn: Callable[..., Any],
    *,
    expect: Expect = "sharded",
    expect_gradient: Expect | None = None,
    **options: Any,
) -> OpCase:
    """Return a case of which nothing but the states is drawn; integers have no gradient."""
    args = arguments(args) if isinstance(args, str) else tuple(args)
    drawn = Drawn(fn, args, expect, expect_gradient)
    options = {"gradient": any(arg.is_float for arg in args), **options}
    return OpCase(name, lambda draw: drawn, **options)


def loose(name: str, args: str | Sequence[Arg], fn: Callable[..., Any], **options: Any) -> OpCase:
    """Return a case as `case` does, of which all may be gathered or nothing."""
    return case(name, args, fn, expect="any", **options)


def aligned(*shapes: Shape) -> Callable[[States], str]:
    """Expect "sharded" where all that is sharded is so along one axis of the broadcast shape."""

    def expect(states: States) -> str:
        axes = {
            state - len(shape)
            for state, shape in zip(states, shapes, strict=True)
            if isinstance(state, int)
        }
        return "sharded" if len(axes) <= 1 else "any"

    return expect


def avoiding(*axes: int) -> Callable[[States], str]:
    """Expect "sharded" where all that is sharded is so along one axis, which is none of `axes`."""

    def expect(states: States) -> str:
        sharded = {state for state in states if isinstance(state, int)}
        return "sharded" if len(sharded) <= 1 and not sharded & set(axes) else "any"

    return expect


def gathered_if_sharded(states: States) -> str:
    """Expect "gathered" where an argument is sharded: an operation has no rule for its axis."""
    return "gathered" if any(isinstance(state, int) for state in states) else "sharded"


def one_label(equation: str) -> Callable[[States], str]:
    """Expect "sharded" where all that is sharded is so along one label of an einsum."""
    terms = equation.split("->")[0].split(",")

    def expect(states: States) -> str:
        labels = [
            (term, term[state])
            for term, state in zip(terms, states, strict=True)
            if isinstance(state, int)
        ]
        repeated = any(term.count(label) > 1 for term, label in labels)
        return "sharded" if len({label for _, label in labels}) <= 1 and not repeated else "any"

    return expect
