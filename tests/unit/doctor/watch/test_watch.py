"""Programs that end in every bad way are seen so, and leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evener.doctor import Finding, diagnose
from evener.doctor.diagnosis import judge, read_program
from evener.doctor.facts import CodeLine, Facts, Outcome
from evener.doctor.surroundings import Surroundings
from evener.doctor.watch import WatchLimits, watch
from evener.errors import RunError

ROOT = Path(__file__).parents[4]
LONG = 60.0
SHORT = 4.0
Watched = Callable[..., Facts]
# Every process of a watched program inherits it.
MARK = "EVENER_TEST_WATCH"


def marked_processes(mark: str) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"{MARK}={mark}".encode() in environment.split(b"\0"):
                found.add(int(entry.name))
    return found


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Watch a program; afterwards no process, no file of it or of the doctor may be there."""
    folder, temporary = tmp_path / "project", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    script = folder / "train.py"

    def run(code: str, *args: str, seconds: float = LONG, **options: Any) -> Facts:
        script.write_text(textwrap.dedent(code), encoding="utf-8")
        limits = WatchLimits(time_limit_seconds=seconds, grace_seconds=0.3)
        return watch(script, args, limits=limits, **options)

    yield run
    assert marked_processes(str(tmp_path)) == set()
    assert list(temporary.iterdir()) == []
    assert list(folder.iterdir()) == [script]


def line_of(seen: CodeLine | None) -> int:
    assert seen is not None
    assert seen.file == str(Path("train.py").absolute())
    return seen.line


def finding_of(seen: Facts, code: str) -> Finding:
    found, _ = judge(seen, read_program(Path("train.py")), Surroundings())
    (finding,) = [finding for finding in found if finding.code == code]
    return finding


def test_a_program_without_training_comes_to_its_end(watched: Watched) -> None:
    seen = watched("print('hello')")
    assert (seen.ending.outcome, seen.ending.exit_code, seen.steps) == (Outcome.FINISHED, 0, ())
    assert seen.ending.output_tail == "hello\n"
    assert finding_of(seen, "DOC-012").what == "the program came to its end before it trained."


def test_folder_arguments_and_input_are_those_of_a_script(watched: Watched) -> None:
    code = """
        import os, sys
        print(sys.argv[1:], sys.path[0] == os.getcwd(), __name__, sys.argv[0] == __file__)
        print(repr(sys.stdin.read()))
        os.chdir("/")
        """
    seen = watched(code, "--lr", "0.1")
    assert seen.ending.output_tail == "['--lr', '0.1'] True __main__ True\n''\n"
    assert seen.ending.outcome is Outcome.FINISHED


def test_modules_of_the_project_are_found_and_not_compiled_into_its_folder(
    watched: Watched,
) -> None:
    Path("nets.py").write_text("width = 3\n", encoding="utf-8")
    seen = watched("import nets\nprint(nets.width, nets.__file__)")
    assert seen.ending.output_tail == f"3 {Path('nets.py').absolute()}\n"
    Path("nets.py").unlink()


def test_a_program_that_hangs_is_ended_where_it_stands(watched: Watched) -> None:
    code = """
        import time
        def wait():
            time.sleep(600)
        wait()
        """
    seen = watched(code, seconds=SHORT)
    assert (seen.ending.outcome, seen.ending.exit_code) == (Outcome.TIMED_OUT, None)
    assert line_of(seen.ending.where) == 4
    finding = finding_of(seen, "DOC-010")
    assert (finding.line, finding.evidence[0]) == (4, "time.sleep(600)")


@pytest.mark.long
def test_a_program_that_reacts_to_nothing_is_ended_too(watched: Watched) -> None:
    code = """
        import signal, sys
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: print("no", flush=True))
        while True:
            pass
        """
    seen = watched(code, seconds=SHORT)
    assert seen.ending.outcome is Outcome.TIMED_OUT
    assert line_of(seen.ending.where) in (5, 6)
    assert "no" in seen.ending.output_tail


def test_an_exception_is_seen_at_the_innermost_own_line(watched: Watched) -> None:
    code = """
        import json
        def load():
            try:
                {}["x"]
            except KeyError as error:
                raise ValueError("cannot load") from error
        def main():
            json.loads('1', object_hook=None, parse_int=lambda text: load())
        main()
        """
    seen = watched(code)
    assert seen.ending.outcome is Outcome.CRASHED
    assert seen.ending.raised is not None
    assert (seen.ending.raised.kind, seen.ending.raised.message) == ("ValueError", "cannot load")
    assert line_of(seen.ending.raised.where) == 7
    assert "KeyError" in seen.ending.output_tail
    assert "evener" not in seen.ending.output_tail
    finding = finding_of(seen, "DOC-011")
    assert finding.line == 7
    assert finding.what == "the program ended with ValueError: cannot load"


