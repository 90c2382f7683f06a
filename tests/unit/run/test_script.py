"""Scripts and modules run as Python runs them: held against Python, in processes of their own."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

import evener
from evener.base.user_code import is_own
from evener.errors import RunError
from evener.run import script as module
from evener.run.script import Loading, Notes, UserLine, read_module, read_script, user_line

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


# Not the hook in modules, which prints where Python begins; and Python's own pool never ends in a
# package.
WAYS = [
    (name, kind)
    for name in ("scripts/train.py", "train", "package.train", "package")
    for kind in SCRIPTS
    if (name, kind) != ("package", "pickles and processes")
    and (name == "scripts/train.py" or kind != "a hook of its own")
]


@pytest.mark.parametrize(("name", "kind"), WAYS)
def test_it_is_as_if_python_ran_it(name: str, kind: str, tmp_path: Path) -> None:
    source = SCRIPTS[kind]
    file = {
        "train": "train.py",
        "package.train": "package/train.py",
        "package": "package/__main__.py",
    }
    path = tmp_path / file.get(name, name)
    path.parent.mkdir(exist_ok=True)
    encoding = "latin-1" if "latin-1" in source else "utf-8"
    path.write_text(textwrap.dedent(source), encoding=encoding)
    for folder in (tmp_path, path.parent):
        (folder / "neighbour.py").write_text("NAME = __name__")
    is_script = name.endswith(".py")
    if name.startswith("package"):
        (tmp_path / "package/__init__.py").write_text("print('the package', __name__)")
    words = (*(() if is_script else ("-m",)), name, "--devices", "x", "--", "-h")
    expected = python(*words, folder=tmp_path)
    done = python("-c", RUN, *words, folder=tmp_path)
    seen = str if is_script else shown
    assert (done.returncode, seen(done.stdout)) == (expected.returncode, seen(expected.stdout))
    assert seen(done.stderr) == seen(expected.stderr)


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


@pytest.mark.long
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


def test_two_may_wait_for_the_same_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As TensorFlow and Keras do, the outer imports the inner, and is not whole then."""
    (tmp_path / "outer_module.py").write_text("import inner_module\nwhole = True\n")
    (tmp_path / "inner_module.py").write_text("import outer_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seen = list[tuple[str, bool]]()

    def see(name: str) -> None:
        seen.append((name, hasattr(sys.modules["outer_module"], "whole")))

    Loading(("outer_module", "inner_module"), lambda: see("both")).watch()
    Loading(("outer_module",), lambda: see("outer")).watch()
    try:
        importlib.import_module("outer_module")
    finally:
        for name in ("outer_module", "inner_module"):
            sys.modules.pop(name, None)
    assert sorted(seen) == [("both", True), ("outer", True)]


def test_a_note_is_printed_once_for_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    notes = Notes()
    for line in (3, 3, 4):
        notes.add("replaced", UserLine(path="/elsewhere/train.py", number=line))
    notes.add("about no line")
    said = [
        "evener: /elsewhere/train.py:3: replaced",
        "evener: /elsewhere/train.py:4: replaced",
        "evener: about no line",
    ]
    assert capsys.readouterr() == ("", "\n".join(said) + "\n")
    assert list(map(str, notes.printed)) == said


@pytest.mark.parametrize(
    "file",
    [
        f"{sysconfig.get_path('stdlib')}/runpy.py",
        f"{sysconfig.get_path('purelib')}/keras/src/models/model.py",
        "/home/me/.local/lib/python3.11/site-packages/mine.py",
        "/usr/lib/python3/dist-packages/mine.py",
        "/tmp/__autograph_generated_fileabc.py",
        "<frozen runpy>",
        evener.__file__,
        module.__file__,
    ],
)
def test_libraries_and_evener_are_not_own(file: str) -> None:
    assert not is_own(file)


def test_a_file_beside_a_virtual_environment_is_own() -> None:
    assert is_own(str(Path(sysconfig.get_path("purelib")).parents[3] / "train.py"))
    assert is_own(__file__)


def test_the_user_line_is_the_line_of_the_caller() -> None:
    here = user_line()
    assert here is not None
    assert (here.path, here.function) == (__file__, "test_the_user_line_is_the_line_of_the_caller")
    assert (
        here.as_in_a_traceback() == f'  File "{__file__}", line {here.number}, in {here.function}'
    )


def test_the_path_of_a_line_is_relative_where_it_can_be(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(UserLine(path=str(tmp_path / "train.py"), number=3)) == "train.py:3"
    assert str(UserLine(path="/elsewhere/train.py", number=3)) == "/elsewhere/train.py:3"
