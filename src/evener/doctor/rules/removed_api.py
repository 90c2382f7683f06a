"""DOC-004: a program uses what TensorFlow and Keras no longer have."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from evener.doctor.api import public
from evener.doctor.api.successors import GoneArgument, GoneMember
from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Call, Place
from evener.doctor.questions.file_endings import ending
from evener.doctor.questions.graph_programs import graph_names
from evener.doctor.questions.guards import is_guarded
from evener.doctor.questions.missing_members import missing_arguments, missing_members
from evener.doctor.questions.missing_names import (
    Missing,
    has_objects_of_keras_two,
    is_judged,
    missing_names,
)
from evener.doctor.questions.trainings import is_of_model
from evener.doctor.rule import Case, Family, Rule

# Which names Keras takes: for whole models, for weights, and for those of ModelCheckpoint.
WHOLE = (".keras", ".h5", ".hdf5")
WEIGHTS = (".weights.h5",)
CHECKPOINT = (".keras", ".h5")
# So many further lines are named; of more, their number is.
_MOST_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """One use of something that is gone; uses with the same key are one finding."""

    key: str
    place: Place
    what: str
    why: str
    fix: str
    severity: Severity = Severity.ERROR


def _look(case: Case) -> Iterator[Finding]:
    graph = graph_names(case)
    if graph:
        yield _for_graphs(graph)
        return
    by_key: dict[str, list[_Use]] = {}
    for use in (*_names(case), *_members(case), *_arguments(case), *_files(case)):
        by_key.setdefault(use.key, []).append(use)
    by_line: dict[tuple[str, int], list[list[_Use]]] = {}
    for uses in by_key.values():
        by_line.setdefault((uses[0].place.path, uses[0].place.line), []).append(uses)
    yield from map(_of_line, by_line.values())


def _of_line(found: list[list[_Use]]) -> Finding:
    """Return the finding on all that is first used on one line, with its further lines."""
    first = [uses[0] for uses in found]
    place = first[0].place
    return RULE.finding(
        place,
        _each(one.what for one in first),
        why=_each(one.why for one in first),
        fix=_each((one.fix for one in first), between="\n"),
        severity=min((one.severity for one in first), key=lambda one: one.rank),
        evidence=(place.text, *_further(place, [one.place for uses in found for one in uses])),
    )


def _each(texts: Iterable[str], between: str = " ") -> str:
    return between.join(dict.fromkeys(texts))


def _for_graphs(graph: list[Missing]) -> Finding:
    first = graph[0]
    names = list(dict.fromkeys(f"`{public.shown(one.name)}`" for one in graph))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return RULE.finding(
        first.place,
        "this program is written for TensorFlow 1: it builds a graph and runs it in a session.",
        why=f"TensorFlow {public.version_of('tensorflow')} does not have {', '.join(names[:3])}"
        f"{more}. Nothing else was examined.",
        fix="Train a `keras.Model` with `fit`. To run the program as it is, first replace\n"
        "`import tensorflow as tf` by\n"
        "    import tensorflow.compat.v1 as tf\n"
        "    tf.disable_v2_behavior()",
        evidence=(first.place.text, *_further(first.place, [one.place for one in graph])),
    )


def _further(first: Place, places: list[Place]) -> list[str]:
    """Return one line that names the other lines, or nothing."""
    here = sorted({one.line for one in places if one.path == first.path} - {first.line})
    elsewhere = len({(one.path, one.line) for one in places if one.path != first.path})
    num_lines = len(here) + elsewhere
    if not num_lines:
        return []
    shown = ", ".join(str(line) for line in here[:_MOST_LINES])
    more = f": {shown}{', ...' if len(here) > _MOST_LINES else ''}" if here else ""
    return [f"and {num_lines} more line{'s' if num_lines > 1 else ''}{more}"]


# ---- names


def _names(case: Case) -> Iterator[_Use]:
    for one in missing_names(case):
        row, name = public.gone(one.name), public.shown(one.name)
        missing = public.missing(one.name) or one.name
        key = row.old if row is not None else missing
        package = "Keras" if _is_of_keras(name) else "TensorFlow"
        version = public.version_of(package.lower())
        raised = "ImportError" if one.is_import else "AttributeError"
        if row is not None and row.is_there:
            what, why = f"`{name}` raises in {package} {version}.", "It is there by its name only."
        else:
            what = f"`{name}` does not exist in {package} {version}."
            why = f"The program fails at this line with an {raised}."
        fix = _fix_of(one.name)
        if row is None and not public.missing(one.name):
            what = f"`{name}` cannot be imported from TensorFlow {version}."
            fix = f"Write `import tensorflow as tf`, and use `{name}`."
            key = one.name
        yield _Use(key=key, place=one.place, what=what, why=why, fix=fix)


def _is_of_keras(name: str) -> bool:
    return name.startswith(("keras.", "tf.keras.", "tf_keras.")) or name == "keras"


def _fix_of(name: str) -> str:
    row, successor = public.gone(name), public.successor(name)
    if row is not None and row.fix:
        return row.fix
    if successor:
        return f"Use `{successor}`."
    return "Look for its successor in the API reference of TensorFlow and Keras."


# ---- methods, attributes and arguments


def _members(case: Case) -> Iterator[_Use]:
    found = sorted(missing_members(case), key=lambda one: (one[1].path, one[2].lineno))
    for row, module, node in found:
        why = "The program fails at this line with an AttributeError."
        if isinstance(node.ctx, ast.Store):
            why = f"It sets a new attribute `{row.name}` that nothing reads, without an error."
        yield _Use(
            key=f"{row.kind}.{row.name}",
            place=module.place(node),
            what=f"`{ast.unparse(node)}` does not exist: {row.kind} objects have no `{row.name}` "
            f"in {_package_of(row)}.",
            why=why,
            fix=row.fix,
        )


def _package_of(row: GoneMember | GoneArgument) -> str:
    of_tensorflow = ("tf.", "strategy", "dataset")
    kind = row.kind if isinstance(row, GoneMember) else row.called
    package = "TensorFlow" if kind.startswith(of_tensorflow) else "Keras"
    return f"{package} {public.version_of(package.lower())}"


def _arguments(case: Case) -> Iterator[_Use]:
    for row, call in missing_arguments(case):
        called = call.name.lstrip(".") or call.method
        yield _Use(
            key=f"{row.name}= of {row.called.rpartition('.')[0]}",
            place=call.place,
            what=f"`{called}` has no argument `{row.name}` in {_package_of(row)}.",
            why=f"Keras ignores `{row.name}`, with a warning."
            if row.is_ignored
            else "The program fails at this line with a TypeError or a ValueError.",
            fix=row.fix,
            severity=Severity.WARNING if row.is_ignored else Severity.ERROR,
        )


# ---- names of files


def _files(case: Case) -> Iterator[_Use]:
    if not is_judged(case) or has_objects_of_keras_two(case):
        return
    program = case.program
    for call, _ in program.calls_of("save", "save_weights"):
        # Of weights in several files the name ends otherwise.
        is_in_parts = call.argument(2, "max_shard_size") is not None
        if is_of_model(program, call) and not (is_in_parts or _is_own(case, call)):
            wanted = WEIGHTS if call.method == "save_weights" else WHOLE
            yield from _badly_named(case, call, "filepath", wanted)
    for call in program.calls("keras.models.save_model", "keras.saving.save_model"):
        yield from _badly_named(case, call, "filepath", WHOLE, position=1)
    for call in program.calls("keras.models.load_model", "keras.saving.load_model"):
        yield from _badly_named(case, call, "filepath", WHOLE)
    for call in program.calls("keras.callbacks.ModelCheckpoint"):
        only = call.argument(4, "save_weights_only")
        value = False if only is None else program.constant(call.module, only)
        if isinstance(value, bool):
            yield from _badly_named(case, call, "filepath", WEIGHTS if value else CHECKPOINT)


def _is_own(case: Case, call: Call) -> bool:
    owner = call.owner
    return owner is not None and any(
        True
        for where, definition in case.program.classes.of(call.module, owner)
        for _ in case.program.classes.attributes(where, definition, call.method)
    )


def _badly_named(
    case: Case, call: Call, name: str, wanted: tuple[str, ...], *, position: int = 0
) -> Iterator[_Use]:
    known = ending(case.program, call.module, call.argument(position, name))
    if not known or known.endswith(wanted) or known.startswith("hf://"):
        return
    if is_guarded(case.program, call.module, call.node):
        return
    called = call.method or call.name
    endings = " or ".join(f"`{one}`" for one in wanted[:2])
    fix = f"Let the name end in {endings}."
    if called == "save":
        fix += " For a SavedModel use `model.export(path)`."
    elif called == "load_model":
        fix += " Load a SavedModel by `keras.layers.TFSMLayer(path)`."
    yield _Use(
        key=f"{called} {wanted}",
        place=call.place,
        what=f"`{called.rpartition('.')[2]}` takes no file whose name ends in {_tail(known)!r}.",
        why=f"Keras {public.version_of('keras')} tells the format by the ending, and raises a "
        "ValueError.",
        fix=fix,
    )


def _tail(known: str) -> str:
    return known.replace("\\", "/").rpartition("/")[2] or known


RULE = Rule(
    code="DOC-004",
    family=Family.PROGRAM,
    title="a name that TensorFlow or Keras no longer has",
    severity=Severity.ERROR,
    look=_look,
)
