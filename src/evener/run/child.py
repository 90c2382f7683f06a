"""The side of the program: ``python -m evener.run.child REQUEST``, a file with a `StepRequest`.

The program runs up to its first training step, whose audit or costs are the answer. Its process
ends there: the step does not run, and the program does not continue.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from evener.base.records import from_json, from_plain
from evener.errors import EvenerError, EvenerWarning
from evener.run.questions import (
    Answer,
    CountedStep,
    StepCosts,
    StepRequest,
    reply,
    reply_error,
)
from evener.run.script import Notes, run_as_main

_FUNCTION_NAME = re.compile(r"__(?:inference|forward|backward)_(.*)_\d+")
_LARGE_BYTES = 1 << 20
"""Bytes of variables whose values are left out where no step runs."""


def main() -> None:
    """Answer the request in the file on the command line."""
    file = Path(sys.argv[1])
    request = from_json(file.read_text(encoding="utf-8"), StepRequest)
    try:
        if request.question == "audit":
            first = FirstStep(request, file)
            used = None
            if request.devices is not None:
                from evener.devices import use_devices
                from evener.run.device_calls import skip_late_settings

                used = [device.name for device in use_devices(request.devices)]
                skip_late_settings(used, Notes())
            if request.gpu_names:
                from evener.run.device_calls import answer_as_gpus

                answer_as_gpus(used, first.notes.add)
            if request.script is None:
                from evener.run.observed_step import call_step

                sys.path.insert(0, str(Path.cwd()))
                first.run(lambda: call_step(importlib.import_module, request, first.answer_audit))
            else:
                from evener.run.device_calls import refuse_other_backends

                refuse_other_backends()
                script = request.script
                first.run(lambda: run_as_main(script, request.args))
        else:
            measure_first_step(request, file)
    except EvenerError as error:
        traceback.print_exc()
        reply_error(file, error)
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
        from evener._tf_private.functions import before_functions_run
        from evener.run.observed_step import EagerLoops, stopping_eager_updates

        loops = EagerLoops(self.stays_eager)
        with (
            stopping_eager_updates(self.stays_eager),
            before_functions_run(self._before_function),
            loops.watching(),
        ):
            returned = program()
        loops.ended()
        return returned

    def stays_eager(self, line: str) -> NoReturn:
        self.answer(Answer(outcome="eager", line=line, notes=self._notes()))

    def answer_audit(self, audit: str) -> NoReturn:
        self.answer(Answer(outcome="found", audit=audit, notes=self._notes()))

    def answer(self, answer: Answer) -> NoReturn:
        reply(self._file, answer)

    def _notes(self) -> tuple[str, ...]:
        return tuple(str(note) for note in self.notes.printed)

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
        match = _FUNCTION_NAME.fullmatch(stopped.name)
        step = f"{self._request.target}: {match.group(1) if match else stopped.name}"
        assume_gpus = self._request.assume_gpus
        try:
            audit = audit_of(stopped, step=step, assume_gpus=assume_gpus, draw=True).to_json()
        except BaseException:
            # Whatever the error is, the step must not run.
            traceback.print_exc()
            self.answer(Answer(outcome="failed", notes=self._notes()))
        self.answer_audit(audit)


def measure_first_step(request: StepRequest, file: Path) -> None:
    """Run a script up to its first training step, and answer with the costs of the step."""
    from evener._tf_private.tensors import leave_large_variables_unwritten
    from evener.devices import use_devices
    from evener.profiler.profile import costing_strategy
    from evener.run.observed_step import EagerLoops, is_called_by_fit, stopping_eager_updates
    from evener.run.session import Session

    script = request.script
    assert script is not None, "costs are those of a script"
    name = script.given if script.module is not None else Path(script.given).name
    used = use_devices(request.devices)
    if request.question != "costs":
        # Nothing runs: a model may be larger than the memory of this machine.
        leave_large_variables_unwritten(_LARGE_BYTES)
    process = os.getpid()

    def answer(traced: Any, num_samples: int | None) -> None:
        # A process that the program forked has no answer to give.
        if os.getpid() != process:
            return
        size = request.batch_size or num_samples
        measured = counted = None
        if request.question == "memory":
            from evener.profiler.layer_costs import layer_costs

            counted = CountedStep(model=layer_costs(traced, name=name), batch_size=num_samples)
        elif size is None:
            reply(file, Answer(outcome="no batch size"))
        elif request.question == "datasheets":
            counted = _trace_times(request, traced, num_samples, size, name=name)
        else:
            from evener.plan.profile_files import MeasurementCache
            from evener.profiler.profile import KnownDevices, profile_step

            known = KnownDevices(MeasurementCache(refresh=request.remeasure))
            # Nobody sees what this process prints.
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", EvenerWarning)
                profile, not_measured = profile_step(traced, used, size, name=name, known=known)
            measured = StepCosts(
                profile=profile,
                batch_size=num_samples,
                not_measured=tuple(not_measured),
                taken=tuple(known.reused),
                warnings=tuple(
                    str(w.message) for w in caught if issubclass(w.category, EvenerWarning)
                ),
            )
        notes: tuple[str, ...] = ()
        if loops.first_line:
            # What nobody traced is observed before it is traced.
            ran = "this step ran once, since it is no tf.function"
            notes = (f"evener: {loops.first_line}: {ran}",)
        reply(file, Answer(outcome="found", measured=measured, traced=counted, notes=notes))

    def stays_eager(line: str) -> NoReturn:
        reply(file, Answer(outcome="eager", line=line))

    loops = EagerLoops(stays_eager)
    strategy = costing_strategy(used[0].name, answer)
    session = Session(script, strategy, Notes(), gpu_names=request.gpu_names)
    with loops.watching(), stopping_eager_updates(stays_eager, if_called=is_called_by_fit):
        session.run(request.args)
    loops.ended()


def _trace_times(
    request: StepRequest, traced: Any, num_samples: int | None, batch_size: int, *, name: str
) -> CountedStep:
    """Return the layers of a step with their seconds on devices of known speeds."""
    from evener.profiler.device_speed import DeviceSpeed, estimated_times
    from evener.profiler.layer_costs import layer_costs
    from evener.profiler.layers import split_step
    from evener.profiler.profile import batch_sizes

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


if __name__ == "__main__":
    main()
