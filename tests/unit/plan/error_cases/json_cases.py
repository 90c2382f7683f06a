"""Mistakes in JSON texts, and values of a wrong type, in Python and in JSON."""

from __future__ import annotations

from evener.plan import (
    Plan,
    Predicted,
    Stage,
    split_batch,
)
from unit.plan.error_cases import (
    Case,
    plan,
    predicted,
    second_replica,
    staged,
    written,
)

CASES = [
    *(
        Case("PLAN-020", make, what, f"of type {kind}", "write ")
        for what, kind, make in [
            ("devices must be a list, not 'gpu:0'", "str", lambda: Plan.data_parallel("gpu:0")),
            ("devices must be a list, not 2", "int", lambda: Plan.data_parallel(2)),
            (
                "stages must be a mapping from devices to layers, not 'gpu:0'",
                "str",
                lambda: Plan.pipeline("gpu:0"),
            ),
            (
                "stages[0] must be a device with its layers, not 'gpu:0'",
                "str",
                lambda: Plan.pipeline(["gpu:0"]),
            ),
            (
                "stages[0] must be a device with its layers, not ('gpu:0',)",
                "tuple",
                lambda: Plan.pipeline([("gpu:0",)]),
            ),
            (
                "stages[0].layers must be a list, not 3",
                "int",
                lambda: Plan.pipeline({"gpu:0": 3}),
            ),
            (
                "shares must be a list, not 2",
                "int",
                lambda: Plan.data_parallel(["gpu:0"], shares=2),
            ),
            ("devices[1] must be text, not 1", "int", lambda: Plan.data_parallel(["gpu:0", 1])),
            ("devices[0] must be an object", "str", lambda: plan(devices=("gpu:0",))),
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
            ("owners must be text or a list", "int", lambda: plan(owners=3)),
            ("owners[0] must be an object", "str", lambda: plan(owners=("*",))),
            ("predicted must be an object or null", "float", lambda: plan(predicted=1.5)),
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
            ("rejected[0] must be an object", "str", lambda: plan(rejected=["pipeline"])),
            ("version must be a whole number", "str", lambda: plan(version="1")),
            ("the plan must be an object", "list", lambda: Plan.from_json("[]")),
            ("devices must be a list", "dict", written("devices", {})),
            ("devices[1] must be an object", "str", written("devices[1]", "gpu:1")),
            (
                "devices[0].memory_bytes must be a whole",
                "float",
                written("devices[0].memory_bytes", 1.5),
            ),
            ("owners must be text or a list", "NoneType", written("owners", None)),
            (
                "replicas[1].stages[0].device must be text",
                "int",
                written("replicas[1].stages[0].device", 0),
            ),
            ("replicas[0].stages must be a list", "str", written("replicas[0].stages", "x")),
            ("replicas[0].schedule must be text", "int", written("replicas[0].schedule", 1)),
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
        "written by Plan.to_json()",
    ),
    Case("PLAN-021", lambda: Plan.from_json("[" * 10**6), "is not JSON", "recursion", "to_json()"),
    Case("PLAN-021", lambda: Plan.from_json("1" * 10**5), "is not JSON", "digits", "to_json()"),
    Case("PLAN-021", lambda: Plan.from_json(b"{}"), "not JSON", "type bytes", "to_json()"),
    Case(
        "PLAN-022",
        lambda: Plan.from_json('{"version": 2, "workers": []}'),
        "The plan has version 2; this version of evener reads version 1.",
        "written by another version",
        "install a newer version of evener",
    ),
    Case("PLAN-022", lambda: plan(version=0), "version 0", "no such version", "version = 1"),
    Case(
        "PLAN-023",
        written("replicas[1].in_fligth", 2),
        "replicas[1] has the unknown key 'in_fligth'. Did you mean 'in_flight'?",
        "share, num_micro_batches, in_flight, schedule, stages",
        "rename 'in_fligth' or remove it",
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
        "replicas[1].stages[0] is missing the key 'device'.",
        "required keys are device",
        "add replicas[1].stages[0].device",
    ),
    Case(
        "PLAN-024",
        lambda: Plan.from_json("{}"),
        "the plan is missing the key 'version'.",
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
]
