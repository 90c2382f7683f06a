"""Every PLAN error: it says what happened and where, why, and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import evener.plan
from evener.errors import PlanError
from evener.plan import (
    OwnerRule,
    Plan,
    PlanDevice,
    Predicted,
    Rejected,
    Replica,
    ShareEvener,
    Stage,
    check_shares,
    even_shares,
    parse_device_name,
    split_batch,
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


CASES = [
    Case(
        "PLAN-001",
        lambda: Plan.data_parallel(["cpu:0", "/GPU:0"]),
        "devices[1] is '/GPU:0', which is not a device name. Did you mean 'gpu:0'?",
        "names are lower case",
        "`evener devices` lists the names",
    ),
    Case(
        "PLAN-001",
        lambda: plan(devices=(PlanDevice(name="gpu0", kind="gpu"),)),
        "devices[0].name is 'gpu0', which is not a device name. Did you mean 'gpu:0'?",
        "gpu:INDEX or cpu:INDEX",
        "'worker:1/gpu:0'",
    ),
    Case(
        "PLAN-001",
        lambda: PlanDevice.named("host"),
        "device is 'host', which is not a device name.",
        "gpu:INDEX or cpu:INDEX",
        "write for example 'gpu:0'",
    ),
    Case(
        "PLAN-002",
        lambda: Plan.data_parallel(["gpu:0", "gpu:1", "gpu:0"]),
        "devices[2].name names gpu:0 a second time.",
        "devices[0] is gpu:0 already",
        "name every device once",
    ),
    Case(
        "PLAN-003",
        lambda: second_replica(stages=(Stage(device="GPU:1"),)),
        "replicas[1].stages[0].device is 'GPU:1', which is not a device of the plan. "
        "Did you mean 'gpu:1'?",
        "the devices of the plan are gpu:0, gpu:1",
        "for example 'gpu:0', or add 'GPU:1' to devices",
    ),
    Case(
        "PLAN-003",
        lambda: plan(owners=(OwnerRule(pattern="*", device="cpu:0"),)),
        "owners[0].device is 'cpu:0', which is not a device of the plan.",
        "the devices of the plan are gpu:0, gpu:1",
        "or add 'cpu:0' to devices",
    ),
    Case(
        "PLAN-003",
        lambda: predicted(gpu_2=5),
        "a key of predicted.peak_bytes is 'gpu:2', which is not a device of the plan.",
        "gpu:0, gpu:1",
        "add 'gpu:2' to devices",
    ),
    Case(
        "PLAN-003",
        lambda: second_replica(stages=(Stage(device="host"),)),
        "replicas[1].stages[0].device is 'host'",
        "gpu:0, gpu:1",
        "write one of these",
    ),
    Case(
        "PLAN-004",
        lambda: Plan.data_parallel([]),
        "The plan has no devices.",
        "somebody must compute",
        "Plan.data_parallel(['cpu:0'])",
    ),
    Case(
        "PLAN-005",
        lambda: plan(replicas=()),
        "The plan has no replicas.",
        "replicas is empty",
        "Plan.data_parallel(['gpu:0', 'gpu:1'])",
    ),
    Case(
        "PLAN-006",
        lambda: second_replica(stages=()),
        "replicas[1] has no stages.",
        "no device that computes its samples",
        "stages=(Stage(device='gpu:0'),)",
    ),
    Case(
        "PLAN-007",
        lambda: second_replica(share=-2),
        "replicas[1].share is -2, which is negative.",
        "0 or more samples",
        "write replicas[1].share = 2, or 0",
    ),
    Case(
        "PLAN-007",
        lambda: split_batch(8, [1, -0.5]),
        "shares[1] is -0.5, which is negative.",
        "0 or more samples",
        "write shares[1] = 0.5",
    ),
    Case(
        "PLAN-008",
        lambda: second_replica(share=NAN),
        "replicas[1].share is nan, which is not a usable number.",
        "a share must be finite",
        "replicas[1].share = 1",
    ),
    *(
        Case(
            "PLAN-008",
            lambda share=share: check_shares([1, share]),
            "which is not a usable number.",
            "finite, from 0 to 1e+100",
            "relative to the other shares",
        )
        for share in (NAN, INF, -INF, 1e101, 10**400, -(10**400))
    ),
    Case(
        "PLAN-009",
        lambda: Plan.data_parallel(["gpu:0", "gpu:1"], shares=[0, 0.0]),
        "The shares add up to 0: [0.0, 0.0].",
        "somebody must compute the samples",
        "for example [1.0, 1.0]",
    ),
    Case(
        "PLAN-009",
        lambda: split_batch(8, []),
        "The shares add up to 0: [].",
        "somebody must compute",
        "at least one share above 0",
    ),
    Case(
        "PLAN-010",
        lambda: Plan.data_parallel(["gpu:0", "gpu:1"], shares=[3, 2, 1]),
        "There are more shares than devices: 3 and 2.",
        "the devices take one share of the batch each",
        "for example [3.0, 2.0]",
    ),
    Case(
        "PLAN-011",
        lambda: Plan.data_parallel(["gpu:0", "gpu:1"], shares=[3]),
        "There are fewer shares than devices: 1 and 2.",
        "the devices take one share of the batch each",
        "for example [3.0, 0]",
    ),
    Case(
        "PLAN-013",
        lambda: second_replica(num_micro_batches=0),
        "replicas[1].num_micro_batches is 0.",
        "in 1 piece or more",
        "replicas[1].num_micro_batches = 1",
    ),
    Case(
        "PLAN-014",
        lambda: second_replica(num_micro_batches=4, in_flight=5),
        "replicas[1].in_flight is 5, outside 1 to 4.",
        "at most 4 can be alive at once",
        "replicas[1].in_flight = 4, or num_micro_batches = 5.",
    ),
    Case(
        "PLAN-014",
        lambda: second_replica(in_flight=0),
        "replicas[1].in_flight is 0, outside 1 to 1.",
        "at least 1",
        "replicas[1].in_flight = 1.",
    ),
    Case(
        "PLAN-015",
        lambda: staged(("a",), ()),
        "replicas[0].stages[1].layers is empty.",
        "computes nothing",
        "take stages[1] out of replicas[0]",
    ),
    Case(
        "PLAN-016",
        lambda: staged(("a",), ("*",)),
        "replicas[0].stages[1].layers[0] is '*', all layers, in a replica of 2 stages.",
        "every layer must belong to one of them",
        "replicas[0].stages[1].layers[0] = 'encoder_*'",
    ),
    Case(
        "PLAN-016",
        lambda: staged(("a", "**"), ("b",)),
        "replicas[0].stages[0].layers[1] is '**'",
        "every layer must belong to one of them",
        "name the layers of each stage",
    ),
    Case(
        "PLAN-017",
        lambda: staged(("a", "b_*"), ("c", "b_*")),
        "replicas[0].stages[1].layers[1] names 'b_*' again.",
        "replicas[0].stages[0].layers[1] has it already",
        "keep 'b_*' in one of the two",
    ),
    *(
        Case("PLAN-018", make, f"{place} is empty.", "says nothing", "write a text")
        for place, make in {
            "recompute[1]": lambda: plan(recompute=("a", "")),
            "owners[0].pattern": lambda: plan(owners=(OwnerRule(pattern=" ", device="gpu:0"),)),
            "replicas[0].stages[0].layers[1]": lambda: staged(("a", "")),
            "rejected[0].reason": lambda: plan(rejected=(Rejected(layout="a", reason=""),)),
            "devices[0].name": lambda: Plan.data_parallel([PlanDevice(name="", kind="gpu")]),
        }.items()
    ),
    Case(
        "PLAN-019",
        lambda: Plan.data_parallel(["gpu:0"], owners="Shard"),  # type: ignore[arg-type]
        "owners is 'Shard'. Did you mean 'sharded'?",
        "'sharded' (spread over the devices) or 'central'",
        "OwnerRule(pattern='*', device='gpu:0')",
    ),
    *(
        Case("PLAN-020", make, what, f"of type {kind}", "write ")
        for what, kind, make in [
            ("devices must be a list, not 'gpu:0'", "str", lambda: Plan.data_parallel("gpu:0")),
            ("devices[1] must be text, not 1", "int", lambda: Plan.data_parallel(["gpu:0", 1])),
            ("devices[0] must be a PlanDevice", "str", lambda: plan(devices=("gpu:0",))),
            ("replicas must be a list, not 5", "int", lambda: plan(replicas=5)),
            ("replicas[1].share must be a number", "str", lambda: second_replica(share="1")),
            ("replicas[1].share must be a number", "bool", lambda: second_replica(share=True)),
            (
                "replicas[1].in_flight must be a whole",
                "float",
                lambda: second_replica(in_flight=1.0),
            ),
            (
                "replicas[1].stages[0].device must be",
                "NoneType",
                lambda: second_replica(stages=(Stage(device=None),)),
            ),  # type: ignore[arg-type]
            ("stages[0].layers must be a list", "str", lambda: staged("abc")),
            ("stages[0].layers[1] must be text", "int", lambda: staged(("a", 1))),
            ("owners must be 'sharded', 'central' or a list", "int", lambda: plan(owners=3)),
            ("owners[0] must be a OwnerRule", "str", lambda: plan(owners=("*",))),
            ("predicted must be a Predicted", "float", lambda: plan(predicted=1.5)),
            (
                "predicted.peak_bytes must be an object",
                "int",
                lambda: plan(predicted=Predicted(step_seconds=1, peak_bytes=5)),
            ),  # type: ignore
            (
                "predicted.peak_bytes['gpu:0'] must be a whole",
                "float",
                lambda: predicted(gpu_0=1.5),
            ),
            ("recompute must be a list", "str", lambda: plan(recompute="dense")),
            ("rejected[0] must be a Rejected", "str", lambda: plan(rejected=["pipeline"])),
            ("version must be a whole number", "str", lambda: plan(version="1")),
            ("the plan must be an object", "list", lambda: Plan.from_json("[]")),
            ("devices must be a list", "dict", written("devices", {})),
            ("devices[1] must be an object", "str", written("devices[1]", "gpu:1")),
            (
                "devices[0].memory_bytes must be a whole",
                "float",
                written("devices[0].memory_bytes", 1.5),
            ),
            ("owners must be a list", "NoneType", written("owners", None)),
            (
                "replicas[1].stages[0].device must be text",
                "int",
                written("replicas[1].stages[0].device", 0),
            ),
            ("replicas[0].stages must be a list", "str", written("replicas[0].stages", "x")),
            (
                "replicas[0].stages[1].layers must be a list",
                "str",
                written("replicas[0].stages[1].layers", "head"),
            ),
            (
                "predicted.step_seconds must be a number",
                "NoneType",
                written("predicted.step_seconds", None),
            ),
            ("rejected[0].layout must be text", "int", written("rejected[0].layout", 1)),
            ("recompute[0] must be text", "list", written("recompute[0]", [])),
            ("num_samples must be a whole number", "float", lambda: split_batch(1.5, [1])),
        ]
    ),
    Case(
        "PLAN-021",
        lambda: Plan.from_json('{"version": 1,'),
        "The text of the plan is not JSON.",
        "line 1 column 15",
        "Plan.from_json(path.read_text())",
    ),
    Case("PLAN-021", lambda: Plan.from_json("[" * 10**6), "is not JSON", "recursion", "to_json()"),
    Case("PLAN-021", lambda: Plan.from_json("1" * 10**5), "is not JSON", "digits", "to_json()"),
    Case("PLAN-021", lambda: Plan.from_json(b"{}"), "not JSON", "type bytes", "to_json()"),
    Case(
        "PLAN-022",
        lambda: Plan.from_json('{"version": 2, "workers": []}'),
        "The plan is of version 2; this evener reads version 1.",
        "written by another release",
        "pip install --upgrade evener",
    ),
    Case("PLAN-022", lambda: plan(version=0), "version 0", "no such version", "version = 1"),
    Case(
        "PLAN-023",
        written("replicas[1].in_fligth", 2),
        "replicas[1] has the unknown key 'in_fligth'. Did you mean 'in_flight'?",
        "share, stages, num_micro_batches, in_flight",
        "rename 'in_fligth' or take it out",
    ),
    Case(
        "PLAN-023",
        written("owner", "sharded"),
        "the plan has the unknown key 'owner'. Did you mean 'owners'?",
        "the keys here are version, devices,",
        "rename 'owner'",
    ),
    Case(
        "PLAN-024",
        written(without="replicas[1].stages[0].device"),
        "replicas[1].stages[0] lacks the key 'device'.",
        "must be here are device",
        "add replicas[1].stages[0].device",
    ),
    Case(
        "PLAN-024",
        lambda: Plan.from_json("{}"),
        "the plan lacks the key 'version'.",
        "version, devices, replicas, owners",
        "add version",
    ),
    Case(
        "PLAN-025",
        lambda: Plan.from_json('{"version": 1, "version": 2}'),
        "The key 'version' is there twice in one object.",
        "its values are 1 and 2",
        "keep one 'version'",
    ),
    Case(
        "PLAN-026",
        lambda: plan(devices=(GPU_0, PlanDevice(name="gpu:1", kind="cpu"))),
        "devices[1].kind is 'cpu', but gpu:1 is a gpu.",
        "the one in its name",
        "devices[1].kind = 'gpu', or PlanDevice.named('gpu:1')",
    ),
    *(
        Case(
            "PLAN-027",
            lambda size=size: plan(devices=(PlanDevice.named("gpu:0", size),)),
            f"devices[0].memory_bytes is {size}.",
            "gpu:0 has at least 1 byte",
            "or None (in JSON: null)",
        )
        for size in (0, -1, 2**63)
    ),
    Case(
        "PLAN-028",
        lambda: predicted(gpu_0=-1),
        "predicted.peak_bytes['gpu:0'] is -1.",
        "a finite number, 0 or more",
        "leave predicted out",
    ),
    *(
        Case(
            "PLAN-028",
            lambda seconds=seconds: predicted(seconds),
            f"predicted.step_seconds is {seconds}.",
            "a finite number, 0 or more",
            "leave predicted out",
        )
        for seconds in (NAN, INF, -0.5)
    ),
    Case(
        "PLAN-029",
        lambda: HYBRID.check_devices(["gpu:0", "cpu:0"]),
        "The plan is for other devices: gpu:1, gpu:2 are missing.",
        "it was made for gpu:0, gpu:1, gpu:2; here there is gpu:0, cpu:0.",
        "Plan.data_parallel(['gpu:0', 'cpu:0'])",
    ),
    Case(
        "PLAN-029",
        lambda: Plan.data_parallel(["gpu:0"]).check_devices([]),
        "gpu:0 is missing.",
        "here there is no device",
        "Plan.data_parallel(['cpu:0'])",
    ),
    *(
        Case(
            "PLAN-030",
            lambda count=count: split_batch(count, [1]),
            f"A batch of {count} samples cannot be split.",
            "must be from 0 to 1125899906842624",
            "give the size of the global batch",
        )
        for count in (-1, 2**50 + 1)
    ),
    Case(
        "PLAN-031",
        lambda: Plan.data_parallel(["gpu:0"], owners={}),
        "owners has no rules.",
        "without an owner",
        "owners='sharded'",
    ),
    *(
        Case(
            "PLAN-032",
            lambda name=name, value=value: ShareEvener(shares=(1, 1), **{name: value}),
            f"{name} of the ShareEvener is ",
            why,
            f"write {name}=",
        )
        for name, value, why in [
            ("threshold", -0.1, "from 0 to 1"),
            ("threshold", NAN, "from 0 to 1"),
            ("at_once", 0.01, "from 0.05 to 1"),
            ("minimum_share", 0.6, "from 0 to 0.5"),
            ("speeds", (1.0,), "one for each of 2 replicas"),
        ]
    ),
    Case(
        "PLAN-032",
        lambda: ShareEvener(shares=(1, 1), speeds=(1.0, 0.0)),
        "speeds[1] of the ShareEvener is 0.0.",
        "finite and above 0",
        "None for speeds[1]",
    ),
    Case(
        "PLAN-033",
        lambda: even_shares(ShareEvener(shares=(1, 1)), [[]], step=1),
        "The window measures 1 replicas; there are 2.",
        "its own list of (samples, seconds)",
        "give one list per replica",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_error_says_what_why_and_what_to_do(case: Case) -> None:
    with pytest.raises(PlanError) as caught:
        case.make()
    assert caught.value.code == case.code, str(caught.value)
    assert case.what in caught.value.what
    assert case.why in caught.value.why
    assert case.fix in caught.value.fix
    assert str(caught.value).startswith(f"[{case.code}] ")


def test_every_code_is_raised_once_tested_and_documented() -> None:
    folder = Path(evener.plan.__file__).parent
    raised = [
        code
        for file in folder.glob("*.py")
        for code in re.findall(r'"(PLAN-\d{3})"', file.read_text(encoding="utf-8"))
    ]
    assert len(raised) == len(set(raised))
    assert set(raised) == {case.code for case in CASES}
    docs = Path(__file__).parents[3] / "docs" / "plan.md"
    documented = re.findall(r"^\| (PLAN-\d{3}) \|", docs.read_text(encoding="utf-8"), re.MULTILINE)
    assert documented == sorted(set(raised))


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "gpu:", "gpu:-1", "gpu:00", "gpu:1 ", "GPU:0", "tpu:0", "gpu:٣", "gpu:9999999",
     "worker/gpu:0", "worker:1gpu:0", "worker:01/gpu:0", "worker:-1/gpu:0", "gpu:0\n", "host"],
)  # fmt: skip
def test_no_device_names(text: str) -> None:
    with pytest.raises(PlanError, match="PLAN-001"):
        parse_device_name(text)
