"""What stages must do besides being exact: where they run, in which order, in what memory."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from evener import EngineError, Plan, Strategy
from evener.engine import footprint
from evener.engine.staged.exhausted import while_updating
from evener.engine.staged.keras_bridge import steps_of
from evener.engine.staged.stages import gradients

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


def test_all_work_of_a_layer_is_on_its_stage(run_python: RunPython) -> None:
    """Forward, gradient, optimizer and variables: TensorFlow tells where it ran."""
    told = run_python(PLACEMENT, num_cpus=3, env={"TF_CPP_MIN_LOG_LEVEL": "0"}, timeout=300)
    lines = re.findall(r"(\S+): \((\w+)\): \S+device:(CPU:\d)", told.stdout + told.stderr)
    wrong, seen = [], {name: set() for name in HOMES}
    for name, kind, device in lines:
        layer = re.search(r"/(a0|b0|b1|head)_?\d*/", name) or re.search(
            r"/(a0|b0|b1|head)_(?:kernel|bias)", name
        )
        if layer is None or kind in ("Const", "_Recv", "_Send", "NoOp"):
            continue
        seen[layer[1]].add("gradient" if "_grad/" in name else "forward")
        if device != HOMES[layer[1]]:
            wrong.append((name, kind, device))
    assert not wrong
    assert all(kinds == {"forward", "gradient"} for kinds in seen.values())


def block(width: int = 16, names: str = "ab") -> list[keras.Layer]:
    """Return the layers of a small network, named by their halves."""
    return [layers.Dense(width, activation="gelu", name=f"{half}{k}")
            for half in names for k in range(2)]  # fmt: skip


def trained(
    plan: Plan, num_samples: int = 64, width: int = 16, names: str = "ab"
) -> tuple[keras.Model, Strategy]:
    """Build, compile and train one step."""
    strategy = Strategy(plan)
    with strategy.scope():
        model = keras.Sequential([keras.Input((width,)), *block(width, names)])
        model.compile(keras.optimizers.Adam(), "mse")
    x = np.random.default_rng(0).normal(size=(num_samples, width)).astype("float32")
    model.fit(x, x, batch_size=num_samples, verbose=0)
    return model, strategy


def nodes_of_step(num_micro_batches: int) -> tuple[int, int]:
    """Return the operations of a traced step, and the functions it calls."""
    plan = Plan.pipeline({"cpu:0": "a*", "cpu:1": "b*"}, num_micro_batches=num_micro_batches)
    model, strategy = trained(plan)
    steps = steps_of(model, strategy)
    spec = tf.TensorSpec([None, 16])
    graph = tf.function(steps.train).get_concrete_function((spec, spec)).graph
    called = [op for op in graph.get_operations() if op.type.endswith("PartitionedCall")]
    return len(graph.get_operations()), len({op.get_attr("f").name for op in called})


def test_graphs_grow_with_stages_and_not_with_layers_times_micro_batches() -> None:
    few, functions = nodes_of_step(2)
    many, same_functions = nodes_of_step(16)
    assert functions == same_functions
    # A call of each function, and the cutting of inputs, for every further micro-batch.
    assert (many - few) / 14 < 80


def calls_of_step(plan: Plan) -> list[tf.Operation]:
    """Return the calls of a training step for its stages, in the order in which they were made."""
    model, strategy = trained(plan)
    spec = tf.TensorSpec([None, 16])
    step = tf.function(steps_of(model, strategy).train).get_concrete_function((spec, spec))
    calls = [op for op in step.graph.get_operations() if op.type.endswith("PartitionedCall")]
    return [op for op in calls if re.search("forward|backward|weights", op.get_attr("f").name)]


def waits_for(op: tf.Operation) -> set[tf.Operation]:
    """Return what an operation waits for, by its data or by a control dependency."""
    return {*(tensor.op for tensor in op.inputs), *op.control_inputs}


def test_calls_on_a_device_wait_for_each_other() -> None:
    """The order of the schedule holds, so that no more is alive than it allows."""
    calls = calls_of_step(Plan.pipeline({"cpu:0": "a*", "cpu:1": "b*"}, num_micro_batches=4))
    for device in ("CPU:0", "CPU:1"):
        in_order = [op for op in calls if op.device.endswith(device)]
        assert len(in_order) == 2 * 4
        assert all(a in waits_for(b) for a, b in itertools.pairwise(in_order))


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_large_gradients_are_added_before_the_next_are_there(
    monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    """Behind the call that gives them, on its device, and the next one waits: two are alive."""
    monkeypatch.setattr(gradients, "LARGE", 16 * 16 * 4)  # the kernels, not the biases
    plan = Plan.pipeline(
        {"cpu:1": "a*", "cpu:2": "b*"}, num_micro_batches=4, in_flight=2, schedule=schedule
    )
    calls = calls_of_step(plan)
    name = "weights" if schedule == "zero_bubble" else "backward"
    for device in ("CPU:1", "CPU:2"):
        of_device = [op for op in calls if op.device.endswith(device)]
        giving = [op for op in of_device if name in op.get_attr("f").name]
        assert len(giving) == 4
        added = [
            [user for t in op.outputs for user in t.consumers() if user.type == "AddV2"
             and user.inputs[1] is t]
            for op in giving
        ]  # fmt: skip
        assert [len(additions) for additions in added] == [0, 2, 2, 2]
        assert all(op.device.endswith(device) for additions in added for op in additions)
        for additions, after in zip(added[:-1], giving[1:], strict=True):
            assert waits_for(after).issuperset(additions)


def test_weights_of_a_later_turn_are_fetched_late() -> None:
    """Each turn of a stage has a loan of its own, fetched while the turn before it ends."""
    plan = Plan.pipeline([("cpu:1", "a*"), ("cpu:1", "b*")], owners={"*": "host"})
    forward_a, forward_b, _, backward_a = calls_of_step(plan)
    (weight,) = (  # Of the last layer of a: the first has no gradient to hand on.
        tensor.op
        for tensor in backward_a.inputs
        if tensor.op.type == "Identity" and tensor.shape == (16, 16)
    )
    on_owner = weight.inputs[0].op
    read = on_owner.inputs[0].op
    assert (weight.device[-5:], on_owner.device[-5:]) == ("CPU:1", "CPU:0")
    assert forward_b in waits_for(read) | waits_for(on_owner)
    assert forward_a not in waits_for(read) | waits_for(on_owner)


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
    owned = strategy.ledger.owned_bytes()
    assert owned["cpu:2"] == 2 * owned["cpu:1"]  # two layers beside one


def test_footprint() -> None:
    """What a step needs, against sums by hand."""
    plan = Plan.pipeline({"cpu:1": "a*", "cpu:2": "b*"}, num_micro_batches=4, in_flight=2)
    model, _ = trained(plan, num_samples=64)
    needs = footprint(model, 64)
    layer = (16 * 16 + 16) * 4
    for device in ("cpu:1", "cpu:2"):
        assert needs[device].variables == 2 * 3 * layer  # weights and two slots of Adam
        assert needs[device].gradients == 2 * 2 * layer  # a sum, and the next one
        assert needs[device].borrowed == 0
    row = 16 * 16 * 4  # a tensor of a micro-batch of 16 samples
    # Of each layer its input and three results of gelu, of the last stage the error as well;
    # two micro-batches are alive in the first stage, one in the last. Samples of the next one
    # are on their way to both, and so is the gradient of what the first has handed on.
    shapes = 400  # a few bytes of shapes are kept as well
    for device, rows in (("cpu:1", 2 * 2 * 4 + 2), ("cpu:2", 2 * 4 + 1 + 2)):
        assert needs[device].activations // row == rows
        assert needs[device].activations % row < shapes


def test_footprint_of_weights_on_the_host() -> None:
    plan = Plan.pipeline({"cpu:1": "a*", "cpu:2": "b*"}, owners={"b*": "host"})
    model, _ = trained(plan)
    needs = footprint(model, 64)
    layer = (16 * 16 + 16) * 4
    assert (needs["cpu:2"].variables, needs["cpu:2"].borrowed) == (0, 2 * layer)
    assert needs["cpu:0"].variables >= 2 * 3 * layer


def test_two_loans_and_the_gradients_of_two_stages_are_on_the_device() -> None:
    """The loans of a turn and of the next; the gradients that are made and those that move."""
    stages = [("cpu:1", f"{third}{k}") for third in "abc" for k in range(2)]
    plan = Plan.pipeline(stages, owners={"*": "host"})
    model, strategy = trained(plan, num_samples=8, width=64, names="abc")
    needs, layer = footprint(model, 8)["cpu:1"], (64 * 64 + 64) * 4
    assert (needs.variables, needs.borrowed, needs.gradients) == (0, 2 * layer, 2 * layer)
    # That it is no more: a fetch waits for the gradients of all turns but the last three.
    spec = tf.TensorSpec([None, 64])
    graph = tf.function(steps_of(model, strategy).train).get_concrete_function((spec, spec)).graph
    calls = [op for op in graph.get_operations() if op.type.endswith("PartitionedCall")]
    assert [arrivals(op) & set(calls) for op in calls[6:10]] == [set(), set(), set(), {calls[6]}]


def arrivals(call: tf.Operation) -> set[tf.Operation]:
    """Return the calls whose results must have arrived before the kernel of a call is fetched."""
    (kernel,) = (
        tensor.op for tensor in call.inputs
        if tensor.op.type == "Identity" and tensor.op.inputs[0].op.type == "Identity"
        and tensor.shape == (64, 64)
    )  # fmt: skip
    fetch = kernel.inputs[0].op
    joined = [op for one in (fetch, fetch.inputs[0].op) for op in one.control_inputs]
    moved = [op for one in joined if one.type == "NoOp" for op in one.control_inputs]
    return {tensor.op for op in moved for tensor in op.inputs}


def test_footprint_of_a_plain_model() -> None:
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    with pytest.raises(EngineError, match="ENG-011"):
        footprint(model, 8)


EXHAUSTED = """
    import dataclasses, warnings
    import evener, keras, numpy as np
    plan = evener.Plan.data_parallel(["cpu:0", "cpu:1"])
    replicas = [dataclasses.replace(one, num_micro_batches=2) for one in plan.replicas]
    strategy = evener.Strategy(dataclasses.replace(plan, replicas=tuple(replicas)))
    keras.utils.set_random_seed(1)
    with strategy.scope():
        stack = [keras.layers.Dense(256, activation="tanh") for _ in range(12)]
        model = keras.Sequential([keras.Input((256,)), *stack])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    x = np.random.default_rng(0).normal(size=(3 * {batch}, 256)).astype("float32")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        history = model.fit(x, np.tanh(x[:, ::-1]), batch_size={batch}, shuffle=False, verbose=0)
    print("told", sum("ENG-050" in str(one.message) for one in told))
    print("pieces", [r.num_micro_batches for r in strategy.plan.replicas])
    print("steps", int(model.optimizer.iterations.numpy()))
    np.savez("{file}", *model.get_weights(), history.history["loss"])
