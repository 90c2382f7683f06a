"""What reading and writing an owned variable means inside a replica.

Outside of replicas a variable is what it is: one tensor on its owner. In a replica of
``strategy.run`` it depends on what it was made with, as in `tf.distribute`:

    synchronization, aggregation       in a replica
    ON_READ: metrics                   *kept*: every replica adds up for itself
    NONE: moving statistics, seeds     kept
    SUM, MEAN, ONLY_FIRST_REPLICA      writing waits for all replicas, which write once

What is kept begins every run as the owner's value and is merged into it when the run ends,
by the rules of `evener.engine.staged.state`. So a variable is whole between runs: checkpoints,
``fit`` and other layouts see one value. In between, a replica sees

      owner's value  +  what it has added in this run

of which only the second part is stored, on the replica's device, and is 0 between runs. A sum
starts at 0 in all replicas but the first, so that resetting it in every replica resets it.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tensorflow as tf

from evener import _tf_private
from evener.engine.origin import warn_at_user_line
from evener.engine.staged.loops import run as runs
from evener.engine.staged.state import StateRule, merge, rule_of, seed_for_replica
from evener.errors import EngineError

if TYPE_CHECKING:
    from evener.engine.staged.loops.run import Run
    from evener.engine.staged.strategy import StagedStrategy

_HOST = "/device:CPU:0"
_REDUCED_BY = {
    tf.VariableAggregation.SUM: tf.distribute.ReduceOp.SUM,
    tf.VariableAggregation.MEAN: tf.distribute.ReduceOp.MEAN,
}


class LoopState:
    """What a strategy keeps from run to run.

    Args:
        devices: TensorFlow's name of each replica's device.

    Attributes:
        weights: What the samples of each replica weigh in the batch, in the run of now.
        functions: For each traced function given to run, the one with the replicas inside.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = devices
        num_replicas = len(devices)
        self.functions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self.weights = _plain([1.0 / num_replicas] * num_replicas, tf.float64, _HOST)
        self._of_pieces: weakref.WeakKeyDictionary[Any, dict[int, Any]]
        self._of_pieces = weakref.WeakKeyDictionary()
        self._kept: dict[str, Kept] = {}
        self._batch_norms: weakref.WeakSet[Any] = weakref.WeakSet()
        self._said: set[str] = set()
        self._is_quiet = False

    def say_once(self, code: str, what: str, *, why: str, fix: str) -> None:
        """Warn at the line of the person's program, unless it was said already."""
        if code not in self._said and not self._is_quiet:
            self._said.add(code)
            warn_at_user_line(code, what, why=why, fix=fix)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Say nothing inside."""
        before, self._is_quiet = self._is_quiet, True
        try:
            yield
        finally:
            self._is_quiet = before

    def for_piece(self, function: Any, piece: int) -> Any:
        """Return a `tf.function` with traces of its own for a piece of the batch."""
        known = self._of_pieces.setdefault(function, {})
        if piece not in known:
            known[piece] = _tf_private.clone_function(function, function.python_function)
        return known[piece]

    def kept(self, variable: Any) -> Kept:
        """Return what replicas have added to a variable; made when first asked for."""
        found = self._kept.get(variable._unique_id)
        if found is None:
            found = Kept(variable, self._devices)
            self._kept[variable._unique_id] = found
        return found

    def is_kept(self, variable: Any) -> bool:
        """Return whether any replica has read or written a variable as its own."""
        return variable._unique_id in self._kept

    def is_written(self, variable: Any) -> bool:
        """Return whether any replica has written a variable as its own."""
        found = self._kept.get(variable._unique_id)
        return found is not None and found.is_written

    def note_batch_norm(self, layer: Any) -> None:
        """Remember whose mean belongs to which variance."""
        self._batch_norms.add(layer)

    def forget_kept(self) -> None:
        """Drop what the replicas have kept in a run that failed."""
        for one in self._kept.values():
            one.forget()

    def merge_kept(self, run: Run) -> None:
        """End a run: what the replicas have kept for themselves goes to the owners."""
        self._kept = {key: one for key, one in self._kept.items() if one.is_alive}
        kept = [one for one in self._kept.values() if one.is_written]
        if not kept:
            return
        rules = _with_variances(kept, list(self._batch_norms))
        # What was added is merged, not what is seen: a run that adds nothing changes nothing.
        added = [[one.added[k].read_value() for one in kept] for k in range(len(run.weights))]
        with tf.device(_HOST):
            weights = tf.cast(tf.stack(run.weights), tf.float32)
        merged = merge(rules, [tf.zeros_like(value) for value in added[0]], added, weights)
        for one, value in zip(kept, merged, strict=True):
            with tf.device(one.variable.device):
                one.variable.assign_add(value)
            one.forget()


class Kept:
    """What the replicas have added to one variable in this run.

    Args:
        variable: The owned variable; held weakly.
        devices: TensorFlow's name of each replica's device.

    Attributes:
        rule: How what the replicas see is merged.
        added: For each replica, what it has added: a variable that is 0 between runs.
        is_written: Whether a replica has ever written it.
    """

    def __init__(self, variable: Any, devices: Sequence[str]) -> None:
        self.key = variable._unique_id
        self._variable = weakref.ref(variable)
        made = variable.evener_keras()
        self.rule = StateRule(rule=rule_of(variable if made is None else made))
        self.is_written = False
        self.added = [
            _plain(np.zeros(variable.shape, variable.dtype.as_numpy_dtype), variable.dtype, device)
            for device in devices
        ]

    @property
    def is_alive(self) -> bool:
        """Whether the variable is still there."""
        return self._variable() is not None

    @property
    def variable(self) -> Any:
        """The owned variable."""
        return self._variable()

    def owners_value(self) -> tf.Tensor:
        """Return the owner's value, in any context."""
        return self.variable.evener_owners_value()

    def base(self, replica: int, owners: tf.Tensor) -> tf.Tensor:
        """Return what a replica begins a run with."""
        if self.rule.rule == "sum" and replica > 0:
            return tf.zeros_like(owners)
        if self.rule.rule == "seed":
            return seed_for_replica(owners, replica)
        return owners

    def seen_by(self, replica: int, owners: tf.Tensor) -> tf.Tensor:
        """Return the value that a replica sees."""
        return self.base(replica, owners) + self.added[replica].read_value()

    def write(self, replica: int, value: tf.Tensor) -> None:
        """Let a replica see this value from now on."""
        self.added[replica].assign(value - self.base(replica, self.owners_value()))

    def forget(self) -> None:
        """Let the next run begin with nothing added."""
        for one in self.added:
            with tf.device(one.device):
                one.assign(tf.zeros(one.shape, one.dtype))


