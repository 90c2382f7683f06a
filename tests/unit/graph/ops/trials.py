"""Run cases on one device and through `evener.distribute`, and compare.

`draw_trials(cases, draw)` chooses attributes, states of the arguments and shares, and `Step` is one
step of all of them: to trace it costs little more than a step of one. `compare` and
`check_gathered` hold each trial to what one device gives, and to what its case expects to be
gathered. They raise AssertionError, with the trial in the message.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import tensorflow as tf

import evener
from unit.graph.ops.op_case import PARTIAL, B, Draw, Drawn, Expect, OpCase, States

DEVICES = ("cpu:0", "cpu:1", "cpu:2")
# Begins the names that a tape gives to operations.
OF_GRADIENTS = "gradient_tape/"


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


def draw_trials(cases: Sequence[OpCase], draw: Draw) -> list[Trial]:
    """Draw what each case is tried with; the shares and the cotangent are those of all."""

    def drawn_from(choices: Sequence[Any], name: str) -> Any:
        # Hypothesis begins every test with the first choice; the cases begin at unlike ones.
        first = zlib.crc32(name.encode()) % len(choices)
        return draw(st.sampled_from([*choices[first:], *choices[:first]]))

    shares = drawn_from(cases[0].shares, cases[0].name)
    cotangent = draw(st.sampled_from(["own", "weighted", "replicated"]))
    trials = []
    for case in cases:
        drawn = case.draw(draw)
        products = itertools.product(*(arg.all_states() for arg in drawn.args))
        choices = [states for states in products if any(state is not None for state in states)]
        states, seed = drawn_from(choices, case.name), draw(st.integers(0, 2**16))
        trials.append(Trial(case, drawn, states, shares, seed, cotangent))
    return trials


class Step:
    """Outputs of trials and, of those with a gradient, the gradients by all floats.

    Attributes:
        tensors: Arguments of all trials, with weights of the outputs where the cotangent is of
            weights.
        in_axes: Axes of the arguments.
    """

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials = trials
        self.tensors: list[tf.Tensor] = []
        self.in_axes: list[int | None] = []
        self._numbers: list[tuple[int, int]] = []
        for trial in trials:
            tensors = trial.tensors()
            weights = self._weights(trial, tensors)
            self.tensors += [*tensors, *weights]
            self.in_axes += [*trial.in_axes(), *[None] * len(weights)]
            self._numbers.append((len(tensors), len(weights)))

    @staticmethod
    def _weights(trial: Trial, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        if not trial.case.gradient or trial.cotangent == "own":
            return []
        trial.drawn.reset()
        # Eagerly: only the shapes count, and a function would be traced.
        outputs = tf.nest.flatten(trial.step()(*tensors))
        rng = np.random.default_rng(trial.seed + 1)
        return [
            tf.constant(rng.uniform(0.5, 1.5, output.shape), "float32")
            for output in outputs
            if output.dtype.is_floating
        ]

    def __call__(self, *args: tf.Tensor) -> list[list[tf.Tensor]]:
        """Compute each trial in a scope of its own, which tells in the report what it gathers."""
        rest, results = list(args), []
        for k, (trial, (num_given, num_weights)) in enumerate(
            zip(self.trials, self._numbers, strict=True)
        ):
            given, weights = rest[:num_given], rest[num_given : num_given + num_weights]
            rest = rest[num_given + num_weights :]
            floats = [x for x in given if x.dtype.is_floating] if trial.case.gradient else []
            with tf.GradientTape() as tape, tf.name_scope(f"case_{k}/"):
                tape.watch(floats)
                outputs = tf.nest.flatten(trial.step()(*given))
            with tf.name_scope(f"{OF_GRADIENTS}case_{k}/"):
                heads = [y for y in outputs if y.dtype.is_floating] if floats else []
                by_args = tape.gradient(
                    heads, floats, output_gradients=cotangents_of(trial, heads, weights)
                )
                gradients = [tf.convert_to_tensor(g) for g in by_args if g is not None]
            results.append([*outputs, *gradients])
        return results

    def reset(self) -> None:
        for trial in self.trials:
            trial.drawn.reset()


def cotangents_of(
    trial: Trial, results: list[tf.Tensor], weights: list[tf.Tensor]
) -> list[tf.Tensor]:
    own = [tf.nn.softsign(y) + 0.5 for y in results]
    if trial.cotangent == "own":
        return own
    weighted = [tf.cast(weight, y.dtype) for weight, y in zip(weights, results, strict=True)]
    if trial.cotangent == "replicated":
        return weighted
    return [a * b for a, b in zip(own, weighted, strict=True)]


def on_one_device(step: Step) -> list[list[tf.Tensor]]:
    step.reset()
    with tf.device("CPU:0"):
        return tf.function(step.__call__, autograph=False)(*step.tensors)


def distributed(step: Step) -> Any:
    step.reset()
    return evener.distribute(
        tf.autograph.experimental.do_not_convert(step.__call__),
        devices=list(DEVICES),
        shares=list(step.trials[0].shares),
        in_axes=tuple(step.in_axes),
    )


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


def compare(step: Step, what: str, given: Any, expected: list[list[Any]]) -> None:
    for trial, own, of_one_device in zip(step.trials, given, expected, strict=True):
        assert len(own) == len(of_one_device), f"{trial}: {len(own)} {what}"
        for position, (ours, theirs) in enumerate(zip(own, of_one_device, strict=True)):
            found = difference(trial, ours, theirs)
            assert found is None, f"{trial}: {what} {position}: {found}"


def expected_of(trial: Trial, expect: Expect) -> str:
    """Return what a case expects of these states: "gathered", "any", or that nothing is."""
    expected = expect if isinstance(expect, str) else expect(trial.states)
    return "any" if expected != "gathered" and whole_beside_sharded(trial) else expected


def check_gathered(trial: Trial, expected: str, gathered: Sequence[tuple[str, str]]) -> None:
    is_right = expected == "any" or bool(gathered) == (expected == "gathered")
    assert is_right, f"{trial}: gathered {gathered}"


def gathered_by_trial(step: Step, function: Any) -> list[list[tuple[str, str]]]:
    """Return what a function that has run gathers for each trial; without a scope, for all."""
    gathered = [(entry.operation, entry.name) for entry in function.report().gathered]
    return [
        [
            found
            for found in gathered
            if re.findall(r"\bcase_(\d+)/", found[1])[:1] in ([], [str(number)])
        ]
        for number in range(len(step.trials))
    ]


def whole_beside_sharded(trial: Trial) -> bool:
    """Is an argument with an axis of size B whole on every device, and another one sharded?

    Nothing is expected of these: each device would have to cut its samples out of the whole.
    """
    whole = any(
        not isinstance(state, int) and B in arg.shape
        for arg, state in zip(trial.drawn.args, trial.states, strict=True)
    )
    return whole and any(isinstance(state, int) for state in trial.states)