"""
LIMITED = {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "190"}


def test_exhausted_memory_makes_micro_batches_smaller(
    run_python: RunPython, tmp_path: Path
) -> None:
    """The same weights as with memory enough; no batch lost, none counted twice."""
    free = run_python(
        EXHAUSTED.format(batch=8192, file=tmp_path / "free.npz"), num_cpus=2, timeout=300
    )
    assert "told 0" in free.stdout
    assert "pieces [2, 2]" in free.stdout
    limited = run_python(
        EXHAUSTED.format(batch=8192, file=tmp_path / "limited.npz"),
        num_cpus=2,
        env=LIMITED,
        timeout=300,
    )
    assert "told 1" in limited.stdout
    assert "steps 3" in limited.stdout
    assert "pieces [2, 2]" not in limited.stdout
    free_arrays = np.load(tmp_path / "free.npz")
    limited_arrays = np.load(tmp_path / "limited.npz")
    for name in free_arrays.files:
        np.testing.assert_allclose(free_arrays[name], limited_arrays[name], atol=1e-6)


TOO_LARGE = """
    import evener, keras, numpy as np
    plan = evener.Plan.pipeline({"cpu:0": "a*", "cpu:1": "b*"}, num_micro_batches=2)
    with evener.Strategy(plan).scope():
        stack = [keras.layers.Dense(2048, name=f"{half}{k}") for half in "ab" for k in range(2)]
        model = keras.Sequential([keras.Input((2048,)), *stack])
        model.compile("sgd", "mse")
    x = np.ones((4, 2048), "float32")
    try:
        model.fit(x, x, batch_size=4, verbose=0)
    except evener.EvenerError as error:
        print(error)
"""


def test_a_model_that_does_not_fit_at_all_gets_a_table(run_python: RunPython) -> None:
    limit = {**LIMITED, "TF_CPU_BFC_MEM_LIMIT_IN_MB": "100"}
    told = run_python(TOO_LARGE, num_cpus=2, env=limit, timeout=300)
    assert "[ENG-051]" in told.stdout
    assert re.search(r"cpu:0  \d+.*: variables 32", told.stdout)
    assert "gradients" in told.stdout


def test_memory_that_runs_out_in_an_update() -> None:
    """Then some weights are new and some old: said, and not tried again."""
    plan = Plan.pipeline({"cpu:1": "a*", "cpu:2": "b*"}, num_micro_batches=2)
    model, strategy = trained(plan)
    error = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
    told = while_updating(steps_of(model, strategy), 64, error)
    assert told.code == "ENG-052"
    assert "cpu:1  " in str(told)
