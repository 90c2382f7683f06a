"""Scripts and modules run as Python runs them: held against Python, in processes of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import evener
from evener.errors import RunError
from evener.run.script import read_module, read_script

# What a session does, without TensorFlow.
RUN = """
import sys
from evener.run.script import show_failures_of
from evener.run.script import read_module, read_script, run_as_main
read = read_script
if sys.argv[1] == "-m":
    read = read_module
    sys.argv.pop(1)
script = read(sys.argv[1])
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
    # A forked process has a copy of what is buffered, and may be ended before it writes it again.
    env["PYTHONUNBUFFERED"] = "1"
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


# Not the hook, which prints where Python begins; and Python's own pool never ends in a package.
MODULES = [
    (name, kind)
    for name in ("train", "package.train", "package")
    for kind in SCRIPTS
    if kind != "a hook of its own" and (name, kind) != ("package", "pickles and processes")
]


@pytest.mark.parametrize(("name", "kind"), MODULES)
def test_a_module_is_as_if_python_ran_it(name: str, kind: str, tmp_path: Path) -> None:
    source = SCRIPTS[kind]
    encoding = "latin-1" if "latin-1" in source else "utf-8"
    inner = "__main__" if name == "package" else "train"
    file = tmp_path / "train.py" if name == "train" else tmp_path / "package" / f"{inner}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(textwrap.dedent(source), encoding=encoding)
    (tmp_path / "neighbour.py").write_text("NAME = __name__")
    if name != "train":
        (tmp_path / "package/__init__.py").write_text("print('the package', __name__)")
    words = ("-m", name, "--devices", "x", "--", "-h")
    expected = python(*words, folder=tmp_path)
    done = python("-c", RUN, *words, folder=tmp_path)
    assert (done.returncode, shown(done.stdout)) == (expected.returncode, shown(expected.stdout))
    assert shown(done.stderr) == shown(expected.stderr)


def test_a_module_may_import_what_is_beside_it(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("")
    (tmp_path / "package/other.py").write_text("NAME = __name__")
    (tmp_path / "package/train.py").write_text("from .other import NAME\nprint(NAME)")
    done = python("-c", RUN, "-m", "package.train", folder=tmp_path)
    assert done.stdout == "package.other\n", done.stderr


def shown(text: str) -> list[str]:
    """Leave out addresses, and the frames in which Python finds and runs a module."""
    lines = [re.sub("0x[0-9a-f]+", "0x", line) for line in text.splitlines()]
    left_out = ('File "<frozen ', "Traceback (most recent call last)")
    return [line for line in lines if not any(part in line for part in left_out)]


IMPORTS = {
    "statement": "import rich.style",
    "names": "from rich.console import Console",
    "by name": "import importlib; importlib.import_module('rich.text')",
    "a part": "from rich import text",
    "in a module of its own": "import neighbour",
    "a module of its own, of that name": "import package.train",
    "twice": "import rich.style, rich.text",
    "parts that do not draw": "from rich import print",
    "none": "",
}


@pytest.mark.parametrize("imports", IMPORTS.values(), ids=IMPORTS)
def test_imports_draw_though_the_module_is_loaded(imports: str, tmp_path: Path) -> None:
    source = f"import random; random.seed(1); random.random(); {imports}\nprint(random.random())"
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "neighbour.py").write_text("import rich.style")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/keras.py").write_text("x = 1")
    (tmp_path / "package/train.py").write_text("from .keras import x")
    expected = python("train.py", folder=tmp_path)
    done = python("-c", f"import rich.console\n{RUN}", "train.py", folder=tmp_path)
    assert (done.stdout, done.stderr) == (expected.stdout, expected.stderr)


@pytest.mark.parametrize("name", ["tensorflow", "keras"])
def test_the_libraries_draw_once_when_they_are_imported(name: str, tmp_path: Path) -> None:
    source = """if True:
        import random
        import numpy as np
        def draws():
            return random.random(), np.random.rand()
        random.seed(1), np.random.seed(1)
        import LIBRARY
        first = draws()
        random.seed(1), np.random.seed(1), random.getrandbits(24)
        print(first == draws())
    """
    (tmp_path / "train.py").write_text(source.replace("LIBRARY", name))
    done = python("train.py", folder=tmp_path)
    assert done.stdout == "True\n", done.stderr
    done = python("-c", f"import {name}\n{RUN}", "train.py", folder=tmp_path)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("name", ["gone", "sys", "package", "package.gone", "a..b", ""])
def test_what_is_no_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__init__.py").write_text("raise SystemExit('imported too early')")
    monkeypatch.chdir(tmp_path)
    before = sys.path[:]
    with pytest.raises(RunError, match="RUN-021"):
        read_module(name)
    assert sys.path == before


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
    [
        ("gone.py", "RUN-001"),
        (".", "RUN-002"),
        ("image.py", "RUN-003"),
        ("nulls.py", "RUN-003"),
        ("lesson.ipynb", "RUN-026"),
    ],
)
def test_what_is_no_script(name: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "image.py").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    (tmp_path / "nulls.py").write_bytes(b"x = 1\0")
    with pytest.raises(RunError, match=code) as caught:
        read_script(str(tmp_path / name))
    assert caught.value.code == code
