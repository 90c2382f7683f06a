"""DOC-302: ``tf.device`` around what does not run there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import FUNCTIONS, Kind, Module, Program, own_nodes
from evener.doctor.finding import Severity
from evener.doctor.queries.pins import Pin, pins_of
from evener.doctor.rule import Case, Violation

# The calls of functions in a block are followed so deep.
_DEEPEST = 3
_MOST_SYMBOLS = 200
_COMPUTES = "computes"
_WHY = {
    "fit": "The forward pass runs on that device, but the variables stay where the model was "
    "created, and the optimizer's work with them: all weights are copied in every step.",
    "layers": "Layers are built and called later, when the block has ended: a Sequential model "
    "computes on the first device, whatever its layers were created under, and a functional one "
    "keeps only the variables there.",
    "compile": "compile computes nothing. fit traces its step later, when the block has ended.",
    "dataset": "The operations of tf.data run on the CPU, whatever device is requested.",
}
_FIX = {
    "fit": "create the model in the same block, so that its variables are there too.",
    "layers": 'pin the layer itself, evener.pin("gpu:1")(layer); or write a model whose call '
    "enters tf.device.",
    "compile": "leave tf.device out; to use one GPU for all, create the model and call fit in "
    "the same block.",
    "dataset": "leave tf.device out.",
}
_AROUND = {"layers": "the making of layers", "dataset": "a dataset"}
_STEPS = ("apply_gradients", "minimize", "train_on_batch", "predict", "evaluate")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    contents = {pin: set(_contents(program, pin)) for pin in pins_of(program)}
    # Layers that are called under a device, too, are rightly created under it.
    is_called_under_one = any(_COMPUTES in kinds for kinds in contents.values())
    for pin, kinds in contents.items():
        # A whole training under one device runs there; so do operations.
        if not kinds or _COMPUTES in kinds or {"layers", "fit"} <= kinds:
            continue
        kind = next(kind_name for kind_name in _WHY if kind_name in kinds)
        if (
            (kind == "dataset" and pin.device.startswith("CPU"))
            or (kind == "layers" and is_called_under_one)
            or (kind == "fit" and _is_model_created_under(program, pin))
        ):
            continue
        is_default = pin.device == ("GPU:0" if case.surroundings.gpus else "CPU:0")
        yield Violation(
            pin.location,
            f"tf.device({pin.named}) around {_AROUND.get(kind, kind)} does not make it run there.",
            why=_WHY[kind],
            fix=_FIX[kind],
            evidence=(pin.location.text, pin.module.location(pin.block.body[0]).text),
            severity=Severity.HINT if is_default or pin.device == "GPU:0" else None,
        )


def _contents(program: Program, pin: Pin) -> Iterator[str]:
    if _is_in_method_that_computes(program, pin):
        yield _COMPUTES
        return
    waiting: list[ast.AST] = list(pin.block.body)
    while waiting:
        node = waiting.pop()
        kinds = list(_kinds_of(program, pin.module, node)) if isinstance(node, ast.Call) else []
        yield from kinds
        # What is given to fit or to a dataset is no work of its own.
        if len(kinds) != 1 or kinds[0] not in ("fit", "compile", "dataset"):
            waiting.extend(ast.iter_child_nodes(node))


def _is_in_method_that_computes(program: Program, pin: Pin) -> bool:
    """Return whether a block is in ``call``, ``build`` or a class whose ``call`` has its own."""
    module = pin.module
    function = program.context.function(module, pin.block)
    definition = module.parents.get(function) if function is not None else None
    if not isinstance(definition, ast.ClassDef):
        return False
    if getattr(function, "name", "") != "__init__":
        return program.kind_of_class(module, definition) in (Kind.LAYER, Kind.MODEL)
    return any(
        other.module is where and method in where.around(other.block)
        for where, method, _ in program.classes.attributes(module, definition, "call")
        for other in pins_of(program)
    )


def _kinds_of(program: Program, module: Module, node: ast.Call, depth: int = 0) -> Iterator[str]:
    name = program.name_of(module, node.func)
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    owner = program.kinds(module, node.func.value) if isinstance(node.func, ast.Attribute) else ()
    made = program.kinds(module, node)
    if name.startswith(("tf.data.", "keras.utils.")) or (not name and Kind.DATASET in owner):
        yield "dataset"
    elif name == "keras.Input" or name.startswith(("keras.optimizers", "keras.losses", "np.")):
        return
    elif name.startswith(("keras.layers.", "keras.applications.", "keras.Sequential")):
        yield "layers"
    elif name == "keras.Model" or _is_on_symbols(program, module, node):
        yield "layers"
    elif Kind.MODEL in owner and method in ("compile", "fit"):
        yield method
    elif Kind.MODEL in owner and method in ("add", "summary", "build"):
        return
    elif made & {Kind.TENSOR, Kind.VARIABLE, Kind.PER_REPLICA} or method in _STEPS:
        yield _COMPUTES
    else:
        yield from _of_own(program, module, node, depth)


def _of_own(program: Program, module: Module, node: ast.Call, depth: int) -> Iterator[str]:
    """Yield what a function of the program does that is called in the block."""
    made = program.kinds(module, node)
    for where, target in program.targets(module, node):
        if isinstance(target, ast.ClassDef):
            if program.kind_of_class(where, target) in (Kind.MODEL, Kind.LAYER):
                yield "layers"
        elif made & {Kind.MODEL, Kind.LAYER}:
            yield "layers"
        elif Kind.DATASET in made:
            yield "dataset"
        elif isinstance(target, FUNCTIONS):
            calls = [inner for inner in own_nodes(target) if isinstance(inner, ast.Call)]
            found = [
                kind
                for inner in (calls if depth < _DEEPEST else ())
                for kind in _kinds_of(program, where, inner, depth + 1)
            ]
            # A function of which nothing is known may compute.
            yield from found or [_COMPUTES]


def _is_on_symbols(program: Program, module: Module, node: ast.Call) -> bool:
    """Return whether a layer is called on a symbol of a functional model, not on a tensor."""
    waiting: list[tuple[Module, ast.AST]] = [(module, argument) for argument in node.args[:1]]
    seen: set[ast.AST] = set()
    while waiting and len(seen) < _MOST_SYMBOLS:
        where, current = waiting.pop()
        for value in program.origins(where, current) if current not in seen else ():
            made = value.node
            if isinstance(made, ast.List | ast.Tuple):
                waiting += [(value.module, element) for element in made.elts]
            elif isinstance(made, ast.Call):
                name = program.name_of(value.module, made.func)
                if name == "keras.Input":
                    return True
                if name not in ("keras.Sequential", "keras.Model"):
                    waiting += [(value.module, given) for given in made.args[:1]]
        seen.add(current)
    return False


def _is_model_created_under(program: Program, pin: Pin) -> bool:
    """Return whether the models that are fitted in a block were created under its device."""
    same = {other.block for other in pins_of(program) if other.device == pin.device and pin.device}
    owners = [
        node.func.value
        for statement in pin.block.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr == "fit"
    ]
    return any(
        same & set(value.module.around(value.node))
        for owner in owners
        for value in program.origins(pin.module, owner)
    )
