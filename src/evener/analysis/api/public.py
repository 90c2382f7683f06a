"""The public names of TensorFlow, Keras and tf_keras, read without importing them."""

from __future__ import annotations

import difflib
import functools
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from evener.analysis.api.successors import NAMES, Gone

PATH = Path(__file__).with_name("public_names.json.gz")
# A name of a package: of a module a tree; "*" where any name may be below; None for all else.
Tree = Mapping[str, "Tree | str | None"]
_ROOTS = {"tf": "tensorflow"}
# What is another name of the same.
_SAME = (
    ("tensorflow.compat.v2.", "tensorflow."),
    ("tensorflow.compat.v1.keras.", "tensorflow.keras."),
    ("tensorflow._api.v2.", "tensorflow."),
)
# Private parts are not checked.
_PRIVATE = ("tensorflow.python", "keras.src", "tf_keras.src", "keras.api", "tf_keras.api")
_KERAS = ("tensorflow.keras", "keras")
# Parts of TensorFlow that are attributes of it only: an import finds nothing, or another package.
NOT_IMPORTED = (
    *("tensorflow.distribute", "tensorflow.lite", "tensorflow.initializers"),
    *("tensorflow.losses", "tensorflow.metrics", "tensorflow.optimizers"),
)


@functools.cache
def _data() -> Mapping[str, Tree]:
    with gzip.open(PATH, "rt", encoding="utf-8") as file:
        return json.load(file)


def version_of(package: str) -> str:
    """Return the version of a package whose names are known, such as ``"2.21"``."""
    return ".".join(str(_data()["versions"][package]).split(".")[:2])


def arguments_of(called: str) -> frozenset[str] | None:
    """Return the arguments of a class, a function or a method of Keras; None if not known.

    >>> sorted(arguments_of("model.predict"))
    ['batch_size', 'callbacks', 'steps', 'verbose', 'x']
    >>> arguments_of("keras.ops.add")
    """
    found = _data()["arguments"].get(called)
    return None if found is None else frozenset(str(each) for each in found)


def methods_with_arguments() -> tuple[str, ...]:
    """Return the methods of models whose arguments are known."""
    names = _data()["arguments"]
    return tuple(name.partition(".")[2] for name in names if name.startswith("model."))


@functools.lru_cache(maxsize=4096)
def missing(dotted: str) -> str:
    """Return the shortest prefix of a name that does not exist; ``""`` if all of it may exist.

    Args:
        dotted: Name as it is written, with the package's full name.

    Example:
        >>> missing("tensorflow.contrib.layers.conv2d")
        'tensorflow.contrib'
        >>> missing("tensorflow.keras.layers.Dense"), missing("tensorflow.python.keras")
        ('', '')
    """
    dotted = _plain(dotted)
    if dotted.startswith(tuple(f"{prefix}." for prefix in _PRIVATE)) or dotted in _PRIVATE:
        return ""
    parts = dotted.split(".")
    tree: Tree | str | None = _data()["names"]
    for index, part in enumerate(parts):
        if part.startswith("_") or not isinstance(tree, Mapping):
            return ""
        if part not in tree:
            return ".".join(parts[: index + 1]) if index else ""
        tree = tree[part]
    return ""


def is_imported(dotted: str) -> bool:
    """Return whether ``import`` finds a name, if it exists.

    >>> is_imported("tensorflow.distribute.MirroredStrategy"), is_imported("tensorflow.data")
    (False, True)
    """
    for package in NOT_IMPORTED:
        rest = _plain(dotted).removeprefix(f"{package}.")
        if rest != _plain(dotted) and not rest.startswith(("experimental", "python")):
            return False
    return True


@functools.lru_cache(maxsize=4096)
def gone(dotted: str) -> Gone | None:
    """Return the most specific row of the table that covers a name."""
    short = shown(dotted)
    in_keras = short.removeprefix("tf.") if short.startswith("tf.keras.") else short
    rows = [row for row in NAMES if _is_or_below(short, row.old) or _is_or_below(in_keras, row.old)]
    return max(rows, key=lambda row: len(row.old), default=None)


