"""Every operation of a graph is known to belong to its layer, whatever the scope is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

from evener._tf_private.models import own_variables, recording_layers, sublayers

pytestmark = pytest.mark.usefixtures("logical_cpus")


def traced(function: Callable[[tf.Tensor], Any], width: int = 4) -> tuple[Any, dict[str, str]]:
    """Trace a function of a batch; return its graph and what was recorded."""
    scopes: dict[str, str] = {}

    def called(x: tf.Tensor) -> Any:
        with recording_layers() as found:
            result = function(x)
        scopes.update(found)
        return result

    concrete = tf.function(called).get_concrete_function(tf.TensorSpec([None, width]))
    return concrete.graph, scopes


def layers_of(graph: Any, scopes: dict[str, str], op_type: str, prefix: str = "") -> list[str]:
    """Return the paths of the innermost layers around operations of a type, in their order."""
    found = []
    for op in graph.get_operations():
        if op.type == op_type and op.name.startswith(prefix):
            name = op.name.removeprefix(prefix).rpartition("/")[0]
            while name and name not in scopes:
                name = name.rpartition("/")[0]
            found.append(scopes.get(name, ""))
    return found


def dense(name: str) -> keras.Layer:
    return layers.Dense(4, activation="tanh", name=name)


def test_what_is_outside_of_layers_belongs_to_none() -> None:
    layer = dense("one")

    def step(x: tf.Tensor) -> tf.Tensor:
        # A scope of one's own is no layer.
        with tf.name_scope("mine"):
            x = tf.cos(layer(tf.sin(x)))
        return tf.exp(x)

    graph, scopes = traced(step)
    assert [layers_of(graph, scopes, kind) for kind in ("Sin", "Cos", "Exp")] == [[""]] * 3
    assert layers_of(graph, scopes, "MatMul") == ["one"]


class Block(layers.Layer):
    """Layers inside of a layer, with work of its own."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.inner, self.outer = dense("inner"), dense("outer")

    def call(self, x: Any) -> Any:
        """Call both, and add."""
        with tf.name_scope("own"):
            x = keras.ops.sin(x)
        return self.outer(self.inner(x)) + keras.ops.cos(x)


class Tower(keras.Model):
    """A subclassed model that calls a shared layer before and after the others."""

    def __init__(self) -> None:
        super().__init__(name="tower")
        self.blocks = [Block(f"b{k}") for k in range(2)]
        self.shared = dense("shared")

    def call(self, x: Any) -> Any:
        """Call all."""
        x = self.shared(x)
        for block in self.blocks:
            x = block(x) + x
        return self.shared(x)


def line(*parts: keras.Layer, name: str = "model") -> keras.Model:
    return keras.Sequential([keras.Input((4,)), *parts], name=name)


def functional() -> keras.Model:
    """Return a model in which a model is, and a shared layer that is called twice."""
    x, shared = keras.Input((4,)), dense("shared")
    called = shared(dense("between")(shared(line(dense("one"), name="inner")(x))))
    return keras.Model(x, Block("block")(called), name="outer")


def twice(model: keras.Model) -> Callable[[tf.Tensor], Any]:
    return lambda x: model(model(x))


