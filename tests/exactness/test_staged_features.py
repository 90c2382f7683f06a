"""Features of Keras in stages and micro-batches, compared with one device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keras import layers, ops

from evener.partition import build
from evener.plan import Plan, PlanDevice, Replica, Stage

from .candidates import OneDevice, Place, make_candidate
from .harness import (
    agree,
    agree_in_fit,
    compile_model,
    fit_again,
    fit_model,
    sgd,
    train_case,
    unequal_weights,
)
from .models import BY_NAME, OPTIMIZERS, classes, regression, sentences, sequential, tabular
from .staged import Cut, layer_names, place_for, plan_of

TWO_STAGES = Cut(devices=(0, 1), micro_batches=4, in_flight=2)
HYBRID = (
    Cut(devices=(0,), micro_batches=2, share=5),
    Cut(devices=(1, 2), micro_batches=3, in_flight=2, share=3),
)


def deep() -> keras.Model:
    """Six dense layers with skips over one layer and over all of them, and two outputs."""
    x = first = keras.Input((8,), name="x")
    outputs = []
    for k in range(6):
        hidden = layers.Dense(8, activation="tanh", name=f"dense_{k}")(x)
        x = layers.Add(name=f"add_{k}")([x, hidden])
        if k == 1:
            outputs.append(layers.Dense(1, name="early")(x))
    x = layers.Concatenate(name="join")([x, first])
    return keras.Model(first, [layers.Dense(1, name="late")(x), *outputs])


def two_losses() -> dict[str, object]:
    return {
        "loss": ["mse", "log_cosh"],
        "loss_weights": [1.0, 0.3],
        "metrics": [["mae"], ["mae"]],
        "optimizer": sgd(learning_rate=0.01),
    }


def train_deep(place: Place, **fit: object) -> dict[str, object]:
    x, y = regression(75)
    model = compile_model(place, deep, two_losses)
    trained = fit_again(place, model, (x, [y, y]), batch_size=16, **fit)
    trained["evaluate"] = model.evaluate(x, [y, y], batch_size=20, verbose=0, return_dict=True)
    trained["predict"] = model.predict(x[:33], batch_size=20, verbose=0)
    return trained


def deep_plan(*cuts: Cut, **plan: object) -> Plan:
    return plan_of(layer_names(deep), *cuts, **plan)  # type: ignore[arg-type]


def stages_of(*patterns: Sequence[str]) -> Plan:
    """Return the plan of one replica in three micro-batches, with layers by pattern."""
    stages = tuple(Stage(device=f"cpu:{k}", layers=tuple(p)) for k, p in enumerate(patterns))
    replica = Replica(share=1, num_micro_batches=3, in_flight=2, stages=stages)
    devices = tuple(PlanDevice.named(f"cpu:{k}") for k in range(len(patterns)))
    return Plan(devices=devices, replicas=(replica,))


def in_line(num_stages: int, schedule: str) -> Cut:
    return Cut(
        devices=tuple(range(num_stages)), micro_batches=5, in_flight=num_stages, schedule=schedule
    )


TURNS = Cut(devices=(3, 1, 3, 1), micro_batches=2, in_flight=2)
PLANS_OF_DEEP: dict[str, Callable[[], Plan]] = {
    # Activations that are computed again.
    "dense layers again": lambda: deep_plan(TWO_STAGES, recompute=("dense_*",)),
    "all again": lambda: deep_plan(TWO_STAGES, recompute=("*",)),
    # Connections that skip a stage, and an output of an early stage.
    "two stages": lambda: deep_plan(in_line(2, "gpipe")),
    "three stages": lambda: deep_plan(in_line(3, "1f1b")),
    "four stages": lambda: deep_plan(in_line(4, "1f1b")),
    # One device beside two in line, with uneven shares and micro-batches.
    "hybrid": lambda: deep_plan(*HYBRID),
    # Weights on the host, on a device of their own, or one layer's weights away.
    "central": lambda: deep_plan(TURNS, owners="central"),
    "elsewhere": lambda: deep_plan(TURNS, owners={"dense_2/*": "host", "*": "cpu:3"}),
    "one on the host": lambda: deep_plan(TURNS, owners={"dense_0/*": "host"}),
    # Layers that no stage names, stages against the order of the layers.
    "in no stage": lambda: stages_of(["dense_0", "dense_1"], ["dense_4", "late"]),
    "out of line": lambda: stages_of(["dense_[0124]", "add_[013]"], ["add_2", "dense_3"]),
    "there and back": lambda: stages_of(["dense_0", "add_3"], ["add_0", "dense_3"]),
    "backwards": lambda: stages_of(["late", "join"], ["dense_*"]),
    "two alone": lambda: stages_of(["dense_0"], ["early"]),
}


def agree_on_deep(plan: Plan) -> None:
    agree(train_deep, make_place=place_for(plan), name="the deep model by fit")


@pytest.mark.parametrize("name", PLANS_OF_DEEP)
def test_plans(name: str) -> None:
    agree_on_deep(PLANS_OF_DEEP[name]())


@pytest.mark.long
@pytest.mark.parametrize(
    ("cut", "large"),
    [
        # Kernels of 8 x 8 behind the calls, and biases inside.
        (Cut(devices=(0, 1, 0, 1), micro_batches=4, in_flight=3), 256),
        (Cut(devices=(1, 0), micro_batches=3, in_flight=2, schedule="gpipe"), 0),
    ],
    ids=str,
)
def test_large_gradients(monkeypatch: pytest.MonkeyPatch, cut: Cut, large: int) -> None:
    """Those that are added up behind the calls that give them."""
    monkeypatch.setattr(build, "LARGE", large)
    agree_on_deep(deep_plan(cut))


@pytest.mark.long
def test_hybrid_with_a_tied_embedding() -> None:
    """The embedding's gradient comes from four stages of two replicas, sparse and dense."""
    case = BY_NAME["transformer"]
    plan = plan_of(layer_names(case.build), *HYBRID)
    agree(lambda place: train_case(place, case, "adam"), make_place=place_for(plan))


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adamw", "lion"])
def test_optimizers(optimizer: str) -> None:
    """Optimizers with state, weight decay and clipping see the gradients of the whole batch."""

    def train(place: Place) -> dict[str, object]:
        x, y = tabular(75)
        build = BY_NAME["mlp"].build
        made = OPTIMIZERS[optimizer]
        return fit_model(place, build, (x, y), lambda: {**classes(), "optimizer": made()})

    plan = plan_of(layer_names(BY_NAME["mlp"].build), TWO_STAGES)
    agree(train, make_place=place_for(plan))


