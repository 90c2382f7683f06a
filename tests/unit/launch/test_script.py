"""Scripts run as Python runs them: held against Python, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import evener
from evener.errors import RunError
from evener.launch.script import read_script

# What a session does, without TensorFlow.
RUN = """
import sys
from evener.launch.failure import show_failures_of
from evener.launch.script import read_script, run_as_main
script = read_script(sys.argv[1])
try:
    run_as_main(script, sys.argv[2:])
except SystemExit:
    raise
except BaseException:
    show_failures_of(script.path)
    raise
"""

SCRIPTS = {
    "what it finds": """
        import sys
        print(__name__, __file__, __doc__, __package__, __spec__, sys.argv, sys.path[0])
        print(sorted(globals()), __builtins__, __annotations__)
        print(type(__loader__), sys.modules["__main__"].__dict__ is globals())
        import neighbour
        print(neighbour.NAME)
    """,
    "an exception": """
        def f(n):
            return f(n - 1) if n else 1 / 0
        print("before")
        f(2)
    """,
    "a chain": """
        try:
            {}["key"]
        except KeyError as error:
            raise RuntimeError("no key") from error
    """,
    "an exit code": "import sys; sys.exit(3)",
    "an exit text": "import sys; sys.exit('no data')",
    "an exit at the end": """
        import atexit, threading
        def late():
            threading.main_thread().join()
            print(__name__, late.__module__, here)
        here = "still"
        atexit.register(print, "at exit")
        threading.Thread(target=late).start()
    """,
    "a syntax error": "x = (1,\ny = 2 3",
    "a hook of its own": """
        import sys
        sys.excepthook = lambda kind, error, tb: print(kind, tb.tb_frame.f_code.co_name)
        raise ValueError
    """,
    "an end of file": "raise EOFError",
    "a broken pipe": "raise BrokenPipeError(32, 'pipe')",
    "ctrl-c": "import os, signal; os.kill(os.getpid(), signal.SIGINT); input()",
    "a termination": "import os, signal; os.kill(os.getpid(), signal.SIGTERM); input()",
    "a warning": "import warnings; warnings.warn('careful')",
    "pickles and processes": """
        import multiprocessing, pickle
        class Here: pass
        def double(x): return 2 * x
        if __name__ == "__main__":
            print(type(pickle.loads(pickle.dumps(Here()))) is Here)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
    """,
    "another encoding": "# -*- coding: latin-1 -*-\nprint('\u00e9' == chr(233), ascii('\u00e9'))",
}


def python(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(evener.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("source", SCRIPTS.values(), ids=SCRIPTS)
def test_it_is_as_if_python_ran_it(source: str, tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    encoding = "latin-1" if "latin-1" in source else "utf-8"
    (folder / "train.py").write_text(textwrap.dedent(source), encoding=encoding)
    (folder / "neighbour.py").write_text("NAME = __name__")
    words = ("scripts/train.py", "--devices", "x", "--", "-h")
    expected = python(*words, folder=tmp_path)
    done = python("-c", RUN, *words, folder=tmp_path)
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)
    assert done.stderr == expected.stderr


def test_an_error_of_evener_names_the_line_of_the_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import evener\ndef make():\n    evener.use_devices('gpu0')\nmake()\n")
    done = python("-c", RUN, "train.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    first, *_, last = done.stderr.splitlines()
    assert first.startswith("[DEV-002]")
    assert last == f'  File "{script}", line 3, in make'
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "code"),
    [("gone.py", "RUN-001"), (".", "RUN-002"), ("image.py", "RUN-003"), ("nulls.py", "RUN-003")],
)
def test_what_is_no_script(name: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "image.py").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    (tmp_path / "nulls.py").write_bytes(b"x = 1\0")
    with pytest.raises(RunError, match=code) as caught:
        read_script(str(tmp_path / name))
    assert caught.value.code == code
