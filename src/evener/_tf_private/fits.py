"""Keras's ``fit``: its callbacks, and the batches that its iterator takes from the data."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.callbacks.callback_list import CallbackList
from keras.src.callbacks.monitor_callback import MonitorCallback
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from evener._tf_private.patches import Patch, setting, wrap_with

_TRAINER = "keras.src.backend.tensorflow.trainer"
_FIT = Patch(
    "fit with checkpoints",
    # Inside of its decorator: a callback that is made among the arguments of ``model.fit(...)`` is
    # made when Python has the method already.
    f"{_TRAINER}:TensorFlowTrainer.fit.<fn>.cell_contents",
    why="Callbacks are not told of the data, nor that a fit ended with an error.",
    if_it_changes="`evener.CheckpointCallback` says that it cannot follow the data: CKPT-008.",
)
_EPOCHS = Patch(
    "epochs of fit",
    f"{_TRAINER}:TFEpochIterator.__init__",
    f"{_TRAINER}:TFEpochIterator._get_iterator",
    f"{_TRAINER}:TFEpochIterator._enumerate_iterator",
    "keras.src.trainers.trainer:Trainer._get_metrics_result_or_logs",
    f"{_TRAINER}:TensorFlowTrainer.predict",
    why="There is no public way to begin an epoch at another batch than the first, without calls "
    "of callbacks for steps that were done before, nor to let a worker map its own rows of the "
    "batches; the iterator of the training data is a local name of ``fit``. Keras gives an epoch "
    "without steps no logs; one that is resumed after its last step has them from the checkpoint. "
    "It takes a batch of `predict` outside of the step, so the iterator has to know that nothing "
    "else sees it.",
    if_it_changes="`evener.CheckpointCallback` says that it cannot follow the data (CKPT-008), or "
    "a resumed fit begins with the first batch of the epoch; every worker maps whole batches.",
)
_SHUFFLES = Patch(
    "shuffles of arrays",
    "tensorflow:random.shuffle",
    why="Keras shuffles arrays by kernels whose state nothing can read. While the dataset of a fit "
    "with checkpoints is traced, the order comes from a seed and the number of the epoch.",
    if_it_changes="A resumed fit on shuffled arrays sees samples in another order.",
)
_LISTS = Patch(
    "callbacks of runs that are followed",
    "keras.src.callbacks.callback_list:CallbackList.__init__",
    why="A run is recorded and shown without a change of its program, which calls ``fit`` itself.",
    if_it_changes="Records and live views have no losses and metrics of `fit`.",
)


class _Follower(threading.local):
    reads = False  # whether the batches that this thread takes are taken by Keras
    predicts = False  # whether the next iterator is that of a `predict` by one traced step
    waiting: Any = None  # the feed that follows the next iterator
    feed: Any = None
    model: Any = None  # the model whose fit it follows


_here = _Follower()


@contextlib.contextmanager
def adding_callbacks(
    make: Callable[[], Any], *, replaces_bar: Callable[[], bool] = lambda: False
) -> Generator[None]:
    """Add a callback to all lists of callbacks that Keras makes in the block."""

    def init(original: Callable[..., None], self, callbacks=None, *args, **kwargs) -> None:
        # Not that of `evaluate`, nor the lines that ``verbose=2`` asks for.
        is_bar = kwargs.get("add_history") and kwargs.get("verbose") in (1, "auto")
        if is_bar and replaces_bar():
            kwargs["add_progbar"] = False
        original(self, [*_list_callbacks(callbacks), make()], *args, **kwargs)

    with _LISTS.applied(wrap_with(init)):
        yield


def _list_callbacks(callbacks: Any) -> list[Any]:
    if isinstance(callbacks, CallbackList):
        return list(callbacks.callbacks)
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]


def follow_fits(run: Callable[..., Any]) -> None:
    """Let all calls of ``fit`` go through ``run(model, callbacks, proceed, arguments)``.

    Safe to call again.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(model, *args, **kwargs)
            given = bound.arguments.get("callbacks")

            def proceed(callbacks: list[Any]) -> Any:
                if not isinstance(given, CallbackList):
                    bound.arguments["callbacks"] = callbacks
                return original(*bound.args, **bound.kwargs)

            return run(model, _list_callbacks(given), proceed, bound.arguments)

        return fit

    _FIT.apply(wrap)
    _follow_epochs()


