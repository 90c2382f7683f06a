"""Stages, besides being exact: their devices, their graphs, their memory, refused plans."""

from __future__ import annotations

import re
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import evener
from evener import EngineError, EvenerWarning, Plan, Strategy
from evener.plan import PlanDevice, Replica, Stage

RunPython = Callable[..., CompletedProcess[str]]


PLACEMENT = """
    import tensorflow as tf
    tf.debugging.set_log_device_placement(True)
    import evener, keras, numpy as np
    plan = evener.Plan.pipeline(
        [("cpu:1", "a*"), ("cpu:2", "b*"), ("cpu:0", "head")], num_micro_batches=2, recompute=["a*"]
    )
    with evener.Strategy(plan).scope():
        model = keras.Sequential([
            keras.Input((4,)),
            keras.layers.Dense(5, activation="gelu", name="a0"),
            keras.layers.Dense(5, activation="tanh", name="b0"),
            keras.layers.Dense(5, activation="tanh", name="b1"),
            keras.layers.Dense(1, name="head"),
        ])
        model.compile("adam", "mse")
    model.train_on_batch(np.ones((4, 4), "float32"), np.ones((4, 1), "float32"))
"""


HOMES = {"a0": "CPU:1", "b0": "CPU:2", "b1": "CPU:2", "head": "CPU:0"}


@pytest.mark.long
def test_all_work_of_a_layer_is_on_its_stage(run_python: RunPython) -> None:
    """Forward, gradient and recomputation: TensorFlow tells where it ran."""
    told = run_python(PLACEMENT, num_cpus=3, env={"TF_CPP_MIN_LOG_LEVEL": "0"}, timeout=300)
    lines = re.findall(r"(\S+): \((\w+)\): \S+device:(CPU:\d)", told.stdout + told.stderr)
    wrong: list[tuple[str, str, str]] = []
    seen: dict[str, set[str]] = {name: set() for name in HOMES}
    for name, kind, device in lines:
        # Inside of functions, names have no slashes.
        layer = re.search(r"sequential(?:_\d+)?_(a0|b0|b1|head)(?:_\d+)?_", name)
        if layer is None or kind in ("Const", "_Recv", "_Send", "NoOp"):
            continue
        is_gradient, is_copy = name.startswith("gradient_tape"), "_recompute" in name
        seen[layer[1]].add("gradient" if is_gradient else "recompute" if is_copy else "forward")
        if device != HOMES[layer[1]]:
            wrong.append((name, kind, device))
    assert not wrong
    assert all(kinds >= {"forward", "gradient"} for kinds in seen.values())
    assert [name for name, kinds in seen.items() if "recompute" in kinds] == ["a0"]


def block(width: int = 16, names: str = "ab") -> list[keras.Layer]:
    return [layers.Dense(width, activation="gelu", name=f"{half}{k}")
            for half in names for k in range(2)]  # fmt: skip


def trained(
    plan: Plan, num_samples: int = 64, width: int = 16, names: str = "ab"
) -> tuple[keras.Model, Strategy]:
    strategy = Strategy(plan)
    with strategy.scope():
        model = keras.Sequential([keras.Input((width,)), *block(width, names)])
        model.compile(keras.optimizers.Adam(), "mse")
    x = np.random.default_rng(0).normal(size=(num_samples, width)).astype("float32")
    model.fit(x, x, batch_size=num_samples, verbose=0)
    return model, strategy


def nodes_of_step(num_micro_batches: int, num_layers: int = 2) -> tuple[int, int]:
    plan = Plan.pipeline({"cpu:0": "a*", "cpu:1": "b*"}, num_micro_batches=num_micro_batches)
    strategy = Strategy(plan)
    with strategy.scope():
        stack = [layers.Dense(16, "gelu", name=f"{h}{k}") for h in "ab" for k in range(num_layers)]
        model = keras.Sequential([keras.Input((16,)), *stack])
        model.compile(keras.optimizers.Adam(), "mse")
    model.optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: tf.Tensor) -> object:
        return strategy.run(model.train_step, args=((x, x),))

    graph = step.get_concrete_function(tf.TensorSpec([None, 16])).graph
    called = [op for op in graph.get_operations() if op.type.endswith("PartitionedCall")]
    return len(graph.get_operations()), len({op.get_attr("f").name for op in called})


