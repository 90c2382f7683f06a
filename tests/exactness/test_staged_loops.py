"""The law for custom loops under plans with stages and micro-batches."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener.plan import Plan, Replica

from .candidates import Place
from .harness import agree, sgd
from .loops import (
    CROSS_ENTROPY,
    Parts,
    batches,
    calls_of,
    case_parts,
    classifier,
    eagerly,
    loop_over_case,
    loop_results,
    saying,
    train_step,
)
from .models import BY_NAME, mlp, regression, tabular
from .optimizers import OPTIMIZERS
from .sparing import usually
from .staged import Cut, layer_names, place_for, plan_of
from .test_staged_features import HYBRID, deep
from .tolerances import tolerance

CUTS = (
    Cut(devices=(0, 1), micro_batches=4, in_flight=2),
    Cut(devices=(1,), micro_batches=5, in_flight=1),
    Cut(devices=(0, 1, 2), micro_batches=3, in_flight=3, schedule="gpipe"),
    Cut(devices=(2, 0, 1), micro_batches=4, in_flight=3, schedule="zero_bubble"),
    Cut(devices=(0, 1, 0, 1), micro_batches=4, in_flight=4),
)
# Statistics over micro-batches are not those of the batch.
MODELS = [name for name in BY_NAME if name != "cnn"]
PAIRS = [(name, cut) for name in MODELS for cut in CUTS]
USUAL = [("mlp", CUTS[0]), ("transformer", CUTS[4]), ("two_by_two", CUTS[2])]


def of_case(name: str, *cuts: Cut) -> Plan:
    """Return a plan for a model of the law."""
    return plan_of(layer_names(BY_NAME[name].build), *cuts)


@pytest.mark.parametrize("pair", usually(PAIRS, USUAL), ids=lambda pair: f"{pair[0]}-{pair[1]}")
def test_stages(pair: tuple[str, Cut]) -> None:
    """Every model, cut in every way, with a last partial batch."""
    name, cut = pair
    case = BY_NAME[name]
    agree(
        lambda place: loop_over_case(place, case, "sgd"),
        within=tolerance(name, "sgd", "stages"),
        make_place=place_for(of_case(name, cut)),
    )
