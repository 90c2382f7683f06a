"""Names that a program uses and the installed TensorFlow and Keras do not have."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass

from evener.analysis import Location, Module, Program
from evener.analysis.api import public
from evener.doctor.queries.environment import settings
from evener.doctor.queries.guards import is_guarded
from evener.doctor.rule import Case

LEGACY = "TF_USE_LEGACY_KERAS"
_YES = ("1", "true")
_ROOTS = ("tensorflow", "tf", "keras", "tf_keras")
# With Keras 2 these are parts of tf_keras.
_OF_KERAS = ("keras", "losses", "metrics", "optimizers", "initializers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A use of a name that does not exist.

    Args:
        module: Module that contains it.
        node: The expression or import.
        name: The whole name, as it is written, with the package's full name.
        is_import: Whether it is imported here.
    """

    module: Module
    node: ast.AST
    name: str
    is_import: bool

    @property
    def location(self) -> Location:
        """Line of the program."""
        return self.module.location(self.node)


def is_judged(case: Case) -> bool:
    """Return whether the installed TensorFlow is the one whose names are known."""
    wheels = ("tensorflow", "tensorflow-cpu", "intel-tensorflow", "tf-nightly")
    found = [
        case.surroundings.packages[wheel] for wheel in wheels if wheel in case.surroundings.packages
    ]
    return not found or any(
        version.split(".")[:2] == public.version_of("tensorflow").split(".") for version in found
    )


def uses_keras_two(case: Case) -> bool:
    """Return whether `tf.keras` is Keras 2: the program or the environment asks for it."""
    values = [setting.value for setting in settings(case.program) if setting.name == LEGACY]
    values.append(case.surroundings.environment.get(LEGACY))
    return any(value is not None and value.lower() in _YES for value in values)


def has_objects_of_keras_two(case: Case) -> bool:
    """Return whether models, layers and optimizers may be those of Keras 2."""
    return uses_keras_two(case) or any(
        name.partition(".")[0] == "tf_keras"
        for _, node in case.program.nodes(ast.Import, ast.ImportFrom)
        for name in imported(node)
    )


def missing_names(case: Case) -> list[Missing]:
    """Return the uses of names that do not exist, file by file, from top to bottom.

    Names that the program makes itself, or only uses where they are there, are none.
    """
    if not is_judged(case):
        return []
    return list(_missing_in(case.program, is_two=uses_keras_two(case)))


@functools.lru_cache(maxsize=4)
def _missing_in(program: Program, *, is_two: bool) -> tuple[Missing, ...]:
    made = _made(program)
    found = [
        used
        for used in (*_imports(program), *_attributes(program))
        if (
            _is_missing(used.name, is_two=is_two)
            or (used.is_import and not public.is_imported(used.name))
        )
        and not any(used.name == name or used.name.startswith(f"{name}.") for name in made)
        and not is_guarded(program, used.module, used.node)
    ]
    order = {module: index for index, module in enumerate(program.modules)}
    return tuple(sorted(found, key=lambda used: (order[used.module], used.location.line)))


def _is_missing(name: str, *, is_two: bool) -> bool:
    first, _, rest = name.partition(".")
    second = rest.partition(".")[0]
    if is_two and first in ("tensorflow", "tf") and second in _OF_KERAS:
        if second != "keras":
            return False
        return bool(public.missing(f"tf_keras.{rest.partition('.')[2]}"))
    if first == "tf_keras":
        return bool(public.missing(name))
    row = public.gone(name)
    return (row is not None and row.is_there) or bool(public.missing(name))


def _imports(program: Program) -> Iterator[Missing]:
    for module, node in program.nodes(ast.Import, ast.ImportFrom):
        for name in imported(node):
            if is_of_libraries(program, name):
                yield Missing(module=module, node=node, name=name, is_import=True)


def imported(node: ast.AST) -> Iterator[str]:
    """Yield the full names that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        for alias in node.names:
            yield node.module if alias.name == "*" else f"{node.module}.{alias.name}"


def _attributes(program: Program) -> Iterator[Missing]:
    for module, node in program.nodes(ast.Attribute):
        parent = module.parents.get(node)
        if isinstance(parent, ast.Attribute):
            continue
        names = program.written_names(module, node)
        # Where an import depends on something, one of its names may be there.
        if all(is_of_libraries(program, candidate) for candidate in names) and isinstance(
            node.ctx, ast.Load
        ):
            missing = [
                candidate
                for candidate in names
                if public.missing(candidate) or public.gone(candidate)
            ]
            if len(missing) == len(names):
                yield Missing(module=module, node=node, name=min(names), is_import=False)


def is_of_libraries(program: Program, name: str) -> bool:
    """Return whether a full name is one of TensorFlow or Keras, not of a module of the project."""
    first = name.partition(".")[0]
    return first in _ROOTS and not any(other.name == first for other in program.modules)


def _made(program: Program) -> frozenset[str]:
    """Return the names that the program sets itself: ``tf.Session = tf.compat.v1.Session``."""
    return frozenset(
        name
        for module, node in program.nodes(ast.Attribute)
        if isinstance(node.ctx, ast.Store)
        for name in program.written_names(module, node)
        if name
    )
