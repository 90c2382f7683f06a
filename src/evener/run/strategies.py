"""tf.distribute's strategies, and those of evener, give the one evener strategy of the run."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

import evener
from evener._tf_private.patches import Patch
from evener.errors import RunError
from evener.own_code import is_own
from evener.run.notes import Notes
from evener.run.user_line import user_line
from evener.strategy import Strategy
from evener.workers.process import group_of_process

REPLACED = (
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "CentralStorageStrategy",
)
LEFT_ALONE = ("ParameterServerStrategy", "TPUStrategy")

_LONGEST_ARGUMENTS = 60


def _targets(*names: str) -> Iterator[str]:
    """Yield the names in every public module that has them, as targets of a patch."""
    for api in ("", "compat.v1.", "compat.v2."):
        for path in (f"{api}distribute", f"{api}distribute.experimental"):
            module = functools.reduce(getattr, path.split("."), tf)
            yield from (f"tensorflow:{path}.{name}" for name in names if hasattr(module, name))


_MADE = Patch(
    "strategies that scripts make",
    *_targets(*REPLACED),
    why="A script with a strategy of TensorFlow trains under the one of the run.",
    if_it_changes="Such scripts train under TensorFlow's strategy.",
)
_LEFT = Patch(
    "strategies that are left alone",
    *_targets(*LEFT_ALONE),
    why="evener has no part in what is trained under them, and says so.",
    if_it_changes="It is not said.",
)
_CURRENT = Patch(
    "tf.distribute.get_strategy in scripts",
    *_targets("get_strategy"),
    why="Scripts ask for the strategy outside of scopes too.",
    if_it_changes="Such scripts get TensorFlow's default strategy.",
)
_OWN = Patch(
    "evener.Strategy in scripts",
    "evener:Strategy",
    why="A script that makes a strategy of evener trains under the one of the run.",
    if_it_changes="Such scripts have two strategies.",
)


def replace_strategies(strategy: Strategy, notes: Notes) -> None:
    """Replace the strategies that a script would make, in every public module.

    Args:
        strategy: Strategy that the script gets.
        notes: Notes, to which each replacement is added.
    """

    def give(name: str, shown: str) -> Strategy:
        if name == "MultiWorkerMirroredStrategy" and group_of_process() is None:
            _refuse_several_workers(name)
        line = user_line()
        notes.add(f"{shown} -> {_named(strategy)}{_differs(name)}", line)
        return strategy

    _MADE.apply_by_name(lambda original, name: _giving(name, original, give))
    _LEFT.apply_by_name(lambda original, name: _noted(name, original, notes))
    _CURRENT.apply(lambda original: _found(original, strategy, notes))
    _OWN.apply_by_name(lambda original, name: _giving(name, original, give))
    own: Any = evener.Strategy
    own.one_per_device = Strategy.one_per_device


class _InPlace(type):
    """The class of classes that give the strategy of the run instead of an instance.

    They stay classes, so that scripts can ask ``isinstance(s, tf.distribute.MirroredStrategy)``.
    A subclass that a script writes has no ``_evener_instead`` of its own and is what it was.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        instead: Callable[[str], Any] | None = vars(cls).get("_evener_instead")
        if instead is None:
            return super().__call__(*args, **kwargs)
        return instead(_shown(cls.__name__, args, kwargs))

    def __instancecheck__(cls, instance: Any) -> bool:
        if "_evener_instead" not in vars(cls):
            return super().__instancecheck__(instance)
        original = cls.__mro__[1]
        return isinstance(instance, (Strategy, original))


def _giving(name: str, original: type, give: Callable[[str, str], Strategy]) -> Any:
    members = {
        "_evener_instead": lambda shown: give(name, shown),
        "__doc__": original.__doc__,
        "__module__": original.__module__,
        "__qualname__": name,
    }
    # One of the originals has a metaclass of its own.
    kind = type("_InPlace", tuple(dict.fromkeys((_InPlace, type(original)))), {})
    return kind(name, (original,), members)


def _noted(name: str, original: type, notes: Notes) -> type:
    """Return a class that is what it was, but says that evener has no part in it."""
    init: Any = original.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        why = "evener has no part in what is trained under it"
        notes.add(f"{name} is left alone: {why}", user_line())
        init(self, *args, **kwargs)

    members = {"__init__": __init__, "__module__": original.__module__}
    return type(original)(original.__name__, (original,), members)


def _found(original: Callable[[], Any], strategy: Strategy, notes: Notes) -> Callable[[], Any]:
    def get_strategy() -> Any:
        """Return the strategy of this context; for the script, evener's where there is none."""
        asker = sys._getframe(1).f_code.co_filename
        # Keras asks too, and must find what was found before.
        if not is_own(asker) or tf.distribute.has_strategy():
            return original()
        notes.add(f"tf.distribute.get_strategy() -> {_named(strategy)}", user_line())
        return strategy

    return get_strategy


def _refuse_several_workers(name: str) -> None:
    config = os.environ.get("TF_CONFIG", "").strip()
    num_workers = _num_workers(config) if config else 0
    if num_workers > 1:
        raise RunError(
            "RUN-005",
            f"The script makes a {name} for {num_workers} workers.",
            why="The script has set TF_CONFIG itself, when this process had already started as "
            "the only worker.",
            fix="Set TF_CONFIG before evener run starts, or start the workers with evener launch.",
        )


def _num_workers(config: str) -> int:
    try:
        cluster = json.loads(config)["cluster"]
        return sum(len(cluster.get(kind, ())) for kind in ("chief", "worker"))
    except (ValueError, LookupError, TypeError, AttributeError):
        # Not a cluster: TensorFlow takes it for one worker as well.
        return 0


def _named(strategy: Strategy) -> str:
    return f"evener.Strategy on {', '.join(strategy.plan.device_names)}"


def _differs(name: str) -> str:
    if name == "CentralStorageStrategy":
        return " (its variables are owned by all devices, not kept in one place)"
    return ""


def _shown(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return a call as somebody may have written it."""
    written = ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())])
    return f"{name}({written if len(written) <= _LONGEST_ARGUMENTS else '...'})"
