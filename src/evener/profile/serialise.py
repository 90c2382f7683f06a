"""JSON form of a cost profile."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from evener.errors import ProfileError
from evener.profile.cache import times_from_json, times_to_json
from evener.profile.cluster import Cluster, ClusterDevice, Link, Machine
from evener.profile.costs import CostProfile, LayerCosts, ModelCosts
from evener.profile.curve import Curve

_FORMAT, _VERSION = "evener-profile", 4
_MODEL_FIELDS = dataclasses.fields(ModelCosts)


def profile_to_json(profile: CostProfile) -> str:
    """Return a profile as JSON; `profile_from_json` restores it."""
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "model": model_to_fields(profile.model),
        "cluster": _finite(dataclasses.asdict(profile.cluster)),
        "times": {
            name: [times_to_json(layer) for layer in times] for name, times in profile.times.items()
        },
        "step_overhead_seconds": profile.step_overhead_seconds,
    }
    return json.dumps(content, indent=1, allow_nan=False)


def profile_from_json(text: str, *, source: str = "the text") -> CostProfile:
    """Return the profile of a JSON text.

    Args:
        text: Text that `profile_to_json` returned.
        source: Source of the text, for errors.

    Raises:
        ProfileError: PROF-006 if it is not a profile of this version.
    """
    try:
        content = json.loads(text)
        problem = _problem_of(content)
        if not problem:
            return _read(cast("dict[str, Any]", content))
    except ProfileError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise _unusable(source, problem)


def model_to_fields(model: ModelCosts) -> dict[str, Any]:
    """Return the costs of a model as a JSON object; `model_from_fields` restores them."""
    return dataclasses.asdict(model)


def model_from_fields(fields: Mapping[str, Any]) -> ModelCosts:
    """Return the costs of a model from a JSON object.

    Args:
        fields: Object that `model_to_fields` returned.

    Raises:
        KeyError: If a field is missing; the defaults of `ModelCosts` are for models made in Python.
    """
    values: dict[str, Any] = {field.name: fields[field.name] for field in _MODEL_FIELDS}
    values["layers"] = tuple(map(_layer, fields["layers"]))
    return ModelCosts(**values)


def read_profile(path: Path) -> CostProfile:
    """Return the profile in a file.

    Raises:
        ProfileError: PROF-006 if it cannot be read, or is not a profile of this version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise _unusable(str(path), f"It cannot be read: {error}") from None
    return profile_from_json(text, source=str(path))


def _unusable(source: str, problem: str) -> ProfileError:
    return ProfileError(
        "PROF-006",
        f"{source} holds no usable profile.",
        why=f"{problem}.",
        fix="Measure again: evener plan SCRIPT --save-profile FILE.",
    )


def _problem_of(content: object) -> str:
    if not isinstance(content, dict) or "format" not in content:
        return "It is no JSON object with a format"
    fields = cast("dict[str, Any]", content)
    if fields["format"] != _FORMAT:
        return f"Its format is {fields['format']!r} and not {_FORMAT!r}"
    if fields.get("version") != _VERSION:
        return f"It has version {fields.get('version')!r}, and this is version {_VERSION}"
    return ""


def _read(content: Mapping[str, Any]) -> CostProfile:
    cluster = content["cluster"]
    return CostProfile(
        model=model_from_fields(content["model"]),
        cluster=Cluster(
            devices=tuple(ClusterDevice(**device) for device in cluster["devices"]),
            machines=tuple(_machine(machine) for machine in cluster["machines"]),
            network=_link(cluster["network"]),
            name=cluster["name"],
        ),
        times={
            name: tuple(times_from_json(layer) for layer in times)
            for name, times in content["times"].items()
        },
        step_overhead_seconds=float(content["step_overhead_seconds"]),
    )


def _layer(value: Mapping[str, Any]) -> LayerCosts:
    seen = value["kernel_workspace"]
    curve = None if seen is None else Curve(tuple(map(tuple, seen["points"])))
    fields: dict[str, Any] = {**value, "kernel_workspace": curve}
    return LayerCosts(**fields)


def _machine(value: Mapping[str, Any]) -> Machine:
    links: dict[str, Any] = {name: _link(value[name]) for name in ("link", "host_link")}
    return Machine(**{**value, **links})


def _link(value: Mapping[str, Any]) -> Link:
    bandwidth = value["bytes_per_second"]
    return Link(
        bytes_per_second=float("inf") if bandwidth is None else bandwidth,
        latency_seconds=value["latency_seconds"],
    )


def _finite(value: Any) -> Any:
    """Replace infinite bandwidths by null, because JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast("list[Any]", value)]
    return None if value == float("inf") else value
