from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

import keras
import pytest
from keras import layers

from evener.profile import LayerCosts
from unit.profiler.models import FLOAT, by_name, costs_of, dense, sequence

RunPython = Callable[..., CompletedProcess[str]]


def test_dense_layers() -> None:
    model = sequence((3,), dense(5, "hidden", "tanh"), dense(2, "head"))
    costs = costs_of(model, (2,))
    hidden, head = costs.layers
    assert hidden.weight_bytes == (3 * 5 + 5) * FLOAT
    assert head.weight_bytes == (5 * 2 + 2) * FLOAT
    assert hidden.optimizer_bytes == 2 * hidden.weight_bytes
    assert head.optimizer_bytes == 2 * head.weight_bytes
    assert hidden.state_bytes == 0
    # The gradient of tanh, and that of the next kernel, read what tanh returned.
    assert hidden.activation_bytes == 5 * FLOAT
    assert hidden.boundary_bytes == 5 * FLOAT
    assert head.boundary_bytes == 0
    assert costs.input_bytes == (3 + 2) * FLOAT


def test_all_variables_are_counted_once() -> None:
    model = sequence((3,), dense(5, "hidden"), dense(2, "head"))
    costs = costs_of(model, (2,), metrics=["mae"])
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    total = {
        id(variable): variable.value.shape.num_elements() * variable.value.dtype.size
        for variable in variables
    }
    assert costs.owned_bytes == sum(total.values())


@pytest.mark.parametrize(
    ("kind", "options", "num_slots", "waits"),
    [
        ("SGD", {}, 0, False),
        ("SGD", {"momentum": 0.9}, 1, False),
        ("Adam", {}, 2, False),
        ("Adam", {"clipnorm": 1.0}, 2, False),
        ("Adam", {"global_clipnorm": 1.0}, 2, True),
        # Momentum, velocity, average.
        ("AdamW", {"global_clipnorm": 1.0, "use_ema": True}, 3, True),
    ],
)
def test_the_optimizer_decides_the_slots(
    kind: str, options: dict[str, Any], num_slots: int, waits: bool
) -> None:
    """Updates wait for each other where all gradients are clipped together."""
    optimizer = getattr(keras.optimizers, kind)(**options)
    model = sequence((4,), dense(4, "a"), dense(4, "b"), dense(4, "c"))
    costs = costs_of(model, (4,), optimizer=optimizer)
    assert [layer.optimizer_bytes for layer in costs.layers] == [num_slots * 20 * FLOAT] * 3
    assert costs.updates_wait == waits


def test_slots_are_found_where_losses_are_scaled() -> None:
    """All updates are in one condition then."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    model = sequence((3,), dense(5, "hidden"), dense(2, "head"))
    costs = costs_of(model, (2,), optimizer=optimizer)
    assert [layer.optimizer_bytes for layer in costs.layers] == [
        2 * layer.weight_bytes for layer in costs.layers
    ]


def test_adam_hands_over_two_sums_for_an_embedding() -> None:
    # That of the gradient of each row, and that of its square.
    def table(optimizer: str) -> LayerCosts:
        body = (layers.Embedding(7, 5, name="table"), layers.Flatten(), dense(2, "head"))
        model = sequence((3,), *body, dtype="int32")
        return costs_of(model, (2,), optimizer=optimizer).layers[0]

    of_adam = table("adam")
    assert (of_adam.weight_bytes, of_adam.gradient_bytes) == (7 * 5 * FLOAT, 2 * 7 * 5 * FLOAT)
    of_sgd = table("sgd")
    assert of_sgd.gradient_bytes == of_sgd.weight_bytes


PINNED = """
    import evener, keras, tensorflow as tf
    from evener.profiler.layer_costs import layer_costs
    from evener.profiler.profile import trace_keras_step

    def costs():
        dense = [keras.layers.Dense(4, name=name) for name in "abc"]
        model = keras.Sequential([keras.Input((4,)), *dense])
        model.compile("adam", "mse")
        return layer_costs(trace_keras_step(model, tf.TensorSpec([4]), tf.TensorSpec([4])))

    before = costs()
    with evener.pin("cpu:0"):
        keras.layers.Dense(3).build((None, 3))
    after = costs()
    assert before == after, (before, after)
    print("the same")
