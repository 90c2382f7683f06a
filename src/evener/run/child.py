"""The side of the program: ``python -m evener.run.child REQUEST``, see `StepRequest`.

The program runs up to its first training step, whose audit or costs are the answer.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from evener.errors import EvenerError, EvenerWarning
from evener.run.questions import StepRequest, reply, reply_error
from evener.run.script import Notes

if TYPE_CHECKING:
    from evener.devices import UsedDevice
    from evener.run.observed_step import EagerLoops


# Audit of a program's first training step, which does not run.

_FUNCTION_NAME = re.compile(r"__(?:inference|forward|backward)_(.*)_\d+")


class FirstStep:
    """A program whose process ends at its first training step, with an audit as its answer."""

    def __init__(self, request: StepRequest) -> None:
        self.notes = Notes()
        self._request = request
        self._process = os.getpid()
        self._trains: dict[bytes, bool] = {}

    def run(self, program: Callable[[], Any]) -> Any:
        """Run a program that may train; its first training step does not run."""
        from evener._tf_private.functions import before_functions_run
        from evener._tf_private.models import AUDITED_UPDATES
        from evener.run.observed_step import EagerLoops

        AUDITED_UPDATES.apply(self._stopping)
        loops = EagerLoops(lambda line: self.answer("eager", line=line))
        with before_functions_run(self._before_function), loops.watching():
            returned = program()
        loops.ended()
        return returned

    def answer(
        self, outcome: str, *, found: Mapping[str, Any] | None = None, line: str = ""
    ) -> NoReturn:
        """Answer the request, and end the process: the program does not continue."""
        notes = tuple(str(note) for note in self.notes.printed)
        reply(self._request, outcome, found=found, line=line, notes=notes)

    def found(self, audit: str) -> NoReturn:
        """Answer with an audit, as JSON."""
        self.answer("found", found={"audit": audit})

    def _before_function(self, function: Any, inputs: tuple[Any, ...]) -> None:
        from evener.strategy.dry_run import StoppedCall
        from evener.strategy.step_audit import audit_of, trains

        # Forks of the program are not audited.
        if os.getpid() != self._process:
            return
        if function.name not in self._trains:
            self._trains[function.name] = False
            self._trains[function.name] = trains(function)
        if not self._trains[function.name]:
            return
        stopped = StoppedCall(function=function, inputs=inputs)
        step, assume_gpus = self._name(stopped.name), self._request.assume_gpus
        try:
            audit = audit_of(stopped, step=step, assume_gpus=assume_gpus, draw=True).to_json()
        except BaseException:
            # Whatever the error is, the step must not run.
            traceback.print_exc()
            self.answer("failed")
        self.found(audit)

    def _name(self, function: str) -> str:
        match = _FUNCTION_NAME.fullmatch(function)
        return f"{self._request.target}: {match.group(1) if match else function}"

    def _stopping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the replacement of ``Optimizer.apply``, which answers that the step is eager."""
        import tensorflow as tf

        from evener.run.replace import instead_of
        from evener.run.script import user_line

        @instead_of(original)
        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly() and os.getpid() == self._process:
                self.answer("eager", line=str(user_line() or ""))
            return original(optimizer, *args, **kwargs)

        return apply


def audit_first_step(request: StepRequest) -> None:
    """Run a program up to its first training step, and answer with the audit of the step.

    A program without a training step gets no answer here.
    """
    first = FirstStep(request)
    _take_devices(request, first.notes)
    first.run(_function(request, first) if request.kind == "function" else _script(request))


def _take_devices(request: StepRequest, notes: Notes) -> None:
    used = None
    if request.devices is not None:
        from evener.devices import use_devices
        from evener.run.device_calls import skip_late_settings

        used = [device.name for device in use_devices(request.devices)]
        skip_late_settings(used, Notes())
    if request.gpu_names:
        from evener.run.device_calls import answer_as_gpus

        answer_as_gpus(used, notes.add)


def _script(request: StepRequest) -> Callable[[], Any]:
    from evener.run.device_calls import refuse_other_backends
    from evener.run.script import read, run_as_main

    refuse_other_backends()
    script = read(request.target, as_module=request.kind == "module")
    return lambda: run_as_main(script, request.args)


def _function(request: StepRequest, first: FirstStep) -> Callable[[], Any]:
    """Return a call that reaches a training step: the function, or what it returns."""
    from evener.run.observed_step import step_of

    sys.path.insert(0, str(Path.cwd()))
    module, _, name = request.target.partition(":")
    return lambda: step_of(importlib.import_module, module, name, request, first.found)


# Costs of a script's first training step, which is traced or measured instead of run.

