"""One plan for every layout of the design, for tests that want to see one."""

from __future__ import annotations

from evener.plan import (
    Plan,
    PlanDevice,
    Predicted,
    Rejected,
    Replica,
    Stage,
    owner_rules,
)

GIB = 2**30
ONE_DEVICE = Plan.data_parallel(["gpu:0"])
DATA_PARALLEL = Plan.data_parallel(["cpu:0", "cpu:1"], shares=[320, 192])
CENTRAL = Plan.data_parallel(["gpu:0", "gpu:1"], owners="central")
OFFLOADED = Plan.data_parallel(
    ["gpu:0", "gpu:1"], owners={"embedding/*": "host", "*/kernel": "gpu:0", "*": "gpu:1"}
)
PIPELINE = Plan(
    devices=(PlanDevice.named("gpu:0", 24 * GIB), PlanDevice.named("gpu:1", 12 * GIB)),
    owners=owner_rules({"encoder_*": "gpu:0", "*": "gpu:1"}),
    replicas=(
        Replica(
            share=1,
            num_micro_batches=8,
            in_flight=2,
            stages=(
                Stage(device="gpu:0", layers=("embedding", "encoder_[0-7]")),
                Stage(device="gpu:1", layers=("encoder_[89]", "head")),
            ),
        ),
    ),
    recompute=("encoder_*",),
)
HYBRID = Plan(
    devices=(
        PlanDevice.named("gpu:0", 24 * GIB),
        PlanDevice.named("gpu:1", 12 * GIB),
        PlanDevice.named("gpu:2"),
    ),
    owners=owner_rules({"embedding/*": "host", "*": "gpu:0"}),
    replicas=(
        Replica(
            share=320,
            num_micro_batches=8,
            in_flight=2,
            stages=(
                Stage(device="gpu:0", layers=("embedding", "block_[0-5]")),
                Stage(device="gpu:1", layers=("block_[6-9]", "head")),
            ),
        ),
        Replica(share=64, stages=(Stage(device="gpu:2"),)),
    ),
    recompute=("block_*", "head"),
    predicted=Predicted(
        step_seconds=0.123,
        peak_bytes={"host": 2 * GIB, "gpu:0": 20 * GIB},
        busy_seconds={"gpu:1": 0.0625, "gpu:0": 0.1},
        batch_size=384,
    ),
    rejected=(
        Rejected(
            layout="data parallel",
            reason="even split: gpu:1 needs 17.2 GiB and has 11.9 GiB, which is 5.3 GiB too "
            "little even with 8 micro-batches and recomputation",
        ),
    ),
)
WORKERS = Plan.data_parallel(["worker:0/gpu:0", "worker:1/gpu:0", "worker:1/gpu:1"])
