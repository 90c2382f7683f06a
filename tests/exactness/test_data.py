"""The law for every kind of data: no batch is lost, none is seen twice."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

from .candidates import Place
from .harness import FIVE, THREE, TWO, agree, compile_model, fit_again, fit_model, unequal_weights
from .models import numbers, pairs, regression, regressor, several, two_by_two

SIZES = (16, 5, 16, 1, 9)


def batches(weighted: bool = False) -> list[tuple[np.ndarray, ...]]:
    """Return five batches of different sizes."""
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
    """The five batches as a PyDataset."""

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
    """A generator of weighted batches that ends by itself."""

    def experiment(place: Place) -> dict[str, object]:
        once = (batch for batch in batches(weighted=True))
        with pytest.warns(UserWarning, match="ran out of data"):  # how Keras finds the end
            return without_steps(fit_model(place, regressor, (once,), numbers, epochs=1))

    agree(experiment, TWO)


def test_pydataset() -> None:
    """A PyDataset, in fit with validation, in evaluate and in predict."""

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, regressor, numbers)
        results = fit_again(place, model, (Sequence(),), validation_data=Sequence())
        results["evaluate"] = model.evaluate(Sequence(), verbose=0, return_dict=True)
        results["predict"] = model.predict(Sequence(), verbose=0)
        return results

    agree(experiment, FIVE)


def dataset(num_samples: int, batch_size: int) -> tf.data.Dataset:
    """Return batches as a tf.data.Dataset, the last one partial."""
    return tf.data.Dataset.from_tensor_slices(regression(num_samples)).batch(batch_size)


def test_dataset() -> None:
    """A dataset whose epochs end with a partial batch."""

    def experiment(place: Place) -> dict[str, object]:
        model = compile_model(place, regressor, numbers)
        data = dataset(75, 16)
        results = fit_again(place, model, (data.prefetch(2),), validation_data=data)
        results["evaluate"] = model.evaluate(data, verbose=0, return_dict=True)
        results["predict"] = model.predict(data, verbose=0)
        return results

    agree(experiment, THREE)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_dataset_that_repeats(steps_per_execution: int) -> None:
    """Epochs of 4 steps over a repeated dataset of 5 batches: each starts where one ended."""
    agree(
        lambda place: fit_model(
            place,
            regressor,
            (dataset(75, 16).repeat(),),
            lambda: {**numbers(), "steps_per_execution": steps_per_execution},
            steps_per_epoch=4,
            epochs=3,
        )
    )


def test_steps_that_are_bounded() -> None:
    """validation_steps, and steps of evaluate and predict, over an endless dataset."""

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
    """Named inputs and outputs from a dataset of unknown batch size, with weights."""

    def experiment(place: Place) -> dict[str, object]:
        x, y = pairs(64)
        data = tf.data.Dataset.from_tensor_slices((x, y, unequal_weights(64)))
        # Whole batches of 16, drop_remainder for the reason in models.py (two_by_two).
        return fit_model(place, two_by_two, (data.batch(16, drop_remainder=True),), several)

    agree(experiment, THREE)


def test_dataset_that_runs_out() -> None:
    """An epoch longer than its data ends with the data, and says so."""

    def experiment(place: Place) -> dict[str, object]:
        with pytest.warns(UserWarning, match="ran out of data"):
            return without_steps(
                fit_model(
                    place, regressor, (dataset(43, 16),), numbers, steps_per_epoch=5, epochs=1
                )
            )

    agree(experiment)


def test_tensors() -> None:
    """Tensors in the place of arrays, and integers that a layer casts."""

    def experiment(place: Place) -> dict[str, object]:
        x, y = regression(40)
        whole = tf.constant((x * 4).astype("int32"))
        return fit_model(place, regressor, (whole, tf.constant(y)), numbers)

    agree(experiment)
