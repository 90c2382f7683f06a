"""One call of ``strategy.run``: a function, called once per replica on its device.

      run(fn, args)        args: what is per replica is handed out, the rest goes to all
      ├──► replica 0: fn ──┐ merge_call: all replicas wait, one goes on for all of them
      ├──► replica 1: fn ──┤
      ▼                    ▼
      state that every replica has kept for itself is merged on its owner

Every replica knows what its samples weigh in the batch: ``b_r / B``. Losses, means and
metrics in the replica are parts of the batch's by that weight, so that uneven shares and a
smaller last batch stay exact.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine.staged import split
from evener.engine.staged.loops import idle
from evener.engine.staged.loops.scaled import kind_of, mended, remembering_how
from evener.engine.staged.loops.stages import Stages

if TYPE_CHECKING:
    from evener.engine.staged.strategy import StagedStrategy

_HOST = "/device:CPU:0"
_HERE = threading.local()


class Run:
    """What is known about one call of ``strategy.run`` while it is traced or runs eagerly.

    Args:
        strategy: The strategy.
        num_samples: Samples of each replica, int32 scalars; None if no argument is a batch.

    Attributes:
        graph: The graph in which the replicas are called.
        live: For each replica whether it has samples, bool scalars; None if all have.
        whole_rows: The size of the batch, if every replica was given all of it.
        has_talked: Whether replicas have reduced something in the middle of the run.
        stages: Where layers compute.
    """

    def __init__(self, strategy: StagedStrategy, num_samples: Sequence[tf.Tensor] | None) -> None:
        self.strategy = strategy
        self.num_samples = num_samples
        self.graph = _graph_here()
        self.whole_rows: int | None = None
        self.has_talked = False
        self.stages = Stages(strategy.plan, self.graph)
        self._handed_in: dict[int, Any] = {}
        count = strategy.num_replicas_in_sync
        with tf.device(_HOST):
            if num_samples is None or count == 1:
                self._weights = [tf.constant(1.0 / count, tf.float64)] * count
            else:
                total = tf.maximum(tf.add_n(list(num_samples)), 1)
                self._weights = [n / total for n in num_samples]
            self.live = _live(num_samples)
            if count > 1:
                strategy.loop_state.weights.assign(tf.stack(self._weights))

    @property
    def is_alone(self) -> bool:
        """Whether there is one replica, which is nothing but the whole batch."""
        return len(self._weights) == 1

    def weight(self, replica: int) -> tf.Tensor:
        """Return what the samples of a replica weigh in the batch, float64 scalar."""
        if _graph_here() is self.graph:
            return self._weights[replica]
        # A function inside the replica's may be called again from another trace, in which
        # the tensors of this one are out of reach. The variable is not.
        with tf.device(_HOST):
            return self.strategy.loop_state.weights.read_value()[replica]

    @property
    def weights(self) -> list[tf.Tensor]:
        """The weights of all replicas; they add up to 1."""
        return list(self._weights)

    def in_one_graph(self) -> bool:
        """Whether replicas can wait for each other here: not inside a function or a loop."""
        return _graph_here() is self.graph

    def begin(self, given: Any) -> Any:
        """Return the nest of arguments with samples in every replica."""
        flat = tf.nest.flatten(given)
        places = [k for k, leaf in enumerate(flat) if _is_batch(leaf)]
        columns = [_tf_private.local_values(flat[k]) for k in places]
        if self.live is not None:
            columns = [
                idle.with_stand_ins(column, self.live) if all(map(_has_rows, column)) else column
                for column in columns
            ]
        for place, column in zip(places, columns, strict=True):
            flat[place] = _tf_private.per_replica(column)
        return tf.nest.pack_sequence_as(given, flat)

    def merge(self, replica: int, given: Any, merged: Callable[[list[Any]], Any]) -> Any:
        """Call ``merged`` once with what all replicas have given; return its result.

        Args:
            replica: The replica that calls; all have to.
            given: What it hands in.
            merged: Called with one entry per replica, outside of all of them.
        """
        self._handed_in[replica] = given

        @tf.autograph.experimental.do_not_convert
        def merge(strategy: tf.distribute.Strategy) -> Any:
            del strategy
            return merged([self._handed_in.pop(r) for r in sorted(self._handed_in)])

        return tf.distribute.get_replica_context().merge_call(merge)


def current() -> tuple[Run, int] | None:
    """Return the run and the number of the replica that this code is part of, or None."""
    run = getattr(_HERE, "run", None)
    if run is None or tf.distribute.in_cross_replica_context():
        return None
    if tf.distribute.get_strategy() is not run.strategy:
        return None
    return run, _HERE.replica


def call_for_each_replica(
    strategy: StagedStrategy, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call ``fn`` once per replica; return a nest of values per replica."""
    if _tf_private.is_traced_function(fn):
        return _as_function(strategy, fn)(*args, **kwargs)
    if tf.executing_eagerly():
        say_that_it_is_slow(strategy)
    else:
        fn = _tf_private.autographed(fn)
    run = Run(strategy, _sizes(args, kwargs, strategy.num_replicas_in_sync))
    run.whole_rows = _whole_rows(strategy, args, kwargs)
    results = _call(run, fn, *run.begin((args, kwargs)))
    if not run.stages.end(results):
        _warn_of_memory(strategy)
    strategy.loop_state.merge_kept(run)
    return strategy.extended.remember_run(run, results)