def test_a_code_of_evener_is_kept(watched: Watched) -> None:
    code = """
        from evener.errors import PlanError
        raise PlanError("PLAN-999", "It does not fit.", why="17 of 14 GiB.", fix="add one.")
        """
    seen = watched(code)
    assert seen.ending.raised is not None
    assert seen.ending.raised.code == "PLAN-999"
    assert "code: PLAN-999" in finding_of(seen, "DOC-011").evidence


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys\nsys.exit(3)", 3),
        ("import sys\nsys.exit('no data')", 1),
        ("import os\nos._exit(3)", 3),
        ("import sys\nsys.exit()", 0),
    ],
)
def test_an_exit_is_seen_with_its_line(watched: Watched, code: str, status: int) -> None:
    seen = watched(code)
    assert (seen.ending.outcome, seen.ending.exit_code) == (Outcome.EXITED, status)
    assert line_of(seen.ending.where) == 2
    assert f"exit code {status}" in finding_of(seen, "DOC-012").evidence


def test_wrong_arguments_are_told_as_such(watched: Watched) -> None:
    code = """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--data", required=True)
        parser.parse_args()
        """
    seen = watched(code)
    assert (seen.ending.exit_code, line_of(seen.ending.where)) == (2, 5)
    finding = finding_of(seen, "DOC-012")
    assert "arguments" in finding.fix
    assert "--data" in finding.evidence[2]


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_a_signal_is_a_crash(watched: Watched, name: str) -> None:
    seen = watched(f"import os, signal\n\nos.kill(os.getpid(), signal.{name})\n")
    assert (seen.ending.outcome, seen.ending.exit_code) == (Outcome.CRASHED, -getattr(signal, name))
    assert seen.ending.raised is not None
    assert seen.ending.raised.kind == name
    if name == "SIGKILL":  # Nobody can see it coming.
        assert seen.ending.raised.where is None
    else:
        assert line_of(seen.ending.raised.where) == 3
    assert name in finding_of(seen, "DOC-011").what


ENDLESS = "while True: time.sleep(0.05)"


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            f"""
            import os, time
            if os.fork() == 0:
                {ENDLESS}
            """,
            id="fork",
        ),
        pytest.param(
            f"""
            import os, time
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    {ENDLESS}
                os._exit(0)
            os.wait()
            """,
            id="double fork in another session",
        ),
        pytest.param(
            f"""
            import os, signal, time
            if os.fork() == 0:
                os.setsid()
                os.closerange(0, 1000)
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.fork()
                {ENDLESS}
            """,
            id="daemons that ignore SIGTERM",
        ),
        pytest.param(
            """
            import subprocess
            subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
            """,
            id="another program",
        ),
    ],
)
def test_what_outlives_the_program_is_ended(watched: Watched, code: str) -> None:
    # That no process is left, the fixture checks after every test.
    assert watched(code).ending.outcome is Outcome.FINISHED


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_of_multiprocessing_work(watched: Watched, method: str) -> None:
    code = f"""
        import multiprocessing
        def double(x):
            return 2 * x
        if __name__ == "__main__":
            with multiprocessing.get_context("{method}").Pool(2) as pool:
                print(pool.map(double, range(4)))
        """
    seen = watched(code)
    assert seen.ending.output_tail == "[0, 2, 4, 6]\n"
    assert seen.ending.outcome is Outcome.FINISHED


def test_a_fork_that_fails_is_not_the_program(watched: Watched) -> None:
    code = """
        import os
        if os.fork() == 0:
            raise ValueError("in the child")
        os.wait()
        """
    seen = watched(code)
    assert (seen.ending.outcome, seen.ending.raised) == (Outcome.FINISHED, None)
    assert "in the child" in seen.ending.output_tail


def test_a_fork_after_the_start_of_tensorflow_is_seen(watched: Watched) -> None:
    code = """
        import os
        import tensorflow as tf
        tf.zeros(1)
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        """
    (fork,) = [each for each in watched(code).settings if each.name == "fork"]
    assert fork.where is not None and fork.read_at is not None
    assert (fork.where.line, fork.read_at.line) == (5, 4)


