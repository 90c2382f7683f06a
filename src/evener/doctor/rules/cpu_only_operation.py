"""DOC-405: operations that only run on the CPU, in the model or the step."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatchcase

from evener.analysis import Call, Module, Program
from evener.doctor.finding import Severity
from evener.doctor.queries.compiled_losses import losses_compiled
from evener.doctor.queries.source_text import shown
from evener.doctor.queries.steps import steps_of
from evener.doctor.queries.training import fits
from evener.doctor.rule import Case, Violation

# Functions whose operations have no GPU kernel in TensorFlow 2.21.
_CPU_ONLY = (
    "tf.py_function",
    "tf.numpy_function",
    "tf.py_func",
    "tf.compat.v1.py_func",
    "tf.strings.*",
    "tf.io.decode_*",
    "tf.io.encode_*",
    "tf.io.parse_*",
    "tf.io.read_file",
    "tf.io.write_file",
    "tf.image.decode_*",
    "tf.image.encode_*",
    "tf.image.sample_distorted_bounding_box",
    "tf.image.combined_non_max_suppression",
    "tf.random.shuffle",
    "tf.random.gamma",
    "tf.random.poisson",
    "tf.edit_distance",
    "tf.nn.ctc_beam_search_decoder",
    "tf.nn.ctc_greedy_decoder",
    "tf.linalg.sqrtm",
    "tf.linalg.logm",
    "tf.linalg.eig",
    "tf.linalg.eigvals",
    "tf.sets.*",
    "tf.setdiff1d",
)
_PYTHON = ("tf.py_function", "tf.numpy_function", "tf.py_func", "tf.compat.v1.py_func")
# These are mostly for messages.
_MESSAGES = ("tf.strings.as_string", "tf.strings.format")
_LAYERS = ("TextVectorization", "StringLookup", "IntegerLookup", "Hashing")


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    yield from _in_steps(case)
    yield from _layers(case)


def _in_steps(case: Case) -> Iterator[Violation]:
    program = case.program
    functions = dict(steps_of(program).in_training)
    for loss in losses_compiled(program):
        if loss.function is not None:
            functions.setdefault(loss.function, loss.module)
    only_map = {
        function
        for function in functions
        if (sites := program.call_sites(function)) and all(site.way == "map" for site in sites)
    }
    for call in program.all_calls:
        function = program.context.function(call.module, call.node)
        if function not in functions or function in only_map:
            continue
        if (
            any(fnmatchcase(call.name, pattern) for pattern in _CPU_ONLY)
            and call.name not in _MESSAGES
        ):
            yield _violation(case, call, function)


def _violation(case: Case, call: Call, function: ast.AST | None) -> Violation:
    where = getattr(function, "name", "") or "the step"
    is_python = call.name in _PYTHON
    why = (
        "It calls Python in the middle of the step: the devices wait for the interpreter, and its "
        "inputs and outputs are copied to the CPU and back."
        if is_python
        else "It has no GPU kernel: its inputs and outputs are copied to the CPU and back in every "
        "step, and the GPU waits."
    )
    fix = (
        "write it with TensorFlow's operations; or do it before, in dataset.map."
        if is_python
        else "do it before, in dataset.map(..., num_parallel_calls=tf.data.AUTOTUNE)."
    )
    return Violation(
        call.location,
        f"{shown(call.node.func)} runs on the CPU only, in every step ({where}).",
        why=why,
        fix=fix,
        severity=None if case.surroundings.gpus else Severity.HINT,
    )


def _layers(case: Case) -> Iterator[Violation]:
    """Find layers that look words up, as a part of a model that is trained."""
    program = case.program
    trained = _trained_layers(program)
    for call in program.calls(*(f"keras.layers.{layer}" for layer in _LAYERS)):
        if call.node in trained:
            yield Violation(
                call.location,
                f"{shown(call.node.func)} is a part of a model that is trained.",
                why="Looking strings up has no GPU kernel: it runs on the CPU in every step, and "
                "the GPU waits for it.",
                fix="apply it in the pipeline, dataset.map(lambda x, y: (layer(x), y), "
                "num_parallel_calls=tf.data.AUTOTUNE), and put it before the model for serving.",
                severity=None if case.surroundings.gpus else Severity.HINT,
            )


def _trained_layers(program: Program) -> set[ast.AST]:
    """Return the calls that make the layers of the models that are fitted."""
    found: set[ast.AST] = set()
    waiting = [
        (value.module, value.node)
        for fit in fits(program)
        if fit.owner is not None
        for value in program.origins(fit.module, fit.owner)
    ]
    seen: set[ast.AST] = set()
    while waiting:
        module, node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, ast.Call) and program.name_of(module, node.func).startswith(
            "keras.layers."
        ):
            found.add(node)
            continue
        for source in _leads_to(program, module, node):
            waiting += [(value.module, value.node) for value in program.origins(module, source)]
    for call, owner in program.calls_of("add"):
        owners = {value.node for value in program.origins(call.module, owner)}
        if owners & seen and call.node.args:
            found |= {value.node for value in program.origins(call.module, call.node.args[0])}
    return found


def _leads_to(program: Program, module: Module, node: ast.AST) -> list[ast.expr]:
    """Return the expressions by which a model or a layer's output leads to its layers."""
    if isinstance(node, ast.List | ast.Tuple):
        return list(node.elts)
    if not isinstance(node, ast.Call):
        return []
    name = program.name_of(module, node.func)
    if name in ("keras.Model", "keras.Sequential"):
        # Of a functional model the outputs lead back through all of its layers.
        return [
            *node.args[-1:],
            *(keyword.value for keyword in node.keywords if keyword.arg != "inputs"),
        ]
    return [*node.args, *([] if name else [node.func])]
