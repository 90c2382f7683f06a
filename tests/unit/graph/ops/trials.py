"""Run a case on one device and through `evener.distribute`, and compare.

`draw_trial(case, draw)` chooses attributes, states of the arguments and shares. `compare` and
`check_gathered` hold the trial to what one device gives, and to what its case expects to be
gathered. They raise AssertionError, with the trial in the message.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import tensorflow as tf

import evener
from unit.graph.ops.op_case import PARTIAL, B, Draw, Drawn, Expect, OpCase, States

DEVICES = ("cpu:0", "cpu:1", "cpu:2")


@dataclasses.dataclass(frozen=True)
class Trial:
    """A case with everything drawn.

    `cotangent` says what the gradients at the outputs are: "replicated" weights; "own", a function
    of the output, which is in the same state as the output; or "weighted", both multiplied.
    """

    case: OpCase
    drawn: Drawn
    states: States
    shares: tuple[int, ...]
    seed: int
    cotangent: str

    def __str__(self) -> str:
        shapes = [arg.shape for arg in self.drawn.args]
        return (
            f"{self.case.name} of {shapes} in states {self.states}, shares {self.shares}, "
            f"seed {self.seed}, cotangent {self.cotangent}"
        )

    @property
    def batch(self) -> int:
        return sum(self.shares)

    def in_axes(self) -> tuple[int | None, ...]:
        # What is to be a partial sum comes with an axis in front, which the step adds up.
        return tuple(0 if state == PARTIAL else state for state in self.states)

    def tensors(self) -> list[tf.Tensor]:
        rng = np.random.default_rng([self.seed, zlib.crc32(self.case.name.encode())])
        made = []
        for arg, state in zip(self.drawn.args, self.states, strict=True):
            shape = tuple(size if isinstance(size, int) else self.batch for size in arg.shape)
            value = np.asarray(arg.values(rng, shape, self.batch))
            if state == PARTIAL:
                value = parts_of(value, self.batch, rng)
            made.append(tf.constant(value.astype(arg.dtype)))
        return made

    def step(self) -> Callable[..., Any]:
        """Return the case's function, of arguments that are partial sums where they must be."""

        def step(*args: tf.Tensor) -> Any:
            summed = [
                tf.reduce_sum(arg, 0) if state == PARTIAL else arg
                for arg, state in zip(args, self.states, strict=True)
            ]
            return self.drawn.fn(*summed)

        return step


def parts_of(value: np.ndarray, batch: int, rng: np.random.Generator) -> np.ndarray:
    """Return `batch` unlike parts of a value; parts of whole numbers add up exactly."""
    noise = rng.normal(size=(batch, *value.shape))
    if np.array_equal(value, np.round(value)):
        noise = np.round(3 * noise)
    parts = noise - np.roll(noise, 1, axis=0)
    parts[0] += value
    return parts


def draw_trial(case: OpCase, draw: Draw) -> Trial:
    drawn = case.draw(draw)
    choices = [
        (states, shares)
        for shares in case.shares
        for states in itertools.product(*(arg.all_states() for arg in drawn.args))
        if any(state is not None for state in states)
    ]
    # Hypothesis begins every test with the first choice; the cases begin at unlike ones.
    first = zlib.crc32(case.name.encode()) % len(choices)
    states, shares = draw(st.sampled_from(choices[first:] + choices[:first]))
    seed = draw(st.integers(0, 2**16))
    return Trial(
        case, drawn, states, shares, seed, draw(st.sampled_from(["own", "weighted", "replicated"]))
    )


def on_one_device(trial: Trial, step: Callable[..., Any], tensors: list[tf.Tensor]) -> list[Any]:
    trial.drawn.reset()
    with tf.device("CPU:0"):
        return tf.nest.flatten(tf.function(step, autograph=False)(*tensors))


def distributed(trial: Trial, step: Callable[..., Any], in_axes: tuple[int | None, ...]) -> Any:
    trial.drawn.reset()
    return evener.distribute(
        tf.autograph.experimental.do_not_convert(step),
        devices=list(DEVICES),
        shares=list(trial.shares),
        in_axes=in_axes,
    )


