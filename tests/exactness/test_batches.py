"""The law for batches of every size and every kind of data: none is lost, none is seen twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from .candidates import Place
from .compare import state_of
from .harness import (
    CHANGES,
    FIVE,
    THREE,
    TWO,
    ChangeShares,
    Layout,
    agree,
    agree_in_fit,
    compile_model,
    fit_again,
    fit_model,
    take,
    unequal_weights,
)
from .models import (
    classes,
    mlp,
    numbers,
    pairs,
    regression,
    regressor,
    several,
    tabular,
    two_by_two,
)

FIVE_EVEN = Layout(num_devices=5)


@pytest.mark.parametrize("steps_per_execution", [2, 5])
def test_steps_per_execution(steps_per_execution: int) -> None:
    """Five steps, in executions of 2 + 2 + 1 and in one of 5; the shares change between."""
    x, y = tabular(75)

    def experiment(place: Place) -> dict[str, object]:
        compiled = {**classes(), "steps_per_execution": steps_per_execution}
        model = compile_model(place, mlp, lambda: compiled)
        changes = ChangeShares(place, Layout(num_devices=2, by_batch=CHANGES[2]))
        results = fit_again(place, model, (x, y), callbacks=[changes])
        results["evaluate"] = model.evaluate(x, y, batch_size=16, verbose=0, return_dict=True)
        results["predict"] = model.predict(x, batch_size=16, verbose=0)
        return results

    agree(experiment)


@pytest.mark.parametrize(("num_samples", "batch_size"), [(17, 16), (20, 7), (12, 1), (13, 2)])
def test_batches_smaller_than_the_shares(num_samples: int, batch_size: int) -> None:
    data = tabular(num_samples)
    agree_in_fit(mlp, data, classes, FIVE_EVEN, FIVE, batch_size=batch_size, epochs=1)


def test_train_on_batch_of_any_size() -> None:
    sizes = (3, 16, 1, 7, 2, 5, 16, 11)
    x, y = regression(sum(sizes))

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, regressor, numbers)
        logs, begin = [], 0
        for size in sizes:
            rows = slice(begin, begin + size)
            logs.append(model.train_on_batch(x[rows], y[rows], return_dict=True))
            begin += size
        return {**state_of(model), "logs": {str(step): log for step, log in enumerate(logs)}}

    agree(experiment, THREE)


def test_on_batch_siblings() -> None:
    x, y = regression(11)
    weights = np.linspace(0.0, 2.0, 11).astype("float32")

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, regressor, numbers)
        return {
            "predict": model.predict_on_batch(x[:5]),
            "test": model.test_on_batch(x, y, sample_weight=weights, return_dict=True),
            "train": model.train_on_batch(x, y, sample_weight=weights, return_dict=True),
            "test after": model.test_on_batch(x[:2], y[:2], return_dict=True),
            "predict after": model.predict_on_batch(x),
            **state_of(model),
        }

    agree(experiment, THREE)


@pytest.mark.parametrize("batch_size", [1, 4, 37])
def test_predict_keeps_the_order(batch_size: int) -> None:
    """Row k of the output belongs to row k of the input, in every output."""
    x, _ = pairs(37)
    x["left"][:, 0] = np.arange(37)

    def build() -> keras.Model:
        left, right = keras.Input((6,), name="left"), keras.Input((4,), name="right")
        outputs = {"same": layers.Identity()(left), "sum": layers.Dense(2)(right)}
        return keras.Model({"left": left, "right": right}, outputs)

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            model = build()
        return {"predict": model.predict(x, batch_size=batch_size, verbose=0)}

    reference = agree(experiment, TWO, FIVE)
    assert np.array_equal(reference["predict"]["same"], x["left"])  # type: ignore[index]


def test_evaluate_alone() -> None:
    x, y = tabular(43)
    weights = np.linspace(0.0, 2.0, 43).astype("float32")

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, mlp, lambda: {**classes(), "weighted_metrics": ["accuracy"]})
        return {
            "plain": model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True),
            "weighted": model.evaluate(
                x, y, sample_weight=weights, batch_size=8, verbose=0, return_dict=True
            ),
            "listed": {str(i): v for i, v in enumerate(model.evaluate(x, y, verbose=0))},
        }

    agree(experiment, THREE)


def test_fit_evaluate_recompile_fit() -> None:
    x, y = regression(40)

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, regressor, numbers)
        first = fit_again(place, model, (x, y), epochs=1)
        again = fit_again(place, model, (x, y), initial_epoch=1, epochs=2)
        with place.scope():
            model.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), loss="huber")
        return {"first": first, "again": again, "other": fit_again(place, model, (x, y))}

    agree(experiment)


def test_validation_data() -> None:
    x, y = tabular(60)
    weights = np.linspace(0.0, 2.0, 21).astype("float32")

    reference = agree_in_fit(
        mlp,
        (x[:39], y[:39]),
        lambda: {**classes(), "weighted_metrics": ["accuracy"]},
        validation_data=(x[39:], y[39:], weights),
        validation_batch_size=8,
        validation_freq=2,
        epochs=4,
    )
    assert "val_loss" in reference["history"]  # type: ignore[operator]


@pytest.mark.long
def test_validation_split() -> None:
    x, y = pairs(64)
    # Whole batches of 16: 48 to train on, 16 to validate with (the reason is in models.py).
    agree_in_fit(two_by_two, (x, y), several, THREE, validation_split=0.25)


def test_shares_that_are_measured() -> None:
    """With shares left to evener the result does not depend on what it measures."""
    data = tabular(75)
    agree_in_fit(
        mlp, data, classes, Layout(num_devices=2, shares=None), Layout(num_devices=3, shares=None)
    )


@pytest.mark.long
def test_shares_as_fractions() -> None:
    x, y = tabular(40)
    agree_in_fit(
        mlp,
        (take(x, slice(40)), y),
        classes,
        Layout(num_devices=2, shares=(0.625, 0.375)),
        Layout(num_devices=3, shares=(0.0, 1.0, 0.0)),
    )


@pytest.mark.long
def test_shuffled_fit_sees_the_same_batches() -> None:
    data = tabular(48)
    agree_in_fit(mlp, data, classes, shuffle=True)


SIZES = (16, 5, 16, 1, 9)


def batches(weighted: bool = False) -> list[tuple[np.ndarray, ...]]:
    total = sum(SIZES)
    arrays = (*regression(total), unequal_weights(total))[: 3 if weighted else 2]
    cuts = np.cumsum(SIZES)[:-1]
    return list(zip(*(np.split(array, cuts) for array in arrays), strict=True))


def without_steps(results: dict[str, object]) -> dict[str, object]:
    """Leave out the number of steps, for data of which Keras does not know the end.

    Plain Keras may count one step too many there: in its graph the counter does not wait for
    the batch, and goes up before it turns out that there is none.
    """
    return {name: value for name, value in results.items() if name != "iterations"}


class Sequence(keras.utils.PyDataset):
    def __len__(self) -> int:
        return len(SIZES)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        return batches()[index]


def test_generator() -> None:
    """A generator that cannot be rewound: the first batch trains, like every other."""

    def experiment(place: Place) -> dict[str, object]:
        taken: list[int] = []

        def endless() -> Iterator[tuple[np.ndarray, ...]]:
            while True:
                for index, batch in enumerate(batches()):
                    taken.append(index)
                    yield batch

        results = fit_model(place, regressor, (endless(),), numbers, steps_per_epoch=4)
        results["taken"] = np.array(taken[:8])
        return results

    agree(experiment, THREE)


def test_finite_generator_with_weights() -> None:
    def experiment(place: Place) -> dict[str, object]:
        once = (batch for batch in batches(weighted=True))
        with pytest.warns(UserWarning, match="ran out of data"):  # how Keras finds the end
            return without_steps(fit_model(place, regressor, (once,), numbers, epochs=1))

    agree(experiment, TWO)


def test_pydataset() -> None:
    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, regressor, numbers)
        results = fit_again(place, model, (Sequence(),), validation_data=Sequence())
        results["evaluate"] = model.evaluate(Sequence(), verbose=0, return_dict=True)
        results["predict"] = model.predict(Sequence(), verbose=0)
        return results

    agree(experiment, FIVE)


def dataset(num_samples: int, batch_size: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(regression(num_samples)).batch(batch_size)


def test_dataset() -> None:
    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, regressor, numbers)
        data = dataset(75, 16)
        results = fit_again(place, model, (data.prefetch(2),), validation_data=data)
        results["evaluate"] = model.evaluate(data, verbose=0, return_dict=True)
        results["predict"] = model.predict(data, verbose=0)
        return results

    agree(experiment, THREE)


@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_dataset_that_repeats(steps_per_execution: int) -> None:
    """Epochs of 4 steps over a repeated dataset of 5 batches: each starts where one ended."""
    agree_in_fit(
        regressor,
        (dataset(75, 16).repeat(),),
        lambda: {**numbers(), "steps_per_execution": steps_per_execution},
        steps_per_epoch=4,
        epochs=3,
    )


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_dataset_whose_number_of_batches_nobody_knows() -> None:
    """Its end comes within a step, of which TensorFlow computes what does not need a batch.

    With Nadam that is a product over all steps: it has a factor more for each epoch.
    """
    data = dataset(75, 16).filter(lambda x, y: True)
    agree_in_fit(regressor, (data,), lambda: {**numbers(), "optimizer": "nadam"}, THREE, epochs=8)


def test_steps_that_are_bounded() -> None:
    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, regressor, numbers)
        data = dataset(75, 16).repeat()
        results = fit_again(
            place,
            model,
            (data,),
            steps_per_epoch=5,
            validation_data=dataset(43, 8).repeat(),
            validation_steps=6,
        )
        results["evaluate"] = model.evaluate(data, steps=3, verbose=0, return_dict=True)
        results["predict"] = model.predict(data, steps=3, verbose=0)
        return results

    agree(experiment)


@pytest.mark.long
def test_dataset_of_dicts() -> None:
    def experiment(place: Place) -> dict[str, object]:
        x, y = pairs(64)
        data = tf.data.Dataset.from_tensor_slices((x, y, unequal_weights(64)))
        # Whole batches of 16, drop_remainder for the reason in models.py (two_by_two).
        return fit_model(place, two_by_two, (data.batch(16, drop_remainder=True),), several)

    agree(experiment, THREE)


def test_dataset_that_runs_out() -> None:
    def experiment(place: Place) -> dict[str, object]:
        with pytest.warns(UserWarning, match="ran out of data"):
            return without_steps(
                fit_model(
                    place, regressor, (dataset(43, 16),), numbers, steps_per_epoch=5, epochs=1
                )
            )

    agree(experiment)


def test_tensors() -> None:
    def experiment(place: Place) -> dict[str, object]:
        x, y = regression(40)
        whole = tf.constant((x * 4).astype("int32"))
        return fit_model(place, regressor, (whole, tf.constant(y)), numbers)

    agree(experiment)


NUM_CLASSES = 5


class SemiSupervised(keras.Model):
    """Trains on labelled samples, and on others whose number has nothing to do with theirs."""

    def __init__(self, joins: bool) -> None:
        super().__init__()
        self.joins = joins
        self.encoder = keras.Sequential([layers.Dense(8, "tanh"), layers.Dense(NUM_CLASSES)])

    def call(self, x: Any) -> Any:
        return self.encoder(x)

    def train_step(self, data: Any) -> Any:
        (x, y), others = data
        with tf.GradientTape() as tape:
            if self.joins:
                logits = self.encoder(tf.concat([x, others], 0), training=True)
                of_x, of_others = tf.split(logits, [tf.shape(x)[0], tf.shape(others)[0]])
            else:
                of_x, of_others = (self.encoder(part, training=True) for part in (x, others))
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, of_x)
            loss = tf.reduce_mean(each) + 0.3 * tf.reduce_mean(tf.nn.softmax(of_others) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("joins", [False, True])
def test_two_data_sets_with_other_batch_sizes(joins: bool) -> None:
    """Zipped, as for semi-supervised learning: 4 labelled, 12 unlabelled, the last ones fewer."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(19, 6)).astype("float32")
    others = rng.normal(size=(59, 6)).astype("float32")
    labelled = tf.data.Dataset.from_tensor_slices((x, rng.integers(NUM_CLASSES, size=19)))
    unlabelled = tf.data.Dataset.from_tensor_slices(others)

    def experiment(place: Place) -> dict[str, object]:
        data = tf.data.Dataset.zip((labelled.batch(4), unlabelled.batch(12)))
        return fit_model(place, lambda: SemiSupervised(joins), (data,), dict)

    agree(experiment, THREE)


