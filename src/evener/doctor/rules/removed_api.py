"""DOC-004: a program uses what TensorFlow and Keras no longer have."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call
from evener.analysis.api import public
from evener.analysis.api.successors import GoneArgument, GoneMember
from evener.doctor.finding import Severity
from evener.doctor.queries.exact_members import (
    edits_of_argument,
    edits_of_member,
    edits_of_weight,
)
from evener.doctor.queries.exact_names import edits_of_name
from evener.doctor.queries.file_endings import ending
from evener.doctor.queries.guards import is_guarded
from evener.doctor.queries.other_packages import (
    ADDONS,
    imports_of_addons,
    layers_of_hub,
    names_of_addons,
)
from evener.doctor.queries.removed_members import (
    missing_arguments,
    missing_members,
    names_before_shapes,
    removed_overrides,
    unknown_arguments,
)
from evener.doctor.queries.removed_names import (
    Missing,
    has_objects_of_keras_two,
    is_judged,
    missing_names,
)
from evener.doctor.queries.tensorflow1 import graph_names
from evener.doctor.queries.training import is_of_model
from evener.doctor.rule import Case, Violation

# Which names Keras takes: for whole models, for weights, and for those of ModelCheckpoint.
WHOLE = (".keras", ".h5", ".hdf5")
WEIGHTS = (".weights.h5",)
CHECKPOINT = (".keras", ".h5")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    graph = graph_names(case)
    if graph:
        yield from _for_graphs(graph)
        return
    yield from (*_names(case), *_packages(case), *_members(case), *_overrides(case))
    yield from (*_arguments(case), *_files(case))


def _for_graphs(graph: list[Missing]) -> Iterator[Violation]:
    names = list(dict.fromkeys(f"`{public.shown(missing.name)}`" for missing in graph))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    for missing in graph:
        yield Violation(
            missing.location,
            "this program is written for TensorFlow 1: it builds a graph and runs it in a session.",
            why=f"TensorFlow {public.version_of('tensorflow')} does not have "
            f"{', '.join(names[:3])}{more}. Nothing else was examined.",
            fix="Train a `keras.Model` with `fit`. To run the program as it is, first replace\n"
            "`import tensorflow as tf` by\n"
            "    import tensorflow.compat.v1 as tf\n"
            "    tf.disable_v2_behavior()",
        )


# ---- names


def _names(case: Case) -> Iterator[Violation]:
    for used in missing_names(case):
        row, name = public.gone(used.name), public.shown(used.name)
        missing = public.missing(used.name) or used.name
        key = row.old if row is not None else missing
        package = "Keras" if _is_of_keras(name) else "TensorFlow"
        version = public.version_of(package.lower())
        raised = "ImportError" if used.is_import else "AttributeError"
        if row is not None and row.is_there:
            what, why = f"`{name}` raises in {package} {version}.", "It is there by its name only."
        else:
            what = f"`{name}` does not exist in {package} {version}."
            why = f"The program fails at this line with an {raised}."
        fix = _fix_of(used.name)
        if row is None and not public.missing(used.name):
            what = f"`{name}` cannot be imported from TensorFlow {version}."
            fix = f"Write `import tensorflow as tf`, and use `{name}`."
            key = used.name
        edits = edits_of_name(case.program, used)
        yield Violation(used.location, what, why=why, fix=fix, cause=key, edits=edits)


def _is_of_keras(name: str) -> bool:
    return name.startswith(("keras.", "tf.keras.", "tf_keras.")) or name == "keras"


def _fix_of(name: str) -> str:
    row, successor = public.gone(name), public.successor(name)
    if row is not None and row.fix:
        return row.fix
    if successor == public.shown(name).removeprefix("tf."):
        return f"Write `import keras`, and use `{successor}`: `tf.keras` has other names."
    if successor:
        return f"Use `{successor}`."
    return "Look for its successor in the API reference of TensorFlow and Keras."


def _packages(case: Case) -> Iterator[Violation]:
    keras = f"Keras {public.version_of('keras')}"
    used = names_of_addons(case.program)
    successors = {name: public.in_keras(name) for name in used}
    fixes = [f"Use `{new}` for `{old}`." for old, new in successors.items() if new]
    for location in imports_of_addons(case):
        yield Violation(
            location,
            f"`{ADDONS}` cannot be imported with {keras}.",
            why="Its development ended in 2024: its last version imports parts of Keras 2, and "
            "fails with a ModuleNotFoundError.",
            fix=" ".join(fixes)
            or "Keras has most of its layers, losses, metrics and optimizers by the same names.",
            cause=ADDONS,
        )
    for call in layers_of_hub(case):
        yield Violation(
            call.location,
            f"`hub.KerasLayer` is a layer of Keras 2: models of {keras} refuse it.",
            why="`Sequential` raises a ValueError, and a call with a `keras.Input` a TypeError.",
            fix="Make a layer of Keras 3 that calls the module: in `__init__` "
            "`self.module = hub.load(handle)`, in `call` `return self.module(inputs)`; or take "
            "the model from keras_hub; or train with Keras 2: TF_USE_LEGACY_KERAS=1 and pip "
            "install tf_keras.",
            cause="hub.KerasLayer",
        )


# ---- methods, attributes and arguments


def _members(case: Case) -> Iterator[Violation]:
    found = sorted(missing_members(case), key=lambda entry: (entry[1].path, entry[2].lineno))
    for row, module, node in found:
        why = "The program fails at this line with an AttributeError."
        if isinstance(node.ctx, ast.Store):
            why = f"It sets a new attribute `{row.name}` that nothing reads, without an error."
        yield Violation(
            module.location(node),
            f"`{ast.unparse(node)}` does not exist: {row.kind} objects have no `{row.name}` "
            f"in {_package_of(row)}.",
            why=why,
            fix=row.fix,
            cause=f"{row.kind}.{row.name}",
            edits=edits_of_member(row, module, node),
        )


def _overrides(case: Case) -> Iterator[Violation]:
    for module, found in removed_overrides(case):
        names = ", ".join(f"`{node.name}`" for _, node in found)
        yield Violation(
            module.location(found[0][1]),
            f"Keras {public.version_of('keras')} does not call {names} of an optimizer.",
            why="The base class raises an error, or updates the weights in its own way.",
            fix=" ".join(dict.fromkeys(row.fix for row, _ in found)),
            evidence=tuple(module.location(node).text for _, node in found),
        )
    for call in names_before_shapes(case):
        yield Violation(
            call.location,
            f"The first argument of `add_weight` is the shape in Keras "
            f"{public.version_of('keras')}, and not the name.",
            why="The program fails at this line with a ValueError.",
            fix="Give both by name: `add_weight(name=..., shape=...)`.",
            cause="add_weight",
            edits=edits_of_weight(call),
        )


def _package_of(row: GoneMember | GoneArgument) -> str:
    of_tensorflow = ("tf.", "strategy", "dataset")
    kind = row.kind if isinstance(row, GoneMember) else row.called
    package = "TensorFlow" if kind.startswith(of_tensorflow) else "Keras"
    return f"{package} {public.version_of(package.lower())}"


def _arguments(case: Case) -> Iterator[Violation]:
    told: set[ast.Call] = set()
    for row, call in missing_arguments(case):
        told.add(call.node)
        called = call.name.lstrip(".") or call.method
        yield Violation(
            call.location,
            f"`{called}` has no argument `{row.name}` in {_package_of(row)}.",
            why=f"Keras ignores `{row.name}`, with a warning."
            if row.is_ignored
            else "The program fails at this line with a TypeError or a ValueError.",
            fix=row.fix,
            cause=f"{row.name}= of {row.called.rpartition('.')[0]}",
            severity=Severity.WARNING if row.is_ignored else None,
            edits=edits_of_argument(case.program, row, call),
        )
    for call, name, meant in unknown_arguments(case, told):
        called = call.method or call.name
        yield Violation(
            call.location,
            f"`{called.rpartition('.')[2]}` has no argument `{name}` in Keras "
            f"{public.version_of('keras')}.",
            why="The program fails at this line with a TypeError or a ValueError.",
            fix=f"Use `{meant}=`." if meant else "Delete it.",
            cause=f"{name}= of {called}",
        )


# ---- names of files


def _files(case: Case) -> Iterator[Violation]:
    if not is_judged(case) or has_objects_of_keras_two(case):
        return
    program = case.program
    for call, owner in program.calls_of("save", "save_weights"):
        # Of weights in several files the name ends otherwise.
        is_in_parts = call.argument(2, "max_shard_size") is not None
        is_own = program.classes.has_attribute(call.module, owner, call.method)
        if is_of_model(program, call) and not (is_in_parts or is_own):
            wanted = WEIGHTS if call.method == "save_weights" else WHOLE
            yield from _badly_named(case, call, "filepath", wanted)
            yield from _saved_model(case, call)
    for call in program.calls("keras.models.save_model", "keras.saving.save_model"):
        yield from _badly_named(case, call, "filepath", WHOLE, position=1)
    for call in program.calls("keras.models.load_model", "keras.saving.load_model"):
        yield from _badly_named(case, call, "filepath", WHOLE)
    for call in program.calls("keras.callbacks.ModelCheckpoint"):
        only = call.argument(4, "save_weights_only")
        value = False if only is None else program.constant(call.module, only)
        if isinstance(value, bool):
            yield from _badly_named(case, call, "filepath", WEIGHTS if value else CHECKPOINT)


def _saved_model(case: Case, call: Call) -> Iterator[Violation]:
    """Yield ``save`` in the format of TensorFlow, to a path whose ending is not known."""
    given = call.argument(None, "save_format") if call.method == "save" else None
    if given is None or case.program.constant(call.module, given) != "tf":
        return
    is_known = ending(case.program, call.module, call.argument(0, "filepath"))
    if not is_known and not is_guarded(case.program, call.module, call.node):
        yield Violation(
            call.location,
            f"`save` of Keras {public.version_of('keras')} writes no SavedModel.",
            why="With `save_format='tf'` it raises a ValueError.",
            fix="Use `model.export(path)` to serve it, or save to a name that ends in `.keras`.",
            cause="save_format='tf'",
        )


def _badly_named(
    case: Case, call: Call, name: str, wanted: tuple[str, ...], *, position: int = 0
) -> Iterator[Violation]:
    known = ending(case.program, call.module, call.argument(position, name))
    if not known or known.endswith(wanted) or known.startswith("hf://"):
        return
    if is_guarded(case.program, call.module, call.node):
        return
    # TensorFlow's own copy of Keras 2 knows more formats.
    written = case.program.written_names(call.module, call.node.func)
    if any(each.startswith("tensorflow.python.keras.") for each in written):
        return
    called = call.method or call.name
    endings = " or ".join(f"`{suffix}`" for suffix in wanted[:2])
    fix = f"Let the name end in {endings}."
    if called == "save":
        fix += " For a SavedModel use `model.export(path)`."
    elif called == "load_model":
        fix += " Load a SavedModel by `keras.layers.TFSMLayer(path)`."
    yield Violation(
        call.location,
        f"`{called.rpartition('.')[2]}` takes no file whose name ends in {_tail(known)!r}.",
        why=f"Keras {public.version_of('keras')} chooses the format by the ending, and raises a "
        "ValueError.",
        fix=fix,
        cause=f"{called} {wanted}",
    )


def _tail(known: str) -> str:
    return known.replace("\\", "/").rpartition("/")[2] or known
