"""The side of the program: ``python -m evener.run.child REQUEST``, a file with a `StepRequest`.

The program runs up to its first training step, whose audit or costs are the answer. Its process
ends there: the step does not run, and the program does not continue.

Some first steps have no graph of their own accord. An eager loop has taken a step if a variable has
another value when its gradient is next asked for: gradients alone do not train. An audit of
``MODULE:FUNCTION`` depends on its kind::

    a tf.function          its input_signature, or no arguments: audited as it is
    a plain function       of no arguments: it is called; if it returns (step, args), that
                           step is audited, else the first training step that it comes to
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import tensorflow as tf

from evener._tf_private.functions import before_functions_run, is_traced_function
from evener._tf_private.models import EAGER_UPDATES
from evener._tf_private.patches import Patch
from evener._tf_private.tensors import leave_large_variables_unwritten
from evener.base.records import from_json, from_plain
from evener.devices import use_devices
from evener.errors import EvenerError, EvenerWarning, did_you_mean
from evener.plan.profile_files import MeasurementCache
from evener.profiler.device_speed import DeviceSpeed, estimated_times
from evener.profiler.layer_costs import layer_costs
from evener.profiler.layers import split_step
from evener.profiler.profile import KnownDevices, batch_sizes, costing_strategy, profile_step
from evener.run.device_calls import answer_as_gpus, skip_late_settings, watch_environment
from evener.run.first_step import (
    Answer,
    AnsweredError,
    CountedStep,
    StepCosts,
    StepRequest,
    TargetError,
    reply,
)
from evener.run.hoister import value_bytes
from evener.run.loops import name_in_program, variables_in
from evener.run.replace import replace_with
from evener.run.script import Notes, callers, run_as_main, user_line
from evener.run.session import Session
from evener.strategy.step_audit import StoppedCall, audit, audit_of, trains


def main() -> None:
    file = Path(sys.argv[1])
    request = from_json(file.read_text(encoding="utf-8"), StepRequest)
    try:
        if request.question == "audit":
            first = FirstStep(request, file)
            used = None
            if request.devices is not None:
                used = [device.name for device in use_devices(request.devices)]
                skip_late_settings(used, Notes())
            if request.gpu_names:
                answer_as_gpus(used, first.notes.add)
            if request.script is None:
                sys.path.insert(0, str(Path.cwd()))
                first.run(lambda: call_step(importlib.import_module, request, first.answer_audit))
            else:
                watch_environment()
                script = request.script
                first.run(lambda: run_as_main(script, request.args))
        else:
            measure_first_step(request, file)
    except EvenerError as error:
        traceback.print_exc()
        fields = {name: getattr(error, name) for name in ("code", "what", "why", "fix")}
        reply(file, Answer(error=AnsweredError(kind=type(error).__name__, **fields)))
    reply(file, Answer(outcome="ended"))


class FirstStep:
    """A program whose process ends at its first training step, with an audit as its answer."""

    def __init__(self, request: StepRequest, file: Path) -> None:
        self.notes = Notes()
        self._request = request
        self._file = file
        self._process = os.getpid()
        self._trains: dict[bytes, bool] = {}

    def run(self, program: Callable[[], Any]) -> Any:
        """Run a program that may train; its first training step does not run."""
        eager = EagerSteps(lambda line: self.answer(outcome="eager", line=line))
        with eager.watching(), before_functions_run(self._before_function):
            return program()

    def answer_audit(self, audit: str) -> NoReturn:
        self.answer(outcome="found", audit=audit)

    def answer(self, **fields: Any) -> NoReturn:
        reply(self._file, Answer(**fields, notes=tuple(map(str, self.notes.printed))))

    def _before_function(self, function: Any, inputs: tuple[Any, ...]) -> None:
        # Forks of the program are not audited.
        if os.getpid() != self._process:
            return
        if function.name not in self._trains:
            self._trains[function.name] = False
            self._trains[function.name] = trains(function)
        if not self._trains[function.name]:
            return
        stopped = StoppedCall(function=function, inputs=inputs)
        step = f"{self._request.target}: {name_in_program(stopped.name)}"
        try:
            found = audit_of(stopped, step=step, assume_gpus=self._request.assume_gpus, draw=True)
            audit = found.to_json()
        except BaseException:
            # Whatever the error is, the step must not run.
            traceback.print_exc()
            self.answer(outcome="failed")
        self.answer_audit(audit)


def measure_first_step(request: StepRequest, file: Path) -> None:
    script = request.script
    assert script is not None, "costs are those of a script"
    name = script.given if script.module is not None else Path(script.given).name
    used = use_devices(request.devices)
    if request.question != "costs":
        # Nothing runs: a model may be larger than the memory of this machine.
        leave_large_variables_unwritten(1 << 20)
    process = os.getpid()

    def answer(traced: Any, num_samples: int | None) -> None:
        # A process that the program forked has no answer to give.
        if os.getpid() != process:
            return
        size = request.batch_size or num_samples
        measured = counted = None
        if request.question == "memory":
            counted = CountedStep(model=layer_costs(traced, name=name), batch_size=num_samples)
        elif size is None:
            reply(file, Answer(outcome="no batch size"))
        elif request.question == "datasheets":
            counted = _trace_times(request, traced, num_samples, size, name=name)
        else:
            known = KnownDevices(MeasurementCache(refresh=request.remeasure))
            # Nobody sees what this process prints.
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", EvenerWarning)
                profile, not_measured = profile_step(traced, used, size, name=name, known=known)
            own = (w.message for w in caught if issubclass(w.category, EvenerWarning))
            measured = StepCosts(
                profile=profile,
                batch_size=num_samples,
                not_measured=tuple(not_measured),
                taken=tuple(known.reused),
                warnings=tuple(map(str, own)),
            )
        # What nobody traced is observed before it is traced.
        ran = f"evener: {eager.first_line}: this step ran once, since it is no tf.function"
        notes = (ran,) if eager.first_line else ()
        reply(file, Answer(outcome="found", measured=measured, traced=counted, notes=notes))

    eager = EagerSteps(lambda line: reply(file, Answer(outcome="eager", line=line)))
    strategy = costing_strategy(used[0].name, answer)
    session = Session(script, strategy, Notes(), gpu_names=request.gpu_names)
    # An update of `fit` has ``run_eagerly`` then; others the session may hoist.
    trainers = ("keras.src.backend.tensorflow.trainer", "keras.src.trainers")
    with eager.watching(is_update_of=trainers):
        session.run(request.args)


def _trace_times(
    request: StepRequest, traced: Any, num_samples: int | None, batch_size: int, *, name: str
) -> CountedStep:
    split, sizes = split_step(traced), batch_sizes(batch_size)
    speeds = {kind: from_plain(fields, DeviceSpeed) for kind, fields in request.speeds.items()}
    times, unfused = (
        {
            kind: tuple(
                estimated_times(tasks, speed, sizes, is_fused=is_fused) for tasks in split.layers
            )
            for kind, speed in speeds.items()
        }
        for is_fused in (True, False)
    )
    model = layer_costs(split, name=name)
    return CountedStep(model=model, batch_size=num_samples, times=times, unfused=unfused)


_GRADIENTS = Patch(
    "gradients of audited programs",
    "tensorflow:GradientTape.gradient",
    why="A step without a Keras optimizer is known by its gradients.",
    if_it_changes="Audits of such programs find no training step.",
)


class EagerSteps:
    """Watches eager updates and gradients; the line of a step is given to ``taken``, which ends."""

    def __init__(self, taken: Callable[[str], Any]) -> None:
        self._taken = taken
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._before: dict[str, tuple[tf.Variable, bytes]] = {}
        self.first_line = ""  # Source line of the first eager gradients.

    @contextlib.contextmanager
    def watching(self, *, is_update_of: str | tuple[str, ...] = "") -> Iterator[None]:
        """The first eager step stops before its update, if such a module has called it."""

        def apply(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly() and os.getpid() == self._process:
                names = (str(frame.f_globals.get("__name__", "")) for frame in callers())
                if any(name.startswith(is_update_of) for name in names):
                    self._taken(str(user_line() or ""))
            return original(*args, **kwargs)

        with (
            EAGER_UPDATES.applied(replace_with(apply)),
            _GRADIENTS.applied(replace_with(self._gradient)),
        ):
            yield
        # Whether the last gradients were followed by a step: no others come after them.
        if any(value_bytes(variable) != before for variable, before in self._before.values()):
            self._taken(self.first_line)

    def _gradient(
        self, original: Any, tape: Any, target: Any, sources: Any, *more: Any, **options: Any
    ) -> Any:
        if tf.executing_eagerly() and os.getpid() == self._process:
            line = str(user_line() or "")
            with self._lock:
                self.first_line = self.first_line or line
                for variable in variables_in(sources):
                    if isinstance(variable, tf.distribute.DistributedValues):
                        continue
                    value = value_bytes(variable)
                    _, before = self._before.setdefault(variable._unique_id, (variable, value))
                    if value != before:
                        self._taken(line)
        return original(tape, target, sources, *more, **options)


def call_step(
    load: Callable[[str], ModuleType], request: StepRequest, answer: Callable[[str], object]
) -> None:
    """Audit the step that a module has under a name, or that a function of this name comes to."""

    def audit_step(step: Any, args: tuple[Any, ...]) -> None:
        answer(audit(step, *args, assume_gpus=request.assume_gpus).to_json())

    module, _, name = request.target.partition(":")
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
        function: Any = functools.reduce(getattr, name.split("."), loaded)
    except AttributeError as error:
        raise TargetError(
            "PLACE-043",
            f"{module} has no {name!r}.{did_you_mean(name, vars(loaded))}",
            why=f"Python says: {error}.",
            fix="name a function that is there, as MODULE:FUNCTION.",
        ) from error
    if is_traced_function(function):
        if function.input_signature is None:
            _check_needs_nothing(request, function.python_function, "input_signature")
        signature = tuple(function.input_signature or ())
        audit_step(function, tf.nest.map_structure(lambda spec: _zeros(spec, request), signature))
    if not callable(function):
        raise _not_callable(request.target, f"it is a {type(function).__name__}")
    _check_needs_nothing(request, function, "values")
    returned = function()
    if isinstance(returned, tuple) and len(returned) == 2 and callable(returned[0]):
        # A step, and its arguments.
        step, args = returned
        audit_step(step, args if isinstance(args, tuple) else (args,))


def _check_needs_nothing(request: StepRequest, function: Any, lacks: str) -> None:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty and parameter.kind not in kinds
    ]
    if needed:
        raise _not_callable(request.target, f"it needs {', '.join(needed)}, and has no {lacks}")


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


if __name__ == "__main__":
    main()