@pytest.mark.long
def test_graphs_grow_with_stages_and_not_with_layers_times_micro_batches() -> None:
    few, functions = nodes_of_step(2)
    many, same_functions = nodes_of_step(16)
    assert functions == same_functions
    # A call of each function, and the cutting of inputs, for every further micro-batch.
    per_micro_batch = (many - few) / 14
    assert per_micro_batch < 30
    deeper = (nodes_of_step(16, num_layers=6)[0] - nodes_of_step(2, num_layers=6)[0]) / 14
    assert deeper == per_micro_batch


def test_variables_are_made_on_the_device_of_their_stage() -> None:
    plan = Plan.pipeline({"cpu:1": "a*", "cpu:2": "b*"}, owners={"a1/*": "host"})
    model, strategy = trained(plan)
    homes = {v.path.partition("/")[2]: v.value.device[-5:] for v in model.trainable_variables}
    assert homes == {
        "a0/kernel": "CPU:1", "a0/bias": "CPU:1", "a1/kernel": "CPU:0", "a1/bias": "CPU:0",
        "b0/kernel": "CPU:2", "b0/bias": "CPU:2", "b1/kernel": "CPU:2", "b1/bias": "CPU:2",
    }  # fmt: skip
    slots = {v.path: v.value.device[-5:] for v in model.optimizer.variables[2:]}
    assert {home for path, home in slots.items() if "a1" in path} == {"CPU:0"}
    assert {home for path, home in slots.items() if "b0" in path} == {"CPU:2"}
    owned = strategy.owner_registry.owned_bytes()
    assert owned["cpu:2"] == 2 * owned["cpu:1"]  # two layers beside one


LAYER = (16 * 16 + 16) * 4


ROW = 16 * 16 * 4  # a tensor of a micro-batch of 16 samples


def test_memory_estimate() -> None:
    """Counted bytes of weights and gradients are those of sums by hand."""
    plan = Plan.pipeline({"cpu:1": "a*", "cpu:2": "b*"}, num_micro_batches=4, in_flight=2)
    needs = trained(plan)[1].memory_estimate(64)
    for device in ("cpu:1", "cpu:2"):
        assert needs[device].variables == 2 * 3 * LAYER  # weights and two slots of Adam
        assert needs[device].fetched <= 16  # numbers
        assert 2 * LAYER <= needs[device].gradients <= 2 * 2 * LAYER + 8  # a sum, and the next one
        # Of each layer three results at least, of no more than what is in flight.
        assert 2 * 3 * ROW <= needs[device].activations < 2 * 2 * 8 * ROW
    assert needs["cpu:1"].activations > needs["cpu:2"].activations


def test_an_estimate_grows_with_what_is_in_flight_and_not_with_micro_batches() -> None:
    def activations(num_micro_batches: int, in_flight: int) -> int:
        plan = Plan.pipeline(
            {"cpu:1": "a*", "cpu:2": "b*"}, num_micro_batches=num_micro_batches, in_flight=in_flight
        )
        return trained(plan)[1].memory_estimate(16 * num_micro_batches)["cpu:1"].activations

    few = activations(4, 2)
    assert abs(activations(8, 2) - few) < 2 * ROW
    assert activations(4, 4) > 1.5 * few


class ChosenWords(keras.layers.Layer):
    """Takes words of every sentence, whose gradient writes to the rows of their samples."""

    def call(self, words: Any, places: Any) -> Any:
        return tf.gather_nd(words, places[..., None], batch_dims=1)


def test_micro_batches_save_the_memory_of_what_a_gather_chooses_from() -> None:
    """Its gradient is not a sum over micro-batches, for which all of them would have to wait."""

    def activations(num_micro_batches: int) -> int:
        keras.utils.set_random_seed(1)
        plan = Plan.data_parallel(["cpu:1"], num_micro_batches=num_micro_batches)
        strategy = Strategy(plan)
        with strategy.scope():
            words, places = keras.Input((32, 8)), keras.Input((2,), dtype="int32")
            x: Any = words
            for _ in range(4):
                x = keras.layers.Dense(64, "tanh")(x)
            model = keras.Model([words, places], keras.layers.Dense(1)(ChosenWords()(x, places)))
            model.compile("sgd", "mse")
        rng = np.random.default_rng(0)
        inputs = [rng.random((64, 32, 8), "float32"), rng.integers(0, 32, (64, 2))]
        model.train_on_batch(inputs, rng.random((64, 2, 1), "float32"))
        return strategy.memory_estimate(64)["cpu:1"].activations

    assert activations(8) < 0.4 * activations(2)


