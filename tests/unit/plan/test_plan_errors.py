"""Every PLAN error says what happened and where, why, and what to do: plans with one mistake."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import evener.plan
from evener.errors import PlanError
from evener.feedback import ShareRebalancer, rebalance_shares
from evener.plan import (
    OwnerRule,
    Plan,
    PlanDevice,
    Predicted,
    Rejected,
    Replica,
    Stage,
    check_shares,
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
    return plan(replicas=(Replica(**fields), Replica(**(fields | changes))))


def staged(*layers: Any) -> Plan:
    stages = tuple(Stage(device="gpu:0", layers=each) for each in layers)
    return plan(replicas=(Replica(share=1, stages=stages),))


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
            inner[last] = value
        return Plan.from_json(json.dumps(fields))

    return read


WITHOUT_SIZES = Predicted(step_seconds=1, peak_bytes=5)  # type: ignore[arg-type]
# Values of a wrong type, in Python and in JSON: the place, the type that is there.
WRONG_TYPES: list[tuple[str, str, Callable[[], object]]] = [
    ("devices must be a list, not 'gpu:0'", "str", lambda: Plan.data_parallel("gpu:0")),
    ("devices must be a list, not 2", "int", lambda: Plan.data_parallel(2)),
    ("stages must be a mapping from devices to layers", "str", lambda: Plan.pipeline("gpu:0")),
    ("[0] must be a device with its layers, not 'g", "str", lambda: Plan.pipeline(["gpu:0"])),
    ("[0] must be a device with its layers", "tuple", lambda: Plan.pipeline([("gpu:0",)])),
    ("stages[0].layers must be a list, not 3", "int", lambda: Plan.pipeline({"gpu:0": 3})),
    ("shares must be a list, not 2", "int", lambda: Plan.data_parallel(["gpu:0"], shares=2)),
    ("devices[1] must be text, not 1", "int", lambda: Plan.data_parallel(["gpu:0", 1])),
    ("devices[0] must be an object", "str", lambda: plan(devices=("gpu:0",))),
    ("replicas must be a list, not 5", "int", lambda: plan(replicas=5)),
    ("replicas[1].share must be a number", "str", lambda: second_replica(share="1")),
    ("replicas[1].share must be a number", "bool", lambda: second_replica(share=True)),
    ("replicas[1].in_flight must be a whole", "float", lambda: second_replica(in_flight=1.0)),
    ("device must be", "NoneType", lambda: second_replica(stages=(Stage(device=None),))),  # type: ignore[arg-type]
    ("stages[0].layers must be a list", "str", lambda: staged("abc")),
    ("stages[0].layers[1] must be text", "int", lambda: staged(("a", 1))),
    ("owners must be text or a list", "int", lambda: plan(owners=3)),
    ("owners[0] must be an object", "str", lambda: plan(owners=("*",))),
    ("predicted must be an object or null", "float", lambda: plan(predicted=1.5)),
    ("predicted.peak_bytes['gpu:0'] must be a whole", "float", lambda: predicted(gpu_0=1.5)),
    ("version must be a whole number", "str", lambda: plan(version="1")),
    ("num_samples must be a whole number", "float", lambda: split_batch(1.5, [1])),
    ("the plan must be an object", "list", lambda: Plan.from_json("[]")),
    ("devices must be a list", "dict", written("devices", {})),
    ("devices[0].memory_bytes must be", "float", written("devices[0].memory_bytes", 1.5)),
    ("owners must be text or a list", "NoneType", written("owners", None)),
    ("replicas[0].schedule must be text", "int", written("replicas[0].schedule", 1)),
    ("predicted.peak_bytes must be an object", "int", lambda: plan(predicted=WITHOUT_SIZES)),
]


class Case(NamedTuple):
    code: str
    make: Callable[[], object]
    says: str  # Parts of what happened, why, and what to do, with " ... " between them.


CASES = [
    *(
        Case("PLAN-020", make, f"{what} ... of type {kind} ... ")
        for what, kind, make in WRONG_TYPES
    ),
    # Devices
    Case(
        "PLAN-001",
        lambda: Plan.data_parallel(["cpu:0", "/GPU:0"]),
        "devices[1] is '/GPU:0', which is not a device name. Did you mean 'gpu:0'?"
        " ... names are lower case ... `evener devices` lists the names",
    ),
    Case(
        "PLAN-001",
        lambda: plan(devices=(PlanDevice(name="gpu0", kind="gpu"),)),
        "devices[0].name is 'gpu0' ... gpu:INDEX or cpu:INDEX ... 'worker:1/gpu:0'",
    ),
    Case("PLAN-001", lambda: PlanDevice.named("host"), "device is 'host', which is not ...  ... "),
    Case(
        "PLAN-002",
        lambda: Plan.data_parallel(["gpu:0", "gpu:1", "gpu:0"]),
        "devices[2].name names gpu:0 a second ... devices[0] is gpu:0 already ... device once",
    ),
    Case(
        "PLAN-004", lambda: Plan.data_parallel([]), "no devices. ... at least one ... (['cpu:0'])"
    ),
    Case(
        "PLAN-026",
        lambda: plan(devices=(GPU_0, PlanDevice(name="gpu:1", kind="cpu"))),
        "devices[1].kind is 'cpu', but gpu:1 is a gpu. ... one in its name ... kind = 'gpu', or",
    ),
    *(
        Case(
            "PLAN-027",
            lambda size=size: plan(devices=(PlanDevice.named("gpu:0", size),)),
            f"devices[0].memory_bytes is {size}. ... of gpu:0 must be from 1 to ... or None (in",
        )
        for size in (0, -1, 2**63)
    ),
    Case(
        "PLAN-029",
        lambda: Plan.data_parallel(["worker:0/gpu:0", "worker:1/gpu:0"]).check_devices(["gpu:0"]),
        "not here: worker:0/gpu:0, worker:1/gpu:0. ... machine has gpu:0 ... start its workers,"
        " which together have these devices: evener launch --plan plan.json",
    ),
    Case(
        "PLAN-029",
        lambda: HYBRID.check_devices(["gpu:0", "cpu:0"]),
        "The plan needs devices that are not here: gpu:1, gpu:2. ... it was made for gpu:0, gpu:1, "
        "gpu:2; this machine has gpu:0, cpu:0. ... Plan.data_parallel(['gpu:0', 'cpu:0'])",
    ),
    Case(
        "PLAN-029",
        lambda: Plan.data_parallel(["gpu:0"]).check_devices([]),
        "not here: gpu:0. ... this machine has no device ... Plan.data_parallel(['cpu:0'])",
    ),
    # Names of devices in other places
    Case(
        "PLAN-003",
        lambda: second_replica(stages=(Stage(device="GPU:1"),)),
        "replicas[1].stages[0].device is 'GPU:1', which is not a device of the plan. Did you mean "
        "'gpu:1'? ... plan are gpu:0, gpu:1 ... for example 'gpu:0', or add 'GPU:1' to devices",
    ),
    Case(
        "PLAN-003",
        lambda: plan(owners=(OwnerRule(pattern="*", device="cpu:0"),)),
        "owners[0].device is 'cpu:0' ... gpu:0, gpu:1 ... or add 'cpu:0' to devices",
    ),
    Case(
        "PLAN-003",
        lambda: predicted(gpu_2=5),
        "a key of predicted.peak_bytes is 'gpu:2' ... gpu:0, gpu:1 ... add 'gpu:2' to devices",
    ),
    Case(
        "PLAN-003",
        lambda: plan(predicted=Predicted(step_seconds=1, peak_bytes={}, busy_seconds={"host": 1})),
        "a key of predicted.busy_seconds is 'host' ... gpu:0, gpu:1 ... write one of these",
    ),
    # Replicas and stages
    Case(
        "PLAN-005",
        lambda: plan(replicas=()),
        "has no replicas. ... replicas is empty ... Plan.data_parallel(['gpu:0', 'gpu:1'])",
    ),
    Case(
        "PLAN-006",
        lambda: second_replica(stages=()),
        "replicas[1] has no stages. ... no device that computes ... (Stage(device='gpu:0'),)",
    ),
    Case(
        "PLAN-013",
        lambda: second_replica(num_micro_batches=0),
        "[1].num_micro_batches is 0. ... at least 1 ... replicas[1].num_micro_batches = 1",
    ),
    Case(
        "PLAN-014",
        lambda: second_replica(num_micro_batches=4, in_flight=5),
        "replicas[1].in_flight is 5, outside 1 to 4. ... from 1 to num_micro_batches (4)"
        " ... replicas[1].in_flight = 4, or num_micro_batches = 5.",
    ),
    Case(
        "PLAN-014",
        lambda: second_replica(in_flight=0),
        "in_flight is 0, outside 1 to 1. ... in progress at once ... replicas[1].in_flight = 1.",
    ),
    Case(
        "PLAN-015",
        lambda: staged(("a",), ()),
        "replicas[0].stages[1].layers is empty. ... nothing ... remove stages[1] from replicas[0]",
    ),
    Case(
        "PLAN-016",
        lambda: staged(("a",), ("*",)),
        "replicas[0].stages[1].layers[0] is '*', all layers, in a replica of 2 stages. ... every "
        "layer must belong to one of them ... replicas[0].stages[1].layers[0] = 'encoder_*'",
    ),
    Case(
        "PLAN-016",
        lambda: staged(("a", "**"), ("b",)),
        "replicas[0].stages[0].layers[1] is '**' ...  ... name the layers of each stage",
    ),
    Case(
        "PLAN-017",
        lambda: staged(("a", "b_*"), ("c", "b_*")),
        "replicas[0].stages[1].layers[1] names 'b_*' again. ... replicas[0].stages[0].layers[1] has"
        " it already ... keep 'b_*' in one of the two",
    ),
    *(
        Case("PLAN-018", make, f"{place} is empty. ... cannot be blank ... write a text")
        for place, make in {
            "recompute[1]": lambda: plan(recompute=("a", "")),
            "owners[0].pattern": lambda: plan(owners=(OwnerRule(pattern=" ", device="gpu:0"),)),
            "replicas[0].stages[0].layers[1]": lambda: staged(("a", "")),
            "rejected[0].reason": lambda: plan(rejected=(Rejected(layout="a", reason=""),)),
            "devices[0].name": lambda: Plan.data_parallel([PlanDevice(name="", kind="gpu")]),
        }.items()
    ),
    # Words
    Case(
        "PLAN-019",
        lambda: Plan.data_parallel(["gpu:0"], owners="Shard"),  # type: ignore[arg-type]
        "owners is 'Shard'. Did you mean 'sharded'? ... 'sharded' (spread over the devices) or "
        "'central' ... OwnerRule(pattern='*', device='gpu:0')",
    ),
    Case(
        "PLAN-031",
        lambda: Plan.data_parallel(["gpu:0"], owners={}),
        "owners has no rules. ... no variable would have an owner ... owners='sharded'",
    ),
    Case(
        "PLAN-034",
        lambda: second_replica(schedule="GPipes"),
        "replicas[1].schedule is 'GPipes', which is not a schedule. Did you mean 'gpipe'? ... the "
        "schedules are 1f1b, gpipe. ... write replicas[1].schedule = '1f1b', or leave it out.",
    ),
    Case(
        "PLAN-035",
        lambda: Plan.data_parallel(["gpu:0"], batch_norm="per device"),  # pyright: ignore
        "batch_norm is 'per device', which is not known. Did you mean 'per_device'? ... of the "
        "whole batch, or of the samples ... write batch_norm = 'synchronized', or leave it out.",
    ),
    # Predictions
    *(
        Case("PLAN-028", make, f"{place}. ... finite numbers, 0 or more ... set predicted to None")
        for place, make in {
            "predicted.peak_bytes['gpu:0'] is -1": lambda: predicted(gpu_0=-1),
            "predicted.step_seconds is nan": lambda: predicted(NAN),
            "predicted.step_seconds is inf": lambda: predicted(INF),
            "predicted.step_seconds is -0.5": lambda: predicted(-0.5),
            "predicted.busy_seconds['gpu:0'] is nan": written(
                "predicted.busy_seconds", {"gpu:0": NAN}
            ),
            "predicted.batch_size is -1": written("predicted.batch_size", -1),
        }.items()
    ),
    # Shares and batches
    Case(
        "PLAN-007",
        lambda: second_replica(share=-2),
        "replicas[1].share is -2, which is negative. ... it must be 0 or more ... share = 2, or 0",
    ),
    Case(
        "PLAN-007", lambda: split_batch(8, [1, -0.5]), "shares[1] is -0.5 ...  ... shares[1] = 0.5"
    ),
    *(
        Case(
            "PLAN-008",
            lambda share=share: check_shares([1, share]),
            "[1] is ... a finite number from 0 to 1e+100 ... relative to the other shares",
        )
        for share in (NAN, INF, -INF, 1e101, 10**400, -(10**400))
    ),
    Case(
        "PLAN-009",
        lambda: Plan.data_parallel(["gpu:0", "gpu:1"], shares=[0, 0.0]),
        "The shares add up to 0: [0.0, 0.0]. ... one share must be greater than 0 ... [1.0, 1.0]",
    ),
    Case("PLAN-009", lambda: split_batch(8, []), "The shares add up to 0: []. ...  ... [1.0]"),
    Case(
        "PLAN-010",
        lambda: Plan.data_parallel(["gpu:0", "gpu:1"], shares=[3, 2, 1]),
        "There are more shares than devices: 3 and 2. ... needs exactly one share ... [3.0, 2.0].",
    ),
    Case(
        "PLAN-010",
        lambda: HYBRID.with_shares([1, 1, 1]),
        "more shares than replicas: 3 and 2 ... each of the replicas ... shares as replicas",
    ),
    Case(
        "PLAN-011",
        lambda: Plan.data_parallel(["gpu:0", "gpu:1"], shares=[3]),
        "There are fewer shares than devices: 1 and 2. ... needs exactly one share ... [3.0, 0]",
    ),
    *(
        Case(
            "PLAN-030",
            lambda count=count: split_batch(count, [1]),
            f"A batch of {count} samples ... from 0 to 1125899906842624 ... the global batch",
        )
        for count in (-1, 2**50 + 1)
    ),
    *(
        Case(
            "PLAN-032",
            lambda name=name, value=value: ShareRebalancer(shares=(1, 1), **{name: value}),
            f"{name} of the ShareRebalancer is  ... {why} ... write {name}=",
        )
        for name, value, why in [
            ("threshold", -0.1, "from 0 to 1"),
            ("threshold", NAN, "from 0 to 1"),
            ("minimum_share", 0.6, "from 0 to 0.5"),
            ("speeds", (1.0,), "one for each of 2 replicas"),
        ]
    ),
    Case(
        "PLAN-032",
        lambda: ShareRebalancer(shares=(1, 1), speeds=(1.0, 0.0)),
        "speeds[1] of the ShareRebalancer is 0.0. ... finite and above 0 ... None for speeds[1]",
    ),
    Case(
        "PLAN-033",
        lambda: rebalance_shares(ShareRebalancer(shares=(1, 1)), [[]], step=1),
        "The window measures 1 replicas; there are 2. ... one list of (samples, seconds) per "
        "replica ... for two replicas of which one was idle",
    ),
    # Texts
    Case(
        "PLAN-021",
        lambda: Plan.from_json('{"version": 1,'),
        "The text of the plan is not JSON. ... line 1 column 15 ... written by Plan.to_json()",
    ),
    Case("PLAN-021", lambda: Plan.from_json("[" * 10**6), "is not JSON ... recursion ... "),
    Case("PLAN-021", lambda: Plan.from_json("1" * 10**5), "is not JSON ... digits ... "),
    Case("PLAN-021", lambda: Plan.from_json(b"{}"), "is not JSON ... type bytes, not text ... "),
    Case(
        "PLAN-022",
        lambda: Plan.from_json('{"version": 2, "workers": []}'),
        "The plan has version 2; this version of evener reads version 1. ... written by another "
        "version ... install a newer version of evener",
    ),
    Case("PLAN-022", lambda: plan(version=0), "version 0 ... no such version ... version = 1"),
    Case(
        "PLAN-023",
        written("replicas[1].in_fligth", 2),
        "replicas[1] has the unknown key 'in_fligth'. Did you mean 'in_flight'? ... share, "
        "num_micro_batches, in_flight, schedule, stages ... rename 'in_fligth' or remove it",
    ),
    Case(
        "PLAN-023",
        written("owner", "sharded"),
        "the plan has the unknown key 'owner'. Did you mean 'owners'? ... version, devices, ... ",
    ),
    Case(
        "PLAN-024",
        written(without="replicas[1].stages[0].device"),
        "replicas[1].stages[0] is missing the key 'device'. ... required keys are device ... add "
        "replicas[1].stages[0].device",
    ),
    Case(
        "PLAN-024",
        lambda: Plan.from_json("{}"),
        "the plan is missing the key 'version'. ... version, devices, replicas, owners ... version",
    ),
    Case(
        "PLAN-025",
        lambda: Plan.from_json('{"version": 1, "version": 2}'),
        "The key 'version' is there twice in one object. ... 1 and 2 ... keep one 'version'",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_error_says_what_why_and_what_to_do(case: Case) -> None:
    with pytest.raises(PlanError) as caught:
        case.make()
    error = caught.value
    assert error.code == case.code, str(error)
    for part, text in zip(
        case.says.split(" ... "), (error.what, error.why, error.fix), strict=True
    ):
        assert part in text


def test_every_code_is_raised_once_tested_and_documented() -> None:
    folder = Path(evener.plan.__file__).parent
    rebalancing = folder.parent / "planner" / "rebalancing.py"
    raised = [
        code
        for file in (*folder.glob("*.py"), rebalancing)
        for code in re.findall(r'"(PLAN-\d{3})"', file.read_text(encoding="utf-8"))
    ]
    assert len(raised) == len(set(raised))
    assert set(raised) == {case.code for case in CASES}
    docs = folder.parent / "doctor" / "pages" / "errors.md"
    documented = re.findall(r"^\| (PLAN-\d{3}) \|", docs.read_text(encoding="utf-8"), re.MULTILINE)
    # Some codes of plans are raised by the engine, which knows the devices.
    assert set(raised) <= set(documented)
    assert documented == sorted(set(documented))


@pytest.mark.parametrize(
    "text",
    ["", "gpu", "gpu:", "gpu:-1", "gpu:00", "gpu:1 ", "GPU:0", "tpu:0", "gpu:٣", "gpu:9999999",
     "worker/gpu:0", "worker:1gpu:0", "worker:01/gpu:0", "worker:-1/gpu:0", "gpu:0\n", "host"],
)  # fmt: skip
def test_no_device_names(text: str) -> None:
    with pytest.raises(PlanError, match="PLAN-001"):
        parse_device_name(text)
