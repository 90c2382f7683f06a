"""Rules over facts: each finds its condition in a run, and is silent beside it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from evener.doctor import Reading, all_rules, judge
from evener.doctor.facts import (
    CallUse,
    DataStage,
    Ending,
    Facts,
    GradientUse,
    Growth,
    HostRead,
    InputUse,
    LayerFlag,
    LayerMade,
    LossUse,
    MetricUse,
    ModelUse,
    NotFinite,
    OptimizerUse,
    Outcome,
    PinUse,
    Pipeline,
    Raised,
    Setting,
    StepMemory,
    Steps,
    StrategyUse,
    Traced,
    ValueRange,
    VariableUse,
)
from unit.doctor.cases import GIB, SCRIPT, codes_of_facts, facts, line, machine

TWO = machine(24, 24)
UNEQUAL = machine(24, 12)
READING = Reading(script=SCRIPT)


def values(low: float, high: float, *shape: int, **given: Any) -> ValueRange:
    return ValueRange(shape=shape, min=low, max=high, mean=(low + high) / 2, **given)


def loss(name: str, **given: Any) -> Facts:
    usual = {"where": line(3), "from_logits": False}
    return facts(losses=(LossUse(name=name, **{**usual, **given}),))


def step(**given: Any) -> Facts:
    usual = {
        "kind": "function",
        "where": line(5),
        "num_steps": 20,
        "num_timed": 19,
        "step_seconds": 0.01,
        "batch_sizes": (32,),
    }
    return facts(steps=(Steps(**{**usual, **given}),))


def variable(name: str = "dense/kernel", **given: Any) -> VariableUse:
    usual = {
        "shape": (4, 4),
        "dtype": "float32",
        "trainable": True,
        "num_gradients": 20,
        "num_applied": 20,
        "gradient_norms": (1.0,) * 5,
        "update_norms": (0.1,) * 5,
        "norm": 4.0,
    }
    return VariableUse(name=name, **{**usual, **given})


def ended(outcome: Outcome, **given: Any) -> Facts:
    return Facts(ending=Ending(outcome=outcome, seconds=60.0, **given))


def data(*stages: DataStage, role: str = "train", **given: Any) -> Facts:
    pipeline = Pipeline(role=role, kind="dataset", where=line(7), stages=stages, **given)
    return facts(pipelines=(pipeline,))


def pair(train: ValueRange, validation: ValueRange) -> Facts:
    return facts(
        pipelines=tuple(
            Pipeline(role=role, kind="arrays", where=line(7), inputs=(each,))
            for role, each in (("train", train), ("validation", validation))
        )
    )


SPARSE, DENSE, BINARY = (
    "sparse_categorical_crossentropy",
    "categorical_crossentropy",
    "binary_crossentropy",
)
SCORES, SHARES = values(-3, 4, 32, 10), values(0, 0.9, 32, 10)
ONE = {"row_sum_min": 1.0, "row_sum_max": 1.0}
REPLICA: dict[str, Any] = {"where": line(5), "num_sources": 2, "num_replicas": 2}
FEW: dict[str, Any] = {"num_sources": 2}
ZEROS = values(0, 0, 32, 1, is_integral=True)
IMAGES = values(0, 255, 32, 28, 28, 1)
MAP = DataStage(kind="map", where=line(8), seconds=0.008)
ADAM = OptimizerUse(kind="Adam", where=line(4), num_applied=20, learning_rate=1e-3)


def adam(**given: Any) -> OptimizerUse:
    return dataclasses.replace(ADAM, **given)


def mirrored(**given: Any) -> tuple[StrategyUse, ...]:
    usual = {
        "kind": "MirroredStrategy",
        "where": line(2),
        "num_replicas": 2,
        "num_scopes": 1,
        "trained": True,
    }
    return (StrategyUse(**{**usual, **given}),)


def call(kind: str, **given: Any) -> Facts:
    usual = {"where": line(9), "num_calls": 20, "num_after_first_step": 19, "per_step": 1.0}
    return facts(calls=(CallUse(kind=kind, **{**usual, **given}),))


def validated(seconds: float, num: int | None, **given: Any) -> Facts:
    once = call(
        "evaluate",
        num_calls=1,
        num_after_first_step=1,
        per_step=0.05,
        seconds=seconds,
        detail=str(num or ""),
    )
    return dataclasses.replace(step(kind="fit", **given), calls=once.calls)


def reads(**given: Any) -> Facts:
    return facts(
        host_reads=(
            HostRead(
                **{"where": line(6), "num_reads": 20, "per_step": 1.0, "seconds": 0.1, **given}
            ),
        )
    )


def traced(**given: Any) -> Facts:
    usual = {
        "name": "step",
        "where": line(5),
        "num_calls": 20,
        "num_traces": 20,
        "causes": ("shape",) * 19,
        "seconds": 3.0,
    }
    return facts(traced=(Traced(**{**usual, **given}),))


def model(**given: Any) -> Facts:
    usual = {
        "kind": "Sequential",
        "where": line(3),
        "trains": True,
        "num_parameters": 100,
    }
    return facts(models=(ModelUse(**{**usual, **given}),))


BY_SQUARES = model(loss="mse", metrics=("accuracy",)).models


def memory(**given: Any) -> Facts:
    usual = {
        "batch_size": 64,
        "samples": 64,
        "weights": GIB,
        "optimizer_state": GIB,
        "gradients": GIB,
        "activations": 20 * GIB,
        "workspace": GIB,
        "total": 24 * GIB,
        "usable": 23 * GIB,
        "largest_batch": 60,
    }
    return facts(memory=StepMemory(**{**usual, **given}))


def flag(training: bool | None, **given: Any) -> LayerFlag:
    usual = {"layer": "dropout", "kind": "Dropout", "is_recorded": True, "where": line(5)}
    return LayerFlag(**{**usual, **given}, training=training)


def given(kind: str, seen: ValueRange) -> Facts:
    return facts(inputs=(InputUse(kind=kind, where=line(4), values=seen),))


def padded(is_plain_mean: bool = True, **given: Any) -> Facts:
    use = GradientUse(where=line(6), num_sources=2, loss_ratio=1.0, is_plain_mean=is_plain_mean)
    return dataclasses.replace(loss(SPARSE, padded_share=0.8, **given), gradients=(use,))


def evaluated(learned: ValueRange, asked: ValueRange, layer: str = "dense") -> Facts:
    return facts(
        inputs=(
            InputUse(kind="Dense", where=line(4), values=learned, layer="dense"),
            InputUse(kind="Dense", where=line(9), values=asked, layer=layer, trains=False),
        )
    )


def repeated(num_samples: int, is_repeated: bool = True) -> Facts:
    use = InputUse(kind="Dense", where=line(4), values=SCORES, is_repeated=is_repeated)
    return dataclasses.replace(
        data(num_samples=num_samples), inputs=(use,), steps=step(batch_sizes=(32,)).steps
    )


GENERATOR = DataStage(kind="from_generator", where=line(8), calls_python=True)


def drawing(stage: DataStage) -> Facts:
    use = GradientUse(where=line(6), num_sources=2, draws_numpy=True)
    return dataclasses.replace(data(stage), gradients=(use,))


JUMPS = (2.0, 18.0, 2.0, 1.1, 1.5, 0.1, 8.0, 0.4, 0.1)
UNTAUGHT = variable(in_model=False, num_gradients=0, num_applied=0, update_norms=(0.0,) * 3)


def measured(kind: str, labels: tuple[int, ...], takes_logits: bool | None = None) -> Facts:
    use = MetricUse(
        name=kind,
        kind=kind,
        where=line(6),
        label_shape=labels,
        output_shape=(32, 10),
        takes_logits=takes_logits,
    )
    return facts(metrics=(use,))


def optimized(optimizer: OptimizerUse, **given: Any) -> Facts:
    return dataclasses.replace(
        step(losses=given.pop("losses", (1.0,) * 9)),
        optimizers=(optimizer,),
        variables=(variable(**given),),
    )


def negated(is_negated: bool) -> Facts:
    use = GradientUse(where=line(6), num_sources=2, is_negated=is_negated)
    return facts(gradients=(use,))


# Code, facts in which it is found, facts in which it is not.
CASES: list[tuple[str, Facts, Facts]] = [
    ("DOC-010", ended(Outcome.TIMED_OUT, still_seconds=60.0), ended(Outcome.ENOUGH)),
    *(
        (
            "DOC-010",
            dataclasses.replace(step(), ending=ended(Outcome.TIMED_OUT, still_seconds=60.0).ending),
            dataclasses.replace(step(), ending=ended(Outcome.TIMED_OUT, **still).ending),
        )
        for still in ({"still_seconds": 2.0}, {"still_seconds": 60.0, "is_busy": True})
    ),
    (
        "DOC-011",
        ended(Outcome.CRASHED, raised=Raised(kind="ValueError", message="no", where=line(3))),
        ended(Outcome.FINISHED),
    ),
    ("DOC-012", ended(Outcome.EXITED, exit_code=2), ended(Outcome.ENOUGH)),
    # Losses of the program's own, inputs where the first weights meet them, metrics of `compile`.
    (
        "DOC-322",
        loss(DENSE, activation="softmax", activation_before="softmax", outputs=SHARES, **ONE),
        loss(DENSE, activation="softmax", activation_before="relu", outputs=SHARES, **ONE),
    ),
    (
        "DOC-326",
        loss("difference", activation="relu", labels=values(-3, 3, 32, 1)),
        loss("difference", activation="relu", labels=values(0, 3, 32, 1)),
    ),
    (
        "DOC-326",
        loss(SPARSE, activation="relu", from_logits=True),
        loss(SPARSE, activation="linear", from_logits=True),
    ),
    ("DOC-344", given("Conv2D", IMAGES), given("Conv2D", values(0, 1, 32, 28, 28, 1))),
    (
        "DOC-344",
        dataclasses.replace(
            given("Conv2D", IMAGES), models=model(layers=("BatchNormalization",)).models
        ),
        dataclasses.replace(
            given("Dense", values(-5e4, 3e5, 32, 8)),
            models=model(layers=("BatchNormalization",)).models,
        ),
    ),
    ("DOC-344", given("Conv2D", values(0, 0, 32, 28, 28, 1)), given("Dense", values(1, 1, 32, 1))),
    (
        "DOC-344",
        given("Dense", values(0, 255, 32, 784, is_integral=True)),
        given("Dense", values(0, 9, 32, 784, is_integral=True)),
    ),
    ("DOC-344", given("Conv2D", values(0, 0.0039, 32, 28, 28, 1)), given("Dense", SCORES)),
    ("DOC-327", padded(), padded(is_plain_mean=False)),
    ("DOC-327", padded(), padded(is_weighted=True)),
    (
        "DOC-349",
        model(loss="SparseCategoricalCrossentropy", metrics=("CategoricalAccuracy",)),
        model(loss="SparseCategoricalCrossentropy", metrics=("accuracy",)),
    ),
    (
        "DOC-349",
        model(loss="BinaryCrossentropy from_logits", metrics=("accuracy",)),
        model(loss="binary_crossentropy", metrics=("accuracy",)),
    ),
    ("DOC-349", model(loss="mse", metrics=("accuracy",)), model(loss="mse", metrics=("mae",))),
    *(
        (
            "DOC-349",
            dataclasses.replace(
                loss(SPARSE), models=model(loss="", metrics=("categorical_accuracy",)).models
            ),
            dataclasses.replace(loss(name), models=model(loss="", metrics=(metric,)).models),
        )
        for name, metric in ((SPARSE, "accuracy"), (DENSE, "categorical_accuracy"))
    ),
    *(
        (
            "DOC-349",
            dataclasses.replace(loss("mse", labels=values(0, 7, 32, 3)), models=BY_SQUARES),
            dataclasses.replace(loss("mse", labels=ones), models=BY_SQUARES),
        )
        for ones in (values(0, 1, 32, 3, is_integral=True),)
    ),
    (
        "DOC-350",
        dataclasses.replace(negated(True), variables=(variable(),)),
        dataclasses.replace(negated(False), variables=(variable(),)),
    ),
    ("DOC-348", model(hidden_metrics=("loss_tracker",)), model()),
    (
        "DOC-351",
        data(
            DataStage(kind="map", where=line(8), is_random=True),
            DataStage(kind="cache", where=line(8)),
        ),
        data(
            DataStage(kind="cache", where=line(8)),
            DataStage(kind="map", where=line(8), is_random=True),
        ),
    ),
    ("DOC-352", data(num_missing=40), data()),
    ("DOC-338", traced(draws_numpy=True), traced()),
    (
        "DOC-338",
        data(DataStage(kind="map", where=line(8), draws_numpy=True)),
        data(DataStage(kind="map", where=line(8), is_random=True)),
    ),
    (
        "DOC-336",
        call("set_weights", detail="trained"),
        # The weights of a target network are set on purpose.
        call("set_weights"),
    ),
    (
        "RUN-009",
        facts(layers_in_calls=(LayerMade(kind="Dense", where=line(3), num_made=3, num_weights=2),)),
        facts(layers_in_calls=(LayerMade(kind="ReLU", where=line(3), num_made=3, num_weights=0),)),
    ),
    (
        "DOC-335",
        dataclasses.replace(
            step(losses=(1.0,) * 9),
            optimizers=(adam(learning_rate=1e-8),),
            variables=(variable(update_norms=(1e-9,) * 3),),
        ),
        dataclasses.replace(
            step(losses=(1.0,) * 9),
            optimizers=(adam(learning_rate=1e-8, rate_changes=True),),
            variables=(variable(update_norms=(1e-9,) * 3),),
        ),
    ),
    # What a run shows, whatever loop, data or metric the program has.
    (
        "DOC-341",
        loss(SPARSE, labels_are_sorted=True, labels=values(0, 9, 32, is_integral=True)),
        # The positive sample of a contrastive loss is the first.
        loss(SPARSE, labels_are_sorted=True, labels=values(0, 0, 32, is_integral=True)),
    ),
    (
        "DOC-341",
        data(DataStage(kind="batch", where=None), DataStage(kind="shuffle", where=line(8), size=9)),
        # Windows of a sequence are shuffled, and batched then.
        data(
            DataStage(kind="batch", where=None),
            DataStage(kind="shuffle", where=line(8), size=9),
            DataStage(kind="batch", where=None),
        ),
    ),
    (
        "DOC-342",
        data(DataStage(kind="zip", where=line(8), num_shuffled=2)),
        data(DataStage(kind="zip", where=line(8), num_shuffled=1)),
    ),
    ("DOC-344", evaluated(SHARES, IMAGES), evaluated(SHARES, IMAGES, layer="another")),
    ("DOC-344", evaluated(values(-2, 3, 32, 4), values(14, 20, 32, 4)), evaluated(SCORES, SHARES)),
    (
        "DOC-344",
        evaluated(values(-1, 1, 32, 8, 8, 3), values(0, 1, 32, 8, 8, 3)),
        evaluated(values(-1, 1, 32, 8), values(0, 1, 32, 8)),
    ),
    ("DOC-345", repeated(3200), repeated(32)),
    ("DOC-345", repeated(3200), repeated(3200, is_repeated=False)),
    ("DOC-349", measured("CategoricalAccuracy", (32,)), measured("CategoricalAccuracy", (32, 10))),
    (
        "DOC-349",
        measured("BinaryAccuracy", (32, 10), takes_logits=True),
        measured("BinaryAccuracy", (32, 10), takes_logits=False),
    ),
    (
        "DOC-349",
        measured("CategoricalAccuracy", (32,), takes_logits=True),
        measured("SparseCategoricalAccuracy", (32, 1), takes_logits=True),
    ),
    ("DOC-349", measured("Accuracy", (32, 1), takes_logits=True), measured("Accuracy", (32, 1))),
    (
        "DOC-338",
        data(DataStage(kind="map", where=line(8), draws_constants=True)),
        data(DataStage(kind="map", where=line(8), is_random=True)),
    ),
    (
        "DOC-338",
        facts(gradients=(GradientUse(where=line(6), num_sources=2, draws_constants=True),)),
        facts(gradients=(GradientUse(where=line(6), num_sources=2),)),
    ),
    ("DOC-338", drawing(DataStage(kind="batch", where=line(8))), drawing(GENERATOR)),
    ("DOC-336", facts(variables=(variable(was_set_back=True),)), facts(variables=(variable(),))),
    (
        "DOC-336",
        optimized(adam(num_made=3, num_made_in_steps=2)),
        optimized(adam(num_made=1, num_made_in_steps=1)),
    ),
    (
        "DOC-333",
        facts(variables=(variable(began_constant=True, first_norm=4.0),)),
        facts(variables=(variable(began_constant=True, first_norm=0.0),)),
    ),
    (
        "DOC-335",
        optimized(adam(learning_rate=1e-7, first_rate=1e-3, rate_changes=True)),
        optimized(adam(learning_rate=1e-4, first_rate=1e-3, rate_changes=True)),
    ),
    # The norm at the end hides that each step replaced the weights.
    (
        "DOC-335",
        optimized(ADAM, losses=JUMPS, update_norms=(9.0,) * 3, first_norm=4.0, norm=90.0),
        optimized(ADAM, losses=JUMPS, update_norms=(0.9,) * 3, first_norm=4.0, norm=90.0),
    ),
    (
        "DOC-350",
        dataclasses.replace(negated(True), variables=(variable(),)),
        # One side of a minimax game makes an error greater, of labels that are constants.
        dataclasses.replace(
            negated(True), variables=(variable(),), losses=loss(BINARY, labels=ZEROS).losses
        ),
    ),
    (
        "DOC-013",
        facts(settings=(Setting(name="fork", value="", where=line(6), is_late=True),)),
        facts(settings=(Setting(name="set_memory_growth", value="", where=line(6)),)),
    ),
    ("DOC-350", facts(variables=(variable(num_negated=2),)), facts(variables=(variable(),))),
    ("DOC-331", facts(variables=(variable(num_swapped=2),)), facts(variables=(variable(),))),
    (
        "DOC-308",
        dataclasses.replace(step(), variables=(UNTAUGHT,)),
        # A number that the program sets itself is no weight.
        dataclasses.replace(step(), variables=(dataclasses.replace(UNTAUGHT, shape=()),)),
    ),
    # Losses.
    ("DOC-320", loss(SPARSE, outputs=SCORES), loss(SPARSE, outputs=SHARES, **ONE)),
    ("DOC-320", loss(BINARY, activation="linear"), loss(BINARY, activation="sigmoid")),
    (
        "DOC-320",
        loss(BINARY, activation="relu", outputs=values(0, 0.4, 32, 1)),
        loss(BINARY, activation="tanh", outputs=values(0, 0.4, 32, 1)),
    ),
    ("DOC-320", loss(SPARSE, outputs=SCORES), loss(SPARSE, outputs=SCORES, from_logits=True)),
    ("DOC-320", loss(SPARSE, outputs=SCORES), loss("mean_squared_error", outputs=SCORES)),
    (
        "DOC-321",
        loss(SPARSE, outputs=SHARES, from_logits=True, **ONE),
        loss(SPARSE, outputs=SCORES, from_logits=True, activation="linear"),
    ),
    (
        "DOC-321",
        loss(BINARY, activation="sigmoid", from_logits=True),
        loss(BINARY, activation="linear", from_logits=True),
    ),
    (
        "DOC-322",
        loss(BINARY, activation="softmax", outputs=values(1, 1, 32, 1)),
        loss(BINARY, activation="sigmoid", outputs=values(0, 1, 32, 1)),
    ),
    (
        "DOC-322",
        model(activations=("relu", "softmax", "softmax")),
        model(activations=("relu", "sigmoid")),
    ),
    (
        "DOC-323",
        loss(SPARSE, outputs=SHARES, labels=values(0, 10, 32), **ONE),
        loss(SPARSE, outputs=SHARES, labels=values(0, 9, 32), **ONE),
    ),
    (
        "DOC-323",
        loss(SPARSE, outputs=SHARES, labels=values(0, 1, 32, 10, is_one_hot=True), **ONE),
        loss(DENSE, outputs=SHARES, labels=values(0, 1, 32, 10, is_one_hot=True), **ONE),
    ),
    (
        "DOC-323",
        loss(BINARY, labels=values(-1, 1, 32, 1), outputs=values(0, 1, 32, 1)),
        loss(BINARY, labels=values(0, 1, 32, 1), outputs=values(0, 1, 32, 1)),
    ),
    (
        "DOC-323",
        loss(DENSE, labels=values(0, 9, 32, 1, is_integral=True), outputs=SHARES, **ONE),
        loss(DENSE, labels=values(0, 0.9, 32, 10), outputs=SHARES, **ONE),
    ),
    (
        "DOC-324",
        loss(
            "mean_squared_error",
            is_broadcast=True,
            labels=values(0, 1, 32),
            outputs=values(0, 1, 32, 1),
        ),
        loss("mean_squared_error", labels=values(0, 1, 32), outputs=values(0, 1, 32)),
    ),
    (
        "DOC-325",
        loss(DENSE, outputs=SHARES, row_sum_min=3.1, row_sum_max=6.0),
        loss(BINARY, outputs=SHARES, row_sum_min=3.1, row_sum_max=6.0),
    ),
    (
        "DOC-326",
        loss("mean_squared_error", activation="sigmoid", labels=values(0, 40, 32, 1)),
        loss("mean_squared_error", activation="relu", labels=values(0, 40, 32, 1)),
    ),
    ("DOC-327", loss(SPARSE, has_mask=True), loss(SPARSE)),
    ("DOC-327", loss(SPARSE, has_mask=True), loss(SPARSE, has_mask=True, is_reduced=False)),
    # Variables and gradients.
    (
        "DOC-330",
        facts(variables=(variable(num_none=20, num_applied=0),)),
        facts(variables=(variable(),)),
    ),
    (
        "DOC-331",
        facts(variables=(variable(), variable("b", num_applied=0, update_norms=()))),
        facts(variables=(variable(), variable("b", num_applied=0))),
    ),
    (
        "DOC-332",
        facts(variables=(variable(trainable=False),)),
        facts(variables=(variable(trainable=False, num_applied=0),)),
    ),
    (
        "DOC-332",
        facts(variables=(variable(trainable=False),)),
        # Of folds, each may freeze its model at its end.
        dataclasses.replace(
            call("fit", num_calls=4, per_step=0.1), variables=(variable(trainable=False),)
        ),
    ),
    (
        "DOC-339",
        facts(variables=(variable(num_optimizers=2),)),
        facts(variables=(variable(num_optimizers=1),)),
    ),
    ("DOC-414", model(policy="float64"), model(policy="mixed_bfloat16")),
    (
        "DOC-308",
        facts(variables=(variable(), UNTAUGHT)),
        facts(variables=(variable(), variable("s", in_model=False))),
    ),
    (
        "DOC-333",
        facts(variables=(variable(gradient_norms=(), update_norms=(0.0,) * 5),)),
        facts(variables=(variable(gradient_norms=(), update_norms=(0.0, 0.1, 0.0)),)),
    ),
    (
        "DOC-333",
        facts(variables=(variable(gradient_norms=(0.0,) * 5),)),
        facts(variables=(variable(gradient_norms=(0.0, 0.1, 0.0)),)),
    ),
    (
        "DOC-333",
        facts(
            variables=(variable(gradient_norms=(1e4,) * 5),),
            steps=(Steps(kind="fit", where=None, num_steps=9, losses=(1.0,) * 9),),
        ),
        facts(variables=(variable(gradient_norms=(1e4,) * 5),), optimizers=(adam(clips=True),)),
    ),
    (
        "DOC-335",
        facts(
            optimizers=(adam(learning_rate=1e-9),),
            variables=(variable(update_norms=(1e-9,) * 5),),
            losses=loss("mse", labels=values(0, 1, 32, 1)).losses,
        ),
        facts(  # Where all labels are the same, there is soon nothing to learn.
            optimizers=(adam(learning_rate=1e-9),),
            variables=(variable(update_norms=(1e-9,) * 5),),
            losses=loss("mse", labels=values(1, 1, 32, 1)).losses,
        ),
    ),
    (
        "DOC-335",  # Without gradients it is not the rate.
        facts(optimizers=(ADAM,), variables=(variable(update_norms=(1e-9,) * 5),)),
        facts(optimizers=(ADAM,), variables=(variable(update_norms=(0.0,) * 5),)),
    ),
    ("DOC-334", facts(not_finite=NotFinite(what="loss", step=3, where=line(5))), facts()),
    ("DOC-335", facts(optimizers=(adam(learning_rate=0.0),)), facts(optimizers=(ADAM,))),
    (
        "DOC-335",
        facts(
            optimizers=(adam(learning_rate=1e-9),), variables=(variable(update_norms=(1e-9,) * 5),)
        ),
        facts(optimizers=(ADAM,), variables=(variable(),)),
    ),
    (
        "DOC-335",
        facts(
            optimizers=(adam(learning_rate=5.0),),
            steps=(
                Steps(
                    kind="fit",
                    where=line(1),
                    num_steps=9,
                    losses=(1.0, 2.0, 4.0, 30.0, 60.0, 90.0, 200.0, 300.0, 900.0),
                ),
            ),
        ),
        facts(
            optimizers=(adam(learning_rate=5.0),),
            steps=(
                Steps(
                    kind="fit",
                    where=line(1),
                    num_steps=9,
                    losses=(9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0),
                ),
            ),
        ),
    ),
    (
        "RUN-009",
        facts(optimizers=(adam(num_made=20, num_made_in_steps=19),)),
        facts(optimizers=(adam(num_made=2, num_made_in_steps=1),)),
    ),
    ("RUN-009", model(num_made=20, num_made_in_steps=19), model(num_made=5, num_made_in_steps=4)),
    ("DOC-336", call("compile"), call("compile", num_after_first_step=1)),
    ("DOC-336", call("load_weights"), call("load_weights", num_after_first_step=0)),
    (
        "DOC-337",
        dataclasses.replace(
            step(), optimizers=(ADAM,), models=model(policy="mixed_float16").models
        ),
        dataclasses.replace(
            step(),
            optimizers=(adam(has_loss_scale=True),),
            models=model(policy="mixed_float16").models,
        ),
    ),
    ("DOC-338", call("set_seed"), call("set_seed", per_step=0.05)),
    (
        "DOC-214",
        facts(
            gradients=(GradientUse(where=line(5), num_sources=2, num_replicas=2, loss_ratio=1.0),)
        ),
        facts(
            gradients=(GradientUse(where=line(5), num_sources=2, num_replicas=2, loss_ratio=0.5),)
        ),
    ),
    *(
        (
            "DOC-214",
            dataclasses.replace(step(), gradients=(GradientUse(loss_ratio=16.0, **REPLICA),)),
            dataclasses.replace(step(), gradients=(GradientUse(loss_ratio=ratio, **REPLICA),)),
        )
        for ratio in (0.5, 392.0)
    ),
    *(
        (
            "DOC-214",
            dataclasses.replace(
                loss(SPARSE, outputs=values(0, 1, 8, 64, 64, 3)),
                gradients=(GradientUse(where=line(5), num_replicas=2, loss_ratio=2048.0, **FEW),),
            ),
            dataclasses.replace(
                loss(kind, outputs=values(0, 1, 8, 64, 64, 3)),
                gradients=(GradientUse(where=line(5), num_replicas=2, loss_ratio=ratio, **FEW),),
            ),
        )
        for kind, ratio in ((SPARSE, 0.5), (BINARY, 2048.0))
    ),
    ("DOC-340", facts(layer_flags=(flag(None),)), facts(layer_flags=(flag(True),))),
    (
        "DOC-340",
        facts(layer_flags=(flag(True), flag(True, is_recorded=False))),
        facts(layer_flags=(flag(True), flag(False, is_recorded=False))),
    ),
    # Data.
    (
        "DOC-341",
        data(DataStage(kind="batch", where=line(8)), is_shuffled=False, labels_are_sorted=True),
        data(DataStage(kind="batch", where=line(8)), is_shuffled=False, labels_are_sorted=False),
    ),
    (
        "DOC-341",
        data(
            DataStage(kind="batch", where=line(8)),
            DataStage(kind="shuffle", where=line(9), size=100),
            is_shuffled=False,
        ),
        data(
            DataStage(kind="shuffle", where=line(9), size=100),
            DataStage(kind="batch", where=line(8)),
            is_shuffled=True,
        ),
    ),
    (
        "DOC-341",
        data(DataStage(kind="shuffle", where=line(9), size=1)),
        data(DataStage(kind="shuffle", where=line(9), size=1000)),
    ),
    (
        "DOC-343",
        data(role="validation", num_rows_of_training=64, num_rows_compared=64),
        data(role="validation", num_rows_of_training=1, num_rows_compared=64),
    ),
    (
        "DOC-344",
        data(inputs=(IMAGES,)),
        dataclasses.replace(data(inputs=(IMAGES,)), models=model(layers=("Rescaling",)).models),
    ),
    (
        "DOC-344",
        data(inputs=(values(0, 1 / 255, 32, 28, 28, 1),)),
        data(inputs=(values(0, 1, 32, 28, 28, 1),)),
    ),
    ("DOC-344", data(inputs=(values(-5e4, 3e5, 32, 8),)), data(inputs=(values(-3, 4, 32, 8),))),
    (
        "DOC-344",
        pair(values(0, 1, 32, 28), values(0, 255, 32, 28)),
        pair(values(0, 1, 32, 28), values(0, 0.9, 32, 28)),
    ),
    ("DOC-345", data(num_single_draws=19), data(num_single_draws=1)),
    (
        "DOC-348",
        facts(metrics=(MetricUse(name="m", where=line(3), num_updates=9, num_epochs=3),)),
        facts(
            metrics=(MetricUse(name="m", where=line(3), num_updates=9, num_epochs=3, num_resets=2),)
        ),
    ),
    # Memory.
    ("DOC-601", model(num_made=5, num_trained=5), model(num_made=5, num_trained=1)),
    (
        "DOC-602",
        facts(growth=Growth(tensors_per_step=1.0, bytes_per_step=4e6, holder="kept")),
        facts(growth=Growth(tensors_per_step=0.1)),
    ),
    (
        "DOC-604",
        data(
            DataStage(kind="repeat", where=line(8), size=-1), DataStage(kind="cache", where=line(9))
        ),
        data(
            DataStage(kind="cache", where=line(9)), DataStage(kind="repeat", where=line(8), size=-1)
        ),
    ),
    (
        "DOC-604",
        data(DataStage(kind="shuffle", where=line(8), size=10**9, element_bytes=10**6)),
        data(DataStage(kind="shuffle", where=line(8), size=10**3, element_bytes=10**3)),
    ),
    ("DOC-605", memory(), memory(total=20 * GIB)),
    (
        "DOC-606",
        traced(num_traces=1, causes=(), constant_bytes=10**9),
        traced(num_traces=1, causes=(), constant_bytes=10**5),
    ),
    # Time.
    (
        "DOC-401",
        dataclasses.replace(step(input_seconds=0.008), pipelines=data(MAP).pipelines),
        dataclasses.replace(step(input_seconds=0.0002), pipelines=data(MAP).pipelines),
    ),
    ("DOC-402", reads(), reads(per_step=0.1)),
    ("DOC-403", traced(), traced(num_traces=2)),
    (
        "DOC-403",
        traced(num_traces=20, num_made=20, causes=()),
        traced(num_calls=900, causes=("shape",) * 2, num_traces=3),
    ),
    ("DOC-407", step(kind="eager", eager_seconds=0.009, num_eager_operations=300), step()),
    ("DOC-407", model(run_eagerly=True), model()),
    ("DOC-408", call("predict"), call("predict", num_calls=2, num_after_first_step=1, per_step=0)),
    ("DOC-408", call("save"), call("save", num_calls=2, num_after_first_step=1, per_step=0.05)),
    *(
        ("DOC-408", validated(10.0, 320, steps_per_epoch=20), right)
        for right in (
            validated(0.1, 320, steps_per_epoch=20),
            validated(10.0, 20, steps_per_epoch=20),
            validated(10.0, None, steps_per_epoch=20),
        )
    ),
    ("DOC-410", step(batch_sizes=(1,)), step(batch_sizes=(32, 1))),
    ("DOC-411", call("callback Slow", seconds=0.1), call("callback Slow", seconds=0.001)),
    ("DOC-412", step(outside_seconds=0.009), step(outside_seconds=0.001)),
    # Settings.
    (
        "DOC-104",
        facts(
            settings=(
                Setting(
                    name="TF_NUM_INTRAOP_THREADS",
                    value="1",
                    where=line(9),
                    is_late=True,
                    read_at=line(3),
                ),
            )
        ),
        facts(settings=(Setting(name="TF_NUM_INTRAOP_THREADS", value="1", where=line(1)),)),
    ),
    (
        "DOC-105",
        facts(
            settings=(
                Setting(
                    name="set_memory_growth",
                    value="True",
                    where=line(9),
                    is_late=True,
                    read_at=line(3),
                    error="RuntimeError",
                ),
            )
        ),
        facts(settings=(Setting(name="set_memory_growth", value="True", where=line(2)),)),
    ),
]
# The same with a machine of two GPUs.
ON_GPUS: list[tuple[str, Facts, Facts]] = [
    (
        "DOC-107",
        facts(pins=(PinUse(device="/GPU:7", where=line(3), exists=False),)),
        facts(pins=(PinUse(device="/GPU:0", where=line(3), exists=True),)),
    ),
    (
        "DOC-110",
        facts(pins=(PinUse(device="/CPU:0", where=line(3), trains=True),)),
        # Work on the input is kept there on purpose.
        facts(pins=(PinUse(device="/CPU:0", where=line(3)),)),
    ),
    ("DOC-201", step(), facts(strategies=mirrored())),
    (
        "DOC-202",
        dataclasses.replace(step(), strategies=mirrored(num_scopes=0, trained=False)),
        dataclasses.replace(step(), strategies=mirrored()),
    ),
    ("DOC-205", step(num_replicas=2, batch_sizes=(31,)), step(num_replicas=2)),
    ("DOC-205", step(num_replicas=2, batch_sizes=(4,)), step(num_replicas=1, batch_sizes=(4,))),
    (
        "DOC-215",
        dataclasses.replace(model(), strategies=mirrored(trained=False)),
        dataclasses.replace(model(made_in_scope=True), strategies=mirrored(trained=False)),
    ),
    ("DOC-216", facts(strategies=mirrored(num_plain_batches=20)), facts(strategies=mirrored())),
    (
        "RUN-006",
        dataclasses.replace(step(), strategies=mirrored(trained=False)),
        dataclasses.replace(step(), strategies=mirrored(num_runs=20)),
    ),
]


@pytest.mark.parametrize(("code", "wrong", "right"), CASES)
def test_facts_without_gpus(code: str, wrong: Facts, right: Facts) -> None:
    assert code in codes_of_facts(wrong)
    assert code not in codes_of_facts(right)


@pytest.mark.parametrize(("code", "wrong", "right"), ON_GPUS)
def test_facts_on_two_gpus(code: str, wrong: Facts, right: Facts) -> None:
    assert code in codes_of_facts(wrong, TWO)
    assert code not in codes_of_facts(right, TWO)


def test_unequal_cards_are_never_given_equal_shares_unsaid() -> None:
    found = facts(strategies=mirrored())
    assert "DOC-220" in codes_of_facts(found, UNEQUAL)
    assert "DOC-220" not in codes_of_facts(found, TWO)
    findings, _ = judge(step(), READING, UNEQUAL)
    fix = next(each.fix for each in findings if each.code == "DOC-201")
    assert "MirroredStrategy" not in fix and "share" in fix


def test_a_batch_of_one_is_not_told_to_use_a_strategy() -> None:
    findings, _ = judge(step(batch_sizes=(1,)), READING, TWO)
    assert findings[0].code == "DOC-410"
    assert next(each for each in findings if each.code == "DOC-201").severity.value == "hint"


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_busy_machine_lets_a_process_wait(is_busy: bool) -> None:
    seen = dataclasses.replace(
        step(input_seconds=0.004),
        calls=call("callback Slow", seconds=0.12).calls,
        pipelines=data(DataStage(kind="map", where=line(8), calls_python=True)).pipelines,
        is_machine_busy=is_busy,
    )
    found = {each.code: each.severity.value for each in judge(seen, READING, machine())[0]}
    assert found == dict.fromkeys(("DOC-401", "DOC-411"), "hint" if is_busy else "warning")


@pytest.mark.parametrize("is_busy", [True, False])
def test_on_a_busy_machine_a_slow_start_is_no_standstill(is_busy: bool) -> None:
    ending = ended(Outcome.TIMED_OUT, still_seconds=60.0).ending
    (found,) = judge(facts(ending=ending, steps=(), is_machine_busy=is_busy), READING, machine())[0]
    assert (found.code, found.severity.value) == ("DOC-010", "hint" if is_busy else "error")


@pytest.mark.parametrize(("per_step", "severity"), [(1.0, "warning"), (20.0, "hint")])
def test_many_reads_of_a_step_are_those_of_an_environment(per_step: float, severity: str) -> None:
    seen = dataclasses.replace(step(), host_reads=reads(per_step=per_step).host_reads)
    for is_busy in (False, True):
        seen = dataclasses.replace(seen, is_machine_busy=is_busy)
        (found,) = judge(seen, READING, machine())[0]
        assert (found.code, found.severity.value) == ("DOC-402", "hint" if is_busy else severity)


def test_a_card_on_which_nothing_is_left_is_told_as_such() -> None:
    findings, _ = judge(memory(usable=0, largest_batch=0), READING, machine(1))
    assert "nothing left" in findings[0].what and "0 B" not in findings[0].what


def test_every_rule_has_a_case() -> None:
    # The others are of the text, or of the machine.
    text = {
        "DOC-001",
        "DOC-002",
        "DOC-004",
        "DOC-014",
        "DOC-101",
        "DOC-208",
        "DOC-220",
        "ENG-003",
        "RUN-010",
    }
    here = {code for code, _, _ in (*CASES, *ON_GPUS)}
    assert {rule.code for rule in all_rules()} - text == here


def test_a_fine_run_has_no_finding() -> None:
    assert codes_of_facts(facts()) == []
    assert codes_of_facts(facts(strategies=mirrored()), TWO) == []
