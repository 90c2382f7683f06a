"""Thousands of checks at once: what they compare is compared by identity, without code of Python.

::

    lists, sets   length of each,   items             one after the other  ─┐
    dictionaries  length of each,   keys, values      one after the other   ├─ is what it was?
    names         values of names   of each holder    one after the other  ─┘
                  other names have not come

A difference is left to the checks themselves: an equal number is another object.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from evener.run.hoisting.checks import Check, Dictionary, List, Names, Set

_CALL: Any = operator.call
_ARE_DISJOINT: Callable[[Any, Any], bool] = type({}.keys()).isdisjoint


class Identities:
    """The identities of what some checks compare, at the moment at which this is made.

    Args:
        checks: The checks. Those of other kinds are left in `others`.
    """

    def __init__(self, checks: Sequence[Check]) -> None:
        self.others: list[Check] = []
        self._collections: list[Any] = []
        self._dictionaries: list[Any] = []
        self._getters: list[Callable[[Any], tuple[Any, ...]]] = []
        self._named: list[Any] = []
        self._absent: list[tuple[Any, frozenset[str]]] = []
        self._sized: list[Any] = []
        for check in checks:
            self._add(check)
        self._lengths = list(map(len, self._sized))
        self._items = list(self._now())

    def hold(self) -> bool:
        """Return whether everything is identical."""
        if list(map(len, self._sized)) != self._lengths:
            return False
        if not all(_ARE_DISJOINT(held.keys(), names) for held, names in self._absent):
            return False
        try:
            return all(map(operator.is_, self._now(), self._items))
        except KeyError:
            return False

    def _add(self, check: Check) -> None:
        if isinstance(check, List | Set):
            self._collections.append(check.holder)
            self._sized.append(check.holder)
        elif isinstance(check, Dictionary):
            self._dictionaries.append(check.holder)
            self._sized.append(check.holder)
        elif isinstance(check, Names) and check.has_names:
            self._add_names(check)
        else:
            self.others.append(check)

    def _add_names(self, check: Names) -> None:
        present = tuple(check.present)
        if present:
            # Of one name alone it would return the value, not a tuple.
            names = present if len(present) > 1 else present * 2
            self._getters.append(operator.itemgetter(*names))
            self._named.append(check.holder)
        absent = frozenset(check.names).difference(present)
        if check.every:
            self._sized.append(check.holder)
        elif absent:
            self._absent.append((check.holder, absent))

    def _now(self) -> Iterator[Any]:
        return chain(
            chain.from_iterable(self._collections),
            chain.from_iterable(map(dict.__iter__, self._dictionaries)),
            chain.from_iterable(map(dict.values, self._dictionaries)),
            chain.from_iterable(map(_CALL, self._getters, self._named)),
        )
