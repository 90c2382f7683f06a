"""DOC-104: an environment variable is set after it was read."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from evener.analysis import Location, Module, Program
from evener.doctor.finding import Severity
from evener.doctor.queries.device_initialization import cuda_calls, is_too_late, starting_calls
from evener.doctor.queries.environment import Setting, settings
from evener.doctor.queries.imports import imports
from evener.doctor.rule import Case, Violation

_BY_IMPORT = (
    "TF_CPP_MIN_LOG_LEVEL",
    "TF_CPP_MAX_VLOG_LEVEL",
    "TF_CPP_VMODULE",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_DISABLE_MKL",
    "AUTOGRAPH_VERBOSITY",
)
_BY_KERAS = ("KERAS_BACKEND", "KERAS_HOME")
_BY_CUDA = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
_BY_START = (
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "TF_GPU_ALLOCATOR",
    "TF_GPU_THREAD_MODE",
    "TF_GPU_THREAD_COUNT",
    "TF_MIN_GPU_MULTIPROCESSOR_COUNT",
    "TF_CPU_ALLOCATOR_USE_BFC",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)
# Read when XLA is first used: after the import it may be early enough, and may not.
_BY_XLA = ("XLA_FLAGS", "TF_XLA_FLAGS")

_Reader = tuple[Location, str]


def check(case: Case) -> Iterator[Violation]:
    """Yield the violations."""
    program = case.program
    for setting in settings(program):
        reader = _reader(program, setting)
        if reader is None:
            continue
        location, reads = reader
        by_xla = setting.name in _BY_XLA
        loose = by_xla and not is_too_late(program, setting.node)
        yield Violation(
            setting.location,
            f"{setting.name} is set after line {location.line} "
            f"{'may have' if by_xla else 'has'} read it: {location.text}",
            why=f"{reads} The value set here is not looked at.",
            fix=f"set {setting.name} in the first lines of the script, before "
            f"{'the import' if _is_import(location) else 'line ' + str(location.line)}, "
            "or where the program is started.",
            evidence=(location.text, setting.location.text),
            severity=Severity.HINT if loose else None,
        )


def _reader(program: Program, setting: Setting) -> _Reader | None:
    """Return what has read the variable before, and how that is."""
    name = setting.name
    if name in _BY_IMPORT:
        return _after_imports(program, setting, "TensorFlow reads it once, when it is imported.")
    if name in _BY_KERAS:
        return _after_imports(
            program, setting, "Keras reads it once, when it is imported.", of_keras=True
        )
    if name in _BY_XLA:
        return _after_imports(program, setting, "XLA reads it once, when it is first used.")
    if name in _BY_CUDA:
        reads = "CUDA reads it once, when a program first asks for devices."
        return _after_calls(program, setting, [call.node for call in cuda_calls(program)], reads)
    if name in _BY_START:
        reads = "TensorFlow reads it once, when it starts its devices."
        return _after_calls(
            program, setting, [call.node for call in starting_calls(program)], reads
        )
    return None


def _after_imports(
    program: Program, setting: Setting, reads: str, *, of_keras: bool = False
) -> _Reader | None:
    for module, node in imports(program, of_keras=of_keras):
        if program.order.is_before(node, setting.node):
            return module.location(node), reads
        return None
    return None


def _after_calls(
    program: Program, setting: Setting, calls: list[ast.Call], reads: str
) -> _Reader | None:
    if calls and program.order.is_before(calls[0], setting.node):
        return _module_of(program, calls[0]).location(calls[0]), reads
    return None


def _module_of(program: Program, node: ast.AST) -> Module:
    return next(module for module in program.modules if node in module.parents)


def _is_import(location: Location) -> bool:
    return location.text.startswith(("import ", "from "))
