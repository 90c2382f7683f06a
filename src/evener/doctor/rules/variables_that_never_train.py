"""DOC-308: variables that no step changes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.doctor.finding import Finding, Severity
from evener.doctor.program import Call, Module, Place, Program, argument, last_name
from evener.doctor.questions.compiled import compiles
from evener.doctor.questions.freezes import Freeze, freezes
from evener.doctor.questions.gradients import gradients_of
from evener.doctor.questions.layers import is_of_keras
from evener.doctor.questions.texts import shown
from evener.doctor.questions.trainings import fits
from evener.doctor.questions.variables import LISTS, differs, slice_of, unbuilt, zip_in
from evener.doctor.rule import Case, Family, Rule

# Methods of callbacks that run between steps, and what makes fit trace its step anew.
_WHILE_FITTING = ("on_epoch_", "on_batch_", "on_train_batch_")
_ANEW = ("make_train_function",)


def _look(case: Case) -> Iterator[Finding]:
    yield from _plain_variables(case.program)
    yield from _other_list(case.program)
    yield from _changed_after_compile(case.program)
    yield from _listed_before_built(case.program)
    yield from _not_watched(case.program)
    yield from _seen(case)


# ---- a tf.Variable in a Keras layer


def _plain_variables(program: Program) -> Iterator[Finding]:
    if any("tf_keras" in line for module in program.modules for line in module.lines):
        return
    for call in program.calls("tf.Variable"):
        module, node = call.module, call.node
        owner = next((one for one in module.around(node) if isinstance(one, ast.ClassDef)), None)
        target = _attribute_assigned(module, node) or _attribute_given(program, module, node)
        if owner is None or target is None or not _is_meant_to_train(program, call):
            continue
        if not is_of_keras(program, module, owner):
            continue
        if _is_state(owner, target) or _is_listed_by_hand(program, target):
            continue
        yield RULE.finding(
            call.place,
            f"self.{target} of {owner.name} is a tf.Variable, which Keras does not train.",
            why="Keras 3 keeps track of its own variables alone: this one is not among "
            "trainable_variables, so that no gradient is taken of it, and it is not saved.",
            fix=f"self.{target} = self.add_weight(shape=..., initializer=...), or keras.Variable.",
        )


def _attribute_assigned(module: Module, node: ast.AST) -> str | None:
    parent = module.parents.get(node)
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    if isinstance(parent, ast.AnnAssign):
        targets = [parent.target]
    for target in targets:
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
            return target.attr
    return None


def _attribute_given(program: Program, module: Module, node: ast.AST) -> str | None:
    """Return the attribute to which what a function makes and returns is assigned."""
    function = program.around.function(module, node)
    if function is None or not isinstance(module.parents.get(node), ast.Return):
        return None
    sites = program.call_sites(function)
    found = (_attribute_assigned(site.module, site.call) for site in sites)
    return next((one for one in found if one is not None), None)


def _is_meant_to_train(program: Program, call: Call) -> bool:
    trainable = call.argument(1, "trainable")
    if trainable is not None and program.constant(call.module, trainable) is not True:
        return False
    dtype = call.argument(4, "dtype")
    if dtype is not None and any(part in ast.unparse(dtype) for part in ("int", "bool", "string")):
        return False
    initial = call.argument(0, "initial_value")
    if initial is None:
        return True
    constant = program.constant(call.module, initial)
    return not isinstance(constant, bool | str) and (
        not isinstance(constant, int) or dtype is not None
    )


def _is_state(owner: ast.ClassDef, target: str) -> bool:
    """Return whether the class itself assigns to a variable, as to a counter or an average."""
    for node in ast.walk(owner):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr.startswith(("assign", "scatter")):
                if ast.unparse(node.func.value) == f"self.{target}":
                    return True
    return False


def _is_listed_by_hand(program: Program, target: str) -> bool:
    """Return whether gradients are taken of a list in which the variable is named."""
    for gradient in gradients_of(program):
        function = program.around.function(gradient.call.module, gradient.call.node)
        if gradient.sources is not None and f".{target}" in ast.unparse(gradient.sources):
            return True
        if function is not None and f".{target}]" in ast.unparse(function):
            return True
    return False


# ---- gradients of one list are applied to another


def _other_list(program: Program) -> Iterator[Finding]:
    sources = {
        gradient.call.node: gradient
        for gradient in gradients_of(program)
        if gradient.sources is not None
    }
    for call in program.all_calls:
        method = call.method
        pairs = call.argument(0, "grads_and_vars") if method == "apply_gradients" else None
        zipped = zip_in(program, call.module, pairs) if pairs is not None else None
        if zipped is None:
            continue
        taken, applied = zipped.args[0], zipped.args[1]
        part = slice_of(taken)
        for value in program.origins(call.module, part or taken):
            gradient = sources.get(value.node) if isinstance(value.node, ast.Call) else None
            if gradient is None or gradient.sources is None or value.steps:
                continue
            said = differs(program, value.module, gradient.sources, call.module, applied, part)
            if said:
                yield RULE.finding(
                    call.module.place(zipped),
                    f"gradients of {shown(gradient.sources)} are applied to {shown(applied)}"
                    f"{said}.",
                    why="zip pairs them in order and stops at the end of the shorter one: "
                    "variables get gradients of others, or none at all, and never train.",
                    fix=f"optimizer.apply_gradients(zip({shown(part or taken)}, "
                    f"{shown(gradient.sources)}))",
                    evidence=(gradient.call.place.text, call.module.place(zipped).text),
                )


# ---- trainable changed after compile


def _changed_after_compile(program: Program) -> Iterator[Finding]:
    order = program.order
    compiled = [call for call in compiles(program) if order.of(call.node) is not None]
    trained = [call for call in fits(program) if order.of(call.node) is not None]
    for freeze in freezes(program):
        number = order.of(freeze.node)
        if _is_in_callback(program, freeze.module, freeze.node):
            yield _callback_finding(freeze.place, freeze.owner)
        if number is None or last_name(freeze.owner) == "self":
            continue
        later = [call for call in trained if (order.of(call.node) or 0) > number]
        if not later or not any((order.of(call.node) or 0) < number for call in compiled):
            continue
        next_fit = min(order.of(call.node) or 0 for call in later)
        if any(number < (order.of(call.node) or 0) < next_fit for call in compiled):
            continue
        if _is_in_loop_with_compile(program, freeze, compiled):
            continue
        before = [call for call in trained if (order.of(call.node) or 0) < number]
        yield _change_finding(freeze.place, freeze.owner, later[0], bool(before))


def _is_in_callback(program: Program, module: Module, node: ast.AST) -> bool:
    """Return whether a callback of `fit` runs a line when the step is traced already."""
    function = program.around.function(module, node)
    definition = module.parents.get(function) if function is not None else None
    name = getattr(function, "name", "")
    if not isinstance(definition, ast.ClassDef) or not name.startswith(_WHILE_FITTING):
        return False
    if name.endswith("_begin") and not _is_later(module, node, function):
        return False
    if any(
        isinstance(one, ast.Call) and getattr(one.func, "attr", "") in ("compile", *_ANEW)
        for one in ast.walk(definition)
    ):
        return False
    bases = {
        base
        for where, one in program.classes.with_bases(module, definition)
        for _, base in program.classes.bases(where, one)
    }
    return "keras.callbacks.Callback" in bases


def _is_later(module: Module, node: ast.AST, function: ast.AST | None) -> bool:
    """Return whether a condition keeps a line from the first time, before the step is traced."""
    for outer in module.around(node):
        if outer is function:
            return False
        if isinstance(outer, ast.If):
            return not ast.unparse(outer.test).endswith("== 0")
    return False


def _callback_finding(place: Place, owner: ast.expr) -> Finding:
    name = shown(owner)
    return RULE.finding(
        place,
        f"{name}.trainable is changed in a callback, while fit is at work.",
        why="fit keeps the step that it traced before its first batch, with the variables that "
        "were trainable then: the change has no effect.",
        fix="end this fit, change it, call compile again, and go on with another fit.",
    )


def _is_in_loop_with_compile(program: Program, freeze: Freeze, compiled: list[Call]) -> bool:
    loops = program.around.loops(freeze.module, freeze.node)
    return any(loop in call.module.around(call.node) for loop in loops for call in compiled)


def _change_finding(place: Place, owner: ast.expr, fit: Call, trained_before: bool) -> Finding:
    name = shown(owner)
    if trained_before:
        return RULE.finding(
            place,
            f"{name}.trainable is changed after fit, without compile before the next fit.",
            why="fit keeps the step that it traced the first time, with the variables that were "
            "trainable then: the change has no effect.",
            fix="call compile again after this line.",
            evidence=(place.text, fit.place.text),
        )
    return RULE.finding(
        place,
        f"{name}.trainable is changed after compile.",
        why="The first fit still sees the change; a later one would not, and optimizers that are "
        "built in compile do not either.",
        fix="set trainable before compile.",
        evidence=(place.text, fit.place.text),
        severity=Severity.HINT,
    )


# ---- a list of variables taken before there were any


def _listed_before_built(program: Program) -> Iterator[Finding]:
    for gradient in gradients_of(program):
        sources = gradient.sources
        if not isinstance(sources, ast.Name | ast.Attribute):
            continue
        for value in program.origins(gradient.call.module, sources):
            taken = value.node
            if not isinstance(taken, ast.Attribute) or taken.attr not in LISTS or value.steps:
                continue
            if taken is sources or program.order.of(taken) is None:
                continue
            if _is_taken_in_eager_step(program, value.module, taken, gradient.call):
                continue
            model = unbuilt(program, value.module, taken)
            if model is not None:
                yield RULE.finding(
                    value.module.place(taken),
                    f"{shown(taken)} is taken before {shown(taken.value)} has any variables.",
                    why="A model that does not know its input makes its variables when it is first "
                    "called. This list is empty, and the gradients of it are none: nothing trains.",
                    fix=f"take {shown(taken)} in the step, or build the model before, by "
                    "keras.Input or by calling it once.",
                    evidence=(value.module.place(taken).text, gradient.call.place.text),
                )


def _is_taken_in_eager_step(
    program: Program, module: Module, taken: ast.AST, gradient: Call
) -> bool:
    """Return whether the list is taken anew in every step, which costs only the first one."""
    own = program.around.function(gradient.module, gradient.node)
    if own is None or program.around.function(module, taken) is not own:
        return False
    loops = set(program.around.loops(gradient.module, gradient.node))
    if not loops <= set(program.around.loops(module, taken)):
        return False
    return program.around.is_traced(gradient.module, gradient.node) is False


# ---- a tape that watches nothing


def _not_watched(program: Program) -> Iterator[Finding]:
    for call in program.calls("tf.GradientTape"):
        given = argument(call.node, 1, "watch_accessed_variables")
        if given is None or program.constant(call.module, given) is not False:
            continue
        block = next(
            (one for one in call.module.around(call.node) if isinstance(one, ast.With)), None
        )
        text = ast.unparse(block) if block is not None else ""
        if block is None or ".watch(" in text:
            continue
        yield RULE.finding(
            call.place,
            "this tape watches no variables, and none is given to its watch.",
            why="All its gradients are None, so that nothing trains.",
            fix="leave out watch_accessed_variables=False, or call tape.watch(...) in the block.",
        )


# ---- what a run has shown


def _seen(case: Case) -> Iterator[Finding]:
    seen = case.seen
    if seen is None or not seen.untrained or seen.steps is None or seen.steps.num_steps < 2:
        return
    where = seen.steps.where
    place = Place(
        path=where.file if where is not None else case.program.script,
        line=where.line if where is not None else 0,
    )
    names = ", ".join(seen.untrained[:5]) + (", ..." if len(seen.untrained) > 5 else "")
    yield RULE.finding(
        place,
        f"{len(seen.untrained)} trainable variables were not changed by any step: {names}.",
        why="They get no gradient, or are not among those that gradients are applied to.",
        fix="let the loss depend on them and apply their gradients; or set trainable = False.",
        evidence=tuple(
            f"not changed in {seen.steps.num_steps} steps: {one}" for one in seen.untrained[:20]
        ),
    )


RULE = Rule(
    code="DOC-308",
    family=Family.NUMBERS,
    title="variables that never train",
    severity=Severity.ERROR,
    look=_look,
)
