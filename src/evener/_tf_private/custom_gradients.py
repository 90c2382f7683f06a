"""Custom gradients: the order of the variables that they are taken of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from evener._tf_private.patches import Patch

_IF_IT_CHANGES = "Workers refuse steps with `tf.recompute_grad` or `keras.RematScope` (RUN-090)."
_SETS = Patch(
    "sets of variables of custom gradients",
    "tensorflow.python.ops.custom_gradient:frozenset",
    why="`tf.custom_gradient` keeps the variables of a function in a set in the order of their "
    "addresses, so variables of one name have another order on every worker.",
    if_it_changes=_IF_IT_CHANGES,
    is_new=True,
)
_SORTED = Patch(
    "order of variables of custom gradients",
    "tensorflow.python.ops.custom_gradient:sorted",
    why="`tf.custom_gradient` sorts the variables of a function by name: `dense_10` comes before "
    "`dense_9`, so a worker that has made more layers before has another order.",
    if_it_changes=_IF_IT_CHANGES,
    is_new=True,
)


class _Ordered:
    """Set in the order in which its elements were added, with what `tf.custom_gradient` calls."""

    def __init__(self, elements: Iterable[Any] = ()) -> None:
        self._elements = dict.fromkeys(elements)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._elements)

    def union(self, other: Iterable[Any]) -> _Ordered:
        """Return the elements of both."""
        return _Ordered([*self, *other])


def keep_order_of_variables() -> None:
    """Let custom gradients take variables in the order in which they were made."""
    _SETS.apply(lambda _: _Ordered)
    _SORTED.apply(lambda _: lambda elements, key: list(elements))
