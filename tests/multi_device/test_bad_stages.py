"""Plans with stages that do not fit a model: an error that names the layer, and nothing lost."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import keras
import numpy as np
import pytest
from keras import layers

import evener
from evener import EvenerWarning, Strategy
from evener.errors import EvenerError
from evener.plan import Plan, PlanDevice, Replica, Stage

from .mistakes import TWO, data, refused


def plan(
    *stages: Sequence[str],
    num_micro_batches: int = 1,
    in_flight: int = 1,
    recompute: Sequence[str] = (),
    num_replicas: int = 1,
) -> Plan:
    """Return a plan whose stages take turns on two stand-ins."""
    replica = Replica(
        share=1,
        num_micro_batches=num_micro_batches,
        in_flight=in_flight,
        stages=tuple(
            Stage(device=TWO[k % 2], layers=tuple(names)) for k, names in enumerate(stages)
        ),
    )
    return Plan(
        devices=tuple(map(PlanDevice.named, TWO)),
        replicas=(replica,) * num_replicas,
        recompute=tuple(recompute),
    )


def chain() -> keras.Model:
    """Return four layers in line, the third recurrent."""
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(6, name="first"),
            layers.Reshape((3, 2), name="shape"),
            layers.LSTM(3, name="memory"),
            layers.Dense(1, name="last"),
        ]
    )


def normalised(*, synchronized: bool = False) -> keras.Model:
    """Return a model with a BatchNormalization."""
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(6, name="first"),
            layers.BatchNormalization(name="norm", synchronized=synchronized),
            layers.Dense(1, name="last"),
        ]
    )


def compiled(given: Plan, build: Callable[[], keras.Model] = chain) -> keras.Model:
    """Build and compile under a plan."""
    with Strategy(given).scope():
        model = build()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.parametrize(
    ("given", "code", "names"),
    [
        (plan(["first", "shape"], ["last"]), "ENG-040", ["memory"]),
        (plan(["first"], ["last"]), "ENG-040", ["memory", "shape"]),
        (plan(["first", "m*"], ["shape", "mem*", "last"]), "ENG-041", ["memory", "m*", "mem*"]),
        (plan(["first", "shap"], ["memory", "last"]), "ENG-042", ["shap", "'shape'"]),
        (plan(["first", "shape", "memory"], ["memory/*", "last"]), "ENG-043", ["memory"]),
        (plan(["first", "memory"], ["shape", "last"]), "ENG-044", ["memory", "shape"]),
        (plan(["last"], ["first", "shape", "memory"]), "ENG-044", ["last"]),
        (plan(["*"], recompute=["firsts"]), "ENG-042", ["firsts", "'first'", "recompute"]),
    ],
)
def test_a_plan_that_does_not_fit_the_model(given: Plan, code: str, names: list[str]) -> None:
    model = compiled(given)
    refused(model, lambda: model.fit(*data(), verbose=0), code, *names)
    refused(model, lambda: model.evaluate(*data(), verbose=0), code, *names)
    refused(model, lambda: model.predict(data()[0], verbose=0), code, *names)


def test_more_micro_batches_than_samples() -> None:
    model = compiled(plan(["first", "shape"], ["memory", "last"], num_micro_batches=8))
    refused(model, lambda: model.fit(*data(7), batch_size=7, verbose=0), "DATA-005", "num_micro")
    refused(model, lambda: model.train_on_batch(*data(7)), "DATA-005")
    # A last batch of one sample is fine, and so are evaluation and prediction.
    model.fit(*data(9), batch_size=8, verbose=0)
    model.train_on_batch(*data(3))
    assert np.isfinite(model.evaluate(*data(3), verbose=0))
    assert model.predict(data(3)[0], verbose=0).shape == (3, 1)


@pytest.mark.parametrize(
    ("given", "synchronized"),
    [
        (plan(["first", "norm"], ["last"], num_micro_batches=2), False),
        (plan(["*"], num_micro_batches=4), True),
        (plan(["first"], ["norm", "last"], num_replicas=2), True),
    ],
)
def test_statistics_of_micro_batches_are_told(given: Plan, synchronized: bool) -> None:
    model = compiled(given, lambda: normalised(synchronized=synchronized))
    with pytest.warns(EvenerWarning, match=r"\[ENG-045\] 'norm'"):
        model.fit(*data(), verbose=0)


@pytest.mark.parametrize("given", [plan(["first", "norm"], ["last"]), plan(["*"])])
def test_statistics_of_whole_batches_need_no_warning(given: Plan) -> None:
    model = compiled(given, normalised)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(*data(), verbose=0)


def test_a_kept_state_is_refused_in_micro_batches() -> None:
    def stateful() -> keras.Model:
        x = keras.Input(batch_shape=(8, 3, 2))
        recurrent = layers.LSTM(3, stateful=True, name="memory")
        return keras.Model(x, layers.Dense(1, name="last")(recurrent(x)))

    model = compiled(plan(["memory"], ["last"], num_micro_batches=2), stateful)
    x = np.zeros((8, 3, 2), "float32")
    with pytest.raises(EvenerError, match="ENG-009"):
        model.fit(x, x[:, 0, :1], batch_size=8, verbose=0)


def test_a_nan_names_the_micro_batch() -> None:
    given = plan(["first", "shape"], ["memory", "last"], num_micro_batches=4, in_flight=2)
    model = compiled(given)
    x, y = data(16)
    x[9] = np.nan
    with pytest.warns(EvenerWarning, match=r"(?s)ENG-030.*micro-batch 2 .*samples 8 to 11"):
        model.train_on_batch(x, y)


def test_weights_of_a_model_inside_a_model_are_told_to_be_away() -> None:
    def nested() -> keras.Model:
        x = keras.Input((4,))
        inner = keras.Model(x, layers.Dense(4, name="hidden")(x), name="block")
        again = keras.Input((4,))
        return keras.Model(again, layers.Dense(1, name="last")(inner(again)))

    # The emptiest device is the first, which computes the last stage here.
    model = compiled(
        Plan.pipeline([("cpu:1", "block"), ("cpu:0", "last")], num_micro_batches=2), nested
    )
    with pytest.warns(EvenerWarning, match=r"ENG-046.*hidden"):
        model.train_on_batch(*data())


@pytest.mark.parametrize("whole", [False, True], ids=["layer", "model"])
def test_a_pin_must_agree_with_the_stage(whole: bool) -> None:
    given = plan(["first", "shape"], ["memory", "last"], num_micro_batches=2)

    def pinned(*names: str) -> keras.Model:
        with Strategy(given).scope():
            model = chain()
            for name in names:
                evener.pin(TWO[1])(model.get_layer(name) if name else model)
            model.compile("sgd", "mse")
        return model

    good = pinned("last")
    good.train_on_batch(*data())
    assert good.get_layer("last").kernel.value.device.endswith("CPU:1")
    wrong = pinned("" if whole else "first")
    names = ("'first'", f"pinned to {TWO[1]}", f"stage 0 is on {TWO[0]}")
    refused(wrong, lambda: wrong.train_on_batch(*data()), "ENG-047", *names)
