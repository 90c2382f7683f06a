"""Every mistake gets an error in the house form, early, and leaves the weights as they were."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from evener import EngineError, EvenerError, EvenerWarning, Plan, PlanError, Strategy

TWO = ("cpu:0", "cpu:1")


def small() -> keras.Model:
    """Two dense layers."""
    return keras.Sequential([keras.Input((4,)), layers.Dense(5), layers.Dense(1, name="head")])


def compiled_under(strategy: Strategy, build: Callable[[], keras.Model] = small) -> keras.Model:
    """Build and compile under a strategy."""
    with strategy.scope():
        model = build()
        model.compile("adam", "mse", metrics=["mae"])
    return model


def data(num_samples: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of four numbers and their sums."""
    x = np.random.default_rng(0).normal(size=(num_samples, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def assert_house_form(error: EvenerError, code: str, *names: str) -> None:
    """Check the code, the three lines, and that the text names what it is about."""
    text = str(error)
    assert error.code.startswith(code), text
    assert text.startswith(f"[{error.code}] ")
    assert "\nWhy: " in text
    assert "\nFix: " in text
    for name in names:
        assert name in text, f"{name!r} is not named in:\n{text}"


def refused(model: keras.Model, act: Callable[[], object], code: str, *names: str) -> EvenerError:
    """Check that an act is refused, and that it changed neither weights nor steps."""
    before = model.get_weights()
    steps = int(model.optimizer.iterations.numpy()) if model.optimizer else 0
    with pytest.raises(EvenerError) as caught:
        act()
    assert_house_form(caught.value, code, *names)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    assert steps == (int(model.optimizer.iterations.numpy()) if model.optimizer else 0)
    return caught.value


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        (["cpu:0", "gpu:7"], "gpu:7"),
        (["cpu:0", "cpu:31"], "cpu:31"),
        (["cpu:0", "tpu:0"], "tpu:0"),
        (["cpu:0", "GPU:0"], "GPU:0"),
        (["cpu:0", "cpu:0"], "cpu:0"),
        ([], "empty"),
        ("gpu:0,", "gpu:0,"),
        ("cpu:zero", "cpu:zero"),
    ],
)
def test_unknown_device(devices: str | list[str], named: str) -> None:
    """A device that is not there, or is no device, is named."""
    with pytest.raises(EvenerError) as caught:
        Strategy(devices=devices)
    assert_house_form(caught.value, "DEV-", named)


@pytest.mark.parametrize(
    ("shares", "code", "names"),
    [
        ([1, -1], "PLAN-007", ["-1", "negative"]),
        ([0, 0], "PLAN-009", ["0"]),
        ([0.0, 0.0], "PLAN-009", ["0"]),
        ([1, float("nan")], "PLAN-008", ["nan"]),
        ([1, float("inf")], "PLAN-008", ["inf"]),
        ([3, 2, 1], "PLAN-010", ["3", "2"]),
        ([1], "PLAN-011", ["1", "2"]),
        ([], "PLAN-", []),
        ("uneven", "PLAN-050", ["uneven"]),
    ],
)
def test_shares_that_cannot_be(shares: str | list[float], code: str, names: list[str]) -> None:
    """Shares are refused before a strategy exists, and when they are changed."""
    with pytest.raises(PlanError) as caught:
        Strategy(devices=TWO, shares=shares)
    assert_house_form(caught.value, code, *names)
    if isinstance(shares, str):
        return
    strategy = Strategy(devices=TWO, shares=[3, 1])
    with pytest.raises(PlanError) as caught:
        strategy.set_shares(shares)
    assert_house_form(caught.value, code, *names)
    assert strategy.shares == (0.75, 0.25)


def test_bad_shares_between_steps_leave_the_training_whole() -> None:
    """A refused change of shares changes nothing: the training goes on."""
    strategy = Strategy(devices=TWO, shares=[3, 1])
    model = compiled_under(strategy)
    model.train_on_batch(*data())
    refused(model, lambda: strategy.set_shares([1, -1]), "PLAN-007", "-1")
    model.train_on_batch(*data())
    assert int(model.optimizer.iterations.numpy()) == 2


def test_a_plan_for_other_devices() -> None:
    """The device that the plan has and this machine lacks is named."""
    plan = Plan.data_parallel(["cpu:0", "gpu:3"])
    with pytest.raises(EvenerError) as caught:
        Strategy(plan)
    assert_house_form(caught.value, "PLAN-029", "gpu:3")


