"""DOC-604: a dataset is cached in memory behind ``repeat``, or with all its decoded images."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call, Kind, Module, Program
from evener.doctor.finding import Severity
from evener.doctor.queries.source_text import method_location
from evener.doctor.rule import Case, Violation

_IMAGES = ("tf.image.", "tf.io.decode_", "tf.audio.", "tf.io.read_file")
_FOLDERS = ("keras.utils.image_dataset_from_directory", "keras.utils.audio_dataset_from_directory")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    for call in program.method_calls(Kind.DATASET, "cache"):
        name = call.argument(0, "filename")
        if name is not None and program.constant(call.module, name) != "":
            continue
        chain = list(_chain(program, call))
        location = method_location(call)
        if any(_is_endless(each) for each in chain):
            yield Violation(
                location,
                "cache keeps a dataset in memory that never ends.",
                why="Behind repeat() there is no last element: the cache is never complete, keeps "
                "every batch of every epoch, and memory grows until it is used up.",
                fix="dataset.cache().shuffle(...).repeat(): cache before repeat.",
            )
        elif any(_decodes(program, each) for each in chain):
            yield Violation(
                location,
                "cache keeps all decoded images in memory.",
                why="Decoded and as float32 they take 10 to 50 times the room of the files; the "
                "first epoch ends out of memory if that is more than there is.",
                fix="cache(filename) on a fast disk, or cache the encoded files, before the map "
                "that decodes.",
                severity=Severity.HINT,
            )


def _chain(program: Program, call: Call) -> Iterator[tuple[Module, ast.Call]]:
    """Yield the calls that a dataset comes from, the last first."""
    module, owner = call.module, call.owner
    for _ in range(20):
        made = next(program.made_by(module, owner), None) if owner is not None else None
        if made is None:
            return
        yield made
        module, node = made
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if owner is not None and Kind.DATASET not in program.kinds(module, owner):
            return


def _is_endless(made: tuple[Module, ast.Call]) -> bool:
    _, node = made
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "repeat":
        return False
    counts = [*node.args, *(keyword.value for keyword in node.keywords)]
    return not counts or ast.unparse(counts[0]) in ("-1", "None")


def _decodes(program: Program, made: tuple[Module, ast.Call]) -> bool:
    module, node = made
    if program.name_of(module, node.func) in _FOLDERS:
        return True
    if not isinstance(node.func, ast.Attribute) or node.func.attr != "map" or not node.args:
        return False
    return any(
        isinstance(part, ast.Call) and program.name_of(where, part.func).startswith(_IMAGES)
        for where, function in program.functions_of(module, node.args[0])
        for part in ast.walk(function)
    )