@pytest.mark.long
def test_clipping_accumulation_and_averages() -> None:
    def train(place: Place) -> dict[str, object]:
        x, y = regression(64)
        optimizer = sgd(global_clipnorm=0.1, gradient_accumulation_steps=2, use_ema=True)
        compiled = {**two_losses(), "optimizer": optimizer}
        model = compile_model(place, deep, lambda: compiled)
        return fit_again(place, model, (x, [y, y]), batch_size=16)

    agree(train, make_place=place_for(deep_plan(TWO_STAGES)))


@pytest.mark.long
def test_several_steps_per_execution() -> None:
    def train(place: Place) -> dict[str, object]:
        x, y = regression(75)
        model = compile_model(place, deep, lambda: {**two_losses(), "steps_per_execution": 3})
        return fit_again(place, model, (x, [y, y]), batch_size=16)

    agree(train, make_place=place_for(deep_plan(TWO_STAGES)))


@pytest.mark.filterwarnings("ignore:.ENG-086.")
@pytest.mark.parametrize("how", ["run_eagerly", "jit_compile"])
def test_compiled_by_xla_and_eager(how: str) -> None:
    def train(place: Place) -> dict[str, object]:
        x, y = tabular(75)
        more = {} if isinstance(place, OneDevice) else {how: True}
        return fit_model(place, BY_NAME["mlp"].build, (x, y), lambda: {**classes(), **more})

    plan = plan_of(layer_names(BY_NAME["mlp"].build), TWO_STAGES)
    agree(train, make_place=place_for(plan))


@pytest.mark.long
@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_recompute_of_layers_with_loops_and_attention(name: str) -> None:
    case = BY_NAME[name]
    plan = plan_of(layer_names(case.build), Cut(devices=(0,)), recompute=("*",))
    train = functools.partial(train_case, case=case, optimizer="sgd")
    agree(train, make_place=place_for(plan), name=f"{name} by fit with sgd")


@pytest.mark.long
def test_sample_weights_and_masks() -> None:
    """A loss that is divided by what the whole batch says."""

    def train(place: Place) -> dict[str, object]:
        x, y = sentences(75)
        build = BY_NAME["transformer"].build
        loss = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        )
        model = compile_model(place, build, lambda: {"loss": loss, "weighted_metrics": ["acc"]})
        return fit_again(
            place,
            model,
            (x, y),
            sample_weight=np.tile(unequal_weights(75)[:, None], 8),
            batch_size=16,
        )

    plan = plan_of(layer_names(BY_NAME["transformer"].build), TWO_STAGES)
    agree(train, make_place=place_for(plan))