# By name: the function, and the layers around its products and tangents.
FUNCTIONS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "layers in line": (lambda: line(dense("one"), dense("two")), ["model/one", "model/two"]),
    "nested layers": (
        lambda: line(Block("b0"), Block("b1")),
        ["model/b0/inner", "model/b0/outer", "model/b1/inner", "model/b1/outer"],
    ),
    # As Keras calls their variables: the layers of a functional model are not inside of it. The
    # scope of the second call of a layer has a number; its path is the same.
    "functional": (
        functional,
        ["inner/one", "shared", "between", "shared", "block/inner", "block/outer"],
    ),
    "a model that is called twice": (lambda: twice(line(dense("one"))), ["model/one", "model/one"]),
    # The scope of ``dense_1`` is also that of a second call of ``dense``.
    "layers whose names begin alike": (
        lambda: twice(line(dense("dense"), dense("dense_1"), dense("dense_1_1"))),
        ["model/dense", "model/dense_1", "model/dense_1_1"] * 2,
    ),
    # It is built by its first call.
    "subclassed": (
        Tower,
        [
            "tower/shared",
            *(f"tower/{block}/{name}" for block in ("b0", "b1") for name in ("inner", "outer")),
            "tower/shared",
        ],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operations_belong_to_the_layer_around_them(name: str) -> None:
    make, expected = FUNCTIONS[name]
    graph, scopes = traced(make())
    assert layers_of(graph, scopes, "MatMul") == expected
    assert layers_of(graph, scopes, "Tanh") == expected
    blocks = list(dict.fromkeys(path.rpartition("/")[0] for path in expected if "inner" in path))
    blocks = [path for path in blocks if path]
    for op_type in ("Sin", "Cos"):
        assert layers_of(graph, scopes, op_type) == [path for path in blocks if "b" in path]


@pytest.mark.parametrize("build", [Tower, functional, lambda: Block("block")])
def test_paths_are_those_of_variables(build: Callable[[], keras.Model]) -> None:
    """A plan names both by the same patterns."""
    model = build()
    _, scopes = traced(model)
    owners = {variable.path.rpartition("/")[0] for variable in model.trainable_variables}
    assert owners and owners <= set(scopes.values())


def test_gradients_bear_the_scope_of_their_layer() -> None:
    model = line(Block("b0"), dense("last"))

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        return tape.gradient(loss, model.trainable_variables)

    graph, scopes = traced(step)
    gradients = layers_of(graph, scopes, "TanhGrad", "gradient_tape/")
    assert gradients == ["model/last", "model/b0/outer", "model/b0/inner"]


@pytest.mark.parametrize("kind", ["function", "loop"])
def test_a_layer_in_a_graph_inside(kind: str) -> None:
    """Its operations are in the graph of the inner function or loop, and recorded all the same."""
    model = line(dense("one"), dense("two"), name="line")
    graphs: list[Any] = []

    @tf.function
    def function(x: tf.Tensor) -> Any:
        graphs.append(tf.compat.v1.get_default_graph())
        return model(x)

    def loop(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(3):
            graphs.append(tf.compat.v1.get_default_graph())
            x = model(x)
        return x

    _, scopes = traced(function if kind == "function" else loop)
    assert layers_of(graphs[-1], scopes, "MatMul") == ["line/one", "line/two"]


def test_devices_are_left_as_they_are() -> None:
    layer = dense("one")

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.device("CPU:2"):
            x = layer(x)
        return tf.sin(x)

    graph, _ = traced(step)
    devices = {op.type: op.device for op in graph.get_operations()}
    assert devices["MatMul"] == "/device:CPU:2"
    assert devices["Sin"] == ""


def test_nothing_is_recorded_afterwards() -> None:
    first, second = dense("one"), dense("two")
    found: list[tuple[set[str], set[str]]] = []

    def called(x: tf.Tensor) -> Any:
        with recording_layers() as scopes:
            x = first(x)
        inside = set(scopes.values())
        x = second(x)
        found.append((inside, set(scopes.values())))
        return x

    for layer in (first, second):
        layer.build((None, 4))
    tf.function(called).get_concrete_function(tf.TensorSpec([None, 4]))
    assert found == [({"one"}, {"one"})]


def test_layers_below_a_layer_and_its_own_variables() -> None:
    inner = keras.Sequential([layers.Dense(1, name="deep")], name="inner")
    outer = keras.Sequential([keras.Input((3,)), inner])
    assert inner in sublayers(outer)
    assert "deep" in [layer.name for layer in sublayers(inner)]
    model = keras.Sequential([layers.Dense(2), layers.Dropout(0.5)])
    model.build((None, 3))
    assert own_variables(model) == []
    dense, dropout = model.layers
    assert [v.name for v in own_variables(dense)] == ["kernel", "bias"]
    assert len(own_variables(dropout)) == 1