def test_of_much_output_the_end_is_kept(watched: Watched) -> None:
    seen = watched(
        """
        import os
        for _ in range(64):
            os.write(1, b"x" * 1_000_000)
        print("the end")
        """
    )
    assert seen.ending.output_tail.endswith("xthe end\n")
    assert len(seen.ending.output_tail) <= 16 * 1024


def test_closed_files_do_not_end_the_watching(watched: Watched) -> None:
    code = """
        import os
        os.closerange(0, 10_000)
        raise ValueError("nobody can print this")
        """
    seen = watched(code)
    assert seen.ending.raised is not None
    assert line_of(seen.ending.raised.where) == 4


def test_an_exception_in_a_thread_ends_no_program(watched: Watched) -> None:
    code = """
        import threading
        def work():
            raise ValueError("in a thread")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        """
    seen = watched(code)
    assert (seen.ending.outcome, seen.ending.raised) == (Outcome.FINISHED, None)
    assert "in a thread" in seen.ending.output_tail


def test_what_cannot_be_read_is_not_run(watched: Watched, tmp_path: Path) -> None:
    watched("print('there must be a script')")
    with pytest.raises(RunError, match="RUN-001"):
        watch(tmp_path / "nowhere.py")
    Path("train.py").write_text("import os\nos.write(1, b'ran'\n", encoding="utf-8")
    diagnosis = diagnose("train.py")
    assert ([finding.code for finding in diagnosis.findings], diagnosis.facts) == (
        ["DOC-001"],
        None,
    )
    assert [finding.code for finding in diagnose("gone.py").findings] == ["DOC-002"]


def test_diagnose_joins_what_is_read_and_what_is_seen(watched: Watched) -> None:
    watched("raise SystemExit(4)")
    diagnosis = diagnose("train.py", time_limit_seconds=LONG)
    assert diagnosis.facts is not None
    assert diagnosis.facts.ending.exit_code == 4
    assert "DOC-012" in [finding.code for finding in diagnosis.findings]
    assert diagnosis.to_dict()["run"]["outcome"] == "exited"
    assert diagnose("train.py", run=False).facts is None


HANGS = "import os, time\nos.fork()\nprint('up', flush=True)\ntime.sleep(600)\n"
PARENT = """\
import sys
from evener.doctor.watch import WatchLimits, watch
print("watching", flush=True)
watch("train.py", limits=WatchLimits(time_limit_seconds=600))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_program_ends_with_the_doctor(
    watched: Watched, tmp_path: Path, number: signal.Signals
) -> None:
    # The fixture looks for what is left.
    watched("print('there must be a script')")
    ready = tmp_path / "ready"
    Path("train.py").write_text(f"open({str(ready)!r}, 'w').close()\n{HANGS}", encoding="utf-8")
    doctor = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.PIPE,
        text=True,
        # A background job ignores Ctrl-C, and so would every process that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_for(ready.exists)
        doctor.send_signal(number)
        _, said = doctor.communicate(timeout=LONG)
    finally:
        doctor.kill()
        doctor.wait()
    wait_for(lambda: not marked_processes(str(tmp_path)))
    if number is signal.SIGINT:
        assert re.search(r"^KeyboardInterrupt", said, re.MULTILINE)
    else:  # Nobody is left who could remove it.
        (left,) = (tmp_path / "temporary").iterdir()
        for file in left.iterdir():
            file.unlink()
        left.rmdir()


def wait_for(done: Callable[[], bool]) -> None:
    # Without a sleep: the system's own clock ends what does not come.
    ticks = subprocess.Popen(["sleep", str(LONG)], env={})
    try:
        while not done():
            assert ticks.poll() is None, "it did not come to that"
    finally:
        ticks.kill()
        ticks.wait()


WRITES = """\
import pathlib
pathlib.Path("log.txt").write_text("new")
pathlib.Path("kept.txt").write_text("changed")
print(pathlib.Path("log.txt").read_text(), pathlib.Path("kept.txt").read_text())
"""


def test_in_a_sandbox_nothing_is_written(watched: Watched) -> None:
    Path("kept.txt").write_text("as it was", encoding="utf-8")
    seen = watched(WRITES, sandbox=True)
    assert seen.ending.output_tail == "new changed\n"
    assert Path("kept.txt").read_text(encoding="utf-8") == "as it was"
    Path("kept.txt").unlink()


def test_where_no_sandbox_is_allowed_the_program_is_not_run(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process that cannot be started is the same as a system that refuses.
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunError, match="RUN-025"):
        watched("print('not run')", sandbox=True)
