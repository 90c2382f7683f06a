"""Live view of a run of a script, and of a job of several workers."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evener.report.live.job import FOLDER, FileScreen, JobState
from evener.report.live.screen import Screen, can_draw, screen_of_process
from evener.report.live.view import LiveView

_IN_PLACE = "EVENER_LIVE_IN_PLACE"


def is_wanted(live: bool | None, environ: Mapping[str, str]) -> bool:
    """Return whether a command shows a live view.

    Args:
        live: Whether the user asks for it; None for the default: on a terminal.
        environ: Environment variables.
    """
    if live is None:
        return FOLDER in environ or can_draw({**environ, "NO_COLOR": ""})
    return live


@contextlib.contextmanager
def live_run(strategy: Any, environ: Mapping[str, str]) -> Iterator[None]:
    """Show the training of a strategy in the block, where ``fit`` is followed by itself.

    Args:
        strategy: Strategy that has run no step yet.
        environ: Environment variables.
    """
    from evener._tf_private.fits import adding_callbacks
    from evener.recording.watch import watching
    from evener.report.live.fit import FitProgress
    from evener.report.live.source import StrategySource
    from evener.workers.process import group_of_process

    group = group_of_process()
    worker = None if group is None else group.index
    screen = _screen(worker, environ)
    source = StrategySource(strategy, worker=worker)
    fits: list[FitProgress] = []

    def begin(fit: FitProgress) -> None:
        fits[:] = [fit]

    def say_event(event: Mapping[str, Any]) -> None:
        # Notes and warnings are printed anyway.
        if event["event"] in ("shares", "log"):
            screen.say(f"evener: {event['text']}")

    with (
        watching(say_event),
        adding_callbacks(
            lambda: FitProgress(screen.say, begin=begin), replaces_bar=lambda: screen.replaces_bar
        ),
        LiveView(screen, lambda: source.state(fits[0] if fits else None)),
    ):
        yield


@contextlib.contextmanager
def live_job(environ: dict[str, str] | os._Environ[str]) -> Iterator[None]:
    """Show the training of the workers that are started in the block.

    Args:
        environ: Environment that workers get; it names the folder of their files in the block.
    """
    with tempfile.TemporaryDirectory(prefix="evener-live-") as folder:
        screen = screen_of_process(environ)
        environ[FOLDER] = folder
        environ[_IN_PLACE] = "1" if screen.replaces_bar else ""
        try:
            with LiveView(screen, JobState(Path(folder), screen).state):
                yield
        finally:
            del environ[FOLDER], environ[_IN_PLACE]


def _screen(worker: int | None, environ: Mapping[str, str]) -> Screen:
    if worker is not None and FOLDER in environ:
        return FileScreen(Path(environ[FOLDER]), worker, replaces_bar=bool(environ.get(_IN_PLACE)))
    return screen_of_process(environ)
