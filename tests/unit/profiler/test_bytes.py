"""Bytes of layers, against what one counts by hand."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import keras
import pytest
from keras import layers

from evener.profile import LayerCosts
from unit.profiler.models import FLOAT, by_name, costs_of, dense, sequence

ADAM_SLOTS = 2
RunPython = Callable[..., CompletedProcess[str]]


def test_dense_layers() -> None:
    model = sequence((3,), dense(5, "hidden", "tanh"), dense(2, "head"))
    costs = costs_of(model, (2,))
    hidden, head = costs.layers
    assert hidden.weight_bytes == (3 * 5 + 5) * FLOAT
    assert head.weight_bytes == (5 * 2 + 2) * FLOAT
    assert hidden.optimizer_bytes == ADAM_SLOTS * hidden.weight_bytes
    assert head.optimizer_bytes == ADAM_SLOTS * head.weight_bytes
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


def test_the_optimizer_decides_the_slots() -> None:
    plain = costs_of(sequence((3,), dense(5, "a"), dense(2, "b")), (2,), optimizer="sgd")
    assert [layer.optimizer_bytes for layer in plain.layers] == [0, 0]
    momentum = keras.optimizers.SGD(0.1, momentum=0.9)
    heavy = costs_of(sequence((3,), dense(5, "a"), dense(2, "b")), (2,), optimizer=momentum)
    assert [layer.optimizer_bytes for layer in heavy.layers] == [
        layer.weight_bytes for layer in heavy.layers
    ]


def test_slots_belong_to_their_layer_where_all_gradients_are_clipped_together() -> None:
    optimizer = keras.optimizers.AdamW(global_clipnorm=1.0, use_ema=True)
    model = sequence((4,), dense(4, "a"), dense(4, "b"), dense(4, "c"))
    costs = costs_of(model, (4,), optimizer=optimizer)
    # Momentum, velocity, average.
    assert [layer.optimizer_bytes for layer in costs.layers] == [3 * 20 * FLOAT] * 3


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


def test_an_update_needs_memory_for_a_while() -> None:
    adam = costs_of(sequence((3,), dense(5, "a"), dense(2, "b")), (2,)).layers[0]
    # The step, and the root that it is divided by.
    assert adam.update_bytes == 2 * 3 * 5 * FLOAT


@pytest.mark.parametrize(
    ("more", "waits"), [({}, False), ({"clipnorm": 1.0}, False), ({"global_clipnorm": 1.0}, True)]
)
def test_updates_wait_where_all_gradients_are_clipped_together(
    more: dict[str, float], waits: bool
) -> None:
    model = sequence((4,), dense(4, "a"), dense(4, "b"), dense(4, "c"))
    assert costs_of(model, (4,), optimizer=keras.optimizers.Adam(**more)).updates_wait == waits


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


def test_convolution_and_pooling() -> None:
    model = sequence(
        (6, 6, 3),
        layers.Conv2D(4, 3, name="conv", activation="relu"),
        layers.MaxPooling2D(name="pool"),
        layers.Flatten(name="flat"),
        dense(2, "head"),
    )
    costs = by_name(costs_of(model, (2,)))
    assert costs["conv"].weight_bytes == (3 * 3 * 3 * 4 + 4) * FLOAT
    assert costs["conv"].activation_bytes == 4 * 4 * 4 * FLOAT
    assert costs["conv"].boundary_bytes == 4 * 4 * 4 * FLOAT
    assert costs["pool"].activation_bytes == 2 * 2 * 4 * FLOAT
    assert costs["pool"].weight_bytes == costs["pool"].optimizer_bytes == 0
    # Flattened, it is the same memory.
    assert costs["flat"].activation_bytes == 0
    assert costs["flat"].boundary_bytes == 2 * 2 * 4 * FLOAT


def test_batch_normalization_has_state() -> None:
    model = sequence((3,), dense(6, "a"), layers.BatchNormalization(name="norm"), dense(1, "b"))
    costs = by_name(costs_of(model, (1,)))
    assert costs["norm"].weight_bytes == 2 * 6 * FLOAT
    assert costs["norm"].state_bytes == 2 * 6 * FLOAT
    assert costs["norm"].optimizer_bytes == ADAM_SLOTS * costs["norm"].weight_bytes


def test_frozen_weights_are_state() -> None:
    frozen = dense(5, "frozen")
    frozen.trainable = False
    costs = by_name(costs_of(sequence((3,), frozen, dense(2, "head")), (2,)))
    assert costs["frozen"].weight_bytes == costs["frozen"].optimizer_bytes == 0
    assert costs["frozen"].state_bytes == (3 * 5 + 5) * FLOAT


def test_an_embedding() -> None:
    model = sequence(
        (7,),
        layers.Embedding(11, 4, name="words"),
        layers.GlobalAveragePooling1D(name="mean"),
        dense(1, "head"),
        dtype="int32",
    )
    costs = by_name(costs_of(model, (1,)))
    assert costs["words"].weight_bytes == 11 * 4 * FLOAT
    assert costs["words"].optimizer_bytes == ADAM_SLOTS * 11 * 4 * FLOAT
    assert costs["words"].boundary_bytes == 7 * 4 * FLOAT
    # Its gradient needs the ids, counted from the front.
    assert costs["words"].activation_bytes == 7 * 4


def test_a_skip_connection_crosses_every_cut_it_spans() -> None:
    x = keras.Input((4,))
    first = dense(6, "first", "tanh")(x)
    inner = dense(8, "inner", "tanh")(first)
    outer = dense(6, "outer", "tanh")(inner)
    model = keras.Model(x, dense(1, "head")(layers.Add(name="added")([first, outer])))
    costs = by_name(costs_of(model, (1,)))
    assert costs["first"].boundary_bytes == 6 * FLOAT
    assert costs["inner"].boundary_bytes == (6 + 8) * FLOAT
    assert costs["outer"].boundary_bytes == (6 + 6) * FLOAT
    assert costs["added"].boundary_bytes == 6 * FLOAT


def test_half_precision_halves_activations_and_not_weights() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    model = sequence((3,), dense(5, "hidden", "tanh"), dense(2, "head"))
    hidden = costs_of(model, (2,)).layers[0]
    assert hidden.weight_bytes == (3 * 5 + 5) * FLOAT
    # Its inputs in half precision, and its results.
    assert hidden.activation_bytes == (3 + 5) * 2
    assert hidden.boundary_bytes == 5 * 2


def test_slots_are_found_where_losses_are_scaled() -> None:
    """All updates are in one condition then."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    model = sequence((3,), dense(5, "hidden"), dense(2, "head"))
    costs = costs_of(model, (2,), optimizer=optimizer)
    assert [layer.optimizer_bytes for layer in costs.layers] == [
        ADAM_SLOTS * layer.weight_bytes for layer in costs.layers
    ]


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


def test_in_one_call_a_loop_has_its_weights_beside_all_gradients() -> None:
    model = sequence((5, 3), layers.LSTM(16, name="lstm"), dense(1, "head"))
    lstm = by_name(costs_of(model, (1,)))["lstm"]
    assert lstm.fused_gradient_bytes == lstm.weight_bytes


def test_in_one_call_what_waits_at_a_barrier_counts_once() -> None:
    model = sequence((4,), dense(64, "a"), layers.BatchNormalization(name="norm"), dense(1, "b"))
    norm = by_name(costs_of(model, (1,)))["norm"]
    assert norm.barrier_bytes
    assert norm.fused_workspace_bytes is not None
    assert norm.fused_workspace_bytes >= norm.barrier_bytes


def test_in_one_call_a_part_of_a_gradient_that_is_ready_early_counts() -> None:
    """The gradient of the mean waits for that of the difference to it, which is computed later."""
    norm = layers.BatchNormalization(name="norm")
    model = sequence((4,), dense(64, "a"), norm, layers.ReLU(), dense(64, "b"), dense(1, "c"))
    found = by_name(costs_of(model, (1,)))["norm"]
    assert found.fused_workspace_bytes == 4 * 64 * FLOAT


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
