"""Audits of ``MODULE:FUNCTION``, by the kind of the function.

a tf.function          its input_signature, or no arguments: audited as it is
a plain function       of no arguments: it is called; if it returns (step, args), that
step is audited, else the first training step that it comes to
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf

from evener._tf_private.functions import is_traced_function
from evener.errors import EvenerError, did_you_mean
from evener.subprocess.request import StepRequest, TargetError


def step_of(
    load: Callable[[str], ModuleType],
    module: str,
    name: str,
    request: StepRequest,
    answer: Callable[[str], object],
) -> None:
    """Audit the step that a module has under a name, or that a function of this name comes to.

    Args:
        load: Function that imports a module by its name.
        module: Name of the module.
        name: Name of the function in it.
        request: Request of the audit.
        answer: Function to call with the audit, as JSON; it does not return.

    Raises:
        TargetError: PLACE-035 if there is no such module, PLACE-043 if it has no
            such name, PLACE-041 if sizes are not known, PLACE-036 if it is no
            function that could be called.
    """
    function = _found(load, module, name)
    if is_traced_function(function):
        answer(_audited(request, function, _inputs(function, request)))
    if not callable(function):
        raise _not_callable(request.target, f"it is a {type(function).__name__}")
    needed = _needed(function)
    if needed:
        raise _not_callable(request.target, f"it needs {', '.join(needed)}, and has no values")
    returned = function()
    step, args = _pair(returned)
    if callable(step):
        answer(_audited(request, step, args))


def _audited(request: StepRequest, step: Any, args: tuple[Any, ...]) -> str:
    from evener.auditing import audit

    return audit(step, *args, assume_gpus=request.assume_gpus).to_json()


def _found(load: Callable[[str], ModuleType], module: str, name: str) -> Any:
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


def _pair(returned: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a step and its arguments, if that is what a function has returned."""
    if not isinstance(returned, tuple) or len(returned) != 2 or not callable(returned[0]):
        return None, ()
    step, args = returned
    return step, args if isinstance(args, tuple) else (args,)


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
