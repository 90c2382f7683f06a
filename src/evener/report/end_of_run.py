"""End of a run of a script: it is compared with its plan, and its report printed or written."""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import Literal

from evener.plan import Plan
from evener.recording.measured import count_work
from evener.report.script_run import compare_with_plan, print_report, report_of
from evener.run.session import Session


def report_at_the_end(
    session: Session,
    plan: Plan | None,
    *,
    printed: Literal["text", "json"] | None,
    file: Path | None,
) -> None:
    """Count the work of a run from now on, and report it when the process ends.

    Call it before the script runs: modules of the script may have the names of modules that the
    report imports, and an import that executes code at exit loses the exit status of Ctrl-C.

    Args:
        session: Session, which has not run yet.
        plan: Plan that was given; its prediction is compared with the run (PROF-055).
        printed: Form of the report, ``"text"`` or ``"json"``; None to print none.
        file: File for the report as JSON, or None.
    """
    if not session.strategy.share_controller.counts:
        count_work(session.strategy)
    process = os.getpid()
    # The script may change the folder.
    path = None if file is None else file.absolute()

    def at_exit() -> None:
        # Forks of the script exit too.
        if os.getpid() != process:
            return
        # All workers have the same program and options: the report is there once.
        if not session.is_shown:
            return
        # Another plan may have been faster in a trial.
        given = plan if session.strategy.runs_by(plan) else None
        compare_with_plan(given, session.strategy, session.notes.add)
        if path is None and printed is None:
            return
        notes = [str(note) for note in session.notes.printed]
        found = report_of(session.script.given, session.strategy, notes, plan=given)
        if path is not None:
            try:
                path.write_text(f"{found.to_json()}\n", encoding="utf-8")
            except OSError as error:
                session.notes.add(f"{path} cannot be written: {error.strerror}")
        if printed is not None:
            print_report(found, as_json=printed == "json")

    # The first registered function runs last, after the output of the script.
    atexit.register(at_exit)
