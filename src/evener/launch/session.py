"""One run of a script on all devices, from the options to the last line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evener.errors import RunError
from evener.launch.failure import show_failures_of
from evener.launch.notes import Notes
from evener.launch.script import Script, run_as_main

if TYPE_CHECKING:
    from evener.engine import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the command line says about devices; at most a plan, or the other two.

    Args:
        devices: A device spec; None for the environment's, else all.
        plan: The file of a plan in JSON.
        shares: Relative shares, ``"even"``, or None to have them measured.
    """

    devices: str | None = None
    plan: Path | None = None
    shares: str | Sequence[float] | None = None


class Session:
    """A script and the strategy that it will get.

    Args:
        script: What will run.
        strategy: What takes part in it.
        notes: What is said on the way.
    """

    def __init__(self, script: Script, strategy: Strategy, notes: Notes) -> None:
        self.script = script
        self.strategy = strategy
        self.notes = notes

    def run(self, args: Sequence[str]) -> None:
        """Run the script to its end; whatever it raises comes out.

        Args:
            args: What follows the script on the command line.
        """
        from evener.launch import loops, mistakes, models, settings, strategies

        strategies.replace_strategies(self.strategy, self.notes)
        models.adopt_models(self.strategy, self.notes)
        loops.run_loops(self.strategy, self.notes)
        mistakes.refuse_mistakes()
        settings.skip_late_settings(self.strategy.plan.device_names, self.notes)
        settings.watch_environment(os.environ, self.notes)
        try:
            run_as_main(self.script, args)
        except SystemExit:
            raise
        except BaseException:
            show_failures_of(self.script.path)
            raise


def prepare(script: Script, layout: Layout) -> Session:
    """Start TensorFlow on the devices, and make the strategy that the script gets.

    Raises:
        RunError: RUN-004 if Keras runs on another backend than TensorFlow.
        EvenerError: What `evener.Strategy` and `evener.Plan.from_json` raise.
    """
    _check_backend(os.environ.get("KERAS_BACKEND", "tensorflow"))
    import keras

    _check_backend(keras.config.backend())
    from evener.engine import Strategy
    from evener.plan import Plan

    plan = None
    if layout.plan is not None:
        plan = Plan.from_json(layout.plan.read_text(encoding="utf-8"))
    strategy = Strategy(plan, devices=layout.devices, shares=layout.shares)
    return Session(script, strategy, Notes())


def _check_backend(name: str) -> None:
    if name not in ("", "tensorflow"):
        raise RunError(
            "RUN-004",
            f"Keras runs on {name}.",
            why="evener trains Keras models on TensorFlow, and the backend is fixed when Keras "
            "is imported.",
            fix="set KERAS_BACKEND=tensorflow, which goes before Keras's own file of settings.",
        )
