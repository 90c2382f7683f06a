"""Hypothesis strategies that draw valid Plans of every layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from hypothesis import strategies as st

from evener.plan import (
    OwnerRule,
    Plan,
    PlanDevice,
    Predicted,
    Rejected,
    Replica,
    ScheduleName,
    Stage,
    owner_rules,
)

LAYOUTS = ("one device", "data parallel", "central storage", "pipeline", "hybrid")
LAYERS = ("embedding", "encoder_*", "decoder_[0-9]", "dense?", "head", "block[1]", "归一化")
PATTERNS = ("embedding/*", "*/kernel", "*/bias", "head/*", "encoder_?/*")

words = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=30).filter(
    str.strip
)
speeds = st.floats(min_value=1e-3, max_value=1e6)


def device_names() -> st.SearchStrategy[str]:
    return st.builds(
        "{}{}:{}".format,
        st.sampled_from(("", "worker:0/", "worker:1/")),
        st.sampled_from(("gpu", "cpu")),
        st.integers(0, 11),
    )


@st.composite
def device_tuples(draw: st.DrawFn, min_size: int) -> tuple[PlanDevice, ...]:
    names = draw(st.lists(device_names(), min_size=min_size, max_size=5, unique=True))
    memory = st.none() | st.integers(1, 2**63 - 1)
    return tuple(PlanDevice.named(name, draw(memory)) for name in names)


@st.composite
def share_lists(draw: st.DrawFn, num_shares: int) -> list[float]:
    """Whole samples, fractions of any size, and zeros; at least one share above 0."""
    share = st.integers(0, 10_000) | st.floats(0, 1e6) | st.just(0.0)
    shares = draw(st.lists(share, min_size=num_shares, max_size=num_shares))
    if not any(shares):
        shares[draw(st.integers(0, num_shares - 1))] = draw(st.floats(1e-6, 1e6))
    return shares


@st.composite
def replicas(draw: st.DrawFn, names: Sequence[str], *, share: float, num_stages: int) -> Replica:
    num_micro_batches = draw(st.integers(1, 8))
    layers = draw(st.permutations(LAYERS))
    cuts = sorted(draw(st.permutations(range(1, len(LAYERS))))[: num_stages - 1])
    parts = [layers[a:b] for a, b in zip([0, *cuts], [*cuts, len(LAYERS)], strict=True)]
    single = [("*",)] if draw(st.booleans()) else [tuple(layers)]
    return Replica(
        share=share,
        num_micro_batches=num_micro_batches,
        in_flight=draw(st.integers(1, num_micro_batches)),
        schedule=draw(st.sampled_from(get_args(ScheduleName))),
        stages=tuple(
            Stage(device=draw(st.sampled_from(names)), layers=tuple(part))
            for part in (parts if num_stages > 1 else single)
        ),
    )


@st.composite
def owners_of(draw: st.DrawFn, names: Sequence[str], layout: str) -> object:
    """Owners that fit the layout; rules may put variables on the host."""
    places = [*names, "host"]
    if layout == "central storage":
        single = draw(st.sampled_from(places))
        return draw(st.sampled_from(["central", owner_rules({"*": single})]))
    rules = tuple(
        OwnerRule(pattern=pattern, device=draw(st.sampled_from(places)))
        for pattern in draw(st.lists(st.sampled_from(PATTERNS), min_size=1, unique=True))
    )
    if layout == "data parallel":
        return draw(st.sampled_from(["sharded", rules]))
    return draw(st.sampled_from(["sharded", "central", rules]))


@st.composite
def predictions(draw: st.DrawFn, names: Sequence[str]) -> Predicted:
    where = st.lists(st.sampled_from([*names, "host"]), unique=True)
    return Predicted(
        step_seconds=draw(st.floats(0, 1e6)),
        peak_bytes={name: draw(st.integers(0, 2**63 - 1)) for name in draw(where)},
        busy_seconds={name: draw(st.floats(0, 1e6)) for name in draw(where) if name != "host"},
        batch_size=draw(st.none() | st.integers(0, 2**63 - 1)),
    )


@st.composite
def plans(draw: st.DrawFn, *, layouts: Sequence[str] = LAYOUTS) -> Plan:
    """Draw a valid plan of one of the layouts."""
    layout = draw(st.sampled_from(layouts))
    # Sharding over one device is central storage.
    used = draw(device_tuples(2 if layout == "data parallel" else 1))
    names = [device.name for device in used]
    single = layout in ("one device", "pipeline")
    num_replicas = 1 if single else draw(st.integers(2, 5))
    shares = draw(share_lists(num_replicas))
    num_stages = [1] * num_replicas
    if layout in ("pipeline", "hybrid"):
        num_stages = [draw(st.integers(1, 4)) for _ in range(num_replicas)]
        num_stages[draw(st.integers(0, num_replicas - 1))] = draw(st.integers(2, 4))
    return Plan(
        devices=used,
        owners=draw(owners_of(names, layout)),
        replicas=tuple(
            draw(replicas(names, share=share, num_stages=count))
            for share, count in zip(shares, num_stages, strict=True)
        ),
        recompute=tuple(draw(st.lists(st.sampled_from(LAYERS), max_size=3))),
        predicted=draw(st.none() | predictions(names)),
        rejected=tuple(draw(st.lists(st.builds(Rejected, layout=words, reason=words), max_size=3))),
    )