def test_memory_estimate_of_weights_on_the_host() -> None:
    plan = Plan.pipeline({"cpu:1": "a*", "cpu:2": "b*"}, owners={"b*": "host"})
    needs = trained(plan)[1].memory_estimate(64)
    assert needs["cpu:2"].variables == 0
    assert 2 * 16 * 16 * 4 <= needs["cpu:2"].fetched <= 2 * LAYER + 16
    assert needs["cpu:0"].variables >= 2 * 3 * LAYER


@pytest.mark.long
def test_weights_of_two_turns_are_on_the_device() -> None:
    """Of the turn that is computed and of the next one, however many stages there are."""
    layer = (64 * 64 + 64) * 4

    def fetched(names: str) -> int:
        stages = [("cpu:1", f"{part}{k}") for part in names for k in range(2)]
        plan = Plan.pipeline(stages, owners={"*": "host"})
        needs = trained(plan, num_samples=8, width=64, names=names)[1].memory_estimate(8)["cpu:1"]
        assert needs.variables == 0
        return needs.fetched

    assert layer <= fetched("abc") <= 2 * layer
    assert fetched("abcd") == fetched("abc")


def test_memory_estimate_before_the_first_step() -> None:
    with pytest.raises(EngineError) as caught:
        Strategy(Plan.pipeline({"cpu:1": "a*", "cpu:2": "b*"})).memory_estimate(8)
    assert caught.value.code == "ENG-011"


X = np.random.default_rng(0).normal(size=(16, 8)).astype("float32")


NAMES = ("a0", "a1", "b0", "b1")


HOMES_IN_A_LOOP = {name: f"CPU:{1 + name.startswith('b')}" for name in NAMES}


PLAN = Plan.pipeline({"cpu:1": "a*", "cpu:2": "b*"}, num_micro_batches=4, in_flight=2)


def stack(width: int = 8) -> keras.Model:
    """Return two layers for each of two stages; every operation tells its layer by its name."""
    x = first = keras.Input((8,))
    for name in NAMES:
        x = layers.Dense(width, activation="tanh", name=name)(x)
    return keras.Model(first, x)


