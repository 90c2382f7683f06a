"""DOC-213: jit_compile=True where variables of several devices are used."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Call, Module, Program, argument
from evener.doctor.finding import Severity
from evener.doctor.queries.strategies import Made, runs, strategies
from evener.doctor.queries.training import is_of_model
from evener.doctor.rule import Case, Violation

_SEVERAL = ("MirroredStrategy", "MultiWorkerMirroredStrategy", "CentralStorageStrategy")
_ARGUMENTS = ("jit_compile", "experimental_compile")
_RAISED = (
    "XLA compiles a function for one device, and the variables of a strategy are on several: "
    "InvalidArgumentError: Trying to access resource located in device ... from device ..."
)


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    made = [strategy for strategy in strategies(program) if strategy.name in _SEVERAL]
    if not made:
        return
    for call, _ in program.calls_of("compile"):
        if is_of_model(program, call) and _is_compiled(program, call.module, call.node):
            if program.context.in_scope(call.module, call.node) is not False:
                yield _of_model(call, made[0])
    seen = set[ast.AST]()
    for run in runs(program):
        for module, node in _compiling_around(program, run):
            if node not in seen:
                seen.add(node)
                yield Violation(
                    module.location(node),
                    "a function that calls strategy.run is compiled with jit_compile=True.",
                    why=_RAISED,
                    fix="take jit_compile=True out here. Put it on the function that each replica "
                    "runs, and try that with all devices.",
                    evidence=(
                        module.location(node).text,
                        run.location.text,
                        made[0].call.location.text,
                    ),
                    severity=Severity.ERROR,
                )


def _of_model(call: Call, made: Made) -> Violation:
    return Violation(
        call.location,
        f"the model is compiled with jit_compile=True under {made.name}.",
        why=f"{_RAISED} Keras turns XLA off under a strategy with jit_compile='auto', which is "
        "the default.",
        fix="leave jit_compile out, or train with evener.Strategy().",
        evidence=(call.location.text, made.call.location.text),
    )


def _compiling_around(program: Program, run: Call) -> Iterator[tuple[Module, ast.AST]]:
    """Yield the decorators and calls of `tf.function` that compile what calls strategy.run."""
    function = program.context.function(run.module, run.node)
    if function is None:
        return
    decorator = program.context.decorator(run.module, function, "tf.function")
    if isinstance(decorator, ast.Call) and _is_compiled(program, run.module, decorator):
        yield run.module, decorator
    for call in program.calls("tf.function"):
        if _is_compiled(program, call.module, call.node) and call.node.args:
            made = program.functions_of(call.module, call.node.args[0])
            if any(target is function for _, target in made):
                yield call.module, call.node


def _is_compiled(program: Program, module: Module, node: ast.Call) -> bool:
    return any(program.constant(module, argument(node, None, name)) is True for name in _ARGUMENTS)
