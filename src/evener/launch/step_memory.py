"""What the layers of a script's training step need in memory; nothing is measured.

The script runs up to its first training step in a subprocess, ``python -m evener.launch.step_memory
REQUEST``, on the CPU. The step is traced and its bytes are counted; it is not taken. ``REQUEST`` is
JSON; see `MemoryRequest`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evener.errors import RunError
from evener.launch.answer import ask, carry_out, why_no_step, write_answer
from evener.launch.child_process import ProcessResult
from evener.launch.request import SubprocessRequest
from evener.profile import ModelCosts
from evener.profile.serialise import model_from_fields, model_to_fields

# No device is needed, and none is taken from a program that trains.
_DEVICES = "cpu:1"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest(SubprocessRequest):
    """A request for the bytes of a script's training step.

    Args:
        script: The path of the script.
    """

    script: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """What the training step of a script needs.

    Args:
        model: Its layers.
        batch_size: Samples of the script's batch; None if its shapes do not say it.
    """

    model: ModelCosts
    batch_size: int | None


def count_in_subprocess(request: MemoryRequest, *, limit_seconds: float) -> StepMemory:
    """Run a script up to its first training step, and count the bytes of the step.

    Args:
        request: The script.
        limit_seconds: The time limit, above 0.

    Raises:
        RunError: RUN-040 if there was no training step in time.
        EvenerError: Any other error that the subprocess raised.
    """
    found, result = ask(
        "evener.launch.step_memory",
        request,
        # Where TensorFlow finds no GPU, the CPU appears as one to the script.
        environ={"CUDA_VISIBLE_DEVICES": "-1"},
        limit_seconds=limit_seconds,
    )
    if "model" not in found:
        raise _no_step(request.script, result, limit_seconds)
    return StepMemory(model=model_from_fields(found["model"]), batch_size=found["batch_size"])


def _no_step(script: str, result: ProcessResult, limit_seconds: float) -> RunError:
    return RunError(
        "RUN-040",
        f"The memory of {script} cannot be estimated: it came to no training step.",
        why=why_no_step(result, limit_seconds),
        fix="Make it run with evener run first; --time-limit gives it more time.",
    )


def main() -> None:
    """Carry out the request on the command line."""
    carry_out(MemoryRequest.from_json(sys.argv[1]), _run)


def _run(request: MemoryRequest) -> None:
    from evener.devices import use_devices
    from evener.launch.notes import Notes
    from evener.launch.script import read_script
    from evener.launch.session import Session
    from evener.profiler.costs import layer_costs
    from evener.profiler.strategy import costing_strategy

    script = read_script(request.script)
    used = use_devices(_DEVICES)
    process = os.getpid()

    def count(traced: Any, num_samples: int | None) -> None:
        # A process that the program forked has no answer to give.
        if os.getpid() != process:
            return
        model = layer_costs(traced, name=Path(request.script).name)
        write_answer(request.answer, {"model": model_to_fields(model), "batch_size": num_samples})

    Session(script, costing_strategy(used[0].name, count), Notes()).run(request.args)


if __name__ == "__main__":
    main()