def shown(dotted: str) -> str:
    """Return a name as programs write it.

    >>> shown("tensorflow.keras.Model"), shown("keras.Model")
    ('tf.keras.Model', 'keras.Model')
    """
    dotted = _plain(dotted)
    head, _, rest = dotted.partition(".")
    return f"tf.{rest}" if head == "tensorflow" and rest else dotted


def exists(short: str) -> bool:
    """Return whether there is a name, written as in ``tf.data``."""
    return not missing(_plain(short))


def successor(dotted: str) -> str:
    """Return the most likely successor of a missing name, or ``""``.

    It is that of the table; else the same name in another part of the package, in `keras.ops` for
    functions of the Keras backend, or in `tf.compat.v1`; else the closest spelling.
    """
    row = gone(dotted)
    if row is not None and row.fix and not row.new:
        return ""
    if row is not None and row.new:
        rest = _below(shown(dotted), row.old)
        longer = f"{row.new}.{rest}" if rest else row.new
        return longer if exists(longer) else row.new
    for candidate in _candidates(dotted):
        return candidate
    return ""


def _candidates(dotted: str) -> Iterator[str]:
    dotted = _plain(dotted)
    short, last = shown(dotted), dotted.rpartition(".")[2]
    in_keras = dotted.startswith(tuple(f"{prefix}." for prefix in _KERAS))
    if in_keras and ".backend." in dotted and exists(f"keras.ops.{last}"):
        yield f"keras.ops.{last}"
    if in_keras:
        other = f"tf.{short}" if not short.startswith("tf.") else short.removeprefix("tf.")
        if exists(other):
            yield other
        yield from _elsewhere("keras", last)
    elif dotted.startswith("tensorflow.") and exists(f"tf.compat.v1.{short.removeprefix('tf.')}"):
        yield from (path for path in _elsewhere("tensorflow", last) if path.count(".") == 2)
        yield f"tf.compat.v1.{short.removeprefix('tf.')}"
    parent, tree = _parent_of(missing(dotted))
    for close in difflib.get_close_matches(last, list(tree), n=1, cutoff=0.75):
        yield f"{shown(parent)}.{close}"


def in_keras(name: str) -> str:
    """Return the full name of what Keras has under the last part of a name, or ``""``.

    >>> in_keras("tensorflow_addons.optimizers.AdamW"), in_keras("tensorflow_addons.rnn.NASCell")
    ('keras.optimizers.AdamW', '')
    """
    return next(_elsewhere("keras", name.rpartition(".")[2]), "")


def _elsewhere(package: str, last: str) -> Iterator[str]:
    """Yield the full names of a class or function in a package, the shortest first."""
    names = _data()["names"][package]
    found = [
        path
        for path in _paths(names if isinstance(names, Mapping) else {}, package)
        if path.rpartition(".")[2] == last and ".compat." not in path and ".raw_ops." not in path
    ]
    yield from (shown(path) for path in sorted(found, key=lambda name: (name.count("."), name)))


def _paths(tree: Tree, path: str) -> Iterator[str]:
    for name, below in tree.items():
        if isinstance(below, Mapping):
            yield from _paths(below, f"{path}.{name}")
        elif below is None:
            yield f"{path}.{name}"


def _parent_of(dotted: str) -> tuple[str, Tree]:
    parent = dotted.rpartition(".")[0]
    tree: Tree | str | None = _data()["names"]
    for part in parent.split(".") if parent else ():
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return parent, tree if isinstance(tree, Mapping) else {}


def _plain(dotted: str) -> str:
    head, dot, rest = dotted.partition(".")
    dotted = f"{_ROOTS.get(head, head)}{dot}{rest}"
    for other, usual in _SAME:
        if f"{dotted}.".startswith(other):
            dotted = f"{usual}{dotted[len(other) :]}".rstrip(".")
    return dotted


def _is_or_below(dotted: str, top: str) -> bool:
    return dotted == top or dotted.startswith(f"{top}.")


def _below(short: str, top: str) -> str:
    for name in (short, short.removeprefix("tf.")):
        if name.startswith(f"{top}."):
            return name[len(top) + 1 :]
    return ""
