from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from evener.errors import EvenerWarning
from evener.plan import profile_files
from evener.plan.profile_files import (
    DeviceIdentity,
    MeasurementCache,
    cache_folder,
    from_fields,
    to_fields,
)
from evener.profile import Curve, LayerTimes

GPU = DeviceIdentity(hardware="NVIDIA A100", driver="550.1", tensorflow="2.21.0")


class Measuring:
    """Returns another number each time."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> float:
        self.count += 1
        return float(self.count)


def get(cache: MeasurementCache, measure: Callable[[], float], key: str = "speed") -> float:
    return cache.get_or_measure(GPU, key, measure, float).value


def entry(value: Any) -> dict[str, Any]:
    return {"measured": "2026-01-31T12:00:00+00:00", "value": value}


def test_what_is_known_is_not_measured_again(tmp_path: Path) -> None:
    measure = Measuring()
    assert get(MeasurementCache(tmp_path), measure) == 1.0
    assert get(MeasurementCache(tmp_path), measure) == 1.0
    assert get(MeasurementCache(tmp_path), measure, "other") == 2.0
    assert get(MeasurementCache(tmp_path), measure) == 1.0
    assert [path.name for path in tmp_path.iterdir()] == [GPU.file_name]


def test_refresh_measures_again_and_keeps_the_rest(tmp_path: Path) -> None:
    measure = Measuring()
    get(MeasurementCache(tmp_path), measure)
    get(MeasurementCache(tmp_path), measure, "other")
    assert get(MeasurementCache(tmp_path, refresh=True), measure) == 3.0
    assert get(MeasurementCache(tmp_path), measure) == 3.0
    assert get(MeasurementCache(tmp_path), measure, "other") == 2.0


@pytest.mark.parametrize(
    "change",
    [
        {"machine": "other"},
        {"driver": "551.0"},
        {"tensorflow": "2.22.0"},
        {"num_threads": 2},
        {"settings": "jit=autoclustering"},
    ],
)
def test_another_identity_is_measured_apart(tmp_path: Path, change: dict[str, Any]) -> None:
    other = dataclasses.replace(GPU, **change)
    assert other.file_name != GPU.file_name
    cache, measure = MeasurementCache(tmp_path), Measuring()
    get(cache, measure)
    found = cache.get_or_measure(other, "speed", measure, float)
    assert found.value == 2.0


def test_it_is_known_since_when(tmp_path: Path) -> None:
    then = datetime(2026, 1, 31, 12, tzinfo=UTC)
    first = MeasurementCache(tmp_path, now=lambda: then).get_or_measure(
        GPU, "speed", Measuring(), float
    )
    later = MeasurementCache(tmp_path).get_or_measure(GPU, "speed", Measuring(), float)
    assert (first.since, later.since) == (None, then)


def whole(**changes: Any) -> str:
    content = {
        "format": "evener-measurements",
        "version": profile_files._CACHE["version"],
        "identity": dataclasses.asdict(GPU),
        "entries": {"speed": entry(7.0)},
    }
    return json.dumps({**content, **changes})


def test_the_file_of_these_tests_can_be_used(tmp_path: Path) -> None:
    (tmp_path / GPU.file_name).write_text(whole())
    assert get(MeasurementCache(tmp_path), Measuring()) == 7.0


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (whole()[:40], "cannot be read"),
        ("", "cannot be read"),
        ("[1]", "holds no object"),
        ("{}", "something else"),
        (whole(version=1), "has version 1"),
        (whole(identity={"hardware": "NVIDIA H100"}), "another device"),
        (whole(entries=[]), "has no entries"),
        (whole(entries={"speed": entry("fast")}), "'speed' is no measurement"),
        (whole(entries={"speed": 7.0}), "'speed' is no measurement"),
        (whole(entries={"speed": {"measured": "once", "value": 7.0}}), "'speed' is no measurement"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_and_replaced(
    tmp_path: Path, content: str, why: str
) -> None:
    path = tmp_path / GPU.file_name
    path.write_text(content)
    with pytest.warns(EvenerWarning, match=r"PROF-013(.|\n)*" + re.escape(why)) as warned:
        assert get(MeasurementCache(tmp_path), Measuring()) == 1.0
    assert len(warned) == 1
    assert get(MeasurementCache(tmp_path), Measuring()) == 1.0
    entries = json.loads(path.read_text())["entries"]
    assert {key: entry["value"] for key, entry in entries.items()} == {"speed": 1.0}


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(EvenerWarning, match="PROF-014"):
        found = get(MeasurementCache(tmp_path / "file" / "folder"), Measuring(), "speed")
    assert found == 1.0


def test_nothing_is_left_of_a_write_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    cache = MeasurementCache(tmp_path)
    get(cache, Measuring())
    before = (tmp_path / GPU.file_name).read_text()
    monkeypatch.setattr("evener.plan.profile_files.json.dump", fail)
    with pytest.warns(EvenerWarning, match="No space left"):
        get(cache, Measuring(), "other")
    assert [path.name for path in tmp_path.iterdir()] == [GPU.file_name]
    assert (tmp_path / GPU.file_name).read_text() == before


def test_the_folder_of_the_user(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "evener"
    assert cache_folder({"XDG_CACHE_HOME": "relative"}) == Path.home() / ".cache" / "evener"
    assert cache_folder({}) == Path.home() / ".cache" / "evener"


def test_times_stay_the_same_on_their_way() -> None:
    times = LayerTimes(
        forward=Curve(((1, 0.25), (8, 1.0 / 3))), backward=Curve(((1, 0.5),)), update_seconds=0.1
    )
    separate = dataclasses.replace(times, backward_separate=Curve(((1, 0.75),)))
    for example in (times, separate):
        assert from_fields(json.loads(json.dumps(to_fields(example))), LayerTimes) == example
