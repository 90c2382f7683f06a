"""Measurements and profiles in files, and files that are none."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from evener.errors import EvenerWarning, ProfileError
from evener.plan import profile_files
from evener.plan.profile_files import (
    DeviceIdentity,
    MeasurementCache,
    cache_folder,
    from_fields,
    profile_from_json,
    profile_to_json,
    read_profile,
    to_fields,
)
from evener.profile import CostProfile, Curve, LayerTimes, Link
from unit.planner.profiles import cluster_of, model_of, profiles, times_of

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


def measurement_entry(value: Any) -> dict[str, Any]:
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


def cache_file(**changes: Any) -> str:
    content = {
        "format": "evener-measurements",
        "version": profile_files._CACHE["version"],
        "identity": dataclasses.asdict(GPU),
        "entries": {"speed": measurement_entry(7.0)},
    }
    return json.dumps({**content, **changes})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (cache_file()[:40], "cannot be read"),
        ("", "cannot be read"),
        ("[1]", "holds no object"),
        ("{}", "something else"),
        (cache_file(version=1), "has version 1"),
        (cache_file(identity={"hardware": "NVIDIA H100"}), "another device"),
        (cache_file(entries=[]), "has no entries"),
        (cache_file(entries={"speed": measurement_entry("fast")}), "'speed' is no measurement"),
        (cache_file(entries={"speed": 7.0}), "'speed' is no measurement"),
        (
            cache_file(entries={"speed": {"measured": "once", "value": 7.0}}),
            "'speed' is no measure",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_told_and_replaced(
    tmp_path: Path, content: str, why: str
) -> None:
    path = tmp_path / GPU.file_name
    path.write_text(cache_file())
    assert get(MeasurementCache(tmp_path), Measuring()) == 7.0
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


SECONDS = [1e-3, 2e-3]

PROFILE = CostProfile(
    model=model_of(SECONDS),
    cluster=cluster_of(["a", "a"], [10, None], Link(bytes_per_second=1e9, latency_seconds=1e-5)),
    times={"a": times_of(SECONDS, slowness=1.0, overhead=1e-4)},
    step_overhead_seconds=1e-3,
)


@given(profiles(most_devices=4, most_layers=4, tight=True))
def test_round_trip(profile: CostProfile) -> None:
    assert profile_from_json(profile_to_json(profile)) == profile


def test_links_without_end_and_kernels_are_kept() -> None:
    first, *rest = PROFILE.model.layers
    first = dataclasses.replace(first, kernel_workspace=Curve(((1, 10.0), (8, 90.0))))
    model = dataclasses.replace(PROFILE.model, layers=(first, *rest), updates_wait=True)
    profile = CostProfile(model=model, cluster=cluster_of(["a"]), times=dict(PROFILE.times))
    assert math.isinf(profile.cluster.machines[0].link.bytes_per_second)
    text = profile_to_json(profile)
    assert json.loads(text)["cluster"]["machines"][0]["link"]["bytes_per_second"] is None
    assert profile_from_json(text) == profile


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: [], "It is no JSON object with a format"),
        (lambda content: {**content, "format": "other"}, "Its format is 'other'"),
        (lambda content: {**content, "version": 7}, "It has version 7, and this is version 4"),
        (lambda content: {**content, "model": {}}, "model is missing the key 'name'"),
        (lambda content: {**content, "times": 3}, "times must be an object, not 3"),
        (
            lambda content: {**content, "step_overhead_seconds": None},
            "step_overhead_seconds must be a number, not None",
        ),
    ],
)
def test_what_is_no_profile(change: object, says: str) -> None:
    text = json.dumps(change(json.loads(profile_to_json(PROFILE))))  # pyright: ignore
    with pytest.raises(ProfileError) as caught:
        profile_from_json(text, source="here.json")
    assert caught.value.code == "PROF-006"
    assert caught.value.what.startswith("here.json")
    assert says in caught.value.why


def test_what_is_wrong_with_the_values_is_said_by_them() -> None:
    content = json.loads(profile_to_json(PROFILE))
    content["cluster"]["machines"][0]["link"]["bytes_per_second"] = 0
    with pytest.raises(ProfileError) as caught:
        profile_from_json(json.dumps(content))
    assert caught.value.code == "PROF-004"


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with pytest.raises(ProfileError, match="PROF-006"):
        read_profile(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ProfileError, match="PROF-006"):
        read_profile(path)
    path.write_text(profile_to_json(PROFILE), encoding="utf-8")
    assert read_profile(path) == PROFILE
