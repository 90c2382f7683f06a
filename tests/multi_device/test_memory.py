"""Memory: shares that obey it, predictions of it, the host's, and steps that run out of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import evener
from evener import EvenerWarning, Plan, Strategy
from evener.partition.memory import MemoryLimits, estimate_memory, live_ranges_of
from evener.planner.assignment import assignment_of
from evener.planner.memory import MemoryPrediction
from evener.planner.prediction import predict
from evener.profile import Cluster, ClusterDevice, CostProfile, Curve, LayerTimes, ModelCosts
from evener.profiler.layer_costs import layer_costs
from evener.profiler.profile import trace_keras_step
from exactness.compare import assert_equal

WIDTH = 64


BATCH = 512


# Of a sample 12 layers keep 256 bytes each.
SPEC = "cpu:1@64MiB,cpu:1@1MiB"


def model_under(strategy: evener.Strategy | None) -> keras.Model:
    keras.utils.set_random_seed(7)
    with strategy.scope() if strategy else tf.device("/cpu:0"):
        model = keras.Sequential(
            [keras.Input((WIDTH,))]
            + [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(12)]
        )
        model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def data(num_samples: int = 2 * BATCH) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(num_samples, WIDTH)).astype("float32")
    return x, x[::-1].copy()


def test_the_first_step_is_within_the_memory_and_exact() -> None:
    strategy = evener.Strategy(devices=SPEC)
    x, y = data()
    reference, model = model_under(None), model_under(strategy)
    before = model.predict_on_batch(x[:4])
    assert strategy.shares == (0.5, 0.5), "no step has trained yet"
    for trained in (reference, model):
        trained.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    assert 0 < strategy.shares[1] < 0.4
    estimate = strategy.memory_estimate(BATCH)
    assert 2**19 < estimate["cpu:1"].total <= 0.9 * 2**20
    assert strategy.share_controller.last_steps()[1][0][0] <= BATCH * strategy.shares[1] + 1
    assert_equal(
        {"weights": reference.get_weights()},
        {"weights": model.get_weights()},
        within=1e-5,
        where="limited",
    )
    assert not np.array_equal(before, model.predict_on_batch(x[:4]))


def test_a_larger_batch_has_a_smaller_share() -> None:
    strategy = evener.Strategy(devices=SPEC)
    model = model_under(strategy)
    x, y = data()
    model.fit(x[:64], y[:64], batch_size=64, verbose=0)
    assert strategy.shares == (0.5, 0.5), "all of it fits"
    model.fit(x, y, batch_size=BATCH, verbose=0)
    assert strategy.shares[1] < 0.4


def test_rebalancing_does_not_exceed_the_memory() -> None:
    """The device with little memory is the faster one."""
    strategy = evener.Strategy(devices=SPEC)
    model = model_under(strategy)
    x, y = data()
    model.fit(x, y, batch_size=BATCH, verbose=0)
    limit = strategy.shares[1]
    controller = strategy.share_controller
    window = np.asarray([[BATCH * share for share in controller.shares]] * 8)
    seconds = np.asarray([[4.0, 0.1]] * 8)
    measured = controller._rebalance_in_step(8, window, seconds, controller.shares)
    assert measured[1] == pytest.approx(limit)
    assert controller.events == (), "there is nothing to gain within the memory"


def test_shares_of_a_person_are_not_changed() -> None:
    strategy = evener.Strategy(devices=SPEC, shares=[1, 1])
    x, y = data()
    model_under(strategy).fit(x, y, batch_size=BATCH, verbose=0)
    assert strategy.shares == (0.5, 0.5)


def test_a_batch_that_fits_nowhere_is_told() -> None:
    strategy = evener.Strategy(devices="cpu:1@1200KiB,cpu:1@1MiB")
    x, y = data()
    with pytest.warns(EvenerWarning, match="ENG-051") as caught:
        model_under(strategy).fit(x, y, batch_size=BATCH, verbose=0)
    assert "cpu:1 holds about" in str(caught[0].message)
    assert strategy.shares[1] < strategy.shares[0] < 1


def own_step() -> Callable[[tf.Tensor], tf.Tensor]:
    weights = [tf.Variable(tf.eye(WIDTH) * 0.5) for _ in range(12)]

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.tanh(y @ weight)
            loss = tf.reduce_mean(y**2)
        gradients: Any = tape.gradient(loss, weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    return step


@pytest.mark.parametrize("in_graph", [False, True])
def test_a_distributed_step(in_graph: bool) -> None:
    distributed = evener.distribute(own_step(), devices=SPEC)
    call: Callable[[tf.Tensor], tf.Tensor] = tf.function(distributed) if in_graph else distributed
    call(tf.constant(data(BATCH)[0]))
    assert 0 < distributed.shares[1] < 0.4
    distributed.set_shares([1, 3])
    assert distributed.shares == (0.25, 0.75)


def test_the_limit_is_the_last_number_of_samples_that_fits() -> None:
    """Against the estimate at one sample more."""
    distributed = evener.distribute(own_step(), devices=["cpu:0", "cpu:1"], shares=[1, 1])
    distributed(tf.constant(data(BATCH)[0]))
    (step,) = distributed.partitioned_steps
    owned = {"cpu:1": 2**16}
    limits = MemoryLimits(step, (None, 2**20), lambda: owned)
    first, most = limits.most_samples(BATCH)
    assert first == BATCH

    def needed(samples: int) -> int:
        replicas = evener.Plan.data_parallel(
            ["cpu:0", "cpu:1"], shares=[BATCH - samples, samples]
        ).replicas
        return estimate_memory(live_ranges_of(step), replicas, BATCH, owned)["cpu:1"].total

    assert needed(most) <= 0.9 * 2**20 < needed(most + 1)


NUM_SAMPLES = 64


ANY = Curve(((1, 1.0),))


CLUSTER = Cluster(devices=tuple(ClusterDevice(name=f"cpu:{k}", type="any") for k in range(3)))


def normalized() -> keras.Model:
    given: Any = keras.Input((32,))
    x = given
    for name in ("a0", "a1", "b0", "b1"):
        x = layers.Dense(WIDTH, name=name)(x)
        x = layers.BatchNormalization(name=f"{name}_norm")(x)
        x = layers.Activation("tanh", name=f"{name}_tanh")(x)
    model = keras.Model(given, layers.Dense(1, name="b_head")(x))
    model.compile("adam", "mse")
    return model


@pytest.fixture(scope="module")
def costs() -> ModelCosts:
    return layer_costs(trace_keras_step(normalized(), tf.TensorSpec([32]), tf.TensorSpec([1])))


def stages(num_micro_batches: int) -> Plan:
    return Plan.pipeline(
        {"cpu:1": "a*", "cpu:2": "b*"}, num_micro_batches=num_micro_batches, in_flight=2
    )


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "plan",
    [
        Plan.data_parallel(["cpu:1"], num_micro_batches=4),
        Plan.data_parallel(["cpu:1", "cpu:2"]),
        stages(4),
        stages(8),
    ],
    ids=["micro-batches", "data parallel", "4 in stages", "8 in stages"],
)
def test_no_less_is_predicted_than_the_engine_counts(plan: Plan, costs: ModelCosts) -> None:
    strategy = Strategy(plan)
    with strategy.scope():
        model = normalized()
    model.train_on_batch(np.ones((NUM_SAMPLES, 32), "float32"), np.ones((NUM_SAMPLES, 1), "f"))
    counted = strategy.memory_estimate(NUM_SAMPLES)
    found = predicted(plan, costs)
    for device, needed in found.items():
        there = needed.activations
        if plan.layout == "data parallel" and len(plan.replicas) > 1:
            # What waits within one call is workspace, and the engine counts it with activations.
            there += needed.workspace
        assert there >= 0.99 * counted[device].activations
        assert needed.activations <= 2.1 * counted[device].activations


def test_more_micro_batches_save_nothing_up_to_the_last_barrier(costs: ModelCosts) -> None:
    few, many = predicted(stages(2), costs), predicted(stages(16), costs)
    assert many["cpu:1"].activations == few["cpu:1"].activations
    # Behind the last normalization there is one layer with one result of its own.
    saved = few["cpu:2"].activations - many["cpu:2"].activations
    assert saved <= NUM_SAMPLES / 2 * 3 * WIDTH * 4


def predicted(plan: Plan, costs: ModelCosts) -> dict[str, MemoryPrediction]:
    times = {"any": (LayerTimes(forward=ANY, backward=ANY),) * len(costs.layers)}
    profile = CostProfile(model=costs, cluster=CLUSTER, times=times)
    needs = predict(assignment_of(plan, costs, CLUSTER, NUM_SAMPLES), profile).memory
    return {f"cpu:{place}": needed for place, needed in needs.items() if needed.activations > 0}


DEVICES = ["cpu:1", "cpu:2"]


def enormous(x: Any) -> Any:
    """Return what nobody has the memory for: 280 TB per sample."""
    hidden = tf.cast(tf.reduce_sum(x) * 0, tf.int32)  # else TensorFlow computes it beforehand
    ones = tf.fill([tf.shape(x)[0], 2**23, hidden + 2**23], 1.0)
    return x + tf.reduce_sum(ones, axis=[1, 2])[:, None]


class Enormous(keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        return enormous(inputs)


def fit() -> None:
    strategy = evener.Strategy(devices=DEVICES, shares=[3, 1])
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), Enormous()])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 4)), np.ones((8, 4)), verbose=0)


def call(run: Any) -> None:
    with tf.device("cpu:1"):
        weight = tf.Variable(tf.ones([4, 4]))
    run(lambda x: enormous(x @ weight))(tf.ones([8, 4]))


def by_distribute(step: Any) -> Any:
    return evener.distribute(step, devices=DEVICES, shares=[3, 1])


def by_run(step: Any) -> Any:
    strategy = evener.Strategy(devices=DEVICES, shares=[3, 1])
    return lambda x: strategy.run(tf.function(step), args=(x,))


# TensorFlow waits for ten seconds for each device, in case that memory becomes free.
@pytest.mark.long
@pytest.mark.parametrize(
    "way",
    [fit, lambda: call(by_distribute), lambda: call(by_run)],
    ids=["fit", "distribute", "run"],
)
def test_a_note_says_what_fills_the_device(way: Any) -> None:
    with pytest.raises(tf.errors.ResourceExhaustedError) as raised:
        way()
    [note] = raised.value.__notes__
    device = "cpu:1" if "[ENG-050] cpu:1 ran out" in note else "cpu:2"
    assert f"[ENG-050] {device} ran out of memory in a step." in note
    assert f"activations of its {75 if device == 'cpu:1' else 25}% of every batch" in note
    assert "Plan.data_parallel(['cpu:1', 'cpu:2'], num_micro_batches=4)" in note
    # What it advises can be written so.
    assert Plan.data_parallel(DEVICES, num_micro_batches=4).is_scheduled


def test_other_errors_have_no_note() -> None:
    @evener.distribute(devices=DEVICES)
    def step(x: Any) -> Any:
        return tf.debugging.check_numerics(x, "no number")

    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        step(tf.constant([np.nan, 1.0]))
    assert not getattr(raised.value, "__notes__", [])


RunPython = Callable[..., CompletedProcess[str]]


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


CAP_BYTES = 40 * 2**20


# The device is a process of its own, whose allocator refuses more than a cap; the host is another.
PROGRAM = """
    import os, sys
    from side_by_side.apart import connect, devices_apart

    def train(owners, names):
        import evener, keras, numpy as np, tensorflow as tf
        keras.utils.set_random_seed(1)
        scope = tf.device("CPU:0")
        if names:
            stages = [(names[0], f"dense_{k}") for k in range(16)]
            scope = evener.Strategy(evener.Plan.pipeline(stages, owners=owners)).scope()
        with scope:
            stack = [keras.layers.Dense(1024, "tanh", name=f"dense_{k}") for k in range(16)]
            model = keras.Sequential([keras.Input((1024,)), *stack])
            model.compile(keras.optimizers.Adam(epsilon=1e-3), "mse")
        x = np.random.default_rng(0).normal(size=(3 * 16, 1024)).astype("float32")
        history = model.fit(x, np.tanh(x), batch_size=16, shuffle=False, verbose=0)
        print("trained", sum(weight.nbytes for weight in model.get_weights()))
        np.savez(os.environ["TEST_FILE"], *model.get_weights(), history.history["loss"])

    if __name__ == "__main__":
        if os.environ["TEST_OWNERS"] == "alone":
            train(None, [])
            sys.exit()
        owners = {"host": {"*": "host"}, "device": "sharded"}[os.environ["TEST_OWNERS"]]
        with devices_apart(1, cap_bytes=int(os.environ["TEST_CAP"])) as (device,):
            names = connect([device.call("address")])
            import tensorflow as tf
            try:
                train(owners, names)
            except tf.errors.ResourceExhaustedError:
                print("exhausted")
            print("peak", device.call("used")["peak"], flush=True)
        # The cluster would wait for the device, which is gone.
        os._exit(0)
"""


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_weights_that_do_not_fit_the_device_train_from_the_host(
    run_python: RunPython, tmp_path: Path
) -> None:
    told = {}
    for owners in ("alone", "device", "host"):
        env = {
            "PYTHONPATH": f"{BENCHMARKS}:{BENCHMARKS.parent / 'src'}",
            "TEST_OWNERS": owners,
            "TEST_CAP": str(CAP_BYTES),
            "TEST_FILE": str(tmp_path / f"{owners}.npz"),
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        told[owners] = run_python(PROGRAM, env=env, timeout=400).stdout.split()
    assert told["alone"][0] == "trained"
    assert told["device"][0] == "exhausted"
    assert (told["host"][0], told["host"][2]) == ("trained", "peak")
    num_bytes, peak = int(told["host"][1]), int(told["host"][3])
    assert peak <= CAP_BYTES < num_bytes / 1.5
    alone, host = (np.load(tmp_path / f"{name}.npz") for name in ("alone", "host"))
    for name in alone.files:
        np.testing.assert_allclose(alone[name], host[name], rtol=1e-5, atol=1e-5)
