"""DOC-501: a file is read, or searched for, by a name under which nothing is saved."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from evener.analysis import Module, Program
from evener.doctor.queries.checkpoints import File, is_same_name, loads, saves
from evener.doctor.queries.source_text import shown
from evener.doctor.rule import Case, Violation

# A field that ModelCheckpoint replaces, with its separator.
_FIELD = re.compile(r"[-_.]?\{[^}]*\}")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    for save in saves(program):
        how = _how_renamed(program, save)
        for load in loads(program) if how else ():
            if _reads_given_name(program, save, load):
                yield Violation(
                    load.call.location,
                    f"{shown(load.name or load.call.node)} is read, and no file has that name.",
                    why=f"{how}. A file of the name that is read here does not exist.",
                    fix="for a checkpoint use what save returns, or tf.train.latest_checkpoint("
                    "directory); for ModelCheckpoint the name of one epoch's file.",
                    evidence=(save.call.location.text, load.call.location.text),
                )
    yield from _no_checkpoint(program)


def _reads_given_name(program: Program, save: File, load: File) -> bool:
    """Return whether a line reads the name that was given, or that name without its fields."""
    if load.what == save.what and is_same_name(program, save, load):
        return True
    pattern, name = (program.constant(file.module, file.name) for file in (save, load))
    is_pattern = isinstance(pattern, str) and "{" in pattern and save.what != "checkpoint"
    return is_pattern and isinstance(name, str) and name == _FIELD.sub("", str(pattern))


def _how_renamed(program: Program, save: File) -> str:
    """Return how a call changes the name it is given; ``""`` if it does not."""
    if save.name is None:
        return ""
    if save.what == "checkpoint" and save.call.method == "save":
        return "Checkpoint.save appends a number: -1 the first time, then -2"
    if save.call.name == "keras.callbacks.ModelCheckpoint":
        text = str(program.constant(save.module, save.name) or "")
        if "{" in (text or ast.unparse(save.name)) and not isinstance(save.name, ast.JoinedStr):
            return "ModelCheckpoint replaces the fields in braces"
    return ""


def _no_checkpoint(program: Program) -> Iterator[Violation]:
    """Find ``latest_checkpoint`` where only files of Keras are saved."""
    written = saves(program)
    if any(file.what in ("checkpoint", "manager") for file in written):
        return
    if any(True for _ in program.calls("tf.train.Checkpoint*")):
        return
    for call in program.calls("tf.train.latest_checkpoint"):
        folder = call.argument(0, "checkpoint_dir")
        for save in written if folder is not None else ():
            if not _is_in(program, call.module, folder, save):
                continue
            yield Violation(
                call.location,
                "tf.train.latest_checkpoint finds none of the files that this program saves.",
                why="Keras 3 saves weights and models as .weights.h5 and .keras files; this "
                "function looks for those of tf.train.Checkpoint and returns None.",
                fix="load the file by the name it was saved by: model.load_weights(path).",
                evidence=(save.call.location.text, call.location.text),
            )
            break


def _is_in(program: Program, module: Module, folder: ast.expr | None, save: File) -> bool:
    """Return whether a file is saved in a folder, as far as the source code shows."""
    if save.name is None or folder is None:
        return False
    constant, name = program.constant(module, folder), program.constant(save.module, save.name)
    if isinstance(constant, str) and isinstance(name, str):
        return name.startswith(constant.rstrip("/") + "/")
    return bool(_parts(program, module, folder) & _parts(program, save.module, save.name))


def _parts(program: Program, module: Module, node: ast.AST) -> set[str]:
    """Return the attributes and constants that a path is made of."""
    found = set[str]()
    waiting: list[tuple[Module, ast.AST]] = [(module, node)]
    seen = set[ast.AST]()
    while waiting:
        where, top = waiting.pop()
        for part in set(ast.walk(top)) - seen:
            seen.add(part)
            if (
                isinstance(part, ast.Constant)
                and isinstance(part.value, str)
                and len(part.value) > 1
            ):
                found.add(part.value.strip("/"))
            if isinstance(part, ast.Name | ast.Attribute):
                waiting += [(v.module, v.node) for v in program.origins(where, part)]
            if isinstance(part, ast.Attribute) and not program.name_of(where, part):
                found.add(ast.unparse(part))
    return found