def _with_variances(kept: Sequence[Kept], layers: Sequence[Any]) -> list[StateRule]:
    position = {one.key: k for k, one in enumerate(kept)}
    rules = [one.rule for one in kept]
    for layer in layers:
        mean = position.get(layer.moving_mean.value._unique_id)
        variance = position.get(layer.moving_variance.value._unique_id)
        if mean is not None and variance is not None:
            rules[variance] = StateRule(rule="variance", mean_of=mean, momentum=layer.momentum)
    return rules


def _plain(value: Any, dtype: tf.DType, device: str) -> tf.Variable:
    with tf.init_scope(), tf.device(device):
        return _tf_private.plain_variable(value, dtype)


Meaning = Literal["owner", "kept", "together"]


class Owned:
    """What is put before TensorFlow's variable class: see `own`."""

    _evener_strategy: Any
    _evener_keras: Any

    def evener_keras(self) -> Any | None:
        """Return the Keras variable around it, or None."""
        return None if self._evener_keras is None else self._evener_keras()

    def evener_owners_value(self) -> tf.Tensor:
        """Return the value on the owner."""
        return super()._read_variable_op()  # pyright: ignore[reportAttributeAccessIssue]

    def _evener_meaning(self) -> tuple[Meaning, Any, int]:
        """Return what a write means here, with the run and the replica if it matters."""
        here = runs.current()
        if here is None or here[0].strategy is not self._evener_strategy():
            return "owner", None, 0
        run, replica = here
        variable: Any = self
        if run.is_alone or not _can_be_kept(variable):
            return "owner", run, replica
        if variable.synchronization == tf.VariableSynchronization.ON_READ:
            return "kept", run, replica
        none = variable.aggregation == tf.VariableAggregation.NONE
        return ("kept" if none else "together"), run, replica

    def _read_variable_op(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        value = super()._read_variable_op(*args, **kwargs)  # pyright: ignore
        meaning, run, replica = self._evener_meaning()
        if meaning != "kept":
            return value
        state = run.strategy.loop_state
        # A weight that no replica writes is only borrowed.
        if self.trainable and not state.is_kept(self):  # pyright: ignore
            return value
        return state.kept(self).seen_by(replica, value)


def _can_be_kept(variable: Any) -> bool:
    return variable.dtype.is_floating or variable.dtype.is_integer or variable.dtype.is_complex


def _writing(name: str) -> Any:
    """Return the writing method of this name, with its meaning in replicas."""

    @tf.autograph.experimental.do_not_convert
    def write(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        own = getattr(super(Owned, self), name)
        meaning, run, replica = self._evener_meaning()
        if meaning == "kept":
            return _keep(self, name, run, replica, value)
        if meaning == "together":
            if _is_reduced(self) and name in _OVERWRITES:
                raise _overwritten(self, name)
            return _together(self, run, replica, value, lambda v: own(v, *args, **kwargs))
        if replica > 0:
            return self  # A flag or a text: the first replica speaks for all.
        return own(value, *args, **kwargs)

    write.__name__ = name
    return write


_WRITES = (
    "assign",
    "assign_add",
    "assign_sub",
    "scatter_add",
    "scatter_sub",
    "scatter_update",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_div",
)
_OVERWRITES = frozenset(_WRITES[5:])
"""What several replicas cannot do in the same places, and be added up."""

for _name in _WRITES:
    setattr(Owned, _name, _writing(_name))


def _keep(variable: Any, name: str, run: Run, replica: int, value: Any) -> Any:
    kept = run.strategy.loop_state.kept(variable)
    kept.is_written = True
    if name == "assign":
        kept.write(replica, tf.convert_to_tensor(value, dtype=variable.dtype))
    elif name in ("assign_add", "assign_sub", "scatter_add", "scatter_sub"):
        getattr(kept.added[replica], name)(value)
    else:
        raise _overwritten(variable, name)
    return kept.seen_by(replica, kept.owners_value())


def _is_reduced(variable: Any) -> bool:
    return variable.aggregation in _REDUCED_BY


def _overwritten(variable: Any, name: str) -> EngineError:
    return EngineError(
        "ENG-062",
        f"{name} was called on the variable {variable.name!r} inside strategy.run.",
        why="What several replicas overwrite in places of a variable can neither be added up "
        "nor merged.",
        fix="Make the variable with aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA, or "
        "write it outside of strategy.run.",
    )


def _together(variable: Any, run: Run, replica: int, value: Any, own: Callable[[Any], Any]) -> Any:
    """Write once for all replicas, with what they have given reduced."""
    if not isinstance(value, tf.IndexedSlices):
        value = tf.convert_to_tensor(value, dtype=variable.dtype)

    def merged(values: list[Any]) -> Any:
        extended = run.strategy.extended
        with tf.device(variable.device):
            if variable.aggregation in _REDUCED_BY:
                op = _REDUCED_BY[variable.aggregation]
                one = extended.reduce_to(op, _tf_private.per_replica(values), variable)
            else:
                one = values[0]
            own(one)

    run.merge(replica, value, merged)
    return variable.read_value()


def _has_means(variable: Any) -> bool:
    return variable.dtype.is_floating or variable.dtype.is_complex


@functools.cache
def _owned_class(kind: type) -> type:
    return type(f"Owned{kind.__name__}", (Owned, kind), {"__module__": __name__})


def own(variable: tf.Variable, strategy: StagedStrategy, keras_variable: Any | None) -> None:
    """Let a variable know what it means inside the replicas of a strategy."""
    if variable.aggregation == tf.VariableAggregation.MEAN and not _has_means(variable):
        raise EngineError(
            "ENG-068",
            f"The variable {variable.name!r} of {variable.dtype.name} was made with "
            "aggregation=MEAN.",
            why="The mean of what replicas write to it is no whole number.",
            fix="Use a float dtype, or another aggregation.",
        )
    made: Any = variable
    made.__class__ = _owned_class(type(variable))
    made._evener_strategy = weakref.ref(strategy)
    made._evener_keras = None if keras_variable is None else weakref.ref(keras_variable)
