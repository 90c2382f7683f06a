"""Audit of a program's first training step, which does not run."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from evener.run.notes import Notes
from evener.subprocess.answer import reply
from evener.subprocess.request import StepRequest

_FUNCTION_NAME = re.compile(r"__(?:inference|forward|backward)_(.*)_\d+")


class FirstStep:
    """A program whose process ends at its first training step, with an audit as its answer.

    Args:
        request: The program, and the file for the answer.
    """

    def __init__(self, request: StepRequest) -> None:
        self.notes = Notes()
        self._request = request
        self._process = os.getpid()
        self._trains: dict[bytes, bool] = {}

    def run(self, program: Callable[[], Any]) -> Any:
        """Run a program that may train; its first training step does not run."""
        from evener._tf_private.functions import before_functions_run
        from evener._tf_private.optimizers import AUDITED_UPDATES
        from evener.subprocess.eager_loops import EagerLoops

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
        from evener.auditing.dry_run import StoppedCall
        from evener.auditing.step_audit import audit_of
        from evener.auditing.training import trains

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
        from evener.run.user_line import user_line

        @instead_of(original)
        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly() and os.getpid() == self._process:
                self.answer("eager", line=str(user_line() or ""))
            return original(optimizer, *args, **kwargs)

        return apply


def audit_first_step(request: StepRequest) -> None:
    """Run a program up to its first training step, and answer with the audit of the step.

    A program without a training step gets no answer here.

    Args:
        request: Question ``"audit"``.
    """
    first = FirstStep(request)
    _take_devices(request, first.notes)
    first.run(_function(request, first) if request.kind == "function" else _script(request))


def _take_devices(request: StepRequest, notes: Notes) -> None:
    used = None
    if request.devices is not None:
        from evener.devices import use_devices
        from evener.run.settings import skip_late_settings

        used = [device.name for device in use_devices(request.devices)]
        skip_late_settings(used, Notes())
    if request.gpu_names:
        from evener.run.gpu_names import answer_as_gpus

        answer_as_gpus(used, notes.add)


def _script(request: StepRequest) -> Callable[[], Any]:
    from evener.run.script import read, run_as_main
    from evener.run.settings import refuse_other_backends

    refuse_other_backends()
    script = read(request.target, as_module=request.kind == "module")
    return lambda: run_as_main(script, request.args)


def _function(request: StepRequest, first: FirstStep) -> Callable[[], Any]:
    """Return a call that reaches a training step: the function, or what it returns."""
    from evener.subprocess.named import step_of

    sys.path.insert(0, str(Path.cwd()))
    module, _, name = request.target.partition(":")
    return lambda: step_of(importlib.import_module, module, name, request, first.found)
