"""Cases of PLAN errors: plans with exactly one mistake."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from evener.plan import (
    Plan,
    PlanDevice,
    Predicted,
    Replica,
    Stage,
)
from unit.plan.examples import HYBRID

NAN, INF = float("nan"), float("inf")
GPU_0, GPU_1 = PlanDevice.named("gpu:0"), PlanDevice.named("gpu:1")


def plan(**changes: Any) -> Plan:
    fields = {
        "devices": (GPU_0, GPU_1),
        "replicas": (Replica(share=1, stages=(Stage(device="gpu:0"),)),),
    }
    return Plan(**(fields | changes))


def second_replica(**changes: Any) -> Plan:
    """A plan whose replicas[1] has a mistake."""
    fields = {"share": 1, "stages": (Stage(device="gpu:0"),)}
    return plan(
        replicas=(
            Replica(share=1, stages=(Stage(device="gpu:0"),)),
            Replica(**(fields | changes)),
        )
    )


def staged(*layers: Any) -> Plan:
    return plan(
        replicas=(
            Replica(share=1, stages=tuple(Stage(device="gpu:0", layers=each) for each in layers)),
        )
    )


def predicted(seconds: Any = 1.0, **peak_bytes: Any) -> Plan:
    sizes = {name.replace("_", ":"): size for name, size in peak_bytes.items()}
    return plan(predicted=Predicted(step_seconds=seconds, peak_bytes=sizes))


def written(place: str = "", value: Any = None, *, without: str = "") -> Callable[[], Plan]:
    """Read a hybrid plan in whose JSON one place was changed or left out."""

    def read() -> Plan:
        fields: Any = json.loads(HYBRID.to_json())
        *path, last = re.findall(r"\w+", without or place)
        inner = fields
        for key in path:
            inner = inner[int(key) if key.isdigit() else key]
        if without:
            del inner[last]
        else:
            inner[int(last) if last.isdigit() else last] = value
        return Plan.from_json(json.dumps(fields))

    return read


class Case(NamedTuple):
    code: str
    make: Callable[[], object]
    what: str
    why: str
    fix: str
