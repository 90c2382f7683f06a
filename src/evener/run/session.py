"""One run of a script on all devices."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evener.plan import Plan
from evener.run.failure import show_failures_of
from evener.run.notes import Notes
from evener.run.output import WorkerLog, divert_output
from evener.run.script import Script, run_as_main
from evener.versions import check_installed

if TYPE_CHECKING:
    from evener.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The devices of a run: a plan, or devices and shares.

    Args:
        devices: A device spec; None for ``EVENER_DEVICES``, else all. With a plan: for which
            devices it was made; None for any that have its names.
        plan: A plan; excludes shares.
        shares: Relative shares, ``"even"``, or None to measure them.
        verify: Whether the first run of every step is compared with one device; None for a few
            samples of it.
        tried: Plans to try in steps of the run, from the simplest to the least simple, with
            ``plan`` among them; empty to keep the plan.
    """

    devices: str | None = None
    plan: Plan | None = None
    shares: str | Sequence[float] | None = None
    verify: bool | None = None
    tried: Sequence[Plan] = ()


class Session:
    """A script and its strategy.

    Args:
        script: The script.
        strategy: The strategy of the run.
        notes: The notes about the script.
        gpu_names: Whether CPU devices appear as GPUs, where there is no GPU.
        hoist: Whether training steps that run eagerly become functions.
        verify: Whether the first run of every step is to be compared with one device.
    """

    def __init__(
        self,
        script: Script,
        strategy: Strategy,
        notes: Notes,
        *,
        gpu_names: bool = True,
        hoist: bool = True,
        verify: bool = False,
    ) -> None:
        self.script = script
        self.strategy = strategy
        self.notes = notes
        self.gpu_names = gpu_names
        self.hoist = hoist
        self.verify = verify
        self._log: WorkerLog | None = None

    @property
    def is_shown(self) -> bool:
        """Whether the output of this process appears, and not that of another worker."""
        return self._log is None

    def run(self, args: Sequence[str]) -> None:
        """Run the script; its exceptions are not caught.

        Args:
            args: The command line arguments of the script.
        """
        from evener.run import (
            gpu_names,
            legacy_keras,
            loops,
            mistakes,
            models,
            settings,
            strategies,
        )
        from evener.run.hoisting import Hoister, hoisted
        from evener.run.idle_devices import IdleDevices
        from evener.run.unverified import report_unverified
        from evener.workers.faults import EXIT_CODE_OF_LOST, is_lost
        from evener.workers.process import group_of_process

        self._log = divert_output(group_of_process(), self.notes.add, os.environ)
        strategies.replace_strategies(self.strategy, self.notes)
        models.attach_models(self.strategy, self.notes)
        hoister = None
        script = self.script
        if self.hoist:
            hoister = Hoister(self.strategy, self.notes, is_outside=loops.outside(self.strategy))
            script = hoisted(script, hoister)
        loops.run_loops(self.strategy, self.notes, hoister)
        mistakes.refuse_mistakes()
        legacy_keras.attach_legacy_models(self.strategy, self.notes)
        settings.skip_late_settings(self.strategy.plan.device_names, self.notes)
        if self.gpu_names:
            devices = self.strategy.plan.device_names
            gpu_names.answer_as_gpus(devices, self.notes.add, are_trained_on=True)
        settings.refuse_other_backends()
        settings.report_late_variables(os.environ, self.notes)
        idle = IdleDevices(self.strategy, self.notes, hoister)
        idle.watch()
        # Before the report of the run, which has all notes: it was registered earlier.
        atexit.register(idle.report)
        if self.verify:
            atexit.register(report_unverified(self.strategy, self.notes))
        try:
            run_as_main(script, args)
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


def prepare(
    script: Script, layout: Layout, *, gpu_names: bool = True, hoist: bool = True
) -> Session:
    """Start TensorFlow on the devices, and create the strategy of the run.

    Args:
        script: The script.
        layout: The devices.
        gpu_names: Whether CPU devices appear as GPUs, where there is no GPU.
        hoist: Whether training steps that run eagerly become functions.

    Raises:
        RunError: RUN-004 if the backend of Keras is not TensorFlow.
        EvenerError: The errors of `evener.Strategy` and `check_installed`.
    """
    check_installed()
    from evener.devices import use_devices
    from evener.strategy import Strategy

    devices = layout.devices
    if layout.plan is not None and devices is not None:
        # The plan names logical devices, which this makes.
        use_devices(devices)
        devices = None
    from evener.workers.process import group_of_process

    notes = Notes()
    # Before the script can change the environment.
    group_of_process(script.path, tell=notes.add)
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
    )
