"""Values of the settings of a job, read from the environment with errors that name them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from evener.errors import RunError

_KINDS: dict[str, tuple[type, ...]] = {
    "a whole number": (int,),
    "a number": (int, float),
    "a text": (str,),
    "true or false": (bool,),
    "a list": (list,),
    "an object": (dict,),
}


def json_object(environ: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return a variable of the environment that is set; RUN-050 if it holds no JSON object."""
    text = environ[name]
    try:
        value = json.loads(text)
        reason = "" if isinstance(value, dict) else f"it holds {_shown(value)}, not an object."
    except (ValueError, RecursionError) as error:
        value, reason = None, f"JSON cannot be read: {error}."
    if reason:
        raise RunError(
            "RUN-050",
            f"{name} cannot be read: {_shown(text)}.",
            why=reason,
            fix=f'set {name} to a JSON object {{"...": ...}}, or unset it to train on one machine.',
        )
    return cast("dict[str, Any]", value)


def typed(path: str, value: object, expected: str) -> Any:
    """Return a value of a kind; RUN-051 if it is of another kind, or missing (None)."""
    kinds = _KINDS[expected]
    if isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool)):
        return value
    raise wrong_value(path, value, expected)


def wrong_value(path: str, value: object, expected: str, hint: str = "") -> RunError:
    """Return the error for a value that is wrong, or None because it is missing."""
    found = "it is missing." if value is None else f"it is {_shown(value)}."
    return RunError(
        "RUN-051",
        f"{path} must be {expected}.",
        why=found,
        fix=f"correct {path}; `evener launch` sets the variables of its workers itself.{hint}",
    )


def check_index(path: str, index: int, count: int) -> int:
    """Return the number of a worker; RUN-053 if the job has no such worker."""
    if not 0 <= index < count:
        raise RunError(
            "RUN-053",
            f"{path} is {index}, which is no worker of the job.",
            why=f"the job has {count} workers, with the numbers 0 to {count - 1}.",
            fix="give each worker its own number, or list all workers.",
        )
    return index


def positive_seconds(path: str, value: object) -> float:
    """Return a number or text as a duration; RUN-056 if it is no finite number above 0."""
    try:
        seconds = math.nan if isinstance(value, bool) else float(cast(Any, value))
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise RunError(
            "RUN-056",
            f"{path} is not a number of seconds: {_shown(value)}.",
            why="a duration is a finite number above 0.",
            fix=f"set {path}, for example, to 10.",
        )
    return seconds


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