class Positions(layers.Layer):
    """An embedding of places: its slices are as many as places, whatever the batch."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.table = layers.Embedding(6, 3, name="table")

    def call(self, x: object) -> object:
        return x + self.table(ops.arange(6))


def placed() -> keras.Model:
    return sequential((6, 3), Positions(name="places"), layers.LSTM(4), layers.Dense(1))


@pytest.mark.long
@pytest.mark.parametrize("staged", [False, True])
def test_slices_that_do_not_grow_with_the_batch(staged: bool) -> None:
    """Adam squares slices one by one, so those of two shares must be one slice."""

    def train(place: Place) -> dict[str, object]:
        x, y = BY_NAME["lstm"].data(75)
        return fit_model(
            place, placed, (x, y), lambda: {"loss": "mse", "optimizer": OPTIMIZERS["adam"]()}
        )

    plan = plan_of(layer_names(placed), TWO_STAGES) if staged else None
    make_place = place_for(plan) if plan else make_candidate
    agree(train, make_place=make_place, name="slices of places by fit")


def contrast(y_true: object, y_pred: object) -> object:
    """A loss of the batch as a whole: no sample has a loss of its own."""
    errors = ops.square(y_true - y_pred)
    return ops.log(ops.mean(ops.exp(errors)))


def test_loss_of_the_whole_batch() -> None:
    """A loss that a person wrote sees all micro-batches at once."""

    def train(place: Place) -> dict[str, object]:
        x, y = regression(75)
        return fit_model(place, BY_NAME["add_loss_mean"].build, (x, y), lambda: {"loss": contrast})

    names = layer_names(BY_NAME["add_loss_mean"].build)
    agree(train, make_place=place_for(plan_of(names, TWO_STAGES)))


class Tower(keras.Model):
    """A subclassed model with layers in layers, a shared layer, and work between layers."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.tower = [
            keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(8)], name=f"b{k}")
            for k in range(3)
        ]
        self.shared = layers.Dense(8, activation="tanh", name="shared")
        self.gain = self.add_weight(shape=(8,), initializer="ones", name="gain")
        self.head = layers.Dense(1, name="head")

    def call(self, x: object) -> object:
        x = self.shared(x)
        for block in self.tower:
            x = x + ops.tanh(block(x)) * self.gain
        return self.head(self.shared(x))


@pytest.mark.parametrize(
    "patterns",
    [
        (("shared", "b0"), ("b1", "b2", "head")),
        (("shared", "b0/dense*"), ("b1/dense_2", "b1/dense_3"), ("b2*",), ("head",)),
    ],
)
def test_subclassed(patterns: tuple[tuple[str, ...], ...]) -> None:
    """Stages by layer path; a layer that is called in two stages has one owner."""

    def train(place: Place) -> dict[str, object]:
        x, y = regression(75)
        return fit_model(place, Tower, (x, y), lambda: {"loss": "mse", "metrics": ["mae"]})

    agree(train, make_place=place_for(stages_of(*patterns)), name="the tower by fit")


@pytest.mark.long
def test_saving_and_loading(tmp_path: Path) -> None:
    """A model saved from stages is loaded into stages, and goes on as on one device."""

    def train(place: Place) -> dict[str, object]:
        x, y = regression(64)
        model = compile_model(place, deep, two_losses)
        fit_again(place, model, (x, [y, y]), batch_size=16)
        path = tmp_path / f"{type(place).__name__}.keras"
        model.save(path)
        with place.scope():
            again = keras.models.load_model(path)
        return fit_again(place, again, (x, [y, y]), batch_size=16)

    agree(train, make_place=place_for(deep_plan(TWO_STAGES)))


MODELS = {"mlp": BY_NAME["mlp"], "lstm": BY_NAME["lstm"], "transformer": BY_NAME["transformer"]}


@st.composite
def cuts(draw: st.DrawFn) -> list[Cut]:
    """Draw one to three replicas on up to five devices."""
    drawn = []
    for _ in range(draw(st.integers(1, 3))):
        micro_batches = draw(st.integers(1, 8))
        drawn.append(
            Cut(
                devices=tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))),
                micro_batches=micro_batches,
                in_flight=draw(st.integers(1, micro_batches)),
                schedule=draw(st.sampled_from(["1f1b", "gpipe"])),
                share=draw(st.sampled_from([1.0, 2.0, 0.5, 3.0])),
            )
        )
    return drawn


