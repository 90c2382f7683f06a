"""Mistakes in the values of a plan, and in the devices it is held against."""

from __future__ import annotations

from evener.plan import (
    OwnerRule,
    Plan,
    PlanDevice,
    Predicted,
    Rejected,
    Stage,
)
from unit.plan.error_cases import (
    GPU_0,
    INF,
    NAN,
    Case,
    plan,
    predicted,
    second_replica,
    staged,
)
from unit.plan.examples import HYBRID

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
        "list each device once",
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
        lambda: plan(
            predicted=Predicted(step_seconds=1, peak_bytes={}, busy_seconds={"host": 1.0})
        ),
        "a key of predicted.busy_seconds is 'host', which is not a device of the plan.",
        "gpu:0, gpu:1",
        "write one of these",
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
        "a plan needs at least one device",
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
        "PLAN-013",
        lambda: second_replica(num_micro_batches=0),
        "replicas[1].num_micro_batches is 0.",
        "at least 1 micro-batch",
        "replicas[1].num_micro_batches = 1",
    ),
    Case(
        "PLAN-014",
        lambda: second_replica(num_micro_batches=4, in_flight=5),
        "replicas[1].in_flight is 5, outside 1 to 4.",
        "from 1 to num_micro_batches (4)",
        "replicas[1].in_flight = 4, or num_micro_batches = 5.",
    ),
    Case(
        "PLAN-014",
        lambda: second_replica(in_flight=0),
        "replicas[1].in_flight is 0, outside 1 to 1.",
        "in progress at once",
        "replicas[1].in_flight = 1.",
    ),
    Case(
        "PLAN-034",
        lambda: second_replica(schedule="GPipes"),
        "replicas[1].schedule is 'GPipes', which is not a schedule. Did you mean 'gpipe'?",
        "the schedules are 1f1b, gpipe.",
        "write replicas[1].schedule = '1f1b', or leave it out.",
    ),
    Case(
        "PLAN-035",
        lambda: Plan.data_parallel(["gpu:0"], batch_norm="per device"),  # pyright: ignore
        "batch_norm is 'per device', which is not known. Did you mean 'per_device'?",
        "of the whole batch, or of the samples of each device",
        "write batch_norm = 'synchronized', or leave it out.",
    ),
    Case(
        "PLAN-015",
        lambda: staged(("a",), ()),
        "replicas[0].stages[1].layers is empty.",
        "computes nothing",
        "remove stages[1] from replicas[0]",
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
        Case("PLAN-018", make, f"{place} is empty.", "cannot be blank", "write a text")
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
            "memory of gpu:0 must be from 1 to",
            "or None (in JSON: null)",
        )
        for size in (0, -1, 2**63)
    ),
    Case(
        "PLAN-028",
        lambda: predicted(gpu_0=-1),
        "predicted.peak_bytes['gpu:0'] is -1.",
        "finite numbers, 0 or more",
        "set predicted to None",
    ),
    *(
        Case(
            "PLAN-028",
            lambda seconds=seconds: predicted(seconds),
            f"predicted.step_seconds is {seconds}.",
            "finite numbers, 0 or more",
            "set predicted to None",
        )
        for seconds in (NAN, INF, -0.5)
    ),
    *(
        Case(
            "PLAN-028",
            lambda wrong=wrong: plan(predicted=Predicted(step_seconds=1, peak_bytes={}, **wrong)),
            place,
            "finite numbers, 0 or more",
            "set predicted to None",
        )
        for wrong, place in (
            ({"busy_seconds": {"gpu:0": NAN}}, "predicted.busy_seconds['gpu:0'] is nan."),
            ({"batch_size": -1}, "predicted.batch_size is -1."),
        )
    ),
    Case(
        "PLAN-029",
        lambda: Plan.data_parallel(["worker:0/gpu:0", "worker:1/gpu:0"]).check_devices(["gpu:0"]),
        "devices that are not here: worker:0/gpu:0, worker:1/gpu:0.",
        "this machine has gpu:0",
        "start its workers, which together have these devices: evener launch --plan plan.json",
    ),
    Case(
        "PLAN-029",
        lambda: HYBRID.check_devices(["gpu:0", "cpu:0"]),
        "The plan needs devices that are not here: gpu:1, gpu:2.",
        "it was made for gpu:0, gpu:1, gpu:2; this machine has gpu:0, cpu:0.",
        "Plan.data_parallel(['gpu:0', 'cpu:0'])",
    ),
    Case(
        "PLAN-029",
        lambda: Plan.data_parallel(["gpu:0"]).check_devices([]),
        "not here: gpu:0.",
        "this machine has no device",
        "Plan.data_parallel(['cpu:0'])",
    ),
    Case(
        "PLAN-031",
        lambda: Plan.data_parallel(["gpu:0"], owners={}),
        "owners has no rules.",
        "no variable would have an owner",
        "owners='sharded'",
    ),
]
