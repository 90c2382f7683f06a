"""All patches: attributes of TensorFlow, Keras and evener that are replaced, each with its reason.

    NEW = Patch("new variables", "keras:Variable._initialize", why=..., if_it_changes=...)

    NEW.apply(wrap)             replaced once, until NEW.undo(); once for each purpose that is named
    with NEW.applied(wrap):     replaced until the end of the block

The replacement is what ``wrap`` returns for the original; `wrap_with` makes one of a function.
Patches of the same attribute lie upon each other::

    Optimizer.apply     original  <-  pinning  <-  loops
                                                   calls the one below

A patch that is undone below others stays in their calls until those are undone too.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Wrap = Callable[[Any], Any]
"""Function that returns the replacement of an original."""

_ABSENT = object()
_lock = threading.RLock()
_patches: dict[str, Patch] = {}
# The replacements of each attribute, the latest last, by the id of the owner and the key in it.
_replacements: dict[tuple[int, Any], list[_Replacement]] = {}


def wrap_with(replacement: Callable[..., Any]) -> Wrap:
    """Return a wrap whose result calls a function of the original and its arguments.

    >>> double = wrap_with(lambda original, x: original(x) * 2)
    >>> double(abs)(-3)
    6
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        return call

    return wrap


@contextlib.contextmanager
def setting(owner: Any, **values: Any) -> Iterator[None]:
    """Set attributes of one object, such as a model, until the end of the block."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@dataclass(slots=True, eq=False)
class _Replacement:
    owner: Any
    key: Any
    before: Any
    value: Any
    is_undone: bool = False


class Patch:
    """A reason to replace attributes; declared once, where it is needed."""

    def __init__(
        self,
        name: str,
        *targets: str,
        why: str,
        if_it_changes: str,
        is_new: bool = False,
        changed: Callable[[], object] | None = None,
    ) -> None:
        assert name not in _patches, f"two patches are named {name!r}"
        self.name = name
        self.targets = targets
        self.why = why
        self.if_it_changes = if_it_changes
        self._is_new = is_new
        self._changed = changed or (lambda: None)
        # By purpose.
        self._applied: dict[str, list[_Replacement]] = {}
        _patches[name] = self

    @property
    def purposes(self) -> frozenset[str]:
        """The purposes for which the attributes are replaced now."""
        return frozenset(self._applied)

    def apply(self, wrap: Wrap, purpose: str = "") -> None:
        """Replace the attributes until `undo`; what is applied for a purpose stays as it is."""
        self.apply_by_name(lambda original, _: wrap(original), purpose)

    def apply_by_name(self, wrap: Callable[[Any, str], Any], purpose: str = "") -> None:
        """Replace the attributes, as `apply` does; one that ``wrap`` returns stays."""
        with _lock:
            if purpose not in self._applied:
                self._applied[purpose] = self._replace(wrap)

    def apply_each(
        self,
        replacements: Mapping[str, Callable[..., Any]],
        purpose: str = "",
        *,
        by: Callable[[Callable[..., Any]], Wrap] = wrap_with,
    ) -> None:
        """Replace attributes by functions of their originals and the arguments, by name."""
        self.apply_by_name(_each(replacements, by), purpose)

    def undo(self, but: Collection[str] = ()) -> None:
        """Put the originals back; what is replaced for some purposes may stay."""
        with _lock:
            for purpose in [purpose for purpose in reversed(self._applied) if purpose not in but]:
                self._put_back(self._applied.pop(purpose))

    def applied(self, wrap: Wrap) -> contextlib.AbstractContextManager[None]:
        """Replace the attributes until the end of the block; blocks may be nested."""
        return self._replaced(lambda original, _: wrap(original))

    def applied_each(
        self, replacements: Mapping[str, Callable[..., Any]]
    ) -> contextlib.AbstractContextManager[None]:
        """Replace attributes, as `apply_each` does, until the end of the block."""
        return self._replaced(_each(replacements, wrap_with))

    @contextlib.contextmanager
    def _replaced(self, wrap: Callable[[Any, str], Any]) -> Iterator[None]:
        replaced = self._replace(wrap)
        try:
            yield
        finally:
            self._put_back(replaced)

    def _replace(self, wrap: Callable[[Any, str], Any]) -> list[_Replacement]:
        with _lock:
            replaced: list[_Replacement] = []
            for target in self.targets:
                owner, key = owner_of(target)
                original = None
                if not self._is_new:
                    original = owner[key] if isinstance(owner, dict) else getattr(owner, key)
                value = wrap(original, key)
                if value is original and not self._is_new:
                    continue
                made = _Replacement(owner, key, _own(owner, key), value)
                _set(owner, key, value)
                _replacements.setdefault((id(owner), key), []).append(made)
                replaced.append(made)
            self._changed()
            return replaced

    def _put_back(self, replaced: Sequence[_Replacement]) -> None:
        with _lock:
            for replacement in reversed(replaced):
                replacement.is_undone = True
                upon = _replacements[id(replacement.owner), replacement.key]
                while upon and upon[-1].is_undone:
                    last = upon.pop()
                    # Otherwise a program has put something else there.
                    if _own(last.owner, last.key) is last.value:
                        _set(last.owner, last.key, last.before)
            self._changed()


def _each(
    replacements: Mapping[str, Callable[..., Any]], by: Callable[[Callable[..., Any]], Wrap]
) -> Callable[[Any, str], Any]:
    return lambda original, name: (
        by(replacements[name])(original) if name in replacements else original
    )


def registered() -> dict[str, Patch]:
    """Return all declared patches by name."""
    return dict(_patches)


def owner_of(target: str) -> tuple[Any, Any]:
    """Return the object and the name in it, or the dictionary and the key, of a target."""
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    path, _, item = path.removesuffix("]").partition("[")
    *outer, name = path.split(".")
    for part in outer:
        if part.startswith("<"):
            owner = owner.__closure__[owner.__code__.co_freevars.index(part[1:-1])]
        else:
            owner = getattr(owner, part)
    if not item:
        return owner, name
    items = getattr(owner, name)
    return items, next((key for key in items if getattr(key, "__name__", key) == item), item)


def _own(owner: Any, key: Any) -> Any:
    if isinstance(owner, types.CellType):
        return owner.cell_contents
    return (owner if isinstance(owner, dict) else vars(owner)).get(key, _ABSENT)


def _set(owner: Any, key: Any, value: Any) -> None:
    if isinstance(owner, dict):
        if value is _ABSENT:
            del owner[key]
        else:
            owner[key] = value
    elif value is _ABSENT:
        delattr(owner, key)
    else:
        setattr(owner, key, value)