"""


@pytest.mark.long
def test_pins_of_the_program_change_no_costs(run_python: RunPython) -> None:
    # They place updates on the device of their variables, in steps that are not partitioned.
    assert "the same" in run_python(PINNED, timeout=200).stdout


def with_skip() -> keras.Model:
    x = keras.Input((4,))
    first = dense(6, "first", "tanh")(x)
    inner = dense(8, "inner", "tanh")(first)
    outer = dense(6, "outer", "tanh")(inner)
    return keras.Model(x, dense(1, "head")(layers.Add(name="added")([first, outer])))


# By layer, what is counted: numbers of floats.
COUNTED: dict[str, tuple[Callable[[], keras.Model], dict[str, dict[str, int]]]] = {
    "convolution and pooling": (
        lambda: sequence(
            (6, 6, 3),
            layers.Conv2D(4, 3, name="conv", activation="relu"),
            layers.MaxPooling2D(name="pool"),
            layers.Flatten(name="flat"),
            dense(1, "head"),
        ),
        {
            "conv": {"weight": 3 * 3 * 3 * 4 + 4, "activation": 4 * 4 * 4, "boundary": 4 * 4 * 4},
            "pool": {"activation": 2 * 2 * 4, "weight": 0, "optimizer": 0},
            # Flattened, it is the same memory.
            "flat": {"activation": 0, "boundary": 2 * 2 * 4},
        },
    ),
    "batch normalization has state": (
        lambda: sequence(
            (3,), dense(6, "a"), layers.BatchNormalization(name="norm"), dense(1, "b")
        ),
        {"norm": {"weight": 2 * 6, "state": 2 * 6, "optimizer": 2 * 2 * 6}},
    ),
    "frozen weights are state": (
        lambda: sequence((3,), layers.Dense(5, name="frozen", trainable=False), dense(1, "head")),
        {"frozen": {"weight": 0, "optimizer": 0, "state": 3 * 5 + 5}},
    ),
    "an embedding": (
        lambda: sequence(
            (7,),
            layers.Embedding(11, 4, name="words"),
            layers.GlobalAveragePooling1D(name="mean"),
            dense(1, "head"),
            dtype="int32",
        ),
        # Its gradient needs the ids, counted from the front.
        {"words": {"weight": 44, "optimizer": 2 * 44, "boundary": 7 * 4, "activation": 7}},
    ),
    "a skip connection crosses every cut it spans": (
        with_skip,
        {
            "first": {"boundary": 6},
            "inner": {"boundary": 6 + 8},
            "outer": {"boundary": 6 + 6},
            "added": {"boundary": 6},
        },
    ),
    # The step, and the root that it is divided by.
    "an update": (lambda: sequence((3,), dense(5, "a"), dense(1, "b")), {"a": {"update": 30}}),
    # In one call, a loop has its weights beside all gradients.
    "a loop in one call": (
        lambda: sequence((5, 3), layers.LSTM(16, name="lstm"), dense(1, "head")),
        {"lstm": {"fused_gradient": 4 * 16 * (3 + 16 + 1), "weight": 4 * 16 * (3 + 16 + 1)}},
    ),
    # The gradient of the mean waits for that of the difference to it, which is computed later.
    "a part of a gradient that is ready early in one call": (
        lambda: sequence(
            (4,),
            dense(64, "a"),
            layers.BatchNormalization(name="norm"),
            layers.ReLU(),
            dense(64, "b"),
            dense(1, "c"),
        ),
        {"norm": {"fused_workspace": 4 * 64}},
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_bytes_are_those_that_one_counts(name: str) -> None:
    make, expected = COUNTED[name]
    found = by_name(costs_of(make(), (1,)))
    assert expected == {
        layer: {field: getattr(found[layer], f"{field}_bytes") / FLOAT for field in fields}
        for layer, fields in expected.items()
    }


def test_in_one_call_what_waits_at_a_barrier_counts_once() -> None:
    model = sequence((4,), dense(64, "a"), layers.BatchNormalization(name="norm"), dense(1, "b"))
    norm = by_name(costs_of(model, (1,)))["norm"]
    assert norm.barrier_bytes
    assert norm.fused_workspace_bytes is not None
    assert norm.fused_workspace_bytes >= norm.barrier_bytes


def test_half_precision_halves_activations_and_not_weights() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    model = sequence((3,), dense(5, "hidden", "tanh"), dense(2, "head"))
    hidden = costs_of(model, (2,)).layers[0]
    assert hidden.weight_bytes == (3 * 5 + 5) * FLOAT
    # Its inputs in half precision, and its results.
    assert hidden.activation_bytes == (3 + 5) * 2
    assert hidden.boundary_bytes == 5 * 2


def test_what_is_needed_only_while_a_layer_runs() -> None:
    """gelu makes several tensors of the size of its result; tanh makes one, and keeps it."""
    plain = by_name(costs_of(sequence((3,), dense(64, "a", "tanh"), dense(1, "b")), (1,)))
    smooth = by_name(costs_of(sequence((3,), dense(64, "a", "gelu"), dense(1, "b")), (1,)))
    assert smooth["a"].activation_bytes > plain["a"].activation_bytes
    assert smooth["a"].workspace_bytes > 0


def test_in_one_call_the_gradient_of_a_dense_layer_takes_the_place_of_its_weight() -> None:
    model = sequence((3,), dense(64, "a", "tanh"), dense(64, "b", "tanh"), dense(1, "c"))
    found = by_name(costs_of(model, (1,)))
    # The sum for the bias has the place of the bias, that for the kernel that of the kernel.
    assert found["b"].fused_gradient_bytes == 0
    # The gradient of its result. That of its input comes when what the layer keeps is gone.
    assert found["b"].fused_workspace_bytes == 64 * FLOAT
    assert found["a"].fused_workspace_bytes == 64 * FLOAT


def test_a_loop_keeps_what_its_gradient_needs_of_every_iteration() -> None:
    def kept(length: int) -> float:
        model = sequence((length, 3), layers.LSTM(16, name="lstm"), dense(1, "head"))
        return by_name(costs_of(model, (1,)))["lstm"].activation_bytes

    # At least four gates, the cell and the result of every moment.
    assert kept(10) - kept(5) >= 5 * 6 * 16 * FLOAT


@pytest.mark.parametrize("width", [8, 64])
def test_costs_do_not_depend_on_values_but_on_sizes(width: int) -> None:
    first, second = (
        costs_of(sequence((width,), dense(width, "a"), dense(1, "b")), (1,)) for _ in range(2)
    )
    assert first == second
