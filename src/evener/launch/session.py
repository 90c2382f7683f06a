"""One run of a script on all devices, from the options to the last line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evener.errors import RunError
from evener.launch.failure import show_failures_of
from evener.launch.notes import Notes
from evener.launch.script import Script, run_as_main
from evener.plan import Plan
from evener.versions import check_installed

if TYPE_CHECKING:
    from evener.engine import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the command line says about devices; at most a plan, or the other two.

    Args:
        devices: A device spec; None for the environment's, else all.
        plan: A plan, instead of both.
        shares: Relative shares, ``"even"``, or None to have them measured.
        verify: Whether the first run of every step is compared with one device.
    """

    devices: str | None = None
    plan: Plan | None = None
    shares: str | Sequence[float] | None = None
    verify: bool = False


class Session:
    """A script and the strategy that it will get.

    Args:
        script: What will run.
        strategy: What takes part in it.
        notes: What is said on the way.
        gpu_names: Whether CPU devices answer as GPUs, where there is no GPU.
    """

    def __init__(
        self, script: Script, strategy: Strategy, notes: Notes, *, gpu_names: bool = True
    ) -> None:
        self.script = script
        self.strategy = strategy
        self.notes = notes
        self.gpu_names = gpu_names

    def run(self, args: Sequence[str]) -> None:
        """Run the script to its end; whatever it raises comes out.

        Args:
            args: What follows the script on the command line.
        """
        from evener.launch import gpu_names, loops, mistakes, models, settings, strategies

        strategies.replace_strategies(self.strategy, self.notes)
        models.adopt_models(self.strategy, self.notes)
        loops.run_loops(self.strategy, self.notes)
        mistakes.refuse_mistakes()
        settings.skip_late_settings(self.strategy.plan.device_names, self.notes)
        if self.gpu_names:
            devices = self.strategy.plan.device_names
            gpu_names.answer_as_gpus(devices, self.notes.tell, are_trained_on=True)
        settings.watch_environment(os.environ, self.notes)
        try:
            run_as_main(self.script, args)
        except SystemExit:
            raise
        except BaseException:
            show_failures_of(self.script.path)
            raise


def prepare(script: Script, layout: Layout, *, gpu_names: bool = True) -> Session:
    """Start TensorFlow on the devices, and make the strategy that the script gets.

    Args:
        script: What will run.
        layout: Its devices.
        gpu_names: Whether CPU devices answer as GPUs, where there is no GPU.

    Raises:
        RunError: RUN-004 if Keras runs on another backend than TensorFlow.
        EvenerError: What `evener.Strategy` raises, and `check_installed`.
    """
    _check_backend(os.environ.get("KERAS_BACKEND", "tensorflow"))
    check_installed()
    import keras

    _check_backend(keras.config.backend())
    from evener.engine import Strategy

    strategy = Strategy(
        layout.plan, devices=layout.devices, shares=layout.shares, verify=layout.verify
    )
    return Session(script, strategy, Notes(), gpu_names=gpu_names)


def _check_backend(name: str) -> None:
    if name not in ("", "tensorflow"):
        raise RunError(
            "RUN-004",
            f"Keras runs on {name}.",
            why="evener trains Keras models on TensorFlow, and the backend is fixed when Keras "
            "is imported.",
            fix="set KERAS_BACKEND=tensorflow, which goes before Keras's own file of settings.",
        )
