"""One run of a script on all devices: what is set up before its first line, and said at its end."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from evener.base.libraries import check_installed
from evener.errors import RunError, house_form
from evener.plan import Plan
from evener.run.script import Notes, Script, run_as_main, show_failures_of

if TYPE_CHECKING:
    from evener.recording.record import Recording
    from evener.run.loops import IdleDevices
    from evener.run.resuming import Resumption
    from evener.strategy import Strategy
    from evener.workers.group import Group

_LOG = "EVENER_WORKER_LOG"


class WorkerLog:
    """Log file that has the standard output and error of this process."""

    def __init__(self, path: Path) -> None:
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise RunError(
                "RUN-014",
                f"The log file of this worker cannot be written: {path}: {error.strerror}.",
                why="With several workers, the output of all but the first goes to log files.",
                fix=f"Set {_LOG} to a file in a folder that exists.",
            ) from error
        self.path = path
        sys.stdout.flush()
        sys.stderr.flush()
        self._terminal = os.dup(2)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)

    def show_failure(self) -> None:
        """Let the exception that ends the program appear on the terminal too."""
        show = sys.excepthook

        def hook(
            kind: type[BaseException], error: BaseException, found: TracebackType | None
        ) -> object:
            show(kind, error, found)
            sys.stderr.flush()
            os.dup2(self._terminal, 2)
            return show(kind, error, found)

        sys.excepthook = hook


def divert_output(
    workers: Group | None, tell: Callable[[str], object], environ: Mapping[str, str]
) -> WorkerLog | None:
    """Write the output of this process to a file, unless it is the chief or alone."""
    if workers is None or "EVENER_JOB" in environ:
        return None
    log = None
    if not workers.is_chief and "EVENER_LAUNCHED" not in environ:
        if environ.get(_LOG):
            path = Path(environ[_LOG]).absolute()
        else:
            folder = Path(tempfile.mkdtemp(prefix="evener-worker-"))
            path = folder / f"worker-{workers.index}.log"
        log = WorkerLog(path)
    told = workers.exchange("logs", None if log is None else f"{socket.gethostname()}:{log.path}")
    logs = [path for path in told if path is not None]
    if workers.is_chief and logs:
        tell(f"the output of the other workers is in {', '.join(logs)}")
    return log


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLayout:
    """The devices of a run: a plan, or devices and shares."""

    # A device spec; None for ``EVENER_DEVICES``, else all. With a plan: for which devices it was
    # made; None for any that have its names
    devices: str | None = None
    plan: Plan | None = None  # A plan; excludes shares
    # Relative shares, ``"even"``, or None to measure them
    shares: str | Sequence[float] | None = None
    # Whether the first run of every step is compared with one device; None for a few samples of it
    verify: bool | None = None
    # Folder for checkpoints of unchanged fits, and the number of steps between two; None for 60 s
    checkpoint: str | None = None
    every_steps: int | None = None
    # Plans to try in steps of the run, from the simplest to the least simple, with ``plan`` among
    # them; empty to keep the plan
    tried: Sequence[Plan] = ()


@dataclass(slots=True, eq=False)
class Session:
    script: Script
    strategy: Strategy
    notes: Notes
    gpu_names: bool = field(default=True, kw_only=True)
    hoist: bool = field(default=True, kw_only=True)
    verify: bool = field(default=False, kw_only=True)
    resumption: Resumption | None = field(default=None, kw_only=True)
    _log: WorkerLog | None = field(default=None, init=False)

    @property
    def is_shown(self) -> bool:
        """Whether the output of this process appears, and not that of another worker."""
        return self._log is None

    def run(self, args: Sequence[str]) -> None:
        """Run the script; its exceptions are not caught."""
        from evener.run import device_calls, loops, strategies
        from evener.run.hoister import HOOK, Hoister, hoist_script
        from evener.workers.faults import EXIT_CODE_OF_LOST, is_lost
        from evener.workers.process import group_of_process

        self._log = divert_output(group_of_process(), self.notes.add, os.environ)
        strategies.replace_strategies(self.strategy, self.notes)
        strategies.attach_models(self.strategy, self.notes)
        hoister = tree = None
        if self.hoist:
            is_outside = functools.partial(loops.is_outside, self.strategy)
            hoister = Hoister(self.strategy, self.notes, is_outside=is_outside)
            hoisted = hoist_script(self.script, hoister)
            tree = None if hoisted is None else hoisted.tree
        loops.run_loops(self.strategy, self.notes, hoister)
        strategies.refuse_mistakes()
        strategies.attach_legacy_models(self.strategy, self.notes)
        device_calls.skip_late_settings(self.strategy.plan.device_names, self.notes)
        if self.gpu_names:
            devices = self.strategy.plan.device_names
            device_calls.answer_as_gpus(devices, self.notes.add, are_trained_on=True)
        device_calls.watch_environment(self.notes)
        idle = loops.IdleDevices(self.strategy, self.notes, hoister)
        idle.watch()
        # Before the report of the run, which has all notes: it was registered earlier.
        atexit.register(self._report_idle, idle)
        if self.verify:
            atexit.register(self._report_unverified, os.getpid())
        names: dict[str, Any] = {}
        if tree is not None and hoister is not None:
            # A name that only a rewritten script uses.
            names[HOOK] = self.resumption.kept(hoister) if self.resumption else hoister
        try:
            with self.resumption.resuming() if self.resumption else contextlib.nullcontext():
                run_as_main(self.script, args, tree=tree, names=names)
        except SystemExit:
            raise
        except BaseException as error:
            show_failures_of(self.script.path)
            if self._log is not None:
                self._log.show_failure()
            if not is_lost(error):
                raise
            # As Python does with an exception that nobody catches; what ends workers reads it.
            sys.last_value = error
            sys.excepthook(type(error), error, error.__traceback__)
            raise SystemExit(EXIT_CODE_OF_LOST) from None

    def _report_idle(self, idle: IdleDevices) -> None:
        loop = self.resumption.loop if self.resumption else None
        # Nothing was computed if all steps of a loop were those of the run before.
        if loop is None or loop.line is None or loop.has_computed:
            idle.report()

    def _report_unverified(self, process: int) -> None:
        """Note (RUN-024), at the end, that no step was compared."""
        # Forks of the script end too.
        if os.getpid() != process or self.strategy.verifications:
            return
        devices = ", ".join(self.strategy.plan.device_names)
        why = f"The run has one device, {devices}, and one part."
        fix = "Run it on several devices, such as --devices cpu:2."
        if self.strategy.is_partitioned:
            step = f"No training step of the script was divided over {devices}"
            why = f"{step} and could be computed twice."
            fix = "The lines above say which steps run on one device, and why."
        text = house_form("RUN-024", "--verify compared nothing with one device.", why, fix)
        # Continuation lines of notes are indented.
        self.notes.add(text.replace("\n", "\n  "))

    def record(
        self, folder: Path, diagnose: Callable[[str, int], Mapping[str, Any]] | None = None
    ) -> Recording:
        """Return the record of this session, which has not run yet.

        With several workers, each has a folder in the given one: ``worker-0``, and ``worker-0.1``
        for its first replacement; the first one calls ``diagnose`` with the script and the number
        of devices.
        """
        from evener.recording.record import Recording
        from evener.workers.process import group_of_process

        group = group_of_process()
        if group is not None:
            incarnation = f".{group.incarnation}" if group.incarnation else ""
            folder = folder / f"worker-{group.index}{incarnation}"
        diagnosis = None
        if diagnose is not None and (group is None or group.index == 0):
            diagnosis = diagnose(self.script.path, len(self.strategy.plan.device_names))
        return Recording(
            folder,
            self.strategy,
            command=["evener", *sys.argv[1:]],
            notes=lambda: [str(note) for note in self.notes.printed],
            diagnosis=diagnosis,
        )


def prepare(
    script: Script, layout: RunLayout, *, gpu_names: bool = True, hoist: bool = True
) -> Session:
    """Start TensorFlow on the devices, and create the strategy of the run."""
    check_installed()
    from evener.devices import use_devices
    from evener.strategy import Strategy
    from evener.workers.process import draw_seed, group_of_process, seed_all

    devices = layout.devices
    notes = Notes()
    # Before the script can change the environment, and before TensorFlow starts.
    named = devices if layout.plan is None or devices is not None else layout.plan.device_names
    resumption, seed = None, draw_seed
    if layout.checkpoint is not None:
        from evener.run.resuming import Resumption, seed_of

        resumption = Resumption(layout.checkpoint, layout.every_steps, notes)
        seed = functools.partial(seed_of, layout.checkpoint)
    if group_of_process(script.path, notes.add, seed, named) is None and resumption is not None:
        seed_all(seed())
    if layout.plan is not None and devices is not None:
        # The plan names logical devices, which this makes.
        use_devices(devices)
        devices = None
    strategy = Strategy(layout.plan, devices=devices, shares=layout.shares, verify=layout.verify)
    if len(layout.tried) > 1:
        strategy.try_plans(layout.tried, notes.add)
    return Session(
        script,
        strategy,
        notes,
        gpu_names=gpu_names,
        hoist=hoist,
        verify=layout.verify is True,
        resumption=resumption,
    )