_LARGE_BYTES = 1 << 20
"""Bytes of variables whose values are left out where no step runs."""


def measure_first_step(request: StepRequest) -> None:
    """Run a script up to its first training step, and answer with the costs of the step."""
    from evener._tf_private.tensors import leave_large_variables_unwritten
    from evener.devices import use_devices
    from evener.profiler.profile import costing_strategy
    from evener.run.observed_step import EagerLoops, stopping_eager_fits
    from evener.run.script import Notes, read
    from evener.run.session import Session

    script = read(request.target, as_module=request.kind == "module")
    used = use_devices(request.devices)
    if request.question != "costs":
        # Nothing runs: a model may be larger than the memory of this machine.
        leave_large_variables_unwritten(_LARGE_BYTES)
    process = os.getpid()

    def answer(traced: Any, num_samples: int | None) -> None:
        # A process that the program forked has no answer to give.
        if os.getpid() != process:
            return
        if request.question == "memory":
            found = _bytes(request, traced)
        elif request.question == "datasheets":
            size = request.batch_size or num_samples
            if size is None:
                reply(request, "no batch size")
            found = _seconds_by_speeds(request, traced, size)
        else:
            size = request.batch_size or num_samples
            if size is None:
                reply(request, "no batch size")
            found = _seconds_and_bytes(request, traced, used, size)
        found["batch_size"] = num_samples
        reply(request, "found", found=found, notes=_what_ran(loops))

    loops = EagerLoops(lambda line: reply(request, "eager", line=line))
    strategy = costing_strategy(used[0].name, answer)
    session = Session(script, strategy, Notes(), gpu_names=request.gpu_names)
    with loops.watching(), stopping_eager_fits(lambda line: reply(request, "eager", line=line)):
        session.run(request.args)
    loops.ended()


def _what_ran(loops: EagerLoops) -> tuple[str, ...]:
    """Return a note on a step that ran: what nobody traced is observed before it is traced."""
    if not loops.first_line:
        return ()
    return (f"evener: {loops.first_line}: this step ran once, since it is no tf.function",)


def _bytes(request: StepRequest, traced: Any) -> dict[str, Any]:
    """Return the layers of a step with their bytes, as `evener.run.first_step` reads them."""
    from evener.plan.profile_files import model_to_fields
    from evener.profiler.layer_costs import layer_costs

    return {"model": model_to_fields(layer_costs(traced, name=Path(request.target).name))}


def _seconds_by_speeds(request: StepRequest, traced: Any, batch_size: int) -> dict[str, Any]:
    """Return the layers of a step with their seconds on devices of known speeds."""
    from evener.plan.profile_files import model_to_fields, times_to_json
    from evener.profiler.device_speed import estimated_times, fused_times, speed_from_json
    from evener.profiler.layer_costs import layer_costs
    from evener.profiler.layers import split_step
    from evener.profiler.profile import batch_sizes

    split, sizes = split_step(traced), batch_sizes(batch_size)
    speeds = {name: speed_from_json(fields) for name, fields in request.speeds.items()}
    return {
        "model": model_to_fields(layer_costs(split, name=Path(request.target).name)),
        **{
            found: {
                name: [times_to_json(times(tasks, speed, sizes)) for tasks in split.layers]
                for name, speed in speeds.items()
            }
            for found, times in (("times", fused_times), ("unfused", estimated_times))
        },
    }


def _seconds_and_bytes(
    request: StepRequest, traced: Any, used: Sequence[UsedDevice], batch_size: int
) -> dict[str, Any]:
    """Return the profile of a step, as `evener.run.first_step` reads it."""
    from evener.plan.profile_files import MeasurementCache, profile_to_json
    from evener.profiler.profile import KnownDevices, profile_step

    name = request.target if request.kind == "module" else Path(request.target).name
    known = KnownDevices(MeasurementCache(refresh=request.remeasure))
    # Nobody sees what this process prints.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EvenerWarning)
        profile, not_measured = profile_step(traced, used, batch_size, name=name, known=known)
    return {
        "profile": profile_to_json(profile),
        "not_measured": not_measured,
        "taken": [layers.to_fields() for layers in known.taken],
        "warnings": [
            str(warning.message)
            for warning in caught
            if issubclass(warning.category, EvenerWarning)
        ],
    }


# The side of the program: ``python -m evener.run.child REQUEST``, see `StepRequest`.


def main() -> None:
    """Answer the request on the command line."""
    request = StepRequest.from_json(sys.argv[1])
    try:
        if request.question == "audit":
            audit_first_step(request)
        else:
            measure_first_step(request)
    except EvenerError as error:
        traceback.print_exc()
        reply_error(request, error)
    reply(request, "ended")


if __name__ == "__main__":
    main()