def gradient_step(trial: Trial) -> tuple[Callable[..., Any], list[tf.Tensor]]:
    """Return a step of gradients by all floats, and the weights it takes behind the arguments."""
    step, tensors = trial.step(), trial.tensors()
    trial.drawn.reset()
    # Eagerly: only the shapes count, and a function would be traced.
    outputs = tf.nest.flatten(step(*tensors))
    rng = np.random.default_rng(trial.seed + 1)
    weights = [
        tf.constant(rng.uniform(0.5, 1.5, output.shape), "float32")
        for output in outputs
        if output.dtype.is_floating
    ]

    def gradients(*args: tf.Tensor) -> list[tf.Tensor]:
        given, weighting = args[: len(tensors)], args[len(tensors) :]
        floats = [arg for arg in given if arg.dtype.is_floating]
        with tf.GradientTape() as tape:
            for arg in floats:
                tape.watch(arg)
            results = [y for y in tf.nest.flatten(step(*given)) if y.dtype.is_floating]
        weighted = [tf.cast(weight, y.dtype) for weight, y in zip(weighting, results, strict=True)]
        own = [tf.nn.softsign(y) + 0.5 for y in results]
        cotangents = {
            "replicated": weighted,
            "own": own,
            "weighted": [a * b for a, b in zip(own, weighted, strict=True)],
        }[trial.cotangent]
        by_args = tape.gradient(results, floats, output_gradients=cotangents)
        return [tf.convert_to_tensor(gradient) for gradient in by_args if gradient is not None]

    return gradients, weights


def difference(trial: Trial, given: Any, expected: Any) -> str | None:
    """Say how a tensor differs from the one of one device, or return None."""
    if given.dtype != expected.dtype or given.shape != expected.shape:
        return f"{given.dtype} {given.shape} instead of {expected.dtype} {expected.shape}"
    given, expected = np.asarray(given), np.asarray(expected)
    if trial.case.exact or expected.dtype.kind in "biu":
        num_unlike = int(np.sum(~np.equal(given, expected) & ~both_nan(given, expected)))
        return f"{num_unlike} of {expected.size} are not equal" if num_unlike else None
    wide = "complex128" if expected.dtype.kind == "c" else "float64"
    given, expected = given.astype(wide), expected.astype(wide)
    same = np.equal(given, expected) | both_nan(given, expected)
    if same.all():
        return None
    finite = np.isfinite(given) & np.isfinite(expected)
    if not (finite | same).all():
        return f"{int(np.sum(~finite & ~same))} of {expected.size} are not finite on one side"
    largest = float(np.max(np.abs(expected[finite])))
    error = float(np.max(np.abs(given[finite] - expected[finite])))
    if error <= trial.case.tolerance * max(largest, 1e-2):
        return None
    return f"differ by {error:.3g} at a magnitude of {largest:.3g}"


def both_nan(given: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return np.not_equal(given, given) & np.not_equal(expected, expected)


def compare(trial: Trial, what: str, given: Any, expected: list[Any]) -> None:
    given = tf.nest.flatten(given)
    assert len(given) == len(expected), f"{trial}: {len(given)} {what}s instead of {len(expected)}"
    for position, (ours, theirs) in enumerate(zip(given, expected, strict=True)):
        found = difference(trial, ours, theirs)
        assert found is None, f"{trial}: {what} {position}: {found}"


def expected_of(trial: Trial, expect: Expect) -> str:
    """Return what a case expects of these states: "gathered", "any", or that nothing is."""
    expected = expect if isinstance(expect, str) else expect(trial.states)
    return "any" if expected != "gathered" and whole_beside_sharded(trial) else expected


def check_gathered(trial: Trial, expected: str, function: Any) -> None:
    """Hold what a function that has run gathers to what is expected."""
    gathered = [(entry.operation, entry.name) for entry in function.report().gathered]
    is_right = expected == "any" or bool(gathered) == (expected == "gathered")
    assert is_right, f"{trial}: gathered {gathered}"


def whole_beside_sharded(trial: Trial) -> bool:
    """Is an argument with an axis of size B whole on every device, and another one sharded?

    Nothing is expected of these: each device would have to cut its samples out of the whole.
    """
    whole = any(
        not isinstance(state, int) and B in arg.shape
        for arg, state in zip(trial.drawn.args, trial.states, strict=True)
    )
    return whole and any(isinstance(state, int) for state in trial.states)
