"""Drawing trials: each operation of a program is tried eagerly at once, on all of its batches.

So a program has the types of what its operations return, one device can nearly always run it, and
no data-dependent size or count is too large to run. Smaller batches may fail: then both must.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

from exactness.fuzz.check import PLANS, Trial
from exactness.fuzz.program import (
    ARGUMENTS,
    VARIABLES,
    WATCHED,
    Instruction,
    Program,
    make_batch,
    make_variables,
)
from exactness.fuzz.templates import filled, groups, slots

_LARGE = (8, 9, 11, 24)
_SMALL = (2, 3, 4, 5, 6)
NUM_LARGE = 2
_MOST_ELEMENTS = 3000
_LARGEST = {"f": 1e4, "i": 1e13, "u": 1e13, "b": 1.0}
_LARGEST_COUNT = 500
_KINDS = {"f": "f", "i": "i", "u": "i", "b": "b"}
_GROUPS = groups()
_CHOICE = re.compile(r"\{=([^}]*)\}")
_AXIS = re.compile(r"\{@(\w)\}")


@dataclass(slots=True)
class Drawing:
    """A program that is being drawn.

    Attributes:
        rng: Source of all choices.
        values: Value of each name, for each of the batches; None where it cannot be computed.
        instructions: The lines so far.
    """

    rng: random.Random
    values: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)

    def add(self) -> None:
        for _ in range(60):
            group = self.rng.choices(list(_GROUPS), list(_GROUPS.values()))[0]
            text = self._fill(self.rng.choice(group))
            if text is None:
                continue
            before = self._variables()
            results = self._tried(text)
            if results is None or not self._is_wanted(results):
                for variable, value in before:
                    variable.assign(value)
            else:
                name = f"v{len(self.instructions)}"
                self.instructions.append(Instruction(name, text))
                self.values[name] = results
                return

    def _variables(self) -> list[tuple[tf.Variable, Any]]:
        found = (value for name in VARIABLES for value in self.values[name])
        return [(variable, variable.numpy()) for variable in found]

    def _fill(self, template: str) -> str | None:
        chosen: dict[str, str] = {}
        for slot in slots(template):
            fitting = [
                name
                for name, values in self.values.items()
                if slot.kind in ("*", _kind_of(values))
                and slot.least_rank <= len(values[0].shape) <= slot.most_rank
            ]
            if not fitting:
                return None
            chosen[slot.name] = self._preferred(fitting)
        text = _CHOICE.sub(lambda match: self.rng.choice(match[1].split("|")), template)
        text = _AXIS.sub(lambda match: str(self._axis(chosen[match[1]])), text)
        return filled(text, chosen)

    def _preferred(self, names: list[str]) -> str:
        """Return one of several names: rather what was made than an argument, and what is new."""
        new = {instruction.name for instruction in self.instructions[-2:]}
        weights = [15 if name in new else 5 if name.startswith("v") else 1 for name in names]
        return self.rng.choices(names, weights)[0]

    def _axis(self, name: str) -> int:
        rank = len(self.values[name][0].shape)
        axis = self.rng.randrange(rank)
        return axis - rank if self.rng.random() < 0.3 else axis

    def _tried(self, text: str) -> tuple[Any, ...] | None:
        """Return the results for all batches; None if the large ones have none."""
        code = compile(text, "<drawn>", "eval")
        results: list[Any] = []
        for index in range(len(self.values["x"])):
            names = {name: values[index] for name, values in self.values.items()}
            try:
                results.append(eval(code, {"tf": tf, **names}))
            except Exception:
                if index < NUM_LARGE:
                    return None
                results.append(None)
        return tuple(results)

    def _is_wanted(self, results: tuple[Any, ...]) -> bool:
        found = [result for result in results if result is not None]
        if not all(isinstance(value, tf.Tensor) and value.shape.rank <= 4 for value in found):
            return False
        arrays = [value.numpy() for value in found]
        if arrays[0].dtype.kind not in _KINDS or not all(map(_is_small, arrays)):
            return False
        if not all(array.size for array in arrays[:NUM_LARGE]):
            return self.rng.random() < 0.1
        return all(np.isfinite(array).all() for array in arrays) or self.rng.random() < 0.3


def _kind_of(values: tuple[Any, ...]) -> str | None:
    """Return the kind of a value; an integer that is too large to be a count is one of its own."""
    kind = _KINDS.get(values[0].dtype.as_numpy_dtype().dtype.kind)
    found = [np.abs(np.asarray(v, "float64")) for v in values if v is not None and kind == "i"]
    return "g" if any(v.max(initial=0) > _LARGEST_COUNT for v in found) else kind


def draw_trial(seed: str, *, low_precision: float = 0.1, by_xla: float = 0.02) -> Trial:
    rng = random.Random(seed)
    is_static = rng.random() < 0.1
    # One sample always: without it half of the parts have none.
    sizes = [*rng.sample(_LARGE, NUM_LARGE), 1]
    if not is_static:
        sizes.append(rng.choice(_SMALL))
    batch_seed = rng.randrange(1000)
    drawing = Drawing(rng)
    batches = [make_batch(size, batch_seed) for size in sizes]
    for name, values in zip(ARGUMENTS, zip(*batches, strict=True), strict=True):
        drawing.values[name] = values
    for name in VARIABLES:
        drawing.values[name] = tuple(make_variables()[name] for _ in sizes)
    drawing.values["B"] = tuple(tf.constant(size) for size in sizes)
    for _ in range(rng.randint(3, 10)):
        drawing.add()
    program = _finished(drawing, is_static=is_static)
    rng.shuffle(sizes)
    trial = Trial(
        program=program,
        plan=rng.choice(list(PLANS)),
        sizes=tuple(sizes),
        seed=batch_seed,
        whole=rng.choice(ARGUMENTS) if rng.random() < 0.1 else "",
    )
    dtype = rng.choice(["float16", "bfloat16"]) if rng.random() < low_precision else "float64"
    program = replace(program, dtype=dtype, by_xla=rng.random() < by_xla)
    return replace(trial, program=program)


def _finished(drawing: Drawing, *, is_static: bool) -> Program:
    """Choose what the program returns, and of what its loss is made."""
    rng, made = drawing.rng, drawing.instructions
    read = set[str]().union(*(instruction.uses() for instruction in made))
    outputs = [
        instruction.name
        for instruction in made
        if instruction.name not in read or rng.random() < 0.15
    ]
    is_float = {name for name in outputs if drawing.values[name][0].dtype == tf.float64}
    losses = [name for name in outputs if name in is_float & _made_of_floats(made)]
    return Program(
        instructions=tuple(made),
        outputs=tuple(outputs),
        losses=tuple(losses) if rng.random() < 0.6 else (),
        is_static=is_static,
    )


def _made_of_floats(instructions: list[Instruction]) -> set[str]:
    """Return the names that depend on what has a gradient."""
    found: set[str] = set(WATCHED)
    for instruction in instructions:
        if instruction.uses() & found:
            found.add(instruction.name)
    return found


def _is_small(array: np.ndarray) -> bool:
    finite = array[np.isfinite(array)].astype("float64")
    return (
        array.size <= _MOST_ELEMENTS
        and float(np.abs(finite).max(initial=0)) <= _LARGEST[array.dtype.kind]
    )
