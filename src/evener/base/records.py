"""Records: what is written to a file, a socket or another process, with one reader for all of them.

A record is a frozen dataclass whose annotations say what it holds::

    record  --- to_plain --->  dicts, lists, text, numbers  --- JSON --->  text      to_json
    record  <-- from_plain --  the same                     <-- JSON ----  text      from_json

msgspec makes the records and checks the types. Unknown keys and their close matches, which it skips
in dataclasses, are checked here. Every mistake is a `RecordError` with its place, such as
``replicas[1].stages[0].device``; the caller turns it into an error with a code.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from evener.errors import did_you_mean

T = TypeVar("T")

# Types by their names in the messages of msgspec.
_WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_NAMES: Mapping[type, str] = {
    **{kind: kind.__name__ for kind in (str, int, float, bool)},
    list: "array",
    tuple: "array",
    dict: "object",
    type(None): "null",
}
_PLACE = re.compile(r" - at `(?:key` in `)?\$\.?(.*)`$")
_TYPES = re.compile(r"Expected `(.+)`, got `(.+)`")
_SHOWN_LENGTH = 60


class RecordError(ValueError):
    """Value that is no record of its type; the text is a sentence without a full stop.

    Attributes:
        kind: ``"text"`` that is no JSON, an ``"unknown"`` or ``"missing"`` key, a value of another
            ``"type"``, or a ``"value"`` that is not allowed.
        place: Place of the value, or of the object with the key; empty for the whole record.
        key: The unknown or missing key.
        known: All keys that are known there, or all that are needed.
        expected: Type that is expected, in words.
        value: The wrong value.
        reason: Mistake in the text or the value, in words.
    """

    def __init__(
        self,
        kind: Literal["text", "unknown", "missing", "type", "value"],
        place: str = "",
        *,
        key: str = "",
        known: tuple[str, ...] = (),
        expected: str = "",
        value: object = None,
        reason: str = "",
    ) -> None:
        where, shown = place or "the whole", shorten(value)
        texts = {
            "text": f"it is not JSON: {reason}",
            "unknown": f"{where} has the unknown key {key!r}.{did_you_mean(key, known)}",
            "missing": f"{where} is missing the key {key!r}",
            "type": f"{where} must be {expected}, not {shown}",
            "value": f"{where} cannot be {shown}: {reason}",
        }
        super().__init__(texts[kind].rstrip("."))
        self.kind, self.place, self.key, self.known = kind, place, key, known
        self.expected, self.value, self.reason = expected, value, reason


def shorten(value: object) -> str:
    """Return a value for a message."""
    text = repr(value)
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 3]}..."


def to_plain(record: object) -> Any:
    """Return a record as dicts, lists, text and numbers."""
    import msgspec  # only where records are read or written: its import takes milliseconds

    def convert(value: object) -> object:
        if isinstance(value, Mapping):
            return dict(cast("Mapping[object, object]", value))
        raise TypeError(f"a record cannot hold {shorten(value)}")

    return msgspec.to_builtins(record, enc_hook=convert)


def to_json(record: object) -> str:
    """Return a record as JSON. Infinity and NaN, which JSON does not have, are a ValueError."""
    return json.dumps(to_plain(record), ensure_ascii=False, allow_nan=False)


def from_json(text: str | bytes, kind: type[T]) -> T:
    """Return the record in a JSON text.

    Raises:
        RecordError: If it is not JSON, or no such record.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError("text", reason=str(error)) from None
    return from_plain(value, kind)


def from_plain(
    value: object,
    kind: type[T],
    *,
    place: str = "",
    complete: bool = False,
) -> T:
    """Return the record of plain values; parts of it may be records already.

    Args:
        value: Dicts, lists, text and numbers.
        kind: Type of the record.
        place: Place of the value in a larger record.
        complete: Whether fields with a default must be there as well.

    Raises:
        RecordError: If it is no such record. What a record raises itself is raised as it is.
    """
    import msgspec  # as above

    _check_structure(value, kind, place, complete=complete)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if error.__cause__ is not None and type(error.__cause__) is not ValueError:
            raise error.__cause__ from None
        raise _error_of(str(error), value, place) from None


def _check_structure(value: object, kind: Any, place: str, *, complete: bool) -> None:
    """Refuse unknown and missing keys, and objects and lists where the type has something else."""
    origin, inside = get_origin(kind), get_args(kind)
    is_object, is_list = _is_object(kind), origin in (tuple, list)
    if is_object and dataclasses.is_dataclass(value):
        return
    if origin in (Union, types.UnionType):
        for each in inside:
            # Other values are left to msgspec.
            fits_list = isinstance(value, list | tuple) and get_origin(each) in (tuple, list)
            if fits_list or (isinstance(value, Mapping) and _is_object(each)):
                _check_structure(cast("object", value), each, place, complete=complete)
    elif is_object and isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value)
        known, required = _keys(kind) if origin is None else ({}, ())
        for key in fields if known else ():
            if key not in known:
                raise RecordError("unknown", place, key=key, known=tuple(known))
        for key in known if complete else required:
            if key not in fields:
                raise RecordError("missing", place, key=key, known=required)
        for key, inner in fields.items():
            of_key = known[key] if known else inside[1]
            _check_structure(inner, of_key, _joined(place, key), complete=complete)
    elif is_list and isinstance(value, list | tuple):
        for index, inner in enumerate(cast("list[object]", value)):
            _check_structure(inner, inside[0], f"{place}[{index}]", complete=complete)
    elif is_object or is_list or (kind in _NAMES and isinstance(value, Mapping | list)):
        expected = "object" if is_object else "array" if is_list else _NAMES[kind]
        expected = _WORDS[expected]
        raise RecordError("type", place, expected=expected, value=cast("object", value))


def _is_object(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) or get_origin(kind) in (Mapping, dict)


@functools.cache
def _keys(kind: type[Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the types of a dataclass's fields, and the names of those without a default."""
    hints, fields = get_type_hints(kind), dataclasses.fields(kind)
    none = dataclasses.MISSING
    required = (f.name for f in fields if f.default is none and f.default_factory is none)
    return {field.name: hints[field.name] for field in fields}, tuple(required)


def _joined(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _error_of(message: str, whole: object, place: str) -> RecordError:
    """Return the error for a message of msgspec, with the value that it is about."""
    path = _PLACE.search(message)
    sentence = message if path is None else message[: path.start()]
    wrong = _TYPES.fullmatch(sentence)
    value: Any = whole
    outer = place
    steps = "" if path is None else str(path[1])
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]", steps):
        if index == "..." and not steps.endswith("[...]"):
            return RecordError("value", _joined(outer, steps), reason=sentence)
        if index == "...":
            # msgspec hides the key in a mapping: the first value of the wrong type is meant.
            fields, name = cast("Mapping[str, object]", value), wrong[2] if wrong else ""
            index = next((k for k in fields if _NAMES.get(type(fields[k])) == name), "...")
            place, value = f"{place}[{index!r}]", fields.get(index)
        elif index:
            place, value = f"{place}[{index}]", cast("list[Any]", value)[int(index)]
        elif isinstance(value, Mapping):
            place, value = _joined(place, key), cast("Mapping[str, Any]", value)[key]
        else:
            place, value = _joined(place, key), getattr(value, key)
    if wrong is None:
        return RecordError("value", place, value=value, reason=sentence)
    expected = " or ".join(_WORDS.get(name, name) for name in wrong[1].split(" | "))
    return RecordError("type", place, expected=expected, value=value)