def _call(run: Run, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    def in_replica(*own: Any, **named: Any) -> Any:
        _HERE.run = run
        _HERE.replica = _tf_private.replica_number(tf.distribute.get_replica_context())
        with contextlib.ExitStack() as around:
            around.enter_context(run.stages.piece(_HERE.replica))
            if run.graph is None and not run.is_alone:
                around.enter_context(remembering_how())
            return _as_parts(run, fn(*own, **named))

    try:
        with run.strategy.extended.running(run):
            return _tf_private.call_for_each_replica(run.strategy, in_replica, args, kwargs)
    except BaseException:
        if run.graph is None:
            run.strategy.loop_state.forget_kept()
        raise


def _as_parts(run: Run, results: Any) -> Any:
    """Return results of a replica; losses among them as parts, so that they can be added up."""
    if run.is_alone:
        return results
    count = run.strategy.num_replicas_in_sync

    def one(value: Any) -> Any:
        if is_number(value) and kind_of(value, count) == "part":
            value = mended(value, run.weight(_HERE.replica), count, run.whole_rows)
        return value if run.live is None else idle.returned(value, run.live[_HERE.replica])

    return tf.nest.map_structure(one, results)


def _as_function(strategy: StagedStrategy, fn: Any) -> Any:
    """Return the traced function with the replicas inside, made once for each function."""
    known = strategy.loop_state.functions
    if fn not in known:
        python_function = fn.python_function
        converted = _tf_private.autographed_always(python_function)
        weak = weakref.ref(strategy)

        @functools.wraps(python_function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            return call_for_each_replica(weak(), converted, args, kwargs)

        inside = tf.autograph.experimental.do_not_convert(inside)
        known[fn] = _tf_private.without_xla(_tf_private.clone_function(fn, inside))
    return known[fn]


def is_ours(strategy: Any) -> bool:
    """Return whether a strategy is one of evener's."""
    return hasattr(strategy, "loop_state")


def call_layer_in_replica(
    original: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any
) -> Any:
    """Call a layer: in a replica of a plan with stages, on the device of its stage."""
    here = current()
    if here is None:
        return original(layer, *args, **kwargs)
    return here[0].stages.call(original, layer, args, kwargs)


def is_number(value: Any) -> bool:
    """Return whether a value is a scalar tensor of floats."""
    return isinstance(value, tf.Tensor) and value.shape.rank == 0 and value.dtype.is_floating


def _live(num_samples: Sequence[tf.Tensor] | None) -> list[tf.Tensor] | None:
    if num_samples is None or all(tf.get_static_value(n) for n in num_samples):
        return None
    return [n > 0 for n in num_samples]


def _graph_here() -> Any:
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _sizes(args: Any, kwargs: Any, num_replicas: int) -> list[tf.Tensor] | None:
    """Return the samples of each replica: the rows of the first values that have some."""
    if num_replicas == 1:
        return None
    for leaf in _leaves((args, kwargs)):
        if not _is_batch(leaf):
            continue
        values = _tf_private.local_values(leaf)
        if all(_has_rows(value) for value in values):
            with tf.device(_HOST):
                return [split.num_rows(value) for value in values]
    return None


def _is_batch(leaf: Any) -> bool:
    kinds = tf.Tensor | tf.RaggedTensor | tf.SparseTensor
    return _tf_private.is_per_replica(leaf) and all(
        isinstance(value, kinds) for value in _tf_private.local_values(leaf)
    )


def _leaves(nest: Any) -> list[Any]:
    return [leaf for leaf in keras.tree.flatten(nest) if leaf is not None]


def _has_rows(value: Any) -> bool:
    shape = getattr(value, "shape", None)
    if isinstance(shape, tf.TensorShape):
        return shape.rank != 0
    return shape is not None and len(shape) > 0


def _whole_rows(strategy: StagedStrategy, args: Any, kwargs: Any) -> int | None:
    """Return the rows of arrays that every replica computes as a whole, and warn of them once."""
    leaves = _leaves((args, kwargs))
    if strategy.num_replicas_in_sync == 1 or any(map(_tf_private.is_per_replica, leaves)):
        return None
    whole = [
        leaf
        for leaf in leaves
        if not isinstance(leaf, tf.Variable | keras.Variable) and _has_rows(leaf)
    ]
    if not whole:
        return None
    strategy.loop_state.say_once(
        "ENG-060",
        f"strategy.run was given a whole {'tensor' if tf.is_tensor(whole[0]) else 'array'} of "
        f"shape {tuple(whole[0].shape)}.",
        why=f"It is not split: each of the {strategy.num_replicas_in_sync} replicas computes all "
        "of it, which is no faster than one device.",
        fix="Give run what strategy.experimental_distribute_dataset(dataset) yields.",
    )
    return whole[0].shape[0]


def call_function_in_replica(
    original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any
) -> Any:
    """Call a `tf.function`: in a replica of a cut batch, one that knows its micro-batch."""
    here = current()
    if here is None or here[0].is_alone:
        return original(function, *args, **kwargs)
    run, replica = here
    return original(run.strategy.loop_state.for_piece(function, replica), *args, **kwargs)


def _warn_of_memory(strategy: StagedStrategy) -> None:
    strategy.loop_state.say_once(
        "ENG-048",
        "More micro-batches will be in memory at once than the plan's in_flight says.",
        why="The replicas, which are the micro-batches here, reduce something of their forward "
        "passes before the gradients, so none can go on before all have come there.",
        fix="Reduce after the gradients, or use a layer that does not: BatchNormalization "
        "without synchronized=True, GroupNormalization.",
    )


def say_that_it_is_slow(strategy: StagedStrategy) -> None:
    """Warn once that replicas run eagerly."""
    strategy.loop_state.say_once(
        "ENG-061",
        "Replicas run eagerly.",
        why="Replicas then compute one after the other, operation by operation: right, and "
        "good for debugging, but slow.",
        fix="Leave out run_functions_eagerly(True) and run_eagerly=True; call strategy.run from "
        "inside a @tf.function.",
    )
