"""Losses that give one number for all samples, instead of one for each."""

from __future__ import annotations

import ast

from evener.doctor.program import FUNCTIONS, Kind, Module, Program, argument, returns_of

MEANS = ("tf.reduce_mean", "tf.math.reduce_mean", "keras.ops.mean", "keras.backend.mean")
SUMS = ("tf.reduce_sum", "tf.math.reduce_sum", "keras.ops.sum", "keras.backend.sum")
_DEEPEST = 30


def scalar_returns(
    program: Program, module: Module, function: ast.AST
) -> list[tuple[Module, ast.AST, ast.AST]]:
    """Return, of a loss that gives one number for all samples, the lines that make it so.

    Args:
        program: The program.
        module: Where the function stands.
        function: A function of true and predicted values.

    Returns:
        For each ``return``: the module, what makes one number of the samples, and what is
        returned. Empty if it gives, or may give, a number for each sample.
    """
    found: list[tuple[Module, ast.AST, ast.AST]] = []
    if not isinstance(function, FUNCTIONS):
        return []
    for returned in returns_of(function):
        maker = _Scalars(program).maker(module, returned)
        if maker is None:
            return []
        found.append((module, maker, returned))
    return found


class _Scalars:
    """Tells whether an expression is one number whatever the number of samples."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._open: list[ast.AST] = []

    def maker(self, module: Module, node: ast.AST) -> ast.AST | None:
        """Return what makes a number of the samples; None if it is none, or not known."""
        if node in self._open or len(self._open) > _DEEPEST:
            return None
        self._open.append(node)
        try:
            return self._maker(module, node)
        finally:
            self._open.pop()

    def _maker(self, module: Module, node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.BinOp):
            sides = [self._side(module, one) for one in (node.left, node.right)]
            if any(side is False for side in sides):
                return None
            return next((side for side in sides if isinstance(side, ast.AST)), None)
        if isinstance(node, ast.UnaryOp):
            return self.maker(module, node.operand)
        if isinstance(node, ast.Name):
            made = [
                self.maker(where, binding.value)
                if binding.value is not None and not binding.steps
                else None
                for where, binding in self._program.bindings(module, node)
            ]
            return made[0] if made and all(made) else None
        if isinstance(node, ast.Call):
            return self._of_call(module, node)
        return None

    def _of_call(self, module: Module, node: ast.Call) -> ast.AST | None:
        name = self._program.name_of(module, node.func)
        if name in (*MEANS, *SUMS):
            axis = argument(node, 1, "axis")
            is_whole = axis is None or (isinstance(axis, ast.Constant) and axis.value is None)
            return node if is_whole and argument(node, 2, "keepdims") is None else None
        if name == "tf.nn.compute_average_loss":
            return None
        if name.startswith(("tf.", "keras.ops.", "keras.backend.")) and node.args:
            # A function of numbers gives a number.
            sides = [self._side(module, one) for one in node.args]
            if any(side is False for side in sides):
                return None
            return next((side for side in sides if isinstance(side, ast.AST)), None)
        if Kind.LOSS in self._program.kinds(module, node.func):
            return node
        made: list[ast.AST | None] = []
        for where, target in self._program.targets(module, node):
            if isinstance(target, FUNCTIONS):
                made += [self.maker(where, one) for one in returns_of(target)]
        return made[0] if made and all(made) else None

    def _side(self, module: Module, node: ast.AST) -> ast.AST | bool:
        """Return what makes it a number, True for a constant, False for anything else."""
        if isinstance(node, ast.Constant):
            return True
        maker = self.maker(module, node)
        if maker is not None:
            return maker
        if isinstance(node, ast.BinOp):
            sides = [self._side(module, one) for one in (node.left, node.right)]
            if all(side is not False for side in sides):
                return next((side for side in sides if isinstance(side, ast.AST)), True)
            return False
        if isinstance(node, ast.UnaryOp):
            return self._side(module, node.operand)
        values = self._program.origins(module, node)
        plain = all(isinstance(value.node, ast.Constant) for value in values)
        return plain or self._is_setting(module, node)

    def _is_setting(self, module: Module, node: ast.AST) -> bool:
        """Return whether a name is a number from outside, such as alpha or self.weight."""
        if isinstance(node, ast.Attribute):
            return not self._program.kinds(module, node)
        return isinstance(node, ast.Name) and node.id in ("smooth", "eps", "epsilon", "alpha")