def test_a_plan_and_shares() -> None:
    """Two sources for one thing."""
    with pytest.raises(PlanError) as caught:
        Strategy(Plan.data_parallel(TWO), shares=[1, 1])
    assert_house_form(caught.value, "PLAN-051", "shares")


def test_a_variable_without_owner() -> None:
    """Owners by pattern that leave a variable out: the variable and the patterns are named."""
    strategy = Strategy(devices=TWO, owners={"*/dense/*": "cpu:1"})
    with pytest.raises(EngineError) as caught:
        compiled_under(strategy)
    assert_house_form(caught.value, "ENG-010", "head/kernel", "*/dense/*")


def test_owners_on_an_unknown_device() -> None:
    """An owner that is not among the devices."""
    with pytest.raises(PlanError) as caught:
        Strategy(devices=TWO, owners={"*": "cpu:4"})
    assert_house_form(caught.value, "PLAN-", "cpu:4")


ACTS: dict[str, Callable[[keras.Model], object]] = {
    "fit": lambda model: model.fit(*data(), verbose=0),
    "evaluate": lambda model: model.evaluate(*data(), verbose=0),
    "predict": lambda model: model.predict(data()[0], verbose=0),
    "train_on_batch": lambda model: model.train_on_batch(*data()),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_model_made_outside_the_scope(act: str) -> None:
    """Made without a strategy, used under one."""
    model = small()
    model.compile("adam", "mse")
    strategy = Strategy(devices=TWO)

    def use() -> object:
        with strategy.scope():
            return ACTS[act](model)

    refused(model, use, "ENG-006", model.name)


def test_a_model_made_outside_and_compiled_in_the_scope() -> None:
    """Compiling under the scope does not make a model the strategy's; it must not half work."""
    model = small()
    strategy = Strategy(devices=TWO)
    with pytest.raises(EngineError) as caught, strategy.scope():
        model.compile("adam", "mse")
        model.fit(*data(), verbose=0)
    assert_house_form(caught.value, "ENG-006", model.name)


@pytest.mark.parametrize("act", ACTS)
def test_a_model_moved_between_strategies(act: str) -> None:
    """Made under one strategy, used in the scope of another."""
    model = compiled_under(Strategy(devices=TWO))
    other = Strategy(devices=("cpu:2", "cpu:3"))

    def use() -> object:
        with other.scope():
            return ACTS[act](model)

    refused(model, use, "ENG-007", model.name)


def test_a_layer_made_outside_the_scope() -> None:
    """One layer of the model was made before the scope: its variable is named."""
    outside = layers.Dense(4, name="outside")
    outside.build((None, 4))
    strategy = Strategy(devices=TWO)
    model = compiled_under(
        strategy, lambda: keras.Sequential([keras.Input((4,)), outside, layers.Dense(1)])
    )
    refused(model, lambda: model.fit(*data(), verbose=0), "ENG-", "outside/kernel")


def test_an_optimizer_made_outside_the_scope() -> None:
    """Either it works exactly, or it is refused: never something between."""
    strategy = Strategy(devices=TWO)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    with strategy.scope():
        model = small()
    model.compile(optimizer, "mse")
    before = model.get_weights()
    try:
        model.fit(*data(), verbose=0)
    except EvenerError as error:
        assert_house_form(error, "ENG-")
        assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    else:
        assert int(optimizer.iterations.numpy()) == 1


@pytest.mark.parametrize("act", ["train_on_batch", "test_on_batch"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_a_batch_of_no_samples(act: str, first: bool) -> None:
    """A batch of 0 is refused, as the first call and after good ones."""
    model = compiled_under(Strategy(devices=TWO))
    x, y = data()
    if not first:
        model.train_on_batch(x, y)
    refused(model, lambda: getattr(model, act)(x[:0], y[:0]), "DATA-002", "0 samples")


def good_then_empty() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a good batch and then one without samples."""
    x, y = data()
    yield x, y
    yield x[:0], y[:0]


def test_a_generator_that_yields_no_samples() -> None:
    """The empty batch comes after a good one: one step is made, and no half one."""
    model = compiled_under(Strategy(devices=TWO))
    with pytest.raises(EvenerError) as caught:
        model.fit(good_then_empty(), steps_per_epoch=2, shuffle=False, verbose=0)
    assert_house_form(caught.value, "DATA-002", "0 samples")
    assert int(model.optimizer.iterations.numpy()) == 1
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_a_dataset_that_yields_no_samples() -> None:
    """The same from tf.data, where the graph alone sees the size."""
    spec = (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 1)))
    batches = tf.data.Dataset.from_generator(good_then_empty, output_signature=spec)
    model = compiled_under(Strategy(devices=TWO))
    with pytest.raises(EvenerError) as caught:
        model.fit(batches, steps_per_epoch=2, shuffle=False, verbose=0)
    assert_house_form(caught.value, "DATA-002", "0 samples")
    assert int(model.optimizer.iterations.numpy()) == 1
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


@pytest.mark.parametrize(
    ("x", "named"),
    [
        (np.array([object()] * 4, dtype=object), "object"),
        (object(), "object"),
        ([[1.0, 2.0], "text"], "float"),
        (None, "no tensor"),
    ],
    ids=["array of objects", "object", "list with text", "nothing"],
)
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_data_that_is_no_tensor(x: object, named: str, first: bool) -> None:
    """What cannot be split over devices is refused, and its kind is named."""
    model = compiled_under(Strategy(devices=TWO))
    if not first:
        model.train_on_batch(*data())
    y = None if x is None else data(4)[1]
    error = refused(model, lambda: model.train_on_batch(x, y), "DATA-")
    assert named in str(error)


def test_rows_of_different_numbers() -> None:
    """More inputs than targets: no sample may be trained on the target of another."""
    model = compiled_under(Strategy(devices=TWO))
    before = model.get_weights()
    with pytest.raises(Exception, match=r"(?i)size|shape|samples|incompatible|cardinality"):
        model.train_on_batch(data(16)[0], data(12)[1])
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


class Breaks(layers.Layer):
    """Takes the root of its first input, which may be negative."""

    def call(self, x: object) -> object:
        """Return NaN for samples whose first number is negative."""
        return x * ops.sqrt(x[:, :1])


def breaking() -> keras.Model:
    """A model of which one layer can give NaN."""
    return keras.Sequential(
        [keras.Input((4,)), layers.Identity(), Breaks(name="breaks"), layers.Dense(1)]
    )


@pytest.mark.parametrize(("sample", "device"), [(2, "cpu:0"), (13, "cpu:1")])
def test_a_loss_that_is_nan(sample: int, device: str) -> None:
    """The warning names the replica whose sample it was and the first layer that gave NaN."""
    strategy = Strategy(devices=TWO, shares="even")
    model = compiled_under(strategy, breaking)
    x, y = data()
    x = np.abs(x) + 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.train_on_batch(x, y)
    x[sample, 0] = -1.0
    with pytest.warns(EvenerWarning) as caught:
        model.train_on_batch(x, y)
    (text,) = {str(warning.message) for warning in caught}
    assert text.startswith("[ENG-")
    assert "NaN" in text
    assert "breaks" in text
    assert device in text


def test_a_loss_that_is_nan_inside_fit() -> None:
    """One warning for a whole fit, and the training goes on."""
    model = compiled_under(Strategy(devices=TWO, shares="even"), breaking)
    x, y = data(48)
    x = np.abs(x) + 0.1
    x[40, 0] = -1.0
    with pytest.warns(EvenerWarning) as caught:
        model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    assert len([w for w in caught if issubclass(w.category, EvenerWarning)]) == 1
    assert "cpu:1" in str(caught[0].message)
    assert int(model.optimizer.iterations.numpy()) == 6


def test_inputs_that_are_nan() -> None:
    """NaN in the data is told apart from a layer that made it."""
    model = compiled_under(Strategy(devices=TWO, shares="even"))
    x, y = data()
    x[15, 2] = np.nan
    with pytest.warns(EvenerWarning, match="inputs") as caught:
        model.train_on_batch(x, y)
    assert "cpu:1" in str(caught[0].message)


def test_a_second_layout_of_devices() -> None:
    """Five devices are laid out: seven cannot be had any more, and both are named."""
    model = compiled_under(Strategy(devices=TWO))
    refused(model, lambda: Strategy(devices="cpu:7"), "DEV-013", "cpu:7", "cpu:4")
    model.train_on_batch(*data())


def test_a_training_step_of_ones_own() -> None:
    """A model with a train_step of its own is refused before it trains on one device."""

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.head = layers.Dense(1)

        def call(self, x: object) -> object:
            return self.head(x)

        def train_step(self, batch: object) -> dict[str, object]:
            return {"loss": 0.0}

    strategy = Strategy(devices=TWO)
    model = compiled_under(strategy, Own)
    with strategy.scope():
        model(data()[0])
    refused(model, lambda: model.fit(*data(), verbose=0), "ENG-002", "train_step")
