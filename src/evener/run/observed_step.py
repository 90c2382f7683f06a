"""First steps that have no graph of their own accord: eager loops, and ``MODULE:FUNCTION``.

A loop has taken a step if a variable has another value when its gradient is next asked for:
gradients alone do not train. An audit of ``MODULE:FUNCTION`` depends on its kind::

    a tf.function          its input_signature, or no arguments: audited as it is
    a plain function       of no arguments: it is called; if it returns (step, args), that
                           step is audited, else the first training step that it comes to
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import keras
import tensorflow as tf

from evener._tf_private.functions import is_traced_function
from evener._tf_private.models import EAGER_UPDATES
from evener._tf_private.patches import Patch
from evener.errors import EvenerError, did_you_mean
from evener.run.questions import StepRequest, TargetError
from evener.run.replace import replace_with
from evener.run.script import callers, user_line

_GRADIENTS = Patch(
    "gradients of audited programs",
    "tensorflow:GradientTape.gradient",
    why="A step without a Keras optimizer is known by its gradients.",
    if_it_changes="Audits of such programs find no training step.",
)


# An optimizer that these modules call is part of `fit`.
_TRAINERS = ("keras.src.backend.tensorflow.trainer", "keras.src.trainers")


@contextlib.contextmanager
def stopping_eager_updates(
    taken: Callable[[str], Any], *, if_called: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Stop the first eager step before its update: ``taken`` gets its line and does not return."""
    process = os.getpid()

    def apply(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly() and os.getpid() == process and if_called():
            taken(str(user_line() or ""))
        return original(*args, **kwargs)

    with EAGER_UPDATES.applied(replace_with(apply)):
        yield


def is_called_by_fit() -> bool:
    """Return whether an update is that of `fit`, which has ``run_eagerly`` then."""
    return any(str(f.f_globals.get("__name__", "")).startswith(_TRAINERS) for f in callers())


class EagerLoops:
    """Watches the gradients that a program computes eagerly."""

    def __init__(self, taken: Callable[[str], Any]) -> None:
        self._taken = taken
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._before: dict[str, tuple[tf.Variable, bytes]] = {}
        self.first_line = ""  # Source line of the first eager gradients.

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """Watch every tape, in this process."""

        def gradient(
            original: Any, tape: Any, target: Any, sources: Any, *more: Any, **options: Any
        ) -> Any:
            if tf.executing_eagerly() and os.getpid() == self._process:
                line = str(user_line() or "")
                with self._lock:
                    self.first_line = self.first_line or line
                    for source in tf.nest.flatten(sources):
                        variable = source.value if isinstance(source, keras.Variable) else source
                        is_mirrored = isinstance(variable, tf.distribute.DistributedValues)
                        if is_mirrored or not isinstance(variable, tf.Variable):
                            continue
                        value = _value(variable)
                        _, before = self._before.setdefault(variable._unique_id, (variable, value))
                        if value != before:
                            self._taken(line)
            return original(tape, target, sources, *more, **options)

        return _GRADIENTS.applied(replace_with(gradient))

    def ended(self) -> None:
        """See whether the last gradients were followed by a step: no others come after them."""
        if any(_value(variable) != before for variable, before in self._before.values()):
            self._taken(self.first_line)


def _value(variable: tf.Variable) -> bytes:
    # As bytes: NaN is equal to itself.
    return variable.numpy().tobytes()


def call_step(
    load: Callable[[str], ModuleType], request: StepRequest, answer: Callable[[str], object]
) -> None:
    """Audit the step that a module has under a name, or that a function of this name comes to."""
    module, _, name = request.target.partition(":")
    function = _load_function(load, module, name)
    if is_traced_function(function):
        answer(_audit(request, function, _inputs(function, request)))
    if not callable(function):
        raise _not_callable(request.target, f"it is a {type(function).__name__}")
    needed = _needed(function)
    if needed:
        raise _not_callable(request.target, f"it needs {', '.join(needed)}, and has no values")
    returned = function()
    if isinstance(returned, tuple) and len(returned) == 2 and callable(returned[0]):
        # A step, and its arguments.
        step, args = returned
        answer(_audit(request, step, args if isinstance(args, tuple) else (args,)))


def _audit(request: StepRequest, step: Any, args: tuple[Any, ...]) -> str:
    from evener.strategy.step_audit import audit

    return audit(step, *args, assume_gpus=request.assume_gpus).to_json()


def _load_function(load: Callable[[str], ModuleType], module: str, name: str) -> Any:
    try:
        loaded = load(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise TargetError(
            "PLACE-035",
            f"There is no module {module!r}.",
            why=f"Python says: {error}. Modules are looked for in the current folder first.",
            fix="name the module as `import` would, or give the path of a script.",
        ) from error
    try:
        return functools.reduce(getattr, name.split("."), loaded)
    except AttributeError as error:
        raise TargetError(
            "PLACE-043",
            f"{module} has no {name!r}.{did_you_mean(name, vars(loaded))}",
            why=f"Python says: {error}.",
            fix="name a function that is there, as MODULE:FUNCTION.",
        ) from error


def _needed(function: Any) -> list[str]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty and parameter.kind not in kinds
    ]


def _inputs(function: Any, request: StepRequest) -> tuple[Any, ...]:
    """Return zeros for the input signature of a `tf.function`."""
    if function.input_signature is None:
        needed = _needed(function.python_function)
        if needed:
            raise _not_callable(
                request.target, f"it needs {', '.join(needed)}, and has no input_signature"
            )
        return ()
    return tf.nest.map_structure(
        lambda spec: _zeros(spec, request), tuple(function.input_signature)
    )


def _zeros(spec: tf.TensorSpec, request: StepRequest) -> tf.Tensor:
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
        raise _not_callable(request.target, f"nothing can stand for {spec} of its signature")
    if not spec.shape.is_fully_defined() and request.batch_size is None:
        raise TargetError(
            "PLACE-041",
            f"{request.target} has sizes that are not known.",
            why=f"its input_signature has {spec.shape}, and bytes depend on it.",
            fix="say what stands for None: --batch-size 32.",
        )
    shape = [request.batch_size if size is None else size for size in spec.shape]
    return tf.zeros(shape, spec.dtype) if spec.dtype != tf.string else tf.fill(shape, "")


def _not_callable(target: str, why: str) -> EvenerError:
    return TargetError(
        "PLACE-036",
        f"{target} cannot be called for an audit.",
        why=f"{why}.",
        fix="name a tf.function with an input_signature, or a function of no arguments that "
        "trains, or that returns a step and its arguments: return train_step, (x, y).",
    )
