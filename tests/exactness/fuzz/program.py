"""A program as a value: the lines of a step, which are printed and run as they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

ARGUMENTS = ("x", "y", "s", "n", "k", "q", "m", "g")
"""x [B, 4, 3], y [B, 3], s [B] float; n [B] in 1..4, k [B] in -1..1, q [B, 4] int; m [B] bool;
g [B] int64 beyond an int32, of one sign."""
VARIABLES = ("w", "u")
"""w [3], u [3, 3], which a program may also update on its way."""
WATCHED = ("x", "y", "s", "w", "u")
EPSILON = {tf.float64: 2e-16, tf.float16: 1e-3, tf.bfloat16: 8e-3}
"""By so much a number of a dtype is rounded at most, relative to it."""
_NAME = re.compile(rf"\b(v\d+|{'|'.join((*ARGUMENTS, *VARIABLES))})\b(?!=)")
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a program: a name and the expression that it stands for."""

    name: str
    text: str

    def uses(self) -> set[str]:
        return set(_WORD.findall(self.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A step.

    Attributes:
        instructions: The lines, in their order.
        outputs: The names that the step returns.
        losses: The floating-point names of which the loss is made; empty for no gradient.
        is_static: Whether the batch size is asked in Python, ``x.shape[0]``.
        dtype: The floats of the program; it is drawn in float64.
        by_xla: Whether XLA compiles it.
    """

    instructions: tuple[Instruction, ...]
    outputs: tuple[str, ...]
    losses: tuple[str, ...] = ()
    is_static: bool = False
    dtype: str = "float64"
    by_xla: bool = False

    def source(self, *, is_noisy: bool = False) -> str:
        batch = "x.shape[0]" if self.is_static else "tf.shape(x)[0]"
        used = {"B"} if self.is_static else set[str]().union(*(i.uses() for i in self.instructions))
        lines = [f"B = {batch}"] if "B" in used | set(self.outputs) else []
        form = "{} = noisy({})" if is_noisy else "{} = {}"
        lines += [
            form.format(instruction.name, instruction.text) for instruction in self.instructions
        ]
        results = "{" + ", ".join(f'"{name}": {name}' for name in self.outputs) + "}"
        if not self.losses:
            return self._function([*lines, f"return {results}"])
        watched = [name for name in WATCHED if name not in VARIABLES]
        lines.insert(0, f"tape.watch([{', '.join(watched)}])")
        loss = " + ".join(f"tf.reduce_sum(tf.sin({name}))" for name in self.losses)
        lines.append(f"loss = {loss}")
        after = [
            f"results = {results}",
            f"gradients = tape.gradient(loss, [{', '.join(WATCHED)}])",
            f"for name, gradient in zip({WATCHED}, gradients):",
            "    if gradient is not None:",
            '        results["d" + name] = tf.convert_to_tensor(gradient)',
            "for variable, gradient in zip((w, u), gradients[-2:]):",
            "    if gradient is not None:",
            "        variable.assign_sub(0.1 * tf.tanh(tf.convert_to_tensor(gradient)))",
            "return results",
        ]
        body = ["with tf.GradientTape() as tape:", *(f"    {line}" for line in lines), *after]
        return self._function(body)

    def _function(self, body: Sequence[str]) -> str:
        head = f"def step({', '.join(ARGUMENTS)}):"
        lines = ["@tf.autograph.experimental.do_not_convert", head, *(f"    {b}" for b in body)]
        return "\n".join(lines).replace("tf.float64", f"tf.{self.dtype}")

    def without(self, index: int, instead: str) -> Program:
        """Return the program without an instruction, of whose result another takes the place."""
        gone = self.instructions[index].name
        kept = tuple(
            Instruction(instruction.name, re.sub(rf"\b{gone}\b", instead, instruction.text))
            for instruction in (*self.instructions[:index], *self.instructions[index + 1 :])
        )
        names = _replaced(self.outputs, gone, instead)
        losses = _replaced(self.losses, gone, instead)
        return replace(self, instructions=kept, outputs=names, losses=losses).trimmed()

    def trimmed(self) -> Program:
        """Return the program without the instructions that nothing needs."""
        needed = {*self.outputs, *self.losses}
        kept: list[Instruction] = []
        for instruction in reversed(self.instructions):
            if instruction.name in needed:
                kept.append(instruction)
                needed |= instruction.uses()
        return replace(self, instructions=tuple(reversed(kept)))

    def operations(self) -> list[str]:
        """Return the expressions without the names in them: what kind of program it is."""
        return [_NAME.sub("_", instruction.text) for instruction in self.instructions]


def _replaced(names: Iterable[str], gone: str, instead: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(instead if name == gone else name for name in names))


def make_variables(dtype: str = "float64") -> dict[str, tf.Variable]:
    rng = np.random.default_rng(5)
    return {
        "w": tf.Variable(tf.cast(rng.normal(size=3), dtype)),
        "u": tf.Variable(tf.cast(rng.normal(size=(3, 3)), dtype)),
    }


def make_step(source: str, variables: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a function made of its source."""
    names: dict[str, Any] = {"tf": tf, "noisy": noisy, **variables}
    exec(compile(source, "<program>", "exec"), names)
    return names["step"]


def noisy(value: Any) -> Any:
    """Return a value as it could be after other rounding."""
    if not (isinstance(value, tf.Tensor) and value.dtype in EPSILON):
        return value
    noise = 2 * EPSILON[value.dtype] * tf.random.uniform(tf.shape(value), -1, 1, tf.float64)
    disturbed = tf.cast(tf.cast(value, tf.float64) * (1 + noise), value.dtype)
    return tf.where(tf.math.is_finite(value), disturbed, value)


def make_batch(size: int, seed: int, dtype: str = "float64") -> tuple[tf.Tensor, ...]:
    """Return the arguments of a program for so many samples, its floats of a dtype."""
    rng = np.random.default_rng([size, seed])
    values = {
        "x": rng.normal(size=(size, 4, 3)),
        "y": rng.normal(size=(size, 3)),
        "s": rng.normal(size=size),
        "n": rng.integers(1, 5, size).astype("int32"),
        # Mostly zeros, so that their sum is small.
        "k": (rng.integers(-1, 2, size) * (rng.random(size) < 0.4)).astype("int32"),
        "q": rng.integers(-3, 6, (size, 4)).astype("int32"),
        "m": rng.random(size) < 0.6,
        "g": rng.choice([-1, 1]) * (5_000_000_000 + rng.integers(0, 5, size)),
    }
    given = [tf.constant(values[name]) for name in ARGUMENTS]
    return tuple(tf.cast(t, dtype) if t.dtype == tf.float64 else t for t in given)
