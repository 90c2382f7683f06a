"""Position in the data of Keras's ``fit``, by the iterators that it has made and their batches.

    epoch      0          1          2
    iterator   1 (2)      3 (4)      5          in brackets: made by Keras, and not used
    batches    |||||      |||||      ||#        a checkpoint here: iterator 5, 2 batches, step 2

A resumed fit makes the earlier iterators again, so that a `tf.data` pipeline shuffles as often as
before, and begins with the batch behind those that were seen. How the earlier ones are made again
depends on the data:

    arrays       not at all: their order comes from the seed and the number of the iterator
    datasets     they are made and dropped
    generators   their batches are drawn and dropped
    PyDataset    the hooks of the epochs are called, each with its state of the random generators
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import tensorflow as tf

from evener._tf_private import fits
from evener.checkpoint import random_state
from evener.checkpoint.contents import is_count

POSITION = {
    **dict.fromkeys(("seed", "step", "iterator", "num_drawn"), is_count),
    "drawn_before": [is_count],
    "num_batches": lambda value: value is None or is_count(value),
    "random_at_fit": random_state.check,
    "random_at_epochs": [random_state.check],
}
"""Kinds of the entries of a position as JSON has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPosition:
    """Position in the data.

    Attributes:
        seed: Seed of the order of arrays.
        step: Number of steps done in the epoch.
        iterator: Number of the iterator that gives the next batch, from 1.
        num_drawn: Number of batches that it has given.
        drawn_before: Numbers of batches that the iterators before it have given; generators only.
        num_batches: Number of batches of an epoch, where it is known.
        random_at_fit: States of the random generators when ``fit`` was called.
        random_at_epochs: The same at the beginnings and before the ends of the epochs, in turns;
            `keras.utils.PyDataset` only.
    """

    seed: int
    step: int = 0
    iterator: int = 1
    num_drawn: int = 0
    drawn_before: tuple[int, ...] = ()
    num_batches: int | None = None
    random_at_fit: random_state.State = field(default_factory=dict)
    random_at_epochs: tuple[random_state.State, ...] = ()


def as_json(position: DataPosition) -> dict[str, Any]:
    """Return a position as JSON has it."""
    return asdict(position)


def from_json(values: dict[str, Any]) -> DataPosition:
    """Return the position that `as_json` has written."""
    known: dict[str, Any] = {name: values[name] for name in POSITION}
    lists = {name: tuple(known[name]) for name in ("drawn_before", "random_at_epochs")}
    return DataPosition(**{**known, **lists})


