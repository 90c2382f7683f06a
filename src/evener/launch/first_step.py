"""Runs a program up to its first training step, and audits the step instead of running it.

The module runs in a subprocess, ``python -m evener.launch.first_step REQUEST``, and writes the
result as JSON into a file. ``REQUEST`` is JSON too; see `AuditRequest`.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from evener.errors import EvenerError
from evener.launch.answer import error_fields, write_answer
from evener.launch.audit_request import AuditRequest
from evener.launch.notes import Notes

_FUNCTION_NAME = re.compile(r"__(?:inference|forward|backward)_(.*)_\d+")


class FirstStep:
    """Runs a program, and ends the process at its first training step.

    Args:
        request: The program, and the file for the result.
    """

    def __init__(self, request: AuditRequest) -> None:
        self.notes = Notes()
        self._request = request
        self._process = os.getpid()
        self._trains: dict[bytes, bool] = {}

    def run(self, program: Callable[[], Any]) -> Any:
        """Run a program that may train; its first training step does not run."""
        from evener import _tf_private
        from evener.launch.eager_loops import EagerLoops

        self._detect_eager_optimizers()
        loops = EagerLoops(lambda line: self.answer({"outcome": "eager", "line": line}))
        with _tf_private.before_functions_run(self._before_function), loops.watching():
            returned = program()
        loops.ended()
        return returned

    def answer(self, found: Mapping[str, Any]) -> NoReturn:
        """Write the result, and end the process: the program does not continue."""
        notes = [str(note) for note in self.notes.printed]
        write_answer(self._request.answer, {**found, "notes": notes})

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
        self.answer(self._audited(lambda: audit_of(
            stopped, step=self._name(stopped.name), assume_gpus=self._request.assume_gpus, draw=True
        )))  # fmt: skip

    def _audited(self, make: Callable[[], Any]) -> dict[str, Any]:
        try:
            return {"audit": make().to_json()}
        except BaseException:
            # Whatever the error is, the step must not run.
            traceback.print_exc()
            return {"outcome": "failed"}

    def _name(self, function: str) -> str:
        match = _FUNCTION_NAME.fullmatch(function)
        return f"{self._request.target}: {match.group(1) if match else function}"

    def _detect_eager_optimizers(self) -> None:
        import keras
        import tensorflow as tf

        from evener.launch.replace import instead_of
        from evener.launch.user_line import user_line

        original = keras.optimizers.Optimizer.apply

        @instead_of(original)
        def apply(optimizer: keras.optimizers.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly() and os.getpid() == self._process:
                self.answer({"outcome": "eager", "line": str(user_line() or "")})
            return original(optimizer, *args, **kwargs)

        keras.optimizers.Optimizer.apply = apply


def main() -> None:
    """Run the request on the command line."""
    request = AuditRequest.from_json(sys.argv[1])
    first = FirstStep(request)
    try:
        _take_devices(request, first.notes)
        target = _script(request) if request.is_script else _function(request, first)
    except EvenerError as error:
        first.answer({"error": error_fields(error)})
    try:
        first.run(target)
    except EvenerError as error:
        traceback.print_exc()
        first.answer({"error": error_fields(error)})
    first.answer({"outcome": "ended"})


def _take_devices(request: AuditRequest, notes: Notes) -> None:
    used = None
    if request.devices is not None:
        from evener.devices import use_devices
        from evener.launch.settings import skip_late_settings

        used = [device.name for device in use_devices(request.devices)]
        skip_late_settings(used, Notes())
    if request.gpu_names:
        from evener.launch.gpu_names import answer_as_gpus

        answer_as_gpus(used, notes.add)


def _script(request: AuditRequest) -> Callable[[], Any]:
    from evener.launch.script import read_script, run_as_main

    read = read_script(request.target)
    return lambda: run_as_main(read, request.args)


def _function(request: AuditRequest, first: FirstStep) -> Callable[[], Any]:
    """Return a call that reaches a training step: the function, or what it returns."""
    from evener.launch.named import step_of

    sys.path.insert(0, str(Path.cwd()))
    module, _, name = request.target.partition(":")
    return lambda: step_of(importlib.import_module, module, name, request, first)


if __name__ == "__main__":
    main()
