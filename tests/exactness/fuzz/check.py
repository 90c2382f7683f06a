"""A program on several stand-ins, against the same program on one device."""

from __future__ import annotations

import dataclasses
import functools
import gc
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

import evener
from evener import Plan
from evener.errors import EvenerError
from exactness.fuzz.program import ARGUMENTS, Program, make_batch, make_step, make_variables

TOLERANCE = 1e-9
_TOLERANCES = {tf.float32: 1e-5, tf.float16: 3e-2, tf.bfloat16: 2e-1}
_NUM_DISTURBED = 6
_ROUNDED_MORE_OFTEN = 1000
"""By so much a sum of parts may differ more than the results that are disturbed one by one."""
_PLACES = ("File ", "Graph execution error", "Detected at node", "Detected at")
Results = Mapping[str, np.ndarray]
Outcome = Results | Exception


def _data_parallel(*shares: int, micro_batches: Sequence[int] = ()) -> Plan:
    plan = Plan.data_parallel([f"cpu:{k}" for k in range(len(shares))], shares=shares)
    if not micro_batches:
        return plan
    pairs = zip(plan.replicas, micro_batches, strict=True)
    replicas = [dataclasses.replace(replica, num_micro_batches=n) for replica, n in pairs]
    return dataclasses.replace(plan, replicas=tuple(replicas))


