"""One watched run of a script, in the process that is watched."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass, field

from evener.doctor.watch.probes.ending import Ending, dump_stacks, flush_output
from evener.doctor.watch.probes.events import Events
from evener.doctor.watch.probes.progress import Progress
from evener.run.script import Loading, read, run_as_main, show_failures_of


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    """Script to run, and conditions to end it.

    Args:
        script: The script as it was given, or the name of a module.
        as_module: Whether it is a module.
        args: Arguments of the script.
        devices: Device spec to configure first; None not to configure TensorFlow.
        gpu_names: Whether to present CPU devices as GPUs on a machine without GPUs.
        events: The file for events.
        stacks: The file for Python's stacks.
        num_steps: Number of steps to watch, without those that trace.
        min_seconds: Least total duration of these steps.
    """

    script: str
    events: str
    stacks: str
    num_steps: int
    min_seconds: float
    as_module: bool = False
    args: list[str] = field(default_factory=list)
    devices: str | None = None
    gpu_names: bool = False


def main() -> None:
    """Run what the first argument requests; it ends as the script ends."""
    request = WatchRequest(**json.loads(sys.argv[1]))
    events = Events(request.events)
    progress = Progress(events, num_steps=request.num_steps, min_seconds=request.min_seconds)
    ending = Ending(events, progress.flush)
    dump_stacks(request.stacks)
    events.write("began", thread=threading.get_ident())
    ending.watch()

    def end() -> None:
        flush_output()
        ending.exit_now(0)

    def install() -> None:
        try:
            _install(progress)
        except Exception as error:
            events.missed("TensorFlow", error)

    progress.end = end
    Loading(("tensorflow", "keras"), install).watch()
    if request.gpu_names:
        Loading(("tensorflow",), lambda: _answer_as_gpus(events)).watch()
    with ending.recorded():
        if request.devices is not None:
            from evener.devices.use import lay_out

            lay_out(request.devices)
        script = read(request.script, as_module=request.as_module)
        try:
            run_as_main(script, request.args)
        except SystemExit:
            raise
        except BaseException:
            show_failures_of(script.path)
            raise


def _answer_as_gpus(events: Events) -> None:
    """Let CPU devices appear as GPUs: the program has imported TensorFlow just now."""
    from evener.run.device_calls import answer_as_gpus
    from evener.run.script import Note, UserLine

    def record_note(text: str, line: UserLine | None) -> None:
        events.write_once("note", text=str(Note(text=text, line=line)))

    try:
        answer_as_gpus(None, record_note)
    except Exception as error:
        events.missed("the names of GPUs", error)


def _install(progress: Progress) -> None:
    """Watch TensorFlow and Keras, which the program has imported just now."""
    from evener.doctor.watch.probes.entries import Entries
    from evener.doctor.watch.probes.fitting import Fitting
    from evener.doctor.watch.probes.functions import Functions
    from evener.doctor.watch.probes.looping import Looping
    from evener.doctor.watch.probes.reading import Reading
    from evener.doctor.watch.probes.waiting import Waiting

    events = progress.events
    waiting = Waiting(events, progress.clock)
    entries = Entries(progress, waiting)
    functions = Functions(events, entries)
    reading = Reading(events, progress)

    def write_training_facts() -> None:
        events.write(
            "training",
            num_replicas=functions.num_replicas,
            batch_size=waiting.batch_size(),
        )

    progress.at_first_step.append(write_training_facts)
    progress.sources += [functions.write, reading.write]
    waiting.watch()
    functions.watch()
    reading.watch()
    Fitting(progress, waiting, entries, functions).watch()
    Looping(progress, entries, functions.optimizers).watch(threading.Event().wait)
