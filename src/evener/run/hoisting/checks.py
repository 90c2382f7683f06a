"""Comparisons of what objects of Python hold with what they held: identical, or plain and equal.

Each check can be asked alone, and can put back what was there. `identities.py` asks all of them at
once.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from evener.run.hoisting.values import same

MISSING = object()
"""The value of an attribute, or a name, that is not there."""

# What Keras and TensorFlow keep beside what a layer computes, or renew without a change of meaning.
INTERNAL = frozenset(
    (
        *("_tracker", "_lock", "_losses", "_loss_ids", "_losses_override", "_called"),
        *("train_function", "test_function", "predict_function", "stop_training", "_thread_local"),
        *("_distribute_strategy", "_inbound_nodes", "_outbound_nodes", "_auto_config", "history"),
        *("_metrics_tracker", "_parent_path", "_eval_epoch_iterator", "_compile_config"),
        *("_self_unconditional_checkpoint_dependencies", "_self_unconditional_dependency_names"),
        *("_unconditional_checkpoint_dependencies", "_unconditional_dependency_names"),
        *("_self_saveable_object_factories", "_self_update_uid", "_self_name_based_restores"),
        *("_tf_trackable_method", "_pending_dependencies", "_obj_reference_counts_dict"),
        # For saving alone.
        *("_tracked", "_build_shapes_dict", "_self_unconditional_deferred_dependencies"),
    )
)
"""Attributes that are not compared."""


class Check:
    """Something that is compared.

    Args:
        path: Its name, as the program would write it.
        holder: The object that holds the values.

    Attributes:
        was_renewed: Whether it held equal values that were other objects.
    """

    def __init__(self, path: str, holder: Any) -> None:
        self.path = path
        self.holder = holder
        self.was_renewed = False
        self._before = self._now()

    def holds(self) -> bool:
        """Return whether the values mean the same as before."""
        now = self._now()
        before = self._before
        if len(now) != len(before):
            return False
        if all(map(operator.is_, now, before)):
            return True
        if all(map(same, before, now)):
            self._before = now
            self.was_renewed = True
            return True
        return False

    def restore(self) -> None:
        """Put back what was there, if it can be changed."""

    def _now(self) -> Sequence[Any]:
        raise NotImplementedError


class Names(Check):
    """Values by name: attributes of an object, a class or a module; globals that code reads.

    Args:
        path: The name of the object.
        holder: The dictionary of the names, or the object if that has none.
        names: The names. One that is not there is compared too: it may come.
        every: Whether other names that come are a change.

    Attributes:
        has_names: Whether the holder is a dictionary of names.
    """

    def __init__(
        self, path: str, holder: Any, names: Sequence[str], *, every: bool = False
    ) -> None:
        self.names = tuple(dict.fromkeys(names))
        self.every = every
        self.has_names = isinstance(holder, Mapping)
        self._path_of_holder = path
        super().__init__(path, holder)

    @property
    def present(self) -> dict[str, Any]:
        """The names that were there, and their values."""
        pairs = zip(self.names, self._before, strict=False)
        return {name: value for name, value in pairs if value is not MISSING}

    def _now(self) -> Sequence[Any]:
        held = self.holder
        if not self.has_names:
            return [getattr(held, name, MISSING) for name in self.names]
        found = [held.get(name, MISSING) for name in self.names]
        if self.every:
            found.append(sum(name not in INTERNAL for name in held))
        return found

    def holds(self) -> bool:
        """Return whether the values are the same, and name one that is not."""
        before = self._before
        if super().holds():
            return True
        for name, old, new in zip(self.names, before, self._now(), strict=False):
            if not same(old, new):
                self.path = f"{self._path_of_holder}.{name}" if self._path_of_holder else name
                break
        return False

    def restore(self) -> None:
        """Put back the values of the names."""
        if not isinstance(self.holder, dict):
            return
        for name, value in zip(self.names, self._before, strict=False):
            if value is MISSING:
                self.holder.pop(name, None)
            elif self.holder.get(name, MISSING) is not value:
                self.holder[name] = value


def attributes(path: str, value: Any, names: Sequence[str], *, every: bool = False) -> Names:
    """Return a check of attributes that are in the dictionary of an object."""
    return Names(path, vars(value), names, every=every)


def slots(path: str, value: Any, names: Sequence[str]) -> Names:
    """Return a check of attributes that are beside the dictionary of an object, if it has one."""
    return Names(path, _Slots(value), names)


class _Slots:
    """An object whose dictionary is not looked into."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._value, name)


class Cell(Check):
    """A variable of a function around."""

    def _now(self) -> Sequence[Any]:
        try:
            return [self.holder.cell_contents]
        except ValueError:
            return []

    def restore(self) -> None:
        """Put back the value."""
        if self._before:
            self.holder.cell_contents = self._before[0]


class List(Check):
    """The items of a list or deque."""

    def _now(self) -> Sequence[Any]:
        return list(self.holder)

    def restore(self) -> None:
        """Put back the items."""
        if isinstance(self.holder, list):
            list.__setitem__(self.holder, slice(None), list(self._before))
        else:
            self.holder.clear()
            self.holder.extend(self._before)


class Dictionary(Check):
    """The keys and values of a dictionary, in their order."""

    def _now(self) -> Sequence[Any]:
        return [*dict.keys(self.holder), *dict.values(self.holder)]

    def restore(self) -> None:
        """Put back the keys and values."""
        count = len(self._before) // 2
        dict.clear(self.holder)
        dict.update(self.holder, zip(self._before[:count], self._before[count:], strict=True))


class Set(Check):
    """The elements of a set."""

    def _now(self) -> Sequence[Any]:
        return sorted(self.holder, key=id)

    def holds(self) -> bool:
        """Return whether the elements are the same: equal ones of the same type."""
        if len(self.holder) == len(self._before) and super().holds():
            return True
        return _typed(self.holder) == _typed(self._before)

    def restore(self) -> None:
        """Put back the elements."""
        if isinstance(self.holder, set):
            set.clear(self.holder)
            set.update(self.holder, self._before)


class Array(Check):
    """The numbers of an array."""

    def _now(self) -> Sequence[Any]:
        return [self.holder.copy()]

    def holds(self) -> bool:
        """Return whether the numbers are the same, to the bit."""
        before = self._before[0]
        holder = self.holder
        return holder.shape == before.shape and holder.tobytes() == before.tobytes()

    def restore(self) -> None:
        """Put back the numbers."""
        if not self.holds():
            self.holder[...] = self._before[0]


def _typed(elements: Any) -> set[tuple[type, Any]]:
    return {(type(element), element) for element in elements}
