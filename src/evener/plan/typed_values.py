"""Normal forms and type checks of the values of a plan, by path, such as ``replicas[1].share``."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from evener.errors import PlanError

T = TypeVar("T")

_EXAMPLES = {
    "text": "'gpu:0'",
    "a whole number": "4",
    "a number": "0.5",
    "a list": "[...]",
    "an object": "{...}",
    "a mapping from devices to layers": "{'gpu:0': 'encoder_*', 'gpu:1': ['decoder_*', 'head']}",
    "a device with its layers": "('gpu:0', 'encoder_*')",
}


def as_tuple(value: Any) -> Any:
    """Return a list as a tuple, and everything else unchanged."""
    return tuple(cast("list[object]", value)) if isinstance(value, list) else value


def as_double(value: Any) -> Any:
    """Return a real number as a double, and everything else unchanged."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    try:
        return float(value)
    except OverflowError:  # A whole number of more than 300 digits.
        return math.inf if cast(Any, value) > 0 else -math.inf


def as_whole(value: Any) -> Any:
    """Return any kind of integer as `int`, and everything else unchanged."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        return value
    return int(value)


def wrong_type(path: str, expected: str, value: object) -> PlanError:
    """Return the error for a value of the wrong type."""
    example = _EXAMPLES.get(expected)
    return PlanError(
        "PLAN-020",
        f"{path} must be {expected}, not {_shown(value)}.",
        why=f"the value there is of type {type(value).__name__}.",
        fix=f"write {expected}" + (f", for example {path} = {example}." if example else "."),
    )


def text_at(path: str, value: object) -> str:
    """Return the value as a text that is not blank.

    Raises:
        PlanError: PLAN-020 if it is not a text, PLAN-018 if it is empty or blank.
    """
    if not isinstance(value, str):
        raise wrong_type(path, "text", value)
    if not value.strip():
        raise PlanError(
            "PLAN-018",
            f"{path} is empty.",
            why=f"it is {value!r}; a name or pattern cannot be blank.",
            fix="write a text, or remove the entry.",
        )
    return value


def whole_number_at(path: str, value: object) -> int:
    """Return the value as an integer; True and False are refused.

    Raises:
        PlanError: PLAN-020 if it is not a whole number.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(path, "a whole number", value)
    return value


def number_at(path: str, value: object) -> float:
    """Return the value as a number, maybe infinite or NaN; True and False are refused.

    Raises:
        PlanError: PLAN-020 if it is not a number.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong_type(path, "a number", value)
    return float(value)


def tuple_at(path: str, value: object, item: type[T]) -> tuple[T, ...]:
    """Return the value as a tuple whose items are all of one type.

    Raises:
        PlanError: PLAN-020 if it is not a tuple, or an item is of another type.
    """
    if not isinstance(value, tuple):
        raise wrong_type(path, "a list", value)
    items = cast("tuple[object, ...]", value)
    for index, found in enumerate(items):
        if not isinstance(found, item):
            expected = "text" if item is str else f"a {item.__name__}"
            raise wrong_type(f"{path}[{index}]", expected, found)
    return cast("tuple[T, ...]", items)


def items_at(path: str, value: object, expected: str = "a list") -> list[Any]:
    """Return the items of a list, a tuple or another iterable, but a text.

    Raises:
        PlanError: PLAN-020 if it is a text, or has no items.
    """
    # The letters of a text would be read as items.
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise wrong_type(path, expected, value)
    return list(cast("Iterable[Any]", value))


def list_at(path: str, value: object) -> list[object]:
    """Return the value as a list from JSON.

    Raises:
        PlanError: PLAN-020 if it is not a list.
    """
    if not isinstance(value, list):
        raise wrong_type(path, "a list", value)
    return cast("list[object]", value)


def object_at(path: str, value: object) -> Mapping[str, object]:
    """Return the value as an object from JSON.

    Raises:
        PlanError: PLAN-020 if it is not an object.
    """
    if not isinstance(value, Mapping):
        raise wrong_type(path, "an object", value)
    return cast("Mapping[str, object]", value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
