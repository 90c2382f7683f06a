"""Mistakes in shares, batches and the rebalancing of shares."""

from __future__ import annotations

from evener.feedback import ShareRebalancer, rebalance_shares
from evener.plan import (
    Plan,
    check_shares,
    split_batch,
)
from unit.plan.error_cases import (
    INF,
    NAN,
    Case,
    second_replica,
)

CASES = [
    Case(
        "PLAN-007",
        lambda: second_replica(share=-2),
        "replicas[1].share is -2, which is negative.",
        "it must be 0 or more",
        "write replicas[1].share = 2, or 0",
    ),
    Case(
        "PLAN-007",
        lambda: split_batch(8, [1, -0.5]),
        "shares[1] is -0.5, which is negative.",
        "it must be 0 or more",
        "write shares[1] = 0.5",
    ),
    Case(
        "PLAN-008",
        lambda: second_replica(share=NAN),
        "replicas[1].share is nan, which is not a usable number.",
        "a share must be a finite number",
        "replicas[1].share = 1",
    ),
    *(
        Case(
            "PLAN-008",
            lambda share=share: check_shares([1, share]),
            "which is not a usable number.",
            "a finite number from 0 to 1e+100",
            "relative to the other shares",
        )
        for share in (NAN, INF, -INF, 1e101, 10**400, -(10**400))
    ),
    Case(
        "PLAN-009",
        lambda: Plan.data_parallel(["gpu:0", "gpu:1"], shares=[0, 0.0]),
        "The shares add up to 0: [0.0, 0.0].",
        "at least one share must be greater than 0",
        "for example [1.0, 1.0]",
    ),
    Case(
        "PLAN-009",
        lambda: split_batch(8, []),
        "The shares add up to 0: [].",
        "at least one share must be greater than 0",
        "write for example",
    ),
    Case(
        "PLAN-010",
        lambda: Plan.data_parallel(["gpu:0", "gpu:1"], shares=[3, 2, 1]),
        "There are more shares than devices: 3 and 2.",
        "each of the devices needs exactly one share",
        "for example [3.0, 2.0]",
    ),
    Case(
        "PLAN-011",
        lambda: Plan.data_parallel(["gpu:0", "gpu:1"], shares=[3]),
        "There are fewer shares than devices: 1 and 2.",
        "each of the devices needs exactly one share",
        "for example [3.0, 0]",
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
    *(
        Case(
            "PLAN-032",
            lambda name=name, value=value: ShareRebalancer(shares=(1, 1), **{name: value}),
            f"{name} of the ShareRebalancer is ",
            why,
            f"write {name}=",
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
        "speeds[1] of the ShareRebalancer is 0.0.",
        "finite and above 0",
        "None for speeds[1]",
    ),
    Case(
        "PLAN-033",
        lambda: rebalance_shares(ShareRebalancer(shares=(1, 1)), [[]], step=1),
        "The window measures 1 replicas; there are 2.",
        "one list of (samples, seconds) per replica",
        "for two replicas of which one was idle",
    ),
]
