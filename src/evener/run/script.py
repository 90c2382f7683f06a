"""A script: read and run as ``python FILE`` or ``python -m MODULE`` runs it; its lines and notes.

Without TensorFlow: the script decides when it is imported, and `Loading` notices. A failure is
shown as Python shows it, from the script's line on.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from evener.base.user_code import is_own, links_of, short_path, with_files
from evener.devices.names import qualified_name, without_worker
from evener.errors import EvenerError, RunError

if TYPE_CHECKING:
    from evener.strategy import Strategy

# An optimizer that these modules call is part of `fit`.
_TRAINERS = ("keras.src.backend.tensorflow.trainer", "keras.src.trainers", "tf_keras.src.engine.")


@dataclass(frozen=True, slots=True)
class UserLine:
    path: str  # The absolute path of the file
    number: int  # The line number, from 1
    function: str = "<module>"  # The enclosing function; ``"<module>"`` outside of functions

    def __str__(self) -> str:
        return f"{short_path(self.path)}:{self.number}"

    def as_in_a_traceback(self) -> str:
        return f'  File "{self.path}", line {self.number}, in {self.function}'


def callers() -> Iterator[FrameType]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def user_line() -> UserLine | None:
    return next((line_of(f) for f in callers() if is_own(f.f_code.co_filename)), None)


def line_of(frame: FrameType) -> UserLine:
    code = frame.f_code
    return UserLine(code.co_filename, frame.f_lineno, code.co_name)


def line_of_loop() -> UserLine | None:
    """Return the script's line, or None if Keras runs the loop or no line is the script's."""
    own: UserLine | None = None
    for frame in callers():
        if str(frame.f_globals.get("__name__", "")).startswith(_TRAINERS):
            return None
        if own is None and is_own(frame.f_code.co_filename):
            own = line_of(frame)
    return own


@dataclass(frozen=True, slots=True)
class Note:
    text: str  # The text; continuation lines are indented
    line: UserLine | None = None  # The script's line it refers to, or None

    def __str__(self) -> str:
        return ": ".join(str(part) for part in ("evener", self.line, self.text) if part)


class Notes:
    """Prints notes to standard error; standard output is the script's."""

    def __init__(self) -> None:
        # How often the script, eagerly, has asked for another device than the first by itself.
        self.num_placed = 0
        # A dict keeps the order.
        self._printed: dict[Note, None] = {}

    def add(self, text: str, line: UserLine | None = None) -> None:
        """Print a note, unless it was printed for the same line before."""
        note = Note(text, line)
        if note not in self._printed:
            self._printed[note] = None
            print(note, file=sys.stderr, flush=True)

    def add_unpartitioned(self, devices: Sequence[str], reason: str, line: UserLine) -> None:
        """Print that a training step runs as it is written, if there are several devices."""
        first, *idle = devices
        has = "have" if len(idle) > 1 else "has"
        where = f"computes every batch on {first}; {', '.join(idle)} {has} nothing to do"
        if self.num_placed:
            where = "runs as it is written, on the devices that tf.device names"
        if idle:
            self.add(f"this training step {where}\n  {reason}", line)

    @property
    def printed(self) -> tuple[Note, ...]:
        return tuple(self._printed)


def is_other(device: Any, strategy: Strategy) -> bool:
    """Return whether a device, as TensorFlow names it, is one of the run, but not its first."""
    first, *others = map(without_worker, strategy.plan.device_names)
    name = qualified_name(str(getattr(device, "name", device) or ""))
    return name != first and name in others


class Loading(importlib.abc.MetaPathFinder):
    """Calls a function once, when the last of some modules has been imported.

    So settings that a program makes before its imports stay in effect.
    """

    def __init__(self, awaited: Sequence[str], then: Callable[[], None]) -> None:
        self._awaited = awaited
        self._then = then
        self._num_open = 0
        self._called = False

    def watch(self) -> None:
        """Begin; what is there already counts."""
        sys.meta_path.insert(0, self)
        self._ask()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._awaited or self._called or self not in sys.meta_path:
            return None
        # Another of these may wait for the same.
        others = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # TensorFlow and Keras import each other.
            self._num_open += 1
            try:
                execute(module)
            finally:
                self._num_open -= 1
            self._ask()

        loader.exec_module = exec_module
        return spec

    def _ask(self) -> None:
        if self._called or self._num_open or not all(name in sys.modules for name in self._awaited):
            return
        self._called = True
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._then()


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    given: str  # The path or module name on the command line
    path: str  # The absolute path, which becomes ``__file__``
    source: str  # Its text
    module: str | None = None  # The full name of the module, as for ``python -m``; None for a file.

    @property
    def words(self) -> str:
        return f"-m {self.given}" if self.module is not None else self.given


