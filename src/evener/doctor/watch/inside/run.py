"""One watched run of a script, in the process that is watched."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import dataclass, field

from evener.doctor.watch.inside.ending import Ending, dump_stacks, flush_output
from evener.doctor.watch.inside.events import Events
from evener.doctor.watch.inside.loading import Loading
from evener.doctor.watch.inside.progress import Progress
from evener.doctor.watch.inside.warned import Warnings
from evener.launch.failure import show_failures_of
from evener.launch.script import read_script, run_as_main


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to run and when to end.

    Args:
        script: The script as it was given.
        args: What follows it on the command line.
        devices: A device spec to lay out first; None to leave TensorFlow alone.
        gpu_names: Whether CPU devices answer as GPUs, where there is no GPU.
        events: The file for events.
        stacks: The file for Python's stacks.
        num_steps: After how many steps, those with tracing left out, it ends.
        min_seconds: How long these steps take at least.
    """

    script: str
    events: str
    stacks: str
    num_steps: int
    min_seconds: float
    args: list[str] = field(default_factory=list)
    devices: str | None = None
    gpu_names: bool = False


def main() -> None:
    """Run what the first argument orders; it ends as the script ends."""
    order = Order(**json.loads(sys.argv[1]))
    events = Events(order.events)
    progress = Progress(events, num_steps=order.num_steps, min_seconds=order.min_seconds)
    ending = Ending(events, progress.tell_all)
    warned = Warnings(events)
    dump_stacks(order.stacks)
    events.tell("began", thread=threading.get_ident())
    ending.watch()
    warned.watch()

    def end() -> None:
        flush_output()
        ending.exit_now(0)

    def install() -> None:
        try:
            _install(progress)
            warned.watch_logs()
        except Exception as error:
            events.missed("TensorFlow", error)

    progress.end = end
    Loading(("tensorflow", "keras"), install).watch()
    if order.gpu_names:
        Loading(("tensorflow",), lambda: _answer_as_gpus(events)).watch()
    with ending.told():
        if order.devices is not None:
            from evener.devices.use import lay_out

            lay_out(order.devices)
        script = read_script(order.script)
        try:
            run_as_main(script, order.args)
        except SystemExit:
            raise
        except BaseException:
            show_failures_of(script.path)
            raise


def _answer_as_gpus(events: Events) -> None:
    """Let CPU devices answer as GPUs: the program has imported TensorFlow just now."""
    from evener.launch.gpu_names import answer_as_gpus
    from evener.launch.notes import Note
    from evener.launch.place import Place

    def tell(text: str, place: Place | None) -> None:
        events.tell_once("note", text=str(Note(text=text, place=place)))

    try:
        answer_as_gpus(None, tell)
    except Exception as error:
        events.missed("the names of GPUs", error)


def _install(progress: Progress) -> None:
    """Watch TensorFlow and Keras, which the program has imported just now."""
    from evener.doctor.watch.inside.entries import Entries
    from evener.doctor.watch.inside.fitting import Fitting
    from evener.doctor.watch.inside.functions import Functions
    from evener.doctor.watch.inside.looping import Looping
    from evener.doctor.watch.inside.placing import Placing
    from evener.doctor.watch.inside.reading import Reading
    from evener.doctor.watch.inside.waiting import Waiting
    from evener.doctor.watch.inside.weights import Weights

    events = progress.events
    waiting = Waiting(events, progress.clock)
    entries = Entries(progress, waiting)
    functions = Functions(events, entries)
    reading = Reading(events, progress)
    weights = Weights(events)

    def tell_where_it_trains() -> None:
        import tensorflow as tf

        events.tell(
            "training",
            devices=[one.name.rpartition("device:")[2] for one in tf.config.list_logical_devices()],
            num_replicas=functions.num_replicas,
            batch_size=waiting.batch_size(),
        )

    progress.at_first_step += [tell_where_it_trains, weights.remember]
    progress.at_enough.append(weights.tell)
    progress.after_enough.append(Placing(events, entries).tell)
    progress.sources += [functions.tell, reading.tell]
    waiting.watch()
    functions.watch()
    reading.watch()
    Fitting(progress, waiting, entries, functions).watch()
    Looping(progress, entries, functions.optimizers).watch(threading.Event().wait)