class IterableOf(Protocol):
    """Function that returns what is iterated, of Keras's iterator of the epochs and its dataset."""

    def __call__(self, epochs: Any, dataset: Any, *, only_steps_read: bool) -> Any: ...


def _dataset_itself(epochs: Any, dataset: Any, *, only_steps_read: bool) -> Any:
    return dataset


_iterable_of: IterableOf = _dataset_itself


def iterate_by(iterable_of: IterableOf) -> None:
    """Let Keras iterate something else than a dataset. Safe to call again."""
    global _iterable_of
    _iterable_of = iterable_of
    _follow_epochs()
    _EPOCHS.apply_each({"predict": _predict}, "predict")


def keras_reads() -> contextlib.AbstractContextManager[None]:
    """Mark that the batches that this thread takes in the block are taken by Keras."""
    return setting(_here, reads=True)


def is_read_by_keras() -> bool:
    """Return whether the batches that this thread takes are taken by Keras."""
    return _here.reads


def following(feed: Any, model: Any = None) -> contextlib.AbstractContextManager[None]:
    """Let a feed follow the first iterator that this thread makes in the block; None for none."""
    return setting(_here, waiting=feed, feed=feed, model=model)


def _follow_epochs() -> None:
    _EPOCHS.apply_each(
        {
            "__init__": _make_iterator,
            "_get_iterator": _get_iterator,
            "_enumerate_iterator": _enumerate_iterator,
            "_get_metrics_result_or_logs": _get_logs,
        }
    )


def _make_iterator(original: Callable[..., None], epochs, /, *args, **kwargs) -> None:
    epochs._evener_predicts, _here.predicts = _here.predicts, False
    epochs._evener_feed, _here.waiting = _here.waiting, None
    feed = epochs._evener_feed
    if feed is None:
        original(epochs, *args, **kwargs)
        return
    feed.iterator = epochs
    shuffle = tf.autograph.experimental.do_not_convert(feed.shuffle)
    with _SHUFFLES.applied(lambda _: shuffle):
        original(epochs, *args, **kwargs)


def _get_iterator(original: Callable[..., Any], epochs: Any) -> Any:
    feed, dataset = getattr(epochs, "_evener_feed", None), original(epochs)
    if feed is not None:
        dataset = feed.iterate(epochs, dataset)
    elif _here.feed is not None and getattr(_here.model, "_eval_epoch_iterator", None) is epochs:
        _here.feed.validate()
    return _iterable_of(epochs, dataset, only_steps_read=getattr(epochs, "_evener_predicts", False))


def _enumerate_iterator(original: Callable[..., Any], epochs: Any) -> Iterator[Any]:
    feed, steps = getattr(epochs, "_evener_feed", None), original(epochs)
    return steps if feed is None else feed.enumerate_epoch(epochs, steps)


def _get_logs(original: Callable[..., Any], model: Any, logs: Any) -> Any:
    return original(model, logs if _here.feed is None else _here.feed.finish_logs(model, logs))


