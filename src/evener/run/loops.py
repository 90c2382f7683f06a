"""A script's own training loops: traced functions run on all devices, eager steps get a note.

A `tf.function` that the script calls with a batch becomes one call of ``strategy.run``: it has the
results that it has on one device. What nobody traced runs as it is written, on one device,
because tracing could change what it means; a note names the line that prevents more.

At the end of the run it is said that one device did nearly all the training, whatever the cause.
Seconds are counted by who computed::

    strategy.run, fit, evener.distribute    all devices, by shares and by what is computed once
    another traced function that trains     the first device
    gradients of a tape, eagerly            the first device

How much of a partitioned step is computed once follows from its floating-point operations.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import keras
import tensorflow as tf

from evener._tf_private.datasets import running_bodies, take_batches
from evener._tf_private.functions import TRACED_FUNCTIONS, around_functions_run, function_graphs
from evener._tf_private.graphs import kept_functions
from evener._tf_private.models import EAGER_UPDATES
from evener._tf_private.patches import Patch
from evener._tf_private.tapes import tape_is_recording
from evener.base.user_code import is_own
from evener.devices.names import device_name
from evener.partition.report import NEARLY_ALL
from evener.plan.parts import parse_device_name
from evener.run.hoister import Hoister, value_bytes
from evener.run.regions import advice_for, eager_step_of
from evener.run.replace import replace_with
from evener.run.script import Notes, UserLine, callers, is_other, line_of_loop, user_line
from evener.strategy import Strategy
from evener.strategy.arguments import has_batch
from evener.strategy.step_audit import trains
from evener.workers.process import group_of_process


def run_loops(strategy: Strategy, notes: Notes, hoister: Hoister | None = None) -> None:
    if not strategy.is_partitioned:
        return
    devices = ", ".join(strategy.plan.device_names)

    def call(original: Callable[..., Any], function: Any, /, *args: Any, **kwargs: Any) -> Any:
        # The frame behind that of the replacement.
        if not (is_outside(strategy) and is_called_by_script(sys._getframe(2))):
            return original(function, *args, **kwargs)
        name = getattr(function.python_function, "__name__", "a function")
        if not has_batch((args, kwargs)):
            take_batches(function)
            with running_bodies(functools.partial(run_body, name)):
                return original(function, *args, **kwargs)
        line = user_line()
        if hoister is not None and line is not None:
            hoister.divided.add(line)
        notes.add(f"{name} runs on {devices}", line)
        return strategy.run(function, args=args, kwargs=kwargs)

    def run_body(name: str, body: Callable[[Any], Any], batch: Any) -> Any:
        if not is_outside(strategy) or not has_batch(batch):
            return body(batch)
        notes.add(f"{name} takes its batches itself, and each runs on {devices}", user_line())
        return strategy.run(body, args=(batch,))

    TRACED_FUNCTIONS.apply_each({"__call__": call}, "scripts", by=replace_with)
    # Of optimizers that are applied outside of `run`, `fit` and functions, the first is noted.
    is_noted = False
    # How many regions had begun when a line applied gradients last: it may apply those of regions.
    begun: dict[UserLine, int] = {}

    def apply(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal is_noted
        line = line_of_loop() if not is_noted and is_outside(strategy) else None
        is_explained = False
        if line is not None and hoister is not None:
            is_explained = hoister.explains(line) or hoister.num_begun > begun.get(line, 0)
            begun[line] = hoister.num_begun
        if line is not None and not is_explained:
            source = "".join(linecache.getlines(line.path))
            advice = advice_for(source, line.number, is_traced=not tf.executing_eagerly())
            if hoister is not None:
                advice = hoister.obstacle_at(line) or advice
            if advice is not None:
                is_noted = True
                notes.add_unpartitioned(strategy.plan.device_names, advice, line)
        return original(*args, **kwargs)

    EAGER_UPDATES.apply(replace_with(apply))


def is_called_by_script(caller: FrameType) -> bool:
    """Whether a traced function is called by the script itself, outside of a step."""
    return (
        tf.executing_eagerly()
        and is_own(caller.f_code.co_filename)
        and not tf.config.functions_run_eagerly()
        and not tape_is_recording()
    )


def is_outside(strategy: Strategy) -> bool:
    """Return whether this is no replica: neither of the strategy nor of another one."""
    if not tf.distribute.has_strategy():
        return True
    return tf.distribute.in_cross_replica_context() and tf.distribute.get_strategy() is strategy


# Devices that these ask for are part of a partitioned step, or of a library.
_ENGINE = ("evener.", "tensorflow.")
_FUNCTION_NAME = re.compile(r"\A__(?:inference|forward|backward)_(.*)_\d+\Z")


def name_in_program(function: str) -> str:
    """Return the name that a program gave a function which TensorFlow has traced."""
    return _FUNCTION_NAME.sub(r"\1", function)


_TAPES = Patch(
    "tapes of scripts",
    "tensorflow:GradientTape.__enter__",
    "tensorflow:GradientTape.gradient",
    why="The time of eager gradients begins with their tape, and ends with them.",
    if_it_changes="`evener run` does not say that gradients are computed on one device.",
)
_PLACED = Patch(
    "devices that scripts ask for",
    "tensorflow:device",
    why="What an eager script places itself is computed on other devices than the first.",
    if_it_changes="`evener run` says of such a device that it had little to do.",
)


class IdleDevices:
    def __init__(self, strategy: Strategy, notes: Notes, hoister: Hoister | None) -> None:
        self._strategy = strategy
        self._notes = notes
        self._hoister = hoister
        self._has_pins = False
        self._process = os.getpid()
        self._is_partitioned: dict[str, bool | None] = {}
        self._seconds_of_strategy = 0.0
        self._seconds_of_functions: dict[tuple[str, UserLine | None], float] = {}
        # Of gradients that are computed eagerly, while the variables change.
        self._seconds_of_tapes = 0.0
        self._line_of_tapes: UserLine | None = None
        self._asks_for_tapes = ""
        self._before: tuple[tf.Variable, bytes] | None = None

    def watch(self) -> None:
        around_functions_run(self._counting)
        _TAPES.apply_each({"__enter__": _begin, "gradient": self._compute}, by=replace_with)
        _PLACED.apply(replace_with(self._device))

    def _device(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        asked = next(iter((*args, *kwargs.values())), "")
        if tf.executing_eagerly() and is_other(asked, self._strategy):
            modules = (str(frame.f_globals.get("__name__")) for frame in callers())
            caller = next(name for name in modules if not name.startswith("evener.run."))
            self._notes.num_placed += not caller.startswith(_ENGINE)
            self._has_pins |= caller.startswith("evener.pinning")
        return original(*args, **kwargs)

    @contextlib.contextmanager
    def _counting(self, function: Any) -> Iterator[None]:
        name = tf.compat.as_str(function.name)
        if name not in self._is_partitioned:
            # What is run to find it out must not be counted.
            self._is_partitioned[name] = None
            self._is_partitioned[name] = _is_partitioned(function, self._strategy)
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        if self._is_partitioned[name]:
            self._seconds_of_strategy += seconds
        elif self._is_partitioned[name] is False:
            key = (name_in_program(name), user_line())
            before = self._seconds_of_functions.get(key, 0.0)
            self._seconds_of_functions[key] = before + seconds

    def fractions(self) -> dict[str, float]:
        strategy, group = self._strategy, group_of_process()
        report = strategy.report()
        in_steps = dict(report.flops_once)
        for replica, share in zip(strategy.plan.replicas, strategy.shares, strict=True):
            for stage in replica.stages:
                part = share / sum(strategy.shares) / len(replica.stages)
                flops = in_steps.get(stage.device, 0.0) + report.flops_of_parts * part
                in_steps[stage.device] = flops
        total = sum(in_steps.values())
        work = dict.fromkeys(strategy.plan.device_names, 0.0)
        work[strategy.plan.device_names[0]] += self._seconds_alone()
        for device, flops in in_steps.items() if total else ():
            work[device] = work.get(device, 0.0) + flops / total * self._seconds_of_strategy
        if group is not None:
            # What workers did that are gone was not measured.
            there = group.view.members
            work = {name: work[name] for name in work if parse_device_name(name).worker in there}
        total = sum(work.values())
        return {device: seconds / total for device, seconds in work.items()} if total else {}

    def report(self) -> None:
        """Add a note if one device did nearly all the training, or all of them took turns."""
        fractions = self.fractions()
        devices = list(fractions)
        # Forks of the script end too.
        if len(devices) < 2 or not fractions or os.getpid() != self._process:
            return
        if (self._notes.num_placed or self._has_pins) and self._seconds_eagerly():
            return  # nobody has measured what is computed where
        busiest = max(fractions, key=fractions.__getitem__)
        report = self._strategy.report()
        flops = report.flops_of_parts + sum(report.flops_once.values())
        alone = self._seconds_alone()
        in_steps = report.flops_in_turns / flops if flops else 0.0
        total = alone + self._seconds_of_strategy
        in_turns = (alone + in_steps * self._seconds_of_strategy) / total if total else 0.0
        if fractions[busiest] >= NEARLY_ALL:
            idle = ", ".join(name for name in devices if name != busiest)
            percent = int(100 * fractions[busiest])
            what = f"{busiest} did {percent} % of the training of this run, {idle} had little to do"
        elif in_turns >= NEARLY_ALL:
            percent = int(100 * in_turns)
            what = f"{', '.join(devices)} took turns in {percent} % of the training of this run"
        else:
            return
        cause, line = self._cause(devices)
        self._notes.add(f"{what}: {cause}", line)

    def _cause(self, devices: Sequence[str]) -> tuple[str, UserLine | None]:
        eager, steps = self._seconds_eagerly(), self._seconds_of_strategy
        functions = sum(self._seconds_of_functions.values())
        if functions >= max(eager, steps):
            found = self._seconds_of_functions
            name, line = max(found, key=found.__getitem__)
            advice = "call a @tf.function with each batch as an argument, from a loop in Python"
            return f"{name} trains there; {advice}", line
        line = self._line_of_tapes
        if eager >= steps:
            reason: str | None = None
            if self._asks_for_tapes:
                reason = f"{self._asks_for_tapes} asks for that"
            elif line is not None and self._hoister is not None:
                reason = self._hoister.obstacle_at(line)
            elif line is not None:
                step = eager_step_of("".join(linecache.getlines(line.path)), line.number)
                reason = step.obstacle if step else None
            reason = reason or "make a @tf.function of the step, with the batch as an argument"
            return f"gradients are computed eagerly; {reason}", line
        report = self._strategy.report()
        if sum(report.flops_once.values()) > report.flops_of_parts:
            if not report.gathered:
                return "most of a step does not depend on single samples", None
            first = report.gathered[0]
            return f"most of a step is computed once, behind what is gathered: {first}", None
        shared = zip(self._strategy.plan.replicas, self._strategy.shares, strict=True)
        own = [share for replica, share in shared if replica.stages[0].device in devices]
        shares = ", ".join(f"{share:.0%}" for share in own)
        how = "as measured" if self._strategy.share_controller.is_measured else "as given"
        return f"the shares of the batch are {shares}, {how}", None

    def _seconds_alone(self) -> float:
        return self._seconds_eagerly() + sum(self._seconds_of_functions.values())

    def _seconds_eagerly(self) -> float:
        """Return the seconds from the begin of each tape to its gradients; 0 if nothing trained."""
        if self._before is None:
            return 0.0
        variable, before = self._before
        return self._seconds_of_tapes if value_bytes(variable) != before else 0.0

    def _compute(
        self, original: Any, tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any
    ) -> Any:
        gradients = original(tape, target, sources, *args, **kwargs)
        if tf.executing_eagerly():
            if self._before is None:
                self._see(sources)
            now = time.perf_counter()
            self._seconds_of_tapes += now - getattr(tape, "_evener_began", now)
            tape._evener_began = now
        return gradients

    def _see(self, sources: Any) -> None:
        variables = variables_in(sources)
        if variables:
            self._line_of_tapes = user_line()
            if tf.config.functions_run_eagerly():
                self._asks_for_tapes = "tf.config.run_functions_eagerly(True)"
            elif line_of_loop() is None:
                # Only Keras 2 has layers that it never traces.
                trainers = (
                    frame.f_locals.get("self")
                    for frame in callers()
                    if frame.f_globals.get("__name__") == "tf_keras.src.engine.training"
                )
                is_dynamic = any(getattr(model, "dynamic", False) for model in trainers)
                asked = "a layer with dynamic=True" if is_dynamic else "run_eagerly=True"
                self._asks_for_tapes = asked
            smallest = min(variables, key=lambda found: found.shape.num_elements() or 0)
            self._before = smallest, value_bytes(smallest)


def variables_in(sources: Any) -> list[tf.Variable]:
    """Return the variables of TensorFlow among the sources of gradients."""
    flat = tf.nest.flatten(sources)
    values = (each.value if isinstance(each, keras.Variable) else each for each in flat)
    return [each for each in values if isinstance(each, tf.Variable)]


def _begin(original: Callable[..., Any], tape: Any) -> Any:
    tape._evener_began = time.perf_counter()
    return original(tape)


def _is_partitioned(function: Any, strategy: Strategy) -> bool | None:
    graphs = function_graphs(function).values()
    if any(map(kept_functions, graphs)):
        return True
    if not trains(function):
        return None
    others = set(strategy.plan.device_names[1:])
    named = {operation.device for graph in graphs for operation in graph.get_operations()}
    asked = {device_name(device) for device in named if device}
    return None if asked & others else False
