"""Records: what is read is what was written, and every mistake has its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from evener.base.records import RecordError, from_json, from_plain, to_json, to_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    name: str
    sizes: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    items: tuple[Item, ...]
    owner: Literal["one", "two"] | tuple[Item, ...] = "one"
    by_name: Mapping[str, Item] | None = None
    numbers: dict[str, list[int]] = field(default_factory=dict)
    anything: Any = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ArithmeticError("a weight below 0")


ITEM = Item(name="a", sizes={"x": 3})
RECORD = Record(
    items=(ITEM,),
    owner=(ITEM,),
    by_name={"b": ITEM},
    numbers={"c": [1]},
    anything={"d": [{}]},
    weight=2,
)


def test_round_trip() -> None:
    assert from_json(to_json(RECORD), Record) == RECORD
    assert from_plain(to_plain(RECORD), Record) == RECORD
    assert from_plain({"items": [ITEM]}, Record).items == (ITEM,)


def _item(**fields: Any) -> dict[str, Any]:
    return {"items": [{"name": "a", **fields}]}


@pytest.mark.parametrize(
    ("value", "kind", "place", "says"),
    [
        (3, "type", "", "the whole must be an object, not 3"),
        ({}, "missing", "", "the whole is missing the key 'items'"),
        ({"items": [{}]}, "missing", "items[0]", "items[0] is missing the key 'name'"),
        ({"item": []}, "unknown", "", "has the unknown key 'item'. Did you mean 'items'?"),
        (_item(mame="b"), "unknown", "items[0]", "unknown key 'mame'. Did you mean 'name'?"),
        (
            {"items": [], "by_name": {"b": {"nname": "c"}}},
            "unknown",
            "by_name.b",
            "by_name.b has the unknown key 'nname'. Did you mean 'name'?",
        ),
        ({"items": [], "owner": [{"size": 1}]}, "unknown", "owner[0]", "'size'"),
        (_item(sizes={"x": 1, "y": "2"}), "type", "items[0].sizes['y']", "a whole number, not '2'"),
        (_item(name=[]), "type", "items[0].name", "must be text, not []"),
        ({"items": [], "numbers": {"c": 3}}, "type", "numbers.c", "must be a list, not 3"),
        ({"items": [], "numbers": {"c": ["3"]}}, "value", "numbers[...][0]", "`int`, got `str`"),
        (_item(sizes=[]), "type", "items[0].sizes", "must be an object or null, not []"),
        ({"items": [], "weight": True}, "type", "weight", "must be a number, not True"),
        ({"items": [], "owner": "tree"}, "value", "owner", "cannot be 'tree'"),
    ],
)
def test_mistakes(value: Any, kind: str, place: str, says: str) -> None:
    with pytest.raises(RecordError) as caught:
        from_plain(value, Record)
    assert (caught.value.kind, caught.value.place) == (kind, place)
    assert says in str(caught.value)
    with pytest.raises(RecordError) as caught:
        from_plain(value, Record, place="here")
    assert caught.value.place == f"here.{place}".rstrip(".")


@pytest.mark.parametrize("text", ["{", "[" * 10**6, b"\xff"])
def test_what_is_no_json(text: str | bytes) -> None:
    with pytest.raises(RecordError, match="it is not JSON") as caught:
        from_json(text, Record)
    assert caught.value.kind == "text"


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda: to_json({"a": float("inf")}), ValueError),
        (lambda: to_json({"a": object()}), TypeError),
        (lambda: from_json(json.dumps({"items": [], "weight": -1}), Record), ArithmeticError),
    ],
)
def test_what_others_refuse_is_raised_as_it_is(
    write: Callable[[], object], error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        write()
    assert not isinstance(caught.value, RecordError)