def _predict(original: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
    # Whether Keras gives each batch to one traced step, as it is.
    is_eager = model.run_eagerly or tf.config.functions_run_eagerly()
    made, make = model.predict_function, type(model).make_predict_function
    is_traced = made is None or isinstance(made, tf.types.experimental.PolymorphicFunction)
    is_keras_own = make is TensorFlowTrainer.make_predict_function and is_traced
    # Taken by the iterator that Keras makes first.
    predicts = not is_eager and is_keras_own and model.steps_per_execution == 1
    with setting(_here, predicts=predicts, reads=True):
        return original(model, *args, **kwargs)


def data_kind(iterator: Any) -> str:
    """Return ``"array"``, ``"generator"``, ``"py_dataset"`` or ``"dataset"`` for the data of a fit.

    Why: there is no public name for the adapters.
    If it changes: a resumed fit may see other batches.
    """
    adapter = iterator.data_adapter
    kinds = {
        "array": ArrayDataAdapter,
        "generator": GeneratorDataAdapter,
        "py_dataset": PyDatasetAdapter,
    }
    return next((name for name, kind in kinds.items() if isinstance(adapter, kind)), "dataset")


def shuffles_without_seed(iterator: Any) -> bool:
    """Return whether the dataset of a fit has a shuffle that draws another seed in each process."""
    found = shuffles_in(iterator._distributed_dataset)
    return any(not int(dataset._seed) and not int(dataset._seed2) for dataset in found)


def shuffles_in(dataset: Any) -> list[Any]:
    """Return the shuffles of a dataset, as those datasets that shuffle.

    Why: datasets tell neither their inputs nor their seeds.
    If it changes: there is no warning of unseeded ones, nor of one that several fits share.
    """
    found, waiting = [], [dataset]
    while waiting:
        dataset = waiting.pop()
        waiting += getattr(dataset, "_inputs", list)()
        if type(dataset).__name__ == "_ShuffleDataset":
            found.append(dataset)
    return found


def call_epoch_hooks(
    iterator: Any, *, before_begin: Callable[[], None], before_end: Callable[[], None]
) -> None:
    """Call the hooks of a `keras.utils.PyDataset` for an epoch that was done before.

    Why: a dataset may shuffle itself there. If it changes: as with `data_kind`.
    """
    py_dataset = iterator.data_adapter.py_dataset
    before_begin()
    py_dataset.on_epoch_begin()
    before_end()
    py_dataset.on_epoch_end()


def keeps_iterator(iterator: Any) -> bool:
    """Return whether the next epoch goes on with the iterator of the last.

    Why: with ``steps_per_epoch``, Keras does not begin the data again.
    If it changes: a resumed fit may see other batches.
    """
    return iterator.steps_per_epoch is not None and iterator._current_iterator is not None


def num_batches(iterator: Any) -> int | None:
    """Return the number of batches of an epoch, or None if Keras does not know it yet."""
    return iterator._num_batches


def set_counts(iterator: Any, *, more_seen: int, batches: int | None) -> None:
    """Tell an iterator of the steps that were done before.

    Why: Keras warns of data that is too short, by what it has counted.
    If it changes: it warns too late.
    """
    iterator._steps_seen += more_seen
    if iterator._num_batches is None:
        iterator._num_batches = batches


def build_from_data(model: Any, iterator: Any) -> None:
    """Make all variables of a model before the first step of its fit.

    Why: without a strategy, Keras leaves that to the first step, and what is restored needs them.
    If it changes: models without `keras.Input` are refused with CKPT-005.
    """
    layers = model._flatten_layers()
    optimizer = getattr(model, "optimizer", None)
    is_built = all(layer.built for layer in layers) and (optimizer is None or optimizer.built)
    if is_built and model.metrics_variables:
        return
    with contextlib.suppress(Exception), model.distribute_strategy.scope():
        # What fails here fails in the step too, which says so.
        model._symbolic_build(data_batch=iterator._distributed_dataset.element_spec)


def begin_data(iterator: Any) -> None:
    """Begin the data of a fit that makes no step, as often as its steps would have done.

    Why: Keras begins it with the first epoch. If it changes: as with `data_kind`.
    """
    dataset = iterator._get_iterator()
    if iterator.steps_per_epoch is not None:
        # `keeps_iterator`: the last one is counted, and not made yet.
        iter(dataset)


def set_up_monitor(callback: Any) -> None:
    """Let a callback that monitors a metric choose between less and greater now.

    Why: Keras does so at the end of the first epoch, and changes attributes then, such as the sign
    of ``min_delta``, which a resumed fit has from the checkpoint.
    If it changes: `keras.callbacks.ReduceLROnPlateau` acts in another epoch after a restart.
    """
    if isinstance(callback, MonitorCallback) and callback.monitor_op is None:
        # What fails here fails at the end of the epoch too, which says so.
        with contextlib.suppress(ValueError):
            callback._set_monitor_op()


def beginning_at(model: Any) -> contextlib.AbstractContextManager[None]:
    """Undo `begin_at` at the end of the block."""
    return setting(model, _initial_epoch=model._initial_epoch)


def begin_at(model: Any, epoch: int) -> None:
    """Let a fit, which is about to begin, begin with another epoch.

    Why: `keras.callbacks.BackupAndRestore` does it so; there is no public way.
    If it changes: a resumed fit begins with the first epoch.
    """
    model._initial_epoch = epoch