def read(given: str, *, as_module: bool) -> Script:
    return read_module(given) if as_module else read_script(given)


def read_script(given: str) -> Script:
    path = Path(given)
    if path.is_dir():
        raise RunError(
            "RUN-002",
            f"{given} is a folder.",
            why="evener run takes a Python file.",
            fix=f"Name the file, for example {path / '__main__.py'}.",
        )
    if path.suffix == ".ipynb":
        raise RunError(
            "RUN-026",
            f"{given} is a notebook.",
            why="It has cells and magics; a script is the text of one Python file.",
            fix=f"Write the script with `jupyter nbconvert --to script {given}`, or make the model "
            "in `with evener.Strategy().scope():` in the notebook itself.",
        )
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunError(
            "RUN-001",
            f"The script {given} cannot be read.",
            why=f"{error.strerror or error}; the current folder is {Path.cwd()}.",
            fix="Pass the path of an existing Python file.",
        ) from error
    return Script(given=given, path=str(path.absolute()), source=_text(given, content))


def read_module(name: str) -> Script:
    """Read a module as ``python -m`` finds it, without importing its parent packages."""
    before = sys.path[:]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path.cwd())
    importlib.invalidate_caches()
    try:
        spec = _find(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name, package = f"{name}.__main__", name
            spec = _find(name)
            if spec is None:
                raise _no_module(package, f"{package} is a package without a __main__ module")
    finally:
        sys.path[:] = before
    if spec is None:
        raise _no_module(name, f"there is no such module; the current folder is {Path.cwd()}")
    if spec.origin is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        raise _no_module(name, "it has no Python source file")
    path = Path(spec.origin)
    source = _text(spec.origin, path.read_bytes())
    return Script(given=name, path=str(path.absolute()), source=source, module=name)


def run_as_main(
    script: Script,
    args: Sequence[str],
    *,
    tree: ast.Module | None = None,
    names: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Run a script as ``__main__``. The module stays: threads may outlive its last line.

    A tree is run instead of the text, with global names that it uses beside the script's own.
    `runpy.run_path` removes the module at the end, but pickle and multiprocessing need it.
    Exceptions of the script are not caught.
    """
    sys.argv = [script.given if script.module is None else script.path, *args]
    if not sys.flags.safe_path:
        # Python has set it to the folder of `evener`, or to the current one for `-m evener`.
        folder = Path.cwd() if script.module else Path(script.path).resolve().parent
        sys.path[0] = str(folder)
    main = ModuleType("__main__")
    main.__file__ = script.path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", script.path)
    vars(main).update(__builtins__=builtins, __cached__=None, __annotations__={}, **names)
    if script.module is not None:
        # This imports the parent packages, as Python does before it runs a module.
        spec = importlib.util.find_spec(script.module)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {script.module!r}", name=script.module)
        main.__spec__ = spec
        main.__package__ = spec.parent
        main.__loader__ = spec.loader
        vars(main)["__cached__"] = spec.cached
    sys.modules["__main__"] = main
    _draw_where_imported()
    exec(
        compile(script.source if tree is None else tree, script.path, "exec", dont_inherit=True),
        vars(main),
    )


def _draw_where_imported() -> None:
    """Draw from Python's generator at the import of the program that would have drawn.

    ``rich.style`` draws when it is loaded, which TensorFlow does; here it may be loaded already. A
    generator as the program has found it stays as it is: seeds that workers have agreed on are
    those of a program that sets them behind its imports.
    """
    if "rich.style" not in sys.modules:
        return
    load, load_by_name = builtins.__import__, importlib.import_module
    has_drawn, found = False, random.getstate()

    def draw(name: str, parts: Sequence[str], scope: Mapping[str, Any] | None) -> None:
        nonlocal has_drawn
        package, _, inner = name.partition(".")
        # `from rich import print` loads no part of it.
        is_part = inner or any(f"rich.{part}" in sys.modules for part in parts)
        loads = package in ("tensorflow", "keras") or (package == "rich" and is_part)
        importer = str((scope or {}).get("__name__", "")).partition(".")[0]
        if loads and not has_drawn and importer not in ("evener", "tensorflow", "keras", "rich"):
            has_drawn = True
            if random.getstate() != found:
                random.getrandbits(24)
            if builtins.__import__ is load_and_draw:
                builtins.__import__ = load
            if importlib.import_module is load_by_name_and_draw:
                importlib.import_module = load_by_name

    def load_and_draw(
        name: str, scope: Any = None, local: Any = None, parts: Any = (), level: int = 0
    ) -> ModuleType:
        if not level:
            draw(name, parts or (), scope)
        return load(name, scope, local, parts, level)

    def load_by_name_and_draw(name: str, package: str | None = None) -> ModuleType:
        draw(name, (), sys._getframe(1).f_globals)
        return load_by_name(name, package)

    builtins.__import__, importlib.import_module = load_and_draw, load_by_name_and_draw


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of a module; its parent packages are found, but not imported."""
    parent, _, word = name.rpartition(".")
    package = _find(parent) if parent else None
    folders = package.submodule_search_locations if package is not None else None
    if not word or ("." in name and folders is None):
        return None
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
    specs = (finder.find_spec(name, folders) for finder in finders)
    return next((found for found in specs if found is not None), None)


def _no_module(name: str, why: str) -> RunError:
    return RunError(
        "RUN-021",
        f"The module {name} cannot be run.",
        why=f"{why}.",
        fix="Pass a module name as for `python -m`; a file is run without -m.",
    )


def _text(given: str, content: bytes) -> str:
    try:
        # By Python's rules: UTF-8, or the encoding declared in the first two lines.
        text = importlib.util.decode_source(content)
        if "\0" in text:
            raise ValueError("it holds null bytes")
    except (SyntaxError, ValueError, LookupError) as error:
        raise RunError(
            "RUN-003",
            f"{given} is not a Python script.",
            why=f"Its text cannot be decoded: {error}.",
            fix="Pass the path of a Python file; a launcher of another kind cannot be run.",
        ) from error
    return text


# Its frames are above and between those of the script.
_FOLDER = str(Path(__file__).parent)


def show_failures_of(path: str) -> None:
    show = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, found: TracebackType | None
    ) -> object:
        known = error if isinstance(error, EvenerError) else None
        raised = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(found)]
        if known is None and raised and not is_own(raised[-1]):
            known = next((each for each in _chain(error) if isinstance(each, EvenerError)), None)
        line = last_user_line(found)
        # The script's line: from the notes of the error, else from the traceback.
        lines = [] if line is None else [line.as_in_a_traceback()]
        lines = getattr(known, "__notes__", []) or lines
        if known is not None and lines:
            print(known, *lines, sep="\n", file=sys.stderr)
            return None
        for linked in _chain(error):
            linked.__traceback__ = without_frames(linked.__traceback__)
        links = links_of(without_frames(found, error))
        left = next((link for link in links if link.tb_frame.f_code.co_filename == path), None)
        shown = show(kind, error.with_traceback(left), left)
        # TensorFlow's class of per-replica values.
        if line is not None and "PerReplica" in str(error):
            print(
                RunError(
                    "RUN-010",
                    f"{line}: a per-replica value was used as a tensor, outside of strategy.run.",
                    why="The batches of a distributed dataset and the results of strategy.run hold "
                    "one value for each replica.",
                    fix="Pass a batch to a function by strategy.run(function, args=(batch,)), and "
                    "combine a result by strategy.reduce('SUM', result, axis=None).",
                ),
                file=sys.stderr,
            )
        return shown

    sys.excepthook = hook


def last_user_line(found: TracebackType | None) -> UserLine | None:
    own = [each for each in traceback.walk_tb(found) if is_own(each[0].f_code.co_filename)]
    if not own:
        return None
    frame, number = own[-1]
    return UserLine(frame.f_code.co_filename, number, frame.f_code.co_name)


def without_frames(
    found: TracebackType | None, error: BaseException | None = None
) -> TracebackType | None:
    if "tensorflow" in sys.modules:
        from evener._tf_private.functions import shortened

        found = shortened(error, found)
    return with_files(found, lambda file: not file.startswith(_FOLDER))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    waiting = [error.__cause__, error.__context__]
    while waiting:
        linked = waiting.pop()
        if linked is not None and id(linked) not in seen:
            seen.add(id(linked))
            yield linked
            waiting += [linked.__cause__, linked.__context__]
