"""Audits of steps on stand-ins, with answers that are known; nothing may change by them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import evener
from evener.auditing import Line, Operation
from evener.errors import PlacementError
from exactness.models import sequential


class TwoLayers:
    """The step of two layers on two devices, with one tape: its figures are known."""

    def __init__(self) -> None:
        with tf.device("/cpu:1"):
            self.first = tf.Variable(tf.ones([64, 64]), name="first")
        with tf.device("/cpu:2"):
            self.second = tf.Variable(tf.ones([64, 64]), name="second")
        self.momentum = tf.Variable(tf.zeros([64, 64]), name="momentum")
        self.count = tf.Variable(0, name="count")

    def step(self, x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with tf.device("/cpu:1"):
                hidden = tf.nn.relu(x @ self.first)
            with tf.device("/cpu:2"):
                loss = tf.reduce_sum(tf.nn.relu(hidden @ self.second))
        gradients = tape.gradient(loss, [self.first, self.second])
        for variable, gradient in zip((self.first, self.second), gradients, strict=True):
            with tf.device(variable.device):
                variable.assign_sub(0.01 * gradient)
        return loss


def lines_of(audit: evener.Audit) -> dict[str, Line | None]:
    return {operation.name: operation.line for operation in audit.operations}


def counts(audit: evener.Audit) -> dict[tuple[str, str], int]:
    return {(total.device, total.kind): total.num_operations for total in audit.totals}


ALONE = """
from exactness.stand_ins import make_stand_ins
make_stand_ins()
import evener, tensorflow as tf
from multi_device.test_audit import TwoLayers
print(evener.audit(TwoLayers().step, tf.ones([8, 64])).to_json())
"""


@pytest.fixture(scope="module")
def two_layers() -> evener.Audit:
    # In a process of its own: here tests have pinned, and from then on tapes know devices.
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        env={**os.environ, "PYTHONPATH": f"{tests.parent / 'src'}{os.pathsep}{tests}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return evener.Audit.from_json(done.stdout)


def test_the_bytes_of_every_copy_are_exact(two_layers: evener.Audit) -> None:
    copies = Counter(
        (transfer.source, transfer.target, transfer.num_bytes) for transfer in two_layers.copies
    )
    weights, activations, scalar = 64 * 64 * 4, 8 * 64 * 4, 4
    assert copies == {
        ("cpu:0", "cpu:1", activations): 1,  # x
        ("cpu:1", "cpu:2", activations): 1,  # the hidden layer, forward
        ("cpu:1", "cpu:0", activations): 1,  # and for its gradient
        ("cpu:2", "cpu:0", activations): 1,
        ("cpu:2", "cpu:0", weights): 1,  # the weights, for the gradient of the hidden layer
        ("cpu:0", "cpu:1", weights): 1,  # gradients, back to the weights
        ("cpu:0", "cpu:2", weights): 1,
        ("cpu:2", "cpu:0", scalar): 1,  # the loss, to what returns it
        ("cpu:0", "cpu:2", scalar): 1,
    }
    assert two_layers.moved_bytes == 57_352
    assert sum(way.num_bytes for way in two_layers.traffic) == 57_352


def test_operations_are_counted_per_device_and_kind(two_layers: evener.Audit) -> None:
    assert counts(two_layers) == {
        ("cpu:0", "forward"): 1,  # the Identity of what is returned
        ("cpu:0", "gradient"): 6,
        ("cpu:1", "forward"): 3,
        ("cpu:1", "optimizer"): 3,
        ("cpu:2", "forward"): 5,
        ("cpu:2", "optimizer"): 3,
    }
    products = [op for op in two_layers.operations if op.type == "MatMul"]
    assert Counter((op.requested, op.device, op.kind) for op in products) == {
        ("cpu:1", "cpu:1", "forward"): 1,
        ("cpu:2", "cpu:2", "forward"): 1,
        (None, "cpu:0", "gradient"): 3,
    }


def test_lines_are_those_of_the_person(two_layers: evener.Audit) -> None:
    source = TwoLayers.step.__code__
    named = {line.path for line in lines_of(two_layers).values() if line is not None}
    assert named == {__file__}
    (update,) = {op.line for op in two_layers.operations if op.kind == "gradient"}
    assert update is not None
    # The seventh line of the function is the tape's.
    assert update.number == source.co_firstlineno + 6
    (hidden,) = (c for c in two_layers.copies if (c.source, c.target) == ("cpu:1", "cpu:2"))
    assert hidden.line is not None and hidden.line.number == source.co_firstlineno + 3
    assert hidden.needed_by is not None and hidden.needed_by.number == source.co_firstlineno + 5


def test_an_audit_goes_to_json_and_back(two_layers: evener.Audit) -> None:
    assert evener.Audit.from_json(two_layers.to_json()) == two_layers


def test_nothing_is_changed_by_an_audit() -> None:
    layers = TwoLayers()
    generator = tf.random.Generator.from_seed(1)
    numbers = iter(tf.data.Dataset.range(5).map(lambda i: tf.fill([8, 64], tf.cast(i, tf.float32))))
    ran = []

    @tf.function
    def step(data):
        tf.py_function(lambda: ran.append(1), [], [])
        layers.count.assign_add(1)
        return layers.step(next(data) + generator.normal([8, 64]) + tf.random.normal([8, 64]))

    variables = [layers.first, layers.second, layers.count, generator.state]
    before = [variable.numpy() for variable in variables]
    random.seed(3)
    np.random.seed(3)
    tf.random.set_seed(3)
    states = random.getstate(), np.random.get_state()[1].tolist()
    for _ in range(2):
        audit = evener.audit(step, numbers)
    for variable, value in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert not ran
    assert next(numbers).numpy()[0, 0] == 0.0
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    drawn = tf.random.normal([4]).numpy()
    tf.random.set_seed(3)
    np.testing.assert_array_equal(tf.random.normal([4]).numpy(), drawn)
    # It has not stopped the step from running either.
    step(numbers)
    assert ran == [1] and layers.count.numpy() == 1
    assert {op.kind for op in audit.operations} >= {"forward", "gradient", "optimizer", "input"}


def test_variables_that_the_first_call_makes_have_their_first_values() -> None:
    made: list[tf.Variable] = []

    @tf.function
    def step(x):
        if not made:
            made.append(tf.Variable(tf.fill([2], 5.0)))
        made[0].assign_add(x)
        return made[0]

    evener.audit(step, tf.ones([2]))
    np.testing.assert_array_equal(made[0].numpy(), [5.0, 5.0])
    np.testing.assert_array_equal(step(tf.ones([2])).numpy(), [6.0, 6.0])


@pytest.fixture(scope="module")
def misplaced() -> evener.Audit:
    weights = tf.Variable(tf.ones([4, 4]))

    @tf.function
    def step(x):
        with tf.device("/GPU:0"):
            whole = tf.cast(x, tf.int32)
            product = tf.matmul(whole, whole)
            total = product + whole
            unique = tf.raw_ops.UniqueV2(x=tf.reshape(x, [-1]), axis=[0])[0]
        with tf.device("/GPU:7"):
            far = tf.sin(x @ weights)
        with tf.device("/cpu:4"):
            near = tf.cos(x)
        return total, unique, far, near

    return evener.audit(step, tf.ones([4, 4]))


@pytest.mark.parametrize(
    ("op_type", "requested", "reason", "why"),
    [
        ("MatMul", "gpu:0", "no_kernel_for_dtype", "no GPU kernel for T=int32; it has for bfloat"),
        ("AddV2", "gpu:0", "host_memory", "AddV2 for int32 uses host memory"),
        ("UniqueV2", "gpu:0", "no_gpu_kernel", "UniqueV2 has no GPU kernel"),
        ("Sin", "gpu:7", "no_such_device", "gpu:7 does not exist; TensorFlow has cpu:0"),
        ("Cast", "gpu:0", "no_such_device", "gpu:0 does not exist"),
    ],
)
def test_a_fallback_has_its_reason(
    misplaced: evener.Audit, op_type: str, requested: str, reason: str, why: str
) -> None:
    (found,) = (
        fallback
        for fallback in misplaced.fallbacks
        if fallback.type == op_type and fallback.requested == requested
    )
    assert (found.reason, found.device) == (reason, "cpu:0")
    assert why in found.why
    assert found.line is not None and found.line.path == __file__
    assert found.is_finding == (reason != "host_memory")


def test_what_runs_where_it_was_asked_for_is_no_fallback(misplaced: evener.Audit) -> None:
    assert "Cos" not in {fallback.type for fallback in misplaced.fallbacks}
    (near,) = (op for op in misplaced.operations if op.type == "Cos")
    assert (near.requested, near.device) == ("cpu:4", "cpu:4")
    assert len(misplaced.findings) < len(misplaced.fallbacks)


def test_gpus_are_assumed_where_there_are_none() -> None:
    def step(x):
        with tf.device("/GPU:0"):
            y = tf.sin(x)
        return tf.matmul(tf.cast(y, tf.int32), tf.cast(x, tf.int32)), tf.strings.as_string(x)

    audit = evener.audit(step, tf.ones([4, 4]), assume_gpus=True)
    found = {(fallback.type, fallback.requested, fallback.reason) for fallback in audit.fallbacks}
    assert found == {("MatMul", None, "no_kernel_for_dtype"), ("AsString", None, "no_gpu_kernel")}


def test_nested_functions_conditions_and_loops_are_looked_into() -> None:
    weights = tf.Variable(tf.ones([4, 4]))

    @tf.function
    def inner(x):
        with tf.device("/cpu:1"):
            return tf.tanh(x @ weights)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            count = 0
            while count < tf.cast(x[0, 0], tf.int32):
                with tf.device("/cpu:2"):
                    x = tf.sin(x)
                count += 1
            if tf.reduce_sum(x) > 0:
                y = inner(x)
            else:
                y = tf.cos(x)
            loss = tf.reduce_mean(y)
        weights.assign_sub(tape.gradient(loss, weights))
        return loss

    step(tf.ones([4, 4]))
    audit = evener.audit(step, tf.ones([4, 4]))
    by_type = {(op.type, op.kind): op for op in audit.operations}
    assert by_type["Tanh", "forward"].device == "cpu:1"
    assert by_type["Sin", "forward"].device == "cpu:2"
    assert ("Cos", "forward") in by_type
    assert ("TanhGrad", "gradient") in by_type
    assert ("AssignSubVariableOp", "optimizer") in by_type
    looped = [copy for copy in audit.copies if copy.in_loop]
    assert {(c.source, c.target, c.num_bytes) for c in looped} >= {("cpu:2", "cpu:0", 64)}
    assert any(not copy.in_loop for copy in audit.copies)


def test_a_step_that_xla_compiles_is_read_whole() -> None:
    weights = tf.Variable(tf.ones([4, 2]))

    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weights))
        weights.assign_sub(tape.gradient(loss, weights))
        return loss

    audit = evener.audit(step, tf.ones([3, 4]))
    found = {(op.type, op.kind) for op in audit.operations}
    assert {("MatMul", "forward"), ("MatMul", "gradient")} <= found
    assert ("AssignSubVariableOp", "optimizer") in found
    assert all(op.within for op in audit.operations)
    np.testing.assert_array_equal(weights.numpy(), np.ones([4, 2]))


def compiled(**options) -> keras.Model:
    model = sequential(
        (8,),
        keras.layers.Dense(16, activation="tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(1),
    )
    model.compile("adam", "mse", metrics=["mae"], **options)
    return model


X, Y = np.ones([32, 8], "float32"), np.ones([32, 1], "float32")


def kinds_of(audit: evener.Audit, part: str) -> set[str]:
    return {op.kind for op in audit.operations if part in op.name}


def test_a_step_of_fit_is_audited_as_compiled() -> None:
    model = compiled()
    model.fit(X, Y, batch_size=32, verbose=0)
    before = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    audit = evener.audit(model, X, Y)
    after = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(new, old)
    # Metrics keep what they have counted.
    assert model.metrics[0].result().numpy() > 0
    writes = [op for op in audit.operations if op.type.startswith("Assign")]
    assert {op.kind for op in writes if "batch_normalization" in op.name} == {"forward"}
    assert {op.kind for op in writes if "/adam" in op.name} == {"optimizer"}
    assert "forward" in kinds_of(audit, "compile_loss")
    assert kinds_of(audit, "IteratorGetNext") == {"input"}
    direct = evener.audit(model.train_step, (tf.constant(X), tf.constant(Y)))
    assert counts(direct)["cpu:0", "gradient"] == counts(audit)["cpu:0", "gradient"]


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(lambda: tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"]), id="mirrored"),
        pytest.param(lambda: evener.Strategy(devices=["cpu:0", "cpu:1"]), id="evener"),
    ],
)
def test_a_step_of_fit_under_a_strategy(strategy) -> None:
    made = strategy()
    with made.scope():
        model = compiled()
    audit = evener.audit(model, X, Y)
    assert model.optimizer.iterations.numpy() == 0
    number = counts(audit)
    for device in ("cpu:0", "cpu:1"):
        assert number[device, "forward"] > 5 and number[device, "gradient"] > 5
        assert number[device, "optimizer"] > 5
    if isinstance(made, evener.Strategy):
        # The first layer's weights are fetched, and its gradient goes back.
        assert not audit.collectives
        assert [c.num_bytes for c in audit.copies].count(8 * 16 * 4) == 2
    else:
        bytes_of_all = sum(w.numpy().nbytes for w in model.trainable_variables)
        assert {collective.device for collective in audit.collectives} == {"cpu:0", "cpu:1"}
        sizes = [
            collective.num_bytes for collective in audit.collectives if collective.device == "cpu:0"
        ]
        assert sum(size or 0 for size in sizes) == bytes_of_all


def test_momentum_written_by_hand_is_optimizer_work_and_norms_are_not() -> None:
    weights = tf.Variable(tf.ones([4]))
    momentum = tf.Variable(tf.zeros([4]))
    seen = tf.Variable(0)

    def step(x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                square = tf.reduce_sum(tf.square(x * weights))
            penalty = tf.sqrt(tf.reduce_sum(tf.square(inner.gradient(square, weights))))
            loss = square + penalty
        gradient = outer.gradient(loss, weights)
        momentum.assign(0.9 * momentum + gradient)
        weights.assign_sub(0.1 * momentum)
        seen.assign_add(1)
        return loss, tf.norm(gradient)

    audit = evener.audit(step, tf.ones([4]))
    writes = {op.type: op.kind for op in audit.operations if op.type.startswith("Assign")}
    assert writes == {
        "AssignVariableOp": "optimizer",
        "AssignSubVariableOp": "optimizer",
        "AssignAddVariableOp": "forward",
    }
    roots = Counter(op.kind for op in audit.operations if op.type == "Sqrt")
    # That of the penalty is part of the loss; that of the norm looks at the gradient.
    assert roots == {"forward": 1, "gradient": 1}


def refused(call) -> PlacementError:
    with pytest.raises(PlacementError) as caught:
        call()
    return caught.value


def test_what_cannot_be_audited_is_refused() -> None:
    assert refused(lambda: evener.audit(lambda x: np.sin(x), tf.ones([]))).code == "PLACE-031"
    assert refused(lambda: evener.audit(lambda x: x.numpy(), tf.ones([]))).code == "PLACE-031"
    assert refused(lambda: evener.audit(3)).code == "PLACE-030"
    inside = tf.function(lambda x: evener.audit(tf.sin, x), autograph=False)
    assert refused(lambda: inside(tf.ones([]))).code == "PLACE-044"
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    assert refused(lambda: evener.audit(model, X, Y)).code == "PLACE-033"
    model.compile("sgd", "mse", run_eagerly=True)
    assert "run_eagerly" in str(refused(lambda: evener.audit(model, X, Y)))
    frozen = compiled()
    frozen.trainable = False
    frozen.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="trainable weights"):
        assert refused(lambda: evener.audit(frozen, X, Y)).code == "PLACE-033"
    assert frozen.metrics[0].result().numpy() == 0
    assert refused(lambda: evener.audit(compiled())).code == "PLACE-033"
    tf.config.run_functions_eagerly(True)
    try:
        assert refused(lambda: evener.audit(TwoLayers().step, tf.ones([8, 64]))).code == "PLACE-032"
    finally:
        tf.config.run_functions_eagerly(False)


def test_an_error_of_the_step_itself_comes_out_as_it_is() -> None:
    with pytest.raises(ValueError, match="Dimensions must be equal"):
        evener.audit(lambda x: x @ x, tf.ones([2, 3]))


def test_operations_are_values() -> None:
    with pytest.raises(AttributeError):
        Operation(
            name="a", type="b", requested=None, device="cpu:0", kind="forward", line=None
        ).name = "c"  # pyright: ignore
