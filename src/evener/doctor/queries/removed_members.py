"""Methods and arguments that a program uses and objects of the libraries no longer have."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Collection, Iterator

from evener.analysis import Call, Kind, Module, Program, last_name
from evener.analysis.api import public
from evener.analysis.api.successors import ARGUMENTS, MEMBERS, OVERRIDES, GoneArgument, GoneMember
from evener.doctor.queries.guards import is_guarded
from evener.doctor.queries.imports import first_import
from evener.doctor.queries.removed_names import (
    has_objects_of_keras_two,
    imported,
    is_judged,
    is_of_libraries,
)
from evener.doctor.queries.training import is_of_model
from evener.doctor.rule import Case

# Things of TensorFlow, which Keras 2 does not change; those of `tf.compat.v1` have all members.
_OF_TENSORFLOW = ("strategy", "dataset")
_NAMES = frozenset(member.name for member in MEMBERS)
# Names that still accept the argument, or are neither a layer nor an optimizer.
_NOT_MEANT = ("keras.layers.InputLayer", "keras.layers.Input", "keras.optimizers.schedules.")


def missing_members(case: Case) -> Iterator[tuple[GoneMember, Module, ast.Attribute]]:
    """Yield the uses of methods and attributes that are gone, with what they are."""
    program = case.program
    if not is_judged(case) or first_import(program) is None:
        return
    is_two, is_one = has_objects_of_keras_two(case), _uses_tensorflow_one(program)
    for module, node in program.nodes(ast.Attribute):
        if node.attr not in _NAMES:
            continue
        if any(is_of_libraries(program, name) for name in program.written_names(module, node)):
            continue
        for row in MEMBERS:
            is_of_tensorflow = row.kind in _OF_TENSORFLOW
            if row.name != node.attr or (is_one if is_of_tensorflow else is_two):
                continue
            if _is_of(program, row, module, node) and not is_guarded(program, module, node):
                yield row, module, node
                break


Overrides = list[tuple[GoneMember, ast.FunctionDef]]


def removed_overrides(case: Case) -> Iterator[tuple[Module, Overrides]]:
    """Yield, for each class of the program, its methods that Keras 3 does not call."""
    program = case.program
    if not is_judged(case) or has_objects_of_keras_two(case):
        return
    for module, definition in program.nodes(ast.ClassDef):
        kind = program.kind_of_class(module, definition)
        found = [
            (row, node)
            for node in definition.body
            if isinstance(node, ast.FunctionDef)
            for row in OVERRIDES
            if row.name == node.name and kind is Kind(row.kind)
        ]
        if found:
            yield module, found


def names_before_shapes(case: Case) -> Iterator[Call]:
    """Yield the calls of ``add_weight`` that give a name where Keras 3 takes the shape."""
    program = case.program
    if not is_judged(case) or has_objects_of_keras_two(case):
        return
    for call, owner in program.calls_of("add_weight"):
        first, shape = call.argument(0), call.argument(None, "shape")
        is_name = isinstance(program.constant(call.module, first), str)
        if is_name or (first is not None and shape is not None and first is not shape):
            if program.kinds(call.module, owner) & {Kind.LAYER, Kind.MODEL}:
                yield call


def _uses_tensorflow_one(program: Program) -> bool:
    """Return whether the program runs as one of TensorFlow 1, by `tf.compat.v1`."""
    if any(True for _ in program.calls("tf.compat.v1.disable_*", "tf.disable_*")):
        return True
    return any(
        name.startswith("tensorflow.compat.v1")
        for _, node in program.nodes(ast.Import, ast.ImportFrom)
        for name in imported(node)
    )


def _is_of(program: Program, row: GoneMember, module: Module, node: ast.Attribute) -> bool:
    """Return whether the object is of the kind of a row, and has no such member of its own."""
    owner = node.value
    # A strategy's `extended` has members of its own.
    if program.classes.has_attribute(module, owner, node.attr) or last_name(owner) == "extended":
        return False
    kinds = program.kinds(module, owner)
    if row.is_unmistakable and not kinds:
        # An unknown object: nothing else has such a member, unless the program defines one.
        return isinstance(owner, ast.Name | ast.Attribute | ast.Call) and not _is_defined(
            program, node.attr
        )
    if Kind(row.kind) not in kinds or len(kinds) > 1:
        return False
    if row.is_unmistakable or any(True for _ in program.classes.of(module, owner)):
        # A class of the program, by `self` too: its bases are known.
        return True
    # A parameter that is only called "optimizer" may be anything.
    origins = program.origins(module, owner)
    return not all(isinstance(origin.node, ast.arg) for origin in origins)


def _is_defined(program: Program, name: str) -> bool:
    return any(
        getattr(node, "name", "") == name
        for _, node in program.nodes(ast.FunctionDef, ast.AsyncFunctionDef)
    )


def missing_arguments(case: Case) -> Iterator[tuple[GoneArgument, Call]]:
    """Yield the calls that give arguments that are gone."""
    program = case.program
    if not is_judged(case) or has_objects_of_keras_two(case):
        return
    for row in ARGUMENTS:
        for call in _calls(program, row.called):
            if any(keyword.arg == row.name for keyword in call.node.keywords):
                if not is_guarded(program, call.module, call.node):
                    yield row, call


def unknown_arguments(case: Case, told: Collection[ast.Call]) -> Iterator[tuple[Call, str, str]]:
    """Yield the calls of Keras with an argument that it never had, and what was probably meant.

    Args:
        case: The program.
        told: Calls of which `missing_arguments` are told.
    """
    program = case.program
    if not is_judged(case) or has_objects_of_keras_two(case):
        return
    for call, known in _calls_with_arguments(program):
        if call.node in told or is_guarded(program, call.module, call.node):
            continue
        for keyword in call.node.keywords:
            if keyword.arg is not None and keyword.arg not in known:
                close = difflib.get_close_matches(keyword.arg, sorted(known), n=1, cutoff=0.5)
                starts = [name for name in sorted(known) if name.startswith(keyword.arg)]
                yield call, keyword.arg, next(iter([*starts, *close]), "")
                break


def _calls_with_arguments(program: Program) -> Iterator[tuple[Call, frozenset[str]]]:
    for call in program.calls("keras.*"):
        known = public.arguments_of(call.name)
        if known is None or _is_class(program, call):
            continue
        # Names that are gone have others in their place here, and Keras 2 is in TensorFlow too.
        last = call.name.rpartition(".")[2]
        written = program.written_names(call.module, call.node.func)
        if all(name.rpartition(".")[2] == last and ".python." not in name for name in written):
            yield call, known
    for method in public.methods_with_arguments():
        known = public.arguments_of(f"model.{method}")
        assert known is not None
        for call in _calls(program, f"model.{method}"):
            if call.owner is not None and program.kinds(call.module, call.owner) == {Kind.MODEL}:
                yield call, known


def _calls(program: Program, called: str) -> Iterator[Call]:
    kind, _, method = called.partition(".")
    if kind not in (member.value for member in Kind):
        for call in program.calls(called):
            if not call.name.startswith(_NOT_MEANT) and not _is_class(program, call):
                yield call
        return
    for call, owner in program.calls_of(method):
        if program.classes.has_attribute(call.module, owner, method):
            continue
        if kind == "model" and is_of_model(program, call):
            yield call
        elif kind != "model" and Kind(kind) in program.kinds(call.module, owner):
            yield call


def _is_class(program: Program, call: Call) -> bool:
    """Return whether a class of the program is called, which may take what it likes."""
    return any(
        isinstance(target, ast.ClassDef) for _, target in program.targets(call.module, call.node)
    )