def training(plan: Plan, build: Callable[[], keras.Model] = stack) -> tuple[Strategy, Any]:
    strategy = Strategy(plan)
    with strategy.scope():
        model, optimizer = build(), keras.optimizers.Adam()
        loss_of = keras.losses.MeanSquaredError()

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(x, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return strategy, step


def traced(plan: Plan, build: Callable[[], keras.Model] = stack) -> Any:
    strategy, step = training(plan, build)

    @tf.function
    def train(x: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None)

    (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(X))
    concrete = train.get_concrete_function(batch)
    concrete.kept = train, strategy
    return concrete


def test_all_work_of_a_layer_in_a_loop_is_on_its_stage() -> None:
    """Forward and backward in calls on the stage's device; weights are updated where they are."""
    strategy, step = training(PLAN)
    train = tf.function(step)
    strategy.run(train, args=(tf.constant(X),))
    (partitioned,) = strategy._step_of(train).partitioned_steps
    layer_of = re.compile(r"(?:^|/)(a0|a1|b0|b1)(?:_\d+)?/")
    seen: dict[str, set[str]] = {name: set() for name in NAMES}
    updates: list[str] = []
    wrong = []
    layout = partitioned.partition.layout
    for node, task in partitioned.partition.task_of.items():
        device = layout.device(0, task.place.stages) if task.is_parts else task.where
        if node.op == "AssignSubVariableOp":
            updates.append(device[-5:])
        layer = layer_of.search(node.name)
        if layer is not None:
            seen[layer[1]].add("gradient" if "gradient_tape" in node.name else "forward")
            if device[-5:] != HOMES_IN_A_LOOP[layer[1]]:
                wrong.append((node.name, node.op, device))
    assert not wrong
    assert all(kinds == {"forward", "gradient"} for kinds in seen.values())
    assert sorted(updates) == ["CPU:1"] * 4 + ["CPU:2"] * 4


def test_variables_made_in_the_first_call_go_where_the_plan_says() -> None:
    def build() -> keras.Model:
        return keras.Sequential([layers.Dense(8, name=name) for name in NAMES])

    plan = Plan.pipeline(
        {"cpu:1": "a*", "cpu:2": "b*"}, num_micro_batches=2, owners={"*/a1/*": "cpu:2"}
    )
    strategy = Strategy(plan)
    with strategy.scope():
        model = build()
    for batch in tf.data.Dataset.from_tensors(X):
        tf.function(lambda x: strategy.run(model, args=(x,)))(batch)
    homes = {v.path.split("/")[1]: v.value.device[-5:] for v in model.trainable_variables}
    assert homes == {**HOMES_IN_A_LOOP, "a1": "CPU:2"}


def refused(code: str, plan: Plan, build: Callable[[], keras.Model] = stack) -> EngineError:
    """Return the error that a loop's first step ends with."""
    with pytest.raises(EngineError) as caught:
        traced(plan, build)
    assert caught.value.code == code
    return caught.value


def test_a_pattern_that_names_no_layer() -> None:
    error = refused("ENG-042", Plan.pipeline({"cpu:1": "a*", "cpu:2": ["b0", "c1"]}))
    assert "'c1'" in str(error) and "b1" in str(error)


def test_a_layer_in_two_stages() -> None:
    error = refused("ENG-041", Plan.pipeline({"cpu:1": "a*", "cpu:2": ["b*", "a1"]}))
    assert "'a1'" in error.what


def test_a_layer_that_is_pinned_elsewhere_computes_the_same() -> None:
    """The pin of a layer says where its weights are; its stage says where it is computed."""

    def build() -> keras.Model:
        model = stack()
        evener.pin("cpu:3")(model.get_layer("b0"))
        return model

    results = []
    for made in (stack, build):
        keras.utils.set_random_seed(1)
        results.append(float(traced(PLAN, made)(tf.constant(X))))
    assert results[0] == pytest.approx(results[1], rel=1e-5)


@pytest.mark.filterwarnings("default")
def test_an_eager_run_is_told_of_and_computes_on_one_device() -> None:
    strategy = Strategy(PLAN)
    with strategy.scope():
        model = stack()
    seen: list[str] = []

    def look(x: tf.Tensor) -> tf.Tensor:
        seen.append(tf.sin(x).device[-5:])
        return model(x)

    with pytest.warns(EvenerWarning, match="ENG-086") as told:
        for _ in range(2):
            result = strategy.run(look, args=(tf.constant(X),))
    assert len([warning for warning in told if "ENG-086" in str(warning.message)]) == 1
    assert seen == ["CPU:1"] * 2
    np.testing.assert_allclose(result, model(X), rtol=1e-6)


DEVICES = ("cpu:0", "cpu:1")


NUM_MICRO_BATCHES = 8


# Of the first convolution's results, the largest by far.
ACTIVATION_BYTES = 64 * 32 * 32 * 32 * 4


def convolutions() -> keras.Model:
    """Return layers whose kernels must not be called without samples: they are in branches."""
    return keras.Sequential(
        [
            keras.layers.Input((32, 32, 3)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu", name="first"),
            keras.layers.MaxPooling2D(4, name="pool"),
            keras.layers.Conv2D(8, 3, padding="same", activation="relu", name="end_second"),
            keras.layers.GlobalAveragePooling2D(name="end_average"),
            keras.layers.Dense(10, name="end_last"),
        ]
    )


def dense() -> keras.Model:
    """Return layers that are called without samples too."""
    return keras.Sequential(
        [
            keras.layers.Input((32, 32, 3)),
            keras.layers.Dense(32, activation="gelu", name="first"),
            keras.layers.Dense(1, name="pool"),
            keras.layers.Flatten(name="end_flat"),
            keras.layers.Dense(10, name="end_last"),
        ]
    )


def peak_of_a_step(model_of: Any, in_flight: int) -> int:
    """Return the most bytes that a step has in memory beyond what is there before."""
    replica = Replica(
        share=1,
        stages=(
            Stage(device=DEVICES[0], layers=("first", "pool")),
            Stage(device=DEVICES[1], layers=("end_*",)),
        ),
        num_micro_batches=NUM_MICRO_BATCHES,
        in_flight=in_flight,
    )
    devices = tuple(map(PlanDevice.named, DEVICES))
    with evener.Strategy(Plan(devices=devices, replicas=(replica,))).scope():
        model = model_of()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, jit_compile=False)
    x, y = np.ones((64, 32, 32, 3), "float32"), np.zeros(64, "int32")
    for _ in range(2):
        model.train_on_batch(x, y)
    tf.config.experimental.reset_memory_stats("CPU:0")
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    model.train_on_batch(x, y)
    return tf.config.experimental.get_memory_info("CPU:0")["peak"] - before


@pytest.mark.parametrize("model_of", [convolutions, dense])
def test_a_stage_keeps_as_many_micro_batches_as_are_in_flight(model_of: Any) -> None:
    all_of_them, single = (
        peak_of_a_step(model_of, in_flight) for in_flight in (NUM_MICRO_BATCHES, 1)
    )
    assert all_of_them - single > 0.6 * ACTIVATION_BYTES
