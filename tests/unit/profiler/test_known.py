"""Times of layers that were measured in earlier runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evener.plan.profile_files import (
    DeviceIdentity,
    KnownTimes,
    MeasurementCache,
    ReusedLayers,
    from_fields,
    to_fields,
)
from evener.profile import Curve, LayerTimes

GPU = DeviceIdentity(hardware="NVIDIA A100", machine="here")
TIMES = LayerTimes(forward=Curve(((1, 0.25),)), backward=Curve(((1, 0.5),)))
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def never() -> LayerTimes:
    raise AssertionError("measured again")


def known(folder: Path, identity: DeviceIdentity = GPU) -> KnownTimes:
    return KnownTimes(MeasurementCache(folder, now=lambda: NOON), identity)


def test_layers_are_counted_with_those_like_them(tmp_path: Path) -> None:
    first = known(tmp_path)
    assert first.layer("dense", lambda: TIMES, num_layers=3) == TIMES
    assert first.reused == ReusedLayers(hardware="NVIDIA A100", num_layers=3, num_reused=0)
    second = known(tmp_path)
    assert second.layer("dense", never, num_layers=3) == TIMES
    assert second.layer("head", lambda: TIMES) == TIMES
    assert second.reused == ReusedLayers(
        hardware="NVIDIA A100", num_layers=4, num_reused=3, since=NOON
    )
    assert str(second.reused).startswith(
        "NVIDIA A100: 3 of 4 layers from earlier runs, since 2026-"
    )


def test_times_of_another_machine_are_not_taken(tmp_path: Path) -> None:
    known(tmp_path).layer("dense", lambda: TIMES)
    other = known(tmp_path, DeviceIdentity(hardware="NVIDIA A100", machine="there"))
    with pytest.raises(AssertionError, match="measured again"):
        other.layer("dense", never)


def test_without_a_cache_everything_is_measured() -> None:
    times = KnownTimes()
    numbers = iter([1.0, 2.0])
    assert [times.other("rest", numbers.__next__, float) for _ in "ab"] == [1.0, 2.0]


def test_what_cannot_be_measured_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        known(tmp_path).layer("dense", never)
    assert known(tmp_path).layer("dense", lambda: TIMES) == TIMES


@pytest.mark.parametrize("since", [None, NOON])
def test_a_count_goes_to_another_process(since: datetime | None) -> None:
    taken = ReusedLayers(hardware="cpu", num_layers=4, num_reused=2, since=since)
    assert from_fields(json.loads(json.dumps(to_fields(taken))), ReusedLayers) == taken
