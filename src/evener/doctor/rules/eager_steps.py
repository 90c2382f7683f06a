"""DOC-407: training steps run eagerly, one operation after the other, on every replica."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import FUNCTIONS, Call, Function, Module, Program
from evener.doctor.queries.branches import is_conditional
from evener.doctor.queries.gpus import visible_gpus
from evener.doctor.queries.step_edits import edits_of_step
from evener.doctor.queries.steps import steps_of
from evener.doctor.queries.strategies import is_only_evener, runs, strategies
from evener.doctor.queries.training import compiles, first_training, trainings, updates
from evener.doctor.rule import Case, Violation
from evener.run.eager_steps import eager_step_of

_WHY = (
    "Python starts each operation by itself, on one replica after the other: the devices wait for "
    "Python most of the time."
)
_ON_ONE_DEVICE = _WHY.replace(", on one replica after the other", "")
_SWITCHES = (
    "tf.config.run_functions_eagerly",
    "tf.config.experimental_run_functions_eagerly",
)


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    for call in runs(program) if not is_only_evener(program) else ():
        if _is_eager_loop(program, call):
            yield Violation(
                call.location,
                "strategy.run is called in no tf.function: all steps run eagerly.",
                why=_WHY,
                fix="call it in a function of its own, under @tf.function, and call that in the "
                "loop:\n@tf.function\ndef distributed_step(batch):\n"
                "    return strategy.run(step, args=(batch,))",
                edits=edits_of_step(program, call),
            )
    if not strategies(program) and not is_only_evener(program):
        yield from _plain_loops(case)
    if trainings(program):
        for call in compiles(program):
            yield from _switched(program, call)
    if trainings(program) or steps_of(program).functions:
        for call in program.calls(*_SWITCHES):
            yield from _switched(program, call)


def _plain_loops(case: Case) -> Iterator[Violation]:
    """Yield the steps of custom loops without a strategy that no `tf.function` traces."""
    program, visible = case.program, visible_gpus(case)
    # On several devices, DOC-201 says it of the first line that trains.
    told = first_training(program) if visible is None or visible > 1 else None
    for update in updates(program):
        module, call = update.call.module, update.call
        location = update.module.location(update.step)
        is_eager = program.context.is_traced(module, call.node) is False
        if location == told or not is_eager:
            continue
        if program.context.in_loop_over_batches(update.module, update.step) is True:
            step = eager_step_of("\n".join(module.lines), call.location.line)
            yield Violation(
                location,
                "the training step runs eagerly.",
                why=_ON_ONE_DEVICE + ("" if step is None else f" {step}."),
                fix="put the GradientTape and apply_gradients into a function under @tf.function, "
                "and call it in the loop.",
            )


def _is_eager_loop(program: Program, call: Call) -> bool:
    context = program.context
    if context.is_traced(call.module, call.node) is not False:
        return False
    # What a loop over batches calls, directly or by functions, runs once per batch.
    if context.in_loop_over_batches(call.module, call.node) is not True:
        return False
    given = call.argument(0, "fn")
    targets = list(program.functions_of(call.module, given)) if given is not None else []
    steps = steps_of(program).functions
    return bool(targets) and all(
        isinstance(target, FUNCTIONS)
        and target in steps
        and not _is_compiled(program, where, target)
        for where, target in targets
    )


def _is_compiled(program: Program, module: Module, function: Function) -> bool:
    """Return whether a function is traced, or trains by a method that Keras compiles."""
    inside = function.body if isinstance(function, ast.Lambda) else function.body[0]
    if program.context.is_traced(module, inside) is not False:
        return True
    return any(call.node in set(ast.walk(function)) for call in trainings(program))


def _switched(program: Program, call: Call) -> Iterator[Violation]:
    """Yield a switch that makes all steps eager, unless it depends on something."""
    is_compile = call.method == "compile"
    given = call.argument(None, "run_eagerly") if is_compile else call.argument(0, "run_eagerly")
    if not isinstance(given, ast.Constant) or given.value is not True:
        return
    if is_conditional(program, call.module, call.node):
        return
    yield Violation(
        call.location,
        f"{'fit runs all its' if trainings(program) else 'the program runs all'} steps eagerly.",
        why=_ON_ONE_DEVICE,
        fix=f"leave {'run_eagerly=True' if is_compile else 'this line'} out when you have found "
        "what you were looking for; tf.print works in compiled steps too.",
    )
