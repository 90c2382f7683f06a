"""Hold two results against each other, tensor by tensor."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import keras
import numpy as np

from .tolerances import SCALE_FLOOR

Results = Mapping[str, object]


def flatten(results: Results) -> dict[str, np.ndarray]:
    """Return every array of a result under its name.

    Mappings are descended into; a list of numbers (one log over the epochs) is one array;
    a list of arrays (weights) is one array per entry.
    """
    return dict(_flatten("", results))


def _flatten(name: str, value: object) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _flatten(f"{name}/{key}".lstrip("/"), entry)
    elif isinstance(value, list | tuple) and any(np.ndim(entry) for entry in value):
        for index, entry in enumerate(value):
            yield from _flatten(f"{name}/{index}", entry)
    else:
        yield name, np.asarray(value)


def relative_error(reference: np.ndarray, candidate: np.ndarray) -> float:
    """Return ``max|a - b| / max(max|a|, SCALE_FLOOR)``; infinite where it makes no sense."""
    if reference.shape != candidate.shape or reference.dtype.kind != candidate.dtype.kind:
        return float("inf")
    if reference.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(reference, candidate) else float("inf")
    if reference.size == 0:
        return 0.0
    a, b = reference.astype("float64"), candidate.astype("float64")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return 0.0 if np.array_equal(a, b, equal_nan=True) else float("inf")
    return float(np.abs(a - b).max() / max(np.abs(a).max(), SCALE_FLOOR))


def differences(reference: Results, candidate: Results) -> dict[str, float]:
    """Return the relative error of every named array; infinite for one that is missing."""
    a, b = flatten(reference), flatten(candidate)
    return {
        name: relative_error(a[name], b[name]) if name in a and name in b else float("inf")
        for name in sorted({*a, *b})
    }


def equal(reference: Results, candidate: Results, *, within: float) -> bool:
    return all(error <= within for error in differences(reference, candidate).values())


def assert_equal(reference: Results, candidate: Results, *, within: float, where: str) -> None:
    """Fail with every array that differs by more than `within`, the worst first."""
    errors = differences(reference, candidate)
    _note(errors, within, where)
    a, b = flatten(reference), flatten(candidate)
    bad = sorted(
        (name for name, error in errors.items() if not error <= within),
        key=lambda name: -errors[name],
    )
    if not bad:
        return
    lines = [f"{where}: {len(bad)} of {len(errors)} differ by more than {within:g}"]
    for name in bad[:12]:
        lines.append(f"  {name}: {errors[name]:.2e}  {_show(a, name)} | {_show(b, name)}")
    raise AssertionError("\n".join(lines))


def _note(errors: Mapping[str, float], within: float, where: str) -> None:
    """Append the largest error to the file that EVENER_TEST_ERRORS names, if it names one."""
    if "EVENER_TEST_ERRORS" not in os.environ:
        return
    test = os.environ.get("PYTEST_CURRENT_TEST", "").split("::")[-1]
    worst = max(errors, key=lambda name: errors[name])
    with Path(os.environ["EVENER_TEST_ERRORS"]).open("a") as file:
        file.write(f"{errors[worst]:.1e} of {within:.0e}  {test} {where}: {worst}\n")


def _show(arrays: Mapping[str, np.ndarray], name: str) -> str:
    if name not in arrays:
        return "missing"
    array = arrays[name]
    text = np.array2string(array.reshape(-1)[:4], precision=8)
    return f"{array.dtype}{list(array.shape)} {text}"


def state_of(model: keras.Model) -> dict[str, object]:
    """Return the weights of a model by path, and how many steps its optimizer made."""
    weights: dict[str, object] = {}
    for index, variable in enumerate(model.weights):
        name = "/".join(variable.path.split("/")[-2:])
        weights[f"{index} {name.rsplit('/', maxsplit=1)[-1]}"] = variable.numpy()
    state: dict[str, object] = {"weights": weights}
    if getattr(model, "optimizer", None) is not None:
        state["iterations"] = int(model.optimizer.iterations.numpy())
    return state