class FitFeed:
    """Follower of the data of a ``fit``, which begins it at a position."""

    def __init__(self, resumed: DataPosition | None, random_at_fit: random_state.State) -> None:
        self.iterator: Any = None
        self._resumed = resumed
        seed = random_state.derived_seed() if resumed is None else resumed.seed
        self._start = resumed or DataPosition(seed=seed, random_at_fit=random_at_fit)
        self._seed = seed
        with tf.device("cpu:0"):
            self._ordinal = tf.Variable(tf.constant(0, tf.int64), trainable=False)
        self._num_iterators = self._iterator = 0
        self._is_made_again = self._has_yielded = False
        self._drawn_before = list(self._start.drawn_before)
        self._random_at_epochs = list(self._start.random_at_epochs)
        self._drawn_at_epoch = 0
        self._step = 0
        self._has_begun = False
        self._is_in_epoch = False
        self._resumes_epoch = resumed is not None and resumed.step > 0

    def begin(self) -> None:
        """Follow the iterators from now on: those before have only built the model."""
        self._has_begun = True

    @property
    def kind(self) -> str:
        """Kind of the data; see `fits.data_kind`."""
        return fits.data_kind(self.iterator)

    def take_step(self, step: int) -> None:
        """Note that a number of steps of the epoch are done."""
        self._step = step
        self._resumes_epoch = False

    def position(self) -> DataPosition:
        """Return the present position."""
        ordinal, drawn = self._iterator, self._drawn_at_epoch + self._step
        before, step = self._drawn_before, self._step
        random_at_epochs = self._random_at_epochs
        if not self._is_in_epoch:
            step = 0
            if not fits.keeps_iterator(self.iterator):
                before = [*before, drawn] if self.kind == "generator" else before
                ordinal, drawn = self._num_iterators + 1, 0
        return replace(
            self._start,
            step=step,
            iterator=ordinal,
            num_drawn=drawn,
            drawn_before=tuple(before),
            num_batches=fits.num_batches(self.iterator),
            random_at_epochs=tuple(random_at_epochs),
        )

    def shuffle(self, indices: tf.Tensor) -> tf.Tensor:
        """Return indices in an order that the seed and the number of the iterator determine."""
        seed = tf.stack([tf.constant(self._seed, tf.int64), self._ordinal.read_value()])
        # With shuffle="batch", each batch has another order.
        folded = tf.random.fold_in(seed, tf.reduce_min(indices))  # pyright: ignore[reportArgumentType]
        shuffle = tf.random.experimental.stateless_shuffle  # pyright: ignore[reportAttributeAccessIssue]
        return shuffle(indices, seed=folded)

    def iterate(self, iterator: Any, dataset: Any) -> Any:
        """Return the dataset to iterate: at first, that behind the batches that were seen."""
        if not self._has_begun:
            return dataset
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            self._num_iterators += 1
            self._ordinal.assign(self._num_iterators)
            # At the end of an epoch, Keras may begin the data again at once.
            self._is_made_again = self._has_yielded
            if not self._is_made_again:
                self._begin_iterator()
            return dataset
        self._make_earlier(dataset, resumed)
        self._num_iterators = self._iterator = resumed.iterator
        self._drawn_at_epoch = resumed.num_drawn - resumed.step
        self._step = resumed.step
        self._ordinal.assign(self._num_iterators)
        return dataset.skip(resumed.num_drawn) if resumed.num_drawn else dataset

    def enumerate_epoch(self, iterator: Any, steps: Iterator[Any]) -> Iterator[Any]:
        """Yield the steps of an epoch that were not done before."""
        if not self._has_begun:
            yield from steps
            return
        resumed = self._resumed
        self._begin_epoch(iterator, resumed)
        is_first = resumed is not None
        for begin, end, batches in self._noting_end(steps):
            self._has_yielded = True
            if is_first:
                assert resumed is not None
                seen = resumed.num_drawn - resumed.step
                fits.set_counts(iterator, more_seen=seen, batches=resumed.num_batches)
                is_first = False
            if resumed is None or begin >= resumed.step:
                yield begin, end, batches

    def end_epoch(self) -> None:
        """Note that the epoch and its validation are done."""
        if fits.keeps_iterator(self.iterator):
            if self._is_made_again:
                self._begin_iterator()
            self._drawn_at_epoch, self._step = self._drawn_at_epoch + self._step, 0
        self._is_in_epoch = False
        self._resumes_epoch = False

    def finish_logs(self, model: Any, logs: Any) -> Any:
        """Return the metrics of the checkpoint for an epoch whose steps were all done before."""
        return model.get_metrics_result() if self._resumes_epoch and not logs else logs

    def _begin_epoch(self, iterator: Any, resumed: DataPosition | None) -> None:
        self._is_in_epoch = True
        self._is_made_again = self._has_yielded = False
        if self.kind != "py_dataset":
            return
        begin = random_state.read()
        if resumed is not None:
            states = self._random_at_epochs
            if resumed.step:
                # The epoch that goes on.
                begin = states.pop() if len(states) % 2 else states.pop(-2)
                del states[len(states) // 2 * 2 :]
            for at_begin, at_end in zip(states[::2], states[1::2], strict=True):
                fits.call_epoch_hooks(
                    iterator,
                    before_begin=functools.partial(random_state.restore, at_begin),
                    before_end=functools.partial(random_state.restore, at_end),
                )
        random_state.restore(begin)
        self._random_at_epochs.append(begin)

    def _noting_end(self, steps: Iterator[Any]) -> Iterator[Any]:
        """Yield steps; note the random states before Keras calls the hook of the epoch's end."""
        if self.kind != "py_dataset":
            yield from steps
            return
        while True:
            before = random_state.read()
            try:
                step = next(steps)
            except StopIteration:
                self._random_at_epochs.append(before)
                return
            yield step

    def _begin_iterator(self) -> None:
        if self.kind == "generator" and self._iterator:
            self._drawn_before.append(self._drawn_at_epoch + self._step)
        self._iterator = self._num_iterators
        self._drawn_at_epoch = self._step = 0

    def _make_earlier(self, dataset: Any, resumed: DataPosition) -> None:
        if self.kind == "dataset":
            for _ in range(resumed.iterator - 1):
                iter(dataset)
        elif self.kind == "generator":
            for number in resumed.drawn_before:
                batches = iter(dataset)
                for _ in range(number):
                    next(batches)
