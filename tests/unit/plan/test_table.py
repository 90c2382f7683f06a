"""str(plan) against literal tables."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given

from evener.plan import Plan, Stage
from unit.plan import examples
from unit.plan.strategies import plans

TABLES = {
    "DATA_PARALLEL": """\
Plan: data parallel, 2 devices, 2 replicas

Devices
 device   kind    memory
─────────────────────────
 cpu:0    cpu    unknown
 cpu:1    cpu    unknown

Owners
  sharded: every variable on one device, spread by bytes

Replicas
                    of a    micro-       in
 replica   share   batch   batches   flight   stage   device   layers
──────────────────────────────────────────────────────────────────────
       0     320   62.5%         1        1       0   cpu:0    *
       1     192   37.5%         1        1       0   cpu:1    *""",
    "CENTRAL": """\
Plan: central storage, 2 devices, 2 replicas

Devices
 device   kind    memory
─────────────────────────
 gpu:0    gpu    unknown
 gpu:1    gpu    unknown

Owners
  central: every variable on the host (cpu:0)

Replicas
                    of a    micro-       in
 replica   share   batch   batches   flight   stage   device   layers
──────────────────────────────────────────────────────────────────────
       0       1   50.0%         1        1       0   gpu:0    *
       1       1   50.0%         1        1       0   gpu:1    *""",
    "PIPELINE": """\
Plan: pipeline, 2 devices, 1 replica

Devices
 device   kind     memory
──────────────────────────
 gpu:0    gpu    24.0 GiB
 gpu:1    gpu    12.0 GiB

Owners (the first match wins)
 variables   owner
───────────────────
 encoder_*   gpu:0
 *           gpu:1

Replicas
                     of a    micro-       in
 replica   share    batch   batches   flight   stage   device   layers
────────────────────────────────────────────────────────────────────────────────
       0       1   100.0%         8        2       0   gpu:0    embedding,
                                                                encoder_[0-7]
                                                   1   gpu:1    encoder_[89],
                                                                head
  schedule 1f1b

Recomputed in the backward pass
  encoder_*""",
    "HYBRID": """\
Plan: hybrid, 3 devices, 2 replicas

Devices
 device   kind     memory
──────────────────────────
 gpu:0    gpu    24.0 GiB
 gpu:1    gpu    12.0 GiB
 gpu:2    gpu     unknown

Owners (the first match wins)
 variables     owner
─────────────────────
 embedding/*   host
 *             gpu:0

Replicas
                    of a    micro-       in
 replica   share   batch   batches   flight   stage   device   layers
────────────────────────────────────────────────────────────────────────────────
       0     320   83.3%         8        2       0   gpu:0    embedding,
                                                               block_[0-5]
                                                  1   gpu:1    block_[6-9],
                                                               head
       1      64   16.7%         1        1       0   gpu:2    *
  schedule 1f1b

Recomputed in the backward pass
  block_*, head

Predicted: 123.0 ms a step
 device       peak   of its memory
───────────────────────────────────
 gpu:0    20.0 GiB           83.3%
 host      2.0 GiB               -

Rejected
 layout          why
────────────────────────────────────────────────────────────────────────────────
 data parallel   even split: gpu:1 needs 17.2 GiB and has 11.9 GiB, which is
                 5.3 GiB too little even with 8 micro-batches and recomputation""",
}


@pytest.mark.parametrize("name", TABLES)
def test_literal_table(name: str) -> None:
    assert str(getattr(examples, name)) == TABLES[name]


@pytest.mark.parametrize("wish", ["FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS", "LINES"])
def test_terminal_and_environment_change_nothing(
    wish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(wish, "40")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert str(examples.HYBRID) == TABLES["HYBRID"]


def test_no_word_is_broken() -> None:
    names = ("a_layer_with_a_name_of_its_own_that_is_longer_than_most_names", "head")
    long = Plan.pipeline({"worker:0/gpu:0": names[0], "worker:10/gpu:11": names[1]})
    text = str(long)
    assert all(word in text for word in (*names, "worker:0/gpu:0", "worker:10/gpu:11"))
    for plan in (examples.DATA_PARALLEL, examples.CENTRAL, examples.PIPELINE, examples.HYBRID):
        assert max(map(len, str(plan).splitlines())) <= 80


@given(plans())
def test_every_plan_is_plain_narrow_text(plan: Plan) -> None:
    lines = str(plan).split("\n")
    assert "\x1b" not in str(plan)
    assert all(line == line.rstrip() for line in lines)
    for device in plan.devices:
        assert device.name in str(plan)


def test_brackets_are_no_markup() -> None:
    replica = dataclasses.replace(
        examples.ONE_DEVICE.replicas[0], stages=(Stage(device="gpu:0", layers=("[red]a[/red]",)),)
    )
    assert "[red]a[/red]" in str(dataclasses.replace(examples.ONE_DEVICE, replicas=(replica,)))
