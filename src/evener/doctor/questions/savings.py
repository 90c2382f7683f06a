"""What a program saves and loads of its training, and by which names."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass

from evener.doctor.program import Call, Kind, Module, Program

_SAVES = ("save_weights", "save", "write", "export")
_LOADS = ("load_weights", "restore", "read")


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A line that saves or loads.

    Args:
        call: The call.
        what: ``"weights"``, ``"model"``, ``"checkpoint"``, ``"manager"`` or ``"arrays"``.
        name: The expression of the name; None if there is none.
    """

    call: Call
    what: str
    name: ast.expr | None

    @property
    def module(self) -> Module:
        """Return where the line stands."""
        return self.call.module


@functools.lru_cache(maxsize=4)
def saves(program: Program) -> tuple[File, ...]:
    """Return the lines that save: weights, models, checkpoints, arrays, by callbacks too."""
    found: list[File] = []
    for call in program.all_calls:
        method = call.method
        if call.name == "keras.callbacks.ModelCheckpoint":
            only = call.argument(None, "save_weights_only")
            weights = only is not None and program.constant(call.module, only) is True
            what = "weights" if weights else "model"
            found.append(File(call=call, what=what, name=call.argument(0, "filepath")))
        elif call.name in ("np.save", "np.savez", "np.savez_compressed"):
            found.append(File(call=call, what="arrays", name=call.argument(0, "file")))
        elif call.name == "keras.saving.save_model" or call.name == "keras.models.save_model":
            found.append(File(call=call, what="model", name=call.argument(1, "filepath")))
        elif method == "save_weights":
            found.append(File(call=call, what="weights", name=call.argument(0, "filepath")))
        elif method in _SAVES and isinstance(call.node.func, ast.Attribute):
            what = _what(program, call.module, call.node.func.value)
            if what:
                found.append(File(call=call, what=what, name=_name(call, what)))
    return tuple(found)


@functools.lru_cache(maxsize=4)
def loads(program: Program) -> tuple[File, ...]:
    """Return the lines that load."""
    found: list[File] = []
    for call in program.all_calls:
        method = call.method
        if call.name in ("keras.models.load_model", "keras.saving.load_model"):
            found.append(File(call=call, what="model", name=call.argument(0, "filepath")))
        elif call.name == "np.load":
            found.append(File(call=call, what="arrays", name=call.argument(0, "file")))
        elif method == "load_weights":
            found.append(File(call=call, what="weights", name=call.argument(0, "filepath")))
        elif method in _LOADS and isinstance(call.node.func, ast.Attribute):
            what = _what(program, call.module, call.node.func.value)
            if what == "checkpoint":
                found.append(File(call=call, what=what, name=call.argument(0, "save_path")))
    return tuple(found)


def is_same_name(program: Program, one: File, other: File) -> bool:
    """Return whether two lines name the same file, as far as the text tells."""
    if one.name is None or other.name is None:
        return False
    return names_same(program, one.module, one.name, other.module, other.name)


def names_same(
    program: Program, module: Module, one: ast.expr, other_module: Module, other: ast.expr
) -> bool:
    """Return whether two expressions are the same name."""
    first, second = program.constant(module, one), program.constant(other_module, other)
    if first is not None or second is not None:
        return first == second
    nodes = {(value.node, value.steps) for value in program.origins(module, one)}
    if nodes & {(value.node, value.steps) for value in program.origins(other_module, other)}:
        return True
    return _text(program, module, one) == _text(program, other_module, other)


def last_of_path(program: Program, module: Module, node: ast.AST) -> str:
    """Return the last part of a path that is put together; ``""`` if the text does not tell."""
    values = program.origins(module, node)
    if len(values) != 1 or values[0].steps:
        return ""
    where, one = values[0].module, values[0].node
    if isinstance(one, ast.Constant) and isinstance(one.value, str):
        return one.value.rpartition("/")[2]
    if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div):
        return last_of_path(program, where, one.right)
    if isinstance(one, ast.Call) and one.args:
        name = program.name_of(where, one.func)
        if name in ("str", "os.path.join", "pathlib.Path", "os.fspath"):
            return last_of_path(program, where, one.args[-1])
    return ""


def _text(program: Program, module: Module, node: ast.expr) -> str:
    """Return an expression's text with names of constants put in."""
    values = program.origins(module, node)
    if len(values) == 1 and isinstance(values[0].node, ast.expr) and not values[0].steps:
        module, node = values[0].module, values[0].node
    if isinstance(node, ast.Call):
        function = program.name_of(module, node.func) or ast.unparse(node.func)
        return f"{function}({', '.join(_text(program, module, one) for one in node.args)})" + (
            "" if node.args else ast.unparse(node)
        )
    return ast.unparse(node)


def _what(program: Program, module: Module, owner: ast.expr) -> str:
    kinds = program.kinds(module, owner)
    for kind, what in (
        (Kind.CHECKPOINT_MANAGER, "manager"),
        (Kind.CHECKPOINT, "checkpoint"),
        (Kind.MODEL, "model"),
    ):
        if kind in kinds:
            return what
    named = ast.unparse(owner).lower()
    if "manager" in named:
        return "manager"
    if named.endswith(("ckpt", "checkpoint")):
        return "checkpoint"
    return "model" if named.endswith("model") else ""


def _name(call: Call, what: str) -> ast.expr | None:
    if what == "manager":
        return None
    return call.argument(0, "file_prefix" if what == "checkpoint" else "filepath")
