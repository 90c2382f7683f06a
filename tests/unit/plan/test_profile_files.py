"""Profiles as JSON, and files that are none."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given

from evener.errors import ProfileError
from evener.plan.profile_files import profile_from_json, profile_to_json, read_profile
from evener.profile import CostProfile, Curve, Link
from unit.planner.profiles import cluster_of, model_of, profiles, times_of

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


def test_what_kernels_were_seen_to_need_is_kept() -> None:
    first, *rest = PROFILE.model.layers
    first = dataclasses.replace(first, kernel_workspace=Curve(((1, 10.0), (8, 90.0))))
    model = dataclasses.replace(PROFILE.model, layers=(first, *rest), updates_wait=True)
    profile = dataclasses.replace(PROFILE, model=model)
    assert profile_from_json(profile_to_json(profile)) == profile


def test_a_link_without_end_is_null() -> None:
    profile = CostProfile(model=PROFILE.model, cluster=cluster_of(["a"]), times=dict(PROFILE.times))
    text = profile_to_json(profile)
    assert json.loads(text)["cluster"]["machines"][0]["link"]["bytes_per_second"] is None
    link = profile_from_json(text).cluster.machines[0].link
    assert math.isinf(link.bytes_per_second)


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