def graph_batches() -> Iterator[Any]:
    rng = np.random.default_rng(1)
    for _ in range(4):
        sizes = rng.integers(1, 5, size=4)
        num_atoms, num_bonds = sizes.sum(), int(rng.integers(9, 20))
        inputs = (
            rng.normal(size=(num_atoms, 4)).astype("float32"),
            rng.normal(size=(num_bonds, 3)).astype("float32"),
            rng.integers(num_atoms, size=(num_bonds, 2)),
            np.repeat(np.arange(4), sizes),
        )
        yield inputs, rng.normal(size=(4, 1)).astype("float32")


class Messages(layers.Layer):
    """Two rounds of messages along bonds, then a sum over the atoms of each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = layers.Dense(4, "tanh"), layers.Dense(4, "tanh")

    def build(self, shapes: Any) -> None:
        self.message.build((None, 7))
        self.update.build((None, 8))

    def call(self, inputs: Any) -> Any:
        atoms, bonds, pairs, graphs = inputs
        for _ in range(2):
            sent = self.message(tf.concat([tf.gather(atoms, pairs[:, 1]), bonds], 1))
            heard = tf.math.unsorted_segment_sum(sent, pairs[:, 0], tf.shape(atoms)[0])
            atoms = self.update(tf.concat([atoms, heard], 1))
        return tf.math.unsorted_segment_mean(atoms, graphs, 4)


def graph_network() -> keras.Model:
    inputs = [
        keras.Input((4,)),
        keras.Input((3,)),
        keras.Input((2,), dtype="int64"),
        keras.Input((), dtype="int64"),
    ]
    return keras.Model(inputs, layers.Dense(1)(Messages()(inputs)))


def test_graphs_with_as_many_atoms_and_bonds_as_they_like() -> None:
    specs = (
        (
            tf.TensorSpec([None, 4]),
            tf.TensorSpec([None, 3]),
            tf.TensorSpec([None, 2], tf.int64),
            tf.TensorSpec([None], tf.int64),
        ),
        tf.TensorSpec([None, 1]),
    )

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, graph_network, lambda: {"loss": "mse"})
        data = tf.data.Dataset.from_generator(graph_batches, output_signature=specs)
        return fit_again(place, model, (data.apply(tf.data.experimental.assert_cardinality(4)),))

    agree(experiment, THREE)


class OnSparse(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def test_a_model_that_is_built_by_sparse_samples() -> None:
    """A Dense layer asks for the last size of its input, sparse or not."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(21, 6)) * (rng.random((21, 6)) < 0.4)
    x = tf.sparse.from_dense(rows.astype("float32"))
    y = rng.normal(size=(21, 1)).astype("float32")

    def experiment(place: Place) -> dict[str, object]:
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
        return fit_model(place, OnSparse, (data,), lambda: {"loss": "mse"})

    agree(experiment, THREE)
