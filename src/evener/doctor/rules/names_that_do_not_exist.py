"""DOC-501: a name is printed or read that no file has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Call, Module, Program
from evener.doctor.questions.savings import File, last_of_path, loads, names_same, saves
from evener.doctor.questions.texts import shown
from evener.doctor.rule import Case, Family, Rule

_FILE = re.compile(r"[\w./\-]+\.(?:weights\.h5|keras|h5|hdf5|ckpt|npz|npy|index)\b")
# What ModelCheckpoint puts numbers in place of, with what sets it apart.
_FILLED_IN = re.compile(r"[-_.]?\{[^}]*\}")
_SAYS_SAVED = re.compile(r"save|saving|writ|stor|export", re.IGNORECASE)
_PRINTS = ("print", "tf.print", "logging.info", "logging.warning", "tf.get_logger.info")


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    for save in saves(program):
        if save.name is None:
            continue
        how = _becomes(program, save)
        if not how:
            continue
        for load in loads(program):
            if load.name is not None and load.what == save.what:
                if names_same(program, save.module, save.name, load.module, load.name):
                    yield _finding(load.call, "read", load.name, save, how)
        for call, said in _printed(program):
            if names_same(program, save.module, save.name, call.module, said):
                yield _finding(call, "printed", said, save, how)
    yield from _directories(program)
    yield from _no_checkpoint(program)
    yield from _without_the_filled_in(program)
    yield from _other_names(program)


def _becomes(program: Program, save: File) -> str:
    """Say which name a save gives its file, if it is another than the one it is given."""
    assert save.name is not None
    text = str(program.constant(save.module, save.name) or "") or ast.unparse(save.name)
    method = save.call.node.func.attr if isinstance(save.call.node.func, ast.Attribute) else ""
    if save.what == "checkpoint" and method == "save":
        return "Checkpoint.save adds a number to it: -1 the first time, then -2"
    if save.call.name == "keras.callbacks.ModelCheckpoint" and "{" in text:
        if isinstance(save.name, ast.JoinedStr):
            return ""
        return "ModelCheckpoint fills in what stands in braces"
    constant = program.constant(save.module, save.name)
    if save.what == "arrays" and isinstance(constant, str):
        ending = ".npy" if save.call.name == "np.save" else ".npz"
        if not constant.endswith(ending):
            return f"{save.call.name} adds {ending}"
    return ""


def _printed(program: Program) -> Iterator[tuple[Call, ast.expr]]:
    """Yield the names that are printed, alone or in a text."""
    for call in program.all_calls:
        method = call.method
        if call.name not in _PRINTS and not (not call.name and method in ("info", "warning")):
            continue
        for given in call.node.args:
            yield call, given
            if isinstance(given, ast.JoinedStr):
                for part in given.values:
                    if isinstance(part, ast.FormattedValue):
                        yield call, part.value
            if isinstance(given, ast.BinOp):
                yield call, given.right
                if not _goes_on(given.right):
                    yield call, given.left
            if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute):
                if given.func.attr == "format":
                    for one in given.args:
                        yield call, one


def _goes_on(text: ast.expr) -> bool:
    """Return whether what is put behind a name makes another name of it."""
    return not (isinstance(text, ast.Constant) and str(text.value)[:1] in tuple(" ,.:;)!\n"))


def _finding(call: Call, how: str, name: ast.expr, save: File, becomes: str) -> Finding:
    result = {
        "checkpoint": "use what save returns: path = checkpoint.save(...); or "
        "tf.train.latest_checkpoint(directory).",
        "arrays": "write the name with its ending.",
    }
    return RULE.finding(
        call.place,
        f"{shown(name)} is {how}, and no file has that name.",
        why=f"{becomes}. Who looks for the file by this name does not find it.",
        fix=result.get(save.what, "use the name of the epoch's file, or one without braces."),
        evidence=(save.call.place.text, call.place.text),
    )


def _directories(program: Program) -> Iterator[Finding]:
    """Find ``restore`` of a checkpoint manager's directory instead of a checkpoint in it."""
    managers = list(program.calls("tf.train.CheckpointManager"))
    for load in loads(program):
        if load.what != "checkpoint" or load.name is None:
            continue
        for manager in managers:
            directory = manager.argument(1, "directory")
            if directory is None:
                continue
            if names_same(program, manager.module, directory, load.module, load.name):
                yield RULE.finding(
                    load.call.place,
                    f"{shown(load.name)} is the folder of the checkpoints, not one of them.",
                    why="A manager names its checkpoints ckpt-1, ckpt-2 in this folder; restore "
                    "takes one of these names, and fails on a folder.",
                    fix="checkpoint.restore(manager.latest_checkpoint)",
                    evidence=(manager.place.text, load.call.place.text),
                )