def check_drawn(name: str, drawn: list[Cut], recompute: list[str], owners: object) -> None:
    case = MODELS[name]
    if isinstance(owners, dict) and all(len(cut.devices) == 1 for cut in drawn):
        # Without stages there is no device of a layer for what no rule names.
        owners = {**owners, "*": "host"}
    plan = plan_of(layer_names(case.build), *drawn, recompute=recompute, owners=owners)
    train = functools.partial(train_case, case=case, optimizer="sgd")
    agree(train, make_place=place_for(plan), name=f"{name} by fit with sgd")


@pytest.mark.long
def test_a_call_that_hands_nothing_on() -> None:
    """Three replicas on one device, all computed again: the loop's gradient needs no state."""
    whole = Cut(devices=(0,), micro_batches=1, in_flight=1, schedule="1f1b", share=1.0)
    check_drawn("lstm", [whole] * 3, ["*"], "sharded")


COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None}
DRAWN = {
    "name": st.sampled_from(sorted(MODELS)),
    "drawn": cuts(),
    "recompute": st.sampled_from([[], ["*"]]),
    "owners": st.sampled_from(["sharded", "central", {"*kernel": "host"}]),
}


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(**COMMON)
@given(**DRAWN)
def test_drawn_plans(name: str, drawn: list[Cut], recompute: list[str], owners: object) -> None:
    """In a campaign, other draws every time."""
    check_drawn(name, drawn, recompute, owners)


def dropping() -> keras.Model:
    """A model with dropout in both of two stages, and noise in between."""
    return sequential(
        (8,),
        layers.Dropout(0.5, seed=3, name="early"),
        layers.Dense(16, activation="tanh", name="first"),
        layers.GaussianNoise(0.3, seed=4, name="noise"),
        layers.Dropout(0.5, name="late"),
        layers.Dense(4, name="last"),
    )


@pytest.mark.parametrize("cuts", [(TWO_STAGES,), HYBRID], ids=["stages", "hybrid"])
@pytest.mark.parametrize("recompute", [(), ("*",)], ids=["kept", "recomputed"])
def test_dropout(cuts: tuple[Cut, ...], recompute: tuple[str, ...]) -> None:
    """Every sample has the mask that one device draws for it, whatever micro-batch it is in."""
    plan = plan_of(layer_names(dropping), *cuts, recompute=recompute)

    agree_in_fit(
        dropping, tabular(75), classes, make_place=place_for(plan), name="dropouts and noise by fit"
    )


def remembering() -> keras.Model:
    """A recurrent model that keeps the states of samples from batch to batch."""
    x = keras.Input(batch_shape=(16, 3, 2))
    recurrent = layers.LSTM(4, stateful=True, name="memory")
    return keras.Model(x, layers.Dense(1, name="last")(recurrent(x)))


@pytest.mark.long
def test_states_that_are_kept_between_batches() -> None:
    """Those of every sample, although a micro-batch has a few of them."""
    x = np.random.default_rng(3).normal(size=(64, 3, 2)).astype("float32")

    def train(place: Place) -> dict[str, object]:
        model = compile_model(place, remembering, lambda: {"loss": "mse"})
        results = fit_again(place, model, (x, x[:, 0, :1]), batch_size=16)
        return {**results, "predict": model.predict(x, batch_size=16, verbose=0)}

    plan = plan_of(["memory", "last"], TWO_STAGES)
    agree(train, make_place=place_for(plan))


@pytest.mark.parametrize("synchronized", [False, True])
def test_statistics_of_the_batch(synchronized: bool) -> None:
    """BatchNormalization in both of two stages sees the whole batch, although it is split."""

    def build() -> keras.Model:
        def norm(name: str) -> keras.Layer:
            return layers.BatchNormalization(synchronized=synchronized, name=name)

        first = [
            layers.Dense(8, name="first"),
            norm("norm"),
            layers.Dense(8, "tanh", name="second"),
        ]
        return sequential((8,), *first, norm("later"), layers.Dense(4, name="last"))

    plan = plan_of(layer_names(build), TWO_STAGES)
    agree_in_fit(build, tabular(75), classes, make_place=place_for(plan))


@pytest.mark.long
@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_more_micro_batches_than_samples(name: str) -> None:
    """Some have no sample; statistics are still those of the batch."""
    case = BY_NAME[name]
    x, y = case.data(35)

    cut = Cut(devices=(0, 1), micro_batches=20, in_flight=3)
    agree_in_fit(
        case.build,
        (x, y),
        case.compiled,
        make_place=place_for(plan_of(layer_names(case.build), cut)),
    )
