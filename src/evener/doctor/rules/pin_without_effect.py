"""DOC-302: ``tf.device`` around what does not run there."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import FUNCTIONS, Kind, Module, Program, own_nodes
from evener.doctor.questions.pins import Pin, pins_of
from evener.doctor.rule import Case, Family, Rule

# Functions that are called in a block are looked into; not those that these call, and so on.
_DEEPEST = 3
_MOST_SYMBOLS = 200
_WHY = {
    "layers": "Layers are built and called later, when the block has ended: a Sequential model "
    "computes on the first device, whatever its layers were made under, and a functional one "
    "keeps only the variables there.",
    "compile": "compile computes nothing. fit traces its step later, when the block has ended.",
    "fit": "The forward pass goes to that device, but the variables stay where the model was "
    "made, and the optimizer's work with them: all weights are copied in every step.",
    "dataset": "The operations of tf.data run on the CPU, whatever device is asked for.",
}
_FIX = {
    "layers": 'pin the layer itself, evener.pin("gpu:1")(layer); or write a model whose call '
    "enters tf.device.",
    "compile": "leave tf.device out; to choose one GPU for all, make the model and call fit in "
    "the same block.",
    "fit": "make the model in the same block, so that its variables are there too.",
    "dataset": "leave tf.device out.",
}


def _look(case: Case) -> Iterator[Finding]:
    program = case.program
    contents = {pin: set(_contents(program, pin)) for pin in pins_of(program)}
    # Layers that are called under a device, too, are rightly made under it.
    is_called_under_one = any("computes" in kinds for kinds in contents.values())
    for pin, kinds in contents.items():
        # A whole training under one device is where it says; so is what computes.
        if not kinds or "computes" in kinds or {"layers", "fit"} <= kinds:
            continue
        kind = next(one for one in ("fit", "layers", "compile", "dataset") if one in kinds)
        if kind == "dataset" and pin.device.startswith("CPU"):
            continue
        if kind == "layers" and is_called_under_one:
            continue
        if kind == "fit" and _model_made_under(program, pin):
            continue
        severity = None
        if pin.device == "GPU:0" or (pin.device == "CPU:0" and not case.surroundings.gpus):
            # It says what would be anyway.
            severity = Severity.HINT
        around = {"layers": "the making of layers", "dataset": "a dataset"}.get(kind, kind)
        yield RULE.finding(
            pin.place,
            f"tf.device({pin.named}) around {around} does not make it run there.",
            why=_WHY[kind],
            fix=_FIX[kind],
            evidence=(pin.place.text, pin.module.place(pin.block.body[0]).text),
            severity=severity,
        )


def _contents(program: Program, pin: Pin) -> Iterator[str]:
    if _in_method_that_computes(program, pin):
        yield "computes"
        return
    waiting: list[ast.AST] = list(pin.block.body)
    while waiting:
        node = waiting.pop()
        kinds = list(_kind_of(program, pin.module, node)) if isinstance(node, ast.Call) else []
        yield from kinds
        # What is given to fit or to a dataset is no work of its own.
        if len(kinds) != 1 or kinds[0] not in ("fit", "compile", "dataset"):
            waiting.extend(ast.iter_child_nodes(node))


def _in_method_that_computes(program: Program, pin: Pin) -> bool:
    """Return whether a block is in ``call``, ``build`` or a class whose ``call`` has its own."""
    module, block = pin.module, pin.block
    function = program.around.function(module, block)
    if function is None:
        return False
    definition = module.parents.get(function)
    if not isinstance(definition, ast.ClassDef):
        return False
    if getattr(function, "name", "") != "__init__":
        return program.kind_of_class(module, definition) in (Kind.LAYER, Kind.MODEL)
    for where, method, _ in program.classes.attributes(module, definition, "call"):
        for other in pins_of(program):
            if other.module is where and method in where.around(other.block):
                return True
    return False


def _kind_of(program: Program, module: Module, node: ast.Call, depth: int = 0) -> Iterator[str]:
    name = program.name_of(module, node.func)
    method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    owner = program.kinds(module, node.func.value) if isinstance(node.func, ast.Attribute) else ()
    made = program.kinds(module, node)
    if name.startswith(("tf.data.", "keras.utils.")) or (not name and Kind.DATASET in owner):
        yield "dataset"
    elif name == "keras.Input" or name.startswith(("keras.optimizers", "keras.losses", "np.")):
        return
    elif name.startswith(("keras.layers.", "keras.applications.")) or name in (
        "keras.Sequential",
        "keras.Model",
    ):
        yield "layers"
    elif Kind.MODEL in owner and method in ("compile", "fit"):
        yield method
    elif Kind.MODEL in owner and method in ("add", "summary", "build"):
        return
    elif _is_on_symbols(program, module, node):
        yield "layers"
    elif Kind.TENSOR in made or Kind.VARIABLE in made or Kind.PER_REPLICA in made:
        yield "computes"
    elif method in ("apply_gradients", "minimize", "train_on_batch", "predict", "evaluate"):
        yield "computes"
    else:
        yield from _of_own(program, module, node, depth)


def _of_own(program: Program, module: Module, node: ast.Call, depth: int) -> Iterator[str]:
    """Say what a function of the program does that is called in the block."""
    for where, target in program.targets(module, node):
        if isinstance(target, ast.ClassDef):
            if program.kind_of_class(where, target) in (Kind.MODEL, Kind.LAYER):
                yield "layers"
        elif isinstance(target, FUNCTIONS):
            made = program.kinds(module, node)
            if Kind.MODEL in made or Kind.LAYER in made:
                yield "layers"
            elif Kind.DATASET in made:
                yield "dataset"
            else:
                yield from _inside(program, where, target, depth)


def _inside(program: Program, module: Module, function: ast.AST, depth: int) -> list[str]:
    """Return what a function does; that it computes if nothing is known of it."""
    found: list[str] = []
    for node in own_nodes(function) if depth < _DEEPEST else ():
        if isinstance(node, ast.Call):
            found += _kind_of(program, module, node, depth + 1)
    return found or ["computes"]


def _is_on_symbols(program: Program, module: Module, node: ast.Call) -> bool:
    """Return whether a layer is called on a symbol of a functional model, not on a tensor."""
    waiting: list[tuple[Module, ast.AST]] = [(module, one) for one in node.args[:1]]
    seen: set[ast.AST] = set()
    while waiting and len(seen) < _MOST_SYMBOLS:
        where, one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        for value in program.origins(where, one):
            made = value.node
            if isinstance(made, ast.List | ast.Tuple):
                waiting += [(value.module, element) for element in made.elts]
            if not isinstance(made, ast.Call):
                continue
            name = program.name_of(value.module, made.func)
            if name == "keras.Input":
                return True
            if name not in ("keras.Sequential", "keras.Model"):
                waiting += [(value.module, given) for given in made.args[:1]]
    return False


def _model_made_under(program: Program, pin: Pin) -> bool:
    """Return whether the models that are fitted in a block were made under the same device."""
    same = [one for one in pins_of(program) if one.device == pin.device and pin.device]
    for statement in pin.block.body:
        for node in ast.walk(statement):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr != "fit":
                continue
            for value in program.origins(pin.module, node.func.value):
                around = set(value.module.around(value.node))
                if any(one.block in around for one in same):
                    return True
    return False


RULE = Rule(
    code="DOC-302",
    family=Family.NUMBERS,
    title="tf.device without effect",
    severity=Severity.WARNING,
    look=_look,
)