def _without_the_filled_in(program: Program) -> Iterator[Finding]:
    """Find files of a `ModelCheckpoint` that are read without what it fills into their names."""
    for save in saves(program):
        if save.call.name != "keras.callbacks.ModelCheckpoint" or save.name is None:
            continue
        pattern = last_of_path(program, save.module, save.name)
        if "{" not in pattern:
            continue
        bare = _FILLED_IN.sub("", pattern)
        for load in loads(program):
            if load.name is None or load.what not in ("weights", "model"):
                continue
            if last_of_path(program, load.module, load.name) == bare:
                how = f"ModelCheckpoint names its files after {pattern}"
                yield _finding(load.call, "read", load.name, save, how)


def _no_checkpoint(program: Program) -> Iterator[Finding]:
    """Find ``latest_checkpoint`` where only files of Keras are saved."""
    written = saves(program)
    if any(one.what in ("checkpoint", "manager") for one in written):
        return
    keras = [one for one in written if one.what in ("weights", "model")]
    if not keras or any(True for _ in program.calls("tf.train.Checkpoint*")):
        return
    for call in program.calls("tf.train.latest_checkpoint"):
        folder = call.argument(0, "checkpoint_dir")
        if folder is None or not any(_is_in(program, call.module, folder, one) for one in keras):
            continue
        yield RULE.finding(
            call.place,
            "tf.train.latest_checkpoint finds none of the files that this program saves.",
            why="Keras 3 saves weights and models as .weights.h5 and .keras files; this function "
            "looks for those of tf.train.Checkpoint and returns None.",
            fix="load the file by the name it was saved by: model.load_weights(path).",
            evidence=(keras[0].call.place.text, call.place.text),
        )


def _is_in(program: Program, module: Module, folder: ast.expr, save: File) -> bool:
    """Return whether a file is saved in a folder, as far as the text tells."""
    if save.name is None:
        return False
    constant, name = program.constant(module, folder), program.constant(save.module, save.name)
    if isinstance(constant, str) and isinstance(name, str):
        return name.startswith(constant.rstrip("/") + "/")
    one, other = _parts(program, module, folder), _parts(program, save.module, save.name)
    return bool(one & other)


def _parts(program: Program, module: Module, node: ast.AST) -> set[str]:
    """Return the names and constants that a path is made of."""
    found = set[str]()
    waiting: list[tuple[Module, ast.AST]] = [(module, node)]
    seen = set[ast.AST]()
    while waiting and len(seen) < 200:
        where, top = waiting.pop()
        for one in ast.walk(top):
            if one in seen:
                continue
            seen.add(one)
            if isinstance(one, ast.Constant) and isinstance(one.value, str) and len(one.value) > 1:
                found.add(one.value.strip("/"))
            if isinstance(one, ast.Name | ast.Attribute):
                waiting += [(v.module, v.node) for v in program.origins(where, one)]
                if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
                    if not program.name_of(where, one):
                        found.add(ast.unparse(one))
    return found


def _other_names(program: Program) -> Iterator[Finding]:
    """Find texts that name a file as saved, where the file has another name."""
    written = [(save, _constant_name(program, save)) for save in saves(program)]
    names = [name for _, name in written if name]
    if not names or len(names) != len(written):
        return
    known = " ".join(
        node.value
        for module in program.modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and not _is_in_print(program, module, node)
    )
    for call in program.calls("print", "tf.print", "logging.info"):
        for node in ast.walk(call.node):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            if isinstance(call.module.parents.get(node), ast.JoinedStr):
                continue
            text = node.value
            for name in _FILE.findall(text) and [m.group() for m in _FILE.finditer(text)]:
                last = name.rpartition("/")[2]
                if last in known or not _SAYS_SAVED.search(text):
                    continue
                yield RULE.finding(
                    call.place,
                    f"{name} is printed as saved, but {names[-1]} is what is saved.",
                    why="Who looks for the file by the name that is printed does not find it.",
                    fix=f"print {names[-1]}; or keep the name in one variable.",
                    evidence=(written[-1][0].call.place.text, call.place.text),
                )


def _is_in_print(program: Program, module: Module, node: ast.AST) -> bool:
    for outer in module.around(node):
        if isinstance(outer, ast.Call) and program.name_of(module, outer.func) in _PRINTS:
            return True
        if isinstance(outer, ast.stmt):
            return False
    return False


def _constant_name(program: Program, save: File) -> str:
    if save.name is None:
        return ""
    constant = program.constant(save.module, save.name)
    return constant if isinstance(constant, str) else ""


RULE = Rule(
    code="DOC-501",
    family=Family.CHECKPOINTS,
    title="a name that no saved file has",
    severity=Severity.ERROR,
    look=_look,
)