PLANS = {
    "2": _data_parallel(5, 3),
    "3": _data_parallel(5, 2, 4),
    "5": _data_parallel(4, 0, 2, 1, 3),
    "micro-batches": _data_parallel(1, micro_batches=[3]),
    "2 with micro-batches": _data_parallel(3, 5, micro_batches=[2, 3]),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A program, and on what it runs.

    Attributes:
        program: The program.
        plan: The name of one of the `PLANS`.
        sizes: The samples of each step, one after the other.
        seed: Makes the batches.
        whole: An argument that is not sharded; empty if all are.
    """

    program: Program
    plan: str
    sizes: tuple[int, ...]
    seed: int
    whole: str = ""

    def batches(self) -> list[tuple[tf.Tensor, ...]]:
        return [make_batch(size, self.seed, self.program.dtype) for size in self.sizes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A difference from one device.

    Attributes:
        kind: ``"wrong"``, or ``"crash"`` of several devices where one gives a result.
        result: The name of the result, empty for errors.
        size: The samples of the step.
        text: Expected and actual value.
        apart: The difference of numbers, relative to the largest.
    """

    kind: str
    result: str
    size: int
    text: str
    apart: float = 0.0


@dataclass(slots=True)
class Verdict:
    """Result of a trial.

    Attributes:
        fault: The first difference that rounding does not explain.
        compared: Number of steps that ran on one device.
        refused: Code of the error by which evener refused the program.
        excused: Number of differences that rounding explains.
        unraised: Number of steps that failed on one device only.
        shared: Whether the parts computed anything.
    """

    fault: Fault | None = None
    compared: int = 0
    refused: str = ""
    excused: int = 0
    unraised: int = 0
    shared: bool = False


def run(make: Callable[[Any], Any], trial: Trial, *, is_noisy: bool = False) -> list[Outcome]:
    """Return what each step of a trial gave, the variables behind it among the results."""
    variables = make_variables(trial.program.dtype)
    first = {name: variable.numpy() for name, variable in variables.items()}
    step = make(make_step(trial.program.source(is_noisy=is_noisy), variables))
    outcomes: list[Outcome] = []
    for batch in trial.batches():
        try:
            results = {name: np.asarray(value) for name, value in step(*batch).items()}
            outcomes.append(
                results | {name: np.asarray(value) for name, value in variables.items()}
            )
        except Exception as error:
            outcomes.append(error)
            for name, variable in variables.items():
                variable.assign(first[name])
    return outcomes


def check(trial: Trial) -> Verdict:
    """Compare several stand-ins with one device.

    One device runs the program eagerly first, which takes a tenth of the time. What differs from
    that has to differ from one device under `tf.function` too.
    """
    verdict = Verdict()
    expected = run(_eagerly, trial)
    verdict.compared = sum(not isinstance(result, Exception) for result in expected)
    if not verdict.compared:
        return verdict
    made: list[Any] = []

    def distribute(step: Callable[..., Any]) -> Any:
        axes = tuple(None if name == trial.whole else 0 for name in ARGUMENTS)
        if trial.program.by_xla:
            step = tf.function(step, jit_compile=True)
        made.append(evener.distribute(step, plan=PLANS[trial.plan], in_axes=axes))
        return made[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        actual = run(distribute, trial)
    steps = made[0].partitioned_steps
    verdict.shared = any(task.is_parts for step in steps for task in step.partition.tasks)
    if _first_fault(trial, expected, actual, verdict) is not None:
        verdict.excused = verdict.unraised = 0
        expected = run(_traced(trial.program), trial)
        verdict.fault = _first_fault(trial, expected, actual, verdict)
    return verdict


def _eagerly(step: Callable[..., Any]) -> Callable[..., Any]:
    return step


def _traced(program: Program) -> Callable[[Any], Any]:
    """Return what makes a step of one device; it is traced once, as the other one is."""
    by_xla = program.by_xla or None
    if program.is_static:
        return functools.partial(tf.function, reduce_retracing=False, jit_compile=by_xla)
    batch = make_batch(2, 0, program.dtype)
    specs = [tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype) for tensor in batch]
    return functools.partial(tf.function, input_signature=specs, jit_compile=by_xla)


def _first_fault(
    trial: Trial, expected: list[Outcome], actual: list[Outcome], verdict: Verdict
) -> Fault | None:
    """Return the first difference that rounding does not explain."""
    for size, before, after in zip(trial.sizes, expected, actual, strict=True):
        fault = _compare(size, before, after, verdict)
        if isinstance(before, Exception) != isinstance(after, Exception) and fault is None:
            # The variables of the later steps differ: an error put them back on one side.
            return None
        if fault is None:
            continue
        if fault.kind == "wrong" and _is_rounding(trial, fault):
            verdict.excused += 1
            continue
        return fault
    return None


def _compare(size: int, expected: Outcome, actual: Outcome, verdict: Verdict) -> Fault | None:
    if isinstance(expected, Exception):
        # What nothing reads is not computed, so several devices may not fail where one does.
        verdict.unraised += not isinstance(actual, Exception)
        return None
    if isinstance(actual, Exception):
        if isinstance(actual, EvenerError):
            verdict.refused = actual.code
            return None
        return Fault(kind="crash", result="", size=size, text=_first_line(actual))
    for name, before in expected.items():
        apart = difference(before, actual[name]) if name in actual else float("inf")
        if apart > TOLERANCE:
            text = f"{_shown(before)} became {_shown(actual.get(name))}"
            return Fault(kind="wrong", result=name, size=size, text=text, apart=apart)
    return None


def difference(expected: np.ndarray, actual: np.ndarray) -> float:
    """Return the largest difference relative to the largest number; infinite for other kinds."""
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return float("inf")
    dtype = tf.as_dtype(expected.dtype)
    if dtype.is_floating:
        expected, actual = expected.astype("float64"), actual.astype("float64")
    else:
        return 0.0 if np.array_equal(expected, actual) else float("inf")
    finite = np.isfinite(expected)
    if not np.array_equal(expected[~finite], actual[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = max(1e-3, float(np.abs(expected[finite]).max()))
    apart = float(np.abs(expected - actual)[finite].max()) / scale
    return apart * TOLERANCE / _TOLERANCES.get(dtype, TOLERANCE)


def _is_rounding(trial: Trial, fault: Fault) -> bool:
    """Return whether the result changes as much on one device when all results are disturbed."""
    index = trial.sizes.index(fault.size)
    until = dataclasses.replace(trial, sizes=trial.sizes[: index + 1])
    exact = run(_eagerly, until)[-1]
    assert not isinstance(exact, Exception)
    change = 0.0
    for _ in range(_NUM_DISTURBED):
        found = run(_eagerly, until, is_noisy=True)[-1]
        if isinstance(found, Exception) or fault.result not in found:
            return True
        change = max(change, difference(exact[fault.result], found[fault.result]))
    is_double = trial.program.dtype == "float64"
    return fault.apart <= change * (_ROUNDED_MORE_OFTEN if is_double else 10)


def _first_line(error: Exception) -> str:
    """Return what an error says, without where in the graph it was."""
    text = str(getattr(error, "message", error))
    lines = [line.strip() for line in text.splitlines()]
    shown = [line for line in lines if line and not line.startswith(_PLACES)]
    return f"{type(error).__name__}: {' '.join(shown)[:300]}"


def _shown(array: np.ndarray | None) -> str:
    if array is None:
        return "nothing"
    return f"{array.dtype}{list(array.shape)} {np.array2string(array.reshape(-1)[:4], precision=8)}"


def free_graphs() -> None:
    """Free what TensorFlow would keep of the graphs of programs."""
    from tensorflow.python.framework import ops  # noqa: TID251

    gradients = ops.gradient_registry._registry
    for name in [name for name in gradients if name.startswith("CustomGradient-")]:
        del gradients[name]
    gc.collect()
