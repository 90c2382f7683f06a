"""Reduction of the samples of a loss to one number, term by term."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass

from evener.analysis import FUNCTIONS, Function, Kind, Module, Program, argument, returns_of
from evener.doctor.queries.numbers import counts_replicas, is_global_batch
from evener.doctor.queries.training import fits

_REDUCING = frozenset(
    f"{module}{name}"
    for module, prefix in (
        ("tf.", "reduce_"),
        ("tf.math.", "reduce_"),
        ("keras.ops.", ""),
        ("keras.backend.", ""),
    )
    for name in (f"{prefix}mean", f"{prefix}sum")
)
_DIVIDING = ("tf.divide", "tf.math.divide", "tf.math.divide_no_nan", "keras.ops.divide")
# Methods of optimizers for mixed precision.
_LOSS_SCALING = ("scale_loss", "get_scaled_loss")
# Hyperparameters: with these names, or attributes of an unknown kind.
_SETTINGS = ("smooth", "eps", "epsilon", "alpha")
_DEEPEST = 30


class Reduction(enum.Enum):
    """Number of values of a term."""

    EACH = "one per sample"
    SCALAR = "one for all samples"
    UNKNOWN = "not known"


class Divisor(enum.Enum):
    """Divisor of a term."""

    REPLICAS = "the number of replicas"
    GLOBAL_BATCH = "the global batch size"
    OTHER = "something else"


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A summand of a loss that depends on the samples.

    Args:
        module: Module that contains it.
        node: The expression that reduces it.
        reduction: Number of values of the term.
        divisors: Divisors of the term.
    """

    module: Module
    node: ast.AST
    reduction: Reduction
    divisors: tuple[Divisor, ...] = ()


def terms_of(program: Program, module: Module, node: ast.AST) -> tuple[Term, ...]:
    """Return the terms of a loss.

    Args:
        program: The program.
        module: Module that contains the expression.
        node: The loss.
    """
    return tuple(_Walk(program).terms(module, node, ()))


def scalar_returns(
    program: Program, module: Module, function: Function
) -> list[tuple[Term, ast.expr]]:
    """Return the returned values of a loss that returns one number for all samples.

    Args:
        program: The program.
        module: Module that contains the function.
        function: A function of true and predicted values.

    Returns:
        For each ``return`` its first term and the returned expression; nothing if the function
        may return one number per sample.
    """
    found: list[tuple[Term, ast.expr]] = []
    for returned in returns_of(function):
        terms = terms_of(program, module, returned)
        if not terms or any(term.reduction is not Reduction.SCALAR for term in terms):
            return []
        found.append((terms[0], returned))
    return found


class _Walk:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._open: list[ast.AST] = []

    def terms(self, module: Module, node: ast.AST, by: tuple[Divisor, ...]) -> Iterator[Term]:
        if node in self._open or len(self._open) > _DEEPEST:
            return
        self._open.append(node)
        try:
            yield from self._of_node(module, node, by)
        finally:
            self._open.pop()

    def _of_node(self, module: Module, node: ast.AST, by: tuple[Divisor, ...]) -> Iterator[Term]:
        if isinstance(node, ast.Constant) or self._is_setting(module, node):
            return
        if isinstance(node, ast.UnaryOp):
            yield from self.terms(module, node.operand, by)
        elif isinstance(node, ast.BinOp):
            is_division = isinstance(node.op, ast.Div)
            more = (self._divisor(module, node.right),) if is_division else ()
            if isinstance(node.op, ast.Mult):
                more = (*self._inverse(module, node.left), *self._inverse(module, node.right))
            yield from self.terms(module, node.left, (*by, *more))
            if not is_division:
                yield from self.terms(module, node.right, (*by, *more))
        elif isinstance(node, ast.Call):
            yield from self._of_call(module, node, by)
        elif isinstance(node, ast.Name | ast.Attribute):
            yield from self._of_name(module, node, by)
        else:
            yield Term(module=module, node=node, reduction=Reduction.UNKNOWN)

    def _of_name(
        self, module: Module, node: ast.Name | ast.Attribute, by: tuple[Divisor, ...]
    ) -> Iterator[Term]:
        if isinstance(node, ast.Name):
            found = [
                (where, binding.value)
                for where, binding in self._program.bindings(module, node)
                if binding.value is not None and not binding.steps
            ]
            if found:
                for where, value in found:
                    yield from self.terms(where, value, by)
                return
        for value in self._program.origins(module, node):
            if value.node is node or value.steps or not isinstance(value.node, ast.expr):
                yield Term(module=module, node=node, reduction=Reduction.UNKNOWN)
            else:
                yield from self.terms(value.module, value.node, by)

    def _of_call(self, module: Module, node: ast.Call, by: tuple[Divisor, ...]) -> Iterator[Term]:
        name = self._program.callee(module, node)
        reduction = Reduction.UNKNOWN
        if name in _REDUCING:
            reduction = Reduction.SCALAR if _is_over_samples(node) else Reduction.EACH
        elif name == "tf.nn.compute_average_loss":
            reduction, by = Reduction.SCALAR, (*by, Divisor.GLOBAL_BATCH)
        elif name in _DIVIDING and len(node.args) > 1:
            by = (*by, self._divisor(module, node.args[1]))
            yield from self.terms(module, node.args[0], by)
            return
        elif getattr(node.func, "attr", "") in _LOSS_SCALING and node.args:
            yield from self.terms(module, node.args[0], by)
            return
        elif name.startswith("keras.losses.") and name[13:14].islower():
            reduction = Reduction.EACH
        elif name.startswith("tf.nn.") and ("loss" in name or "entropy" in name):
            reduction = Reduction.EACH
        elif name.startswith(("tf.", "keras.ops.", "keras.backend.")) and node.args:
            # An elementwise function keeps the number of values.
            for operand in node.args:
                yield from self.terms(module, operand, by)
            return
        elif Kind.LOSS in self._program.kinds(module, node.func):
            reduction = self._of_loss_object(module, node)
        else:
            for where, target in self._program.targets(module, node):
                if isinstance(target, FUNCTIONS):
                    for returned in returns_of(target):
                        yield from self.terms(where, returned, by)
                    return
        yield Term(module=module, node=node, reduction=reduction, divisors=by)

    def _of_loss_object(self, module: Module, node: ast.Call) -> Reduction:
        for where, made in self._program.made_by(module, node.func):
            reduction = argument(made, None, "reduction")
            if reduction is not None:
                text = f"{self._program.constant(where, reduction)} {ast.unparse(reduction)}"
                is_each = not any(word in text.lower() for word in ("sum", "mean", "auto"))
                return Reduction.EACH if is_each else Reduction.SCALAR
        return Reduction.SCALAR

    def _inverse(self, module: Module, node: ast.AST) -> Iterator[Divisor]:
        """Yield the divisor of a factor such as ``1 / GLOBAL_BATCH``."""
        for value in self._program.origins(module, node):
            made = value.node
            if isinstance(made, ast.BinOp) and isinstance(made.op, ast.Div):
                if isinstance(made.left, ast.Constant):
                    yield self._divisor(value.module, made.right)

    def _divisor(self, module: Module, node: ast.AST) -> Divisor:
        if is_global_batch(self._program, module, node) or self._is_batch_of_fit(module, node):
            return Divisor.GLOBAL_BATCH
        is_count = counts_replicas(self._program, module, node)
        return Divisor.REPLICAS if is_count else Divisor.OTHER

    def _is_batch_of_fit(self, module: Module, node: ast.AST) -> bool:
        """Return whether a name is given to ``fit`` too, as the size of the whole batch."""
        if not isinstance(node, ast.Name):
            return False
        bound = {id(binding) for _, binding in self._program.bindings(module, node)}
        for fit in fits(self._program):
            given = fit.argument(None, "batch_size")
            if isinstance(given, ast.Name) and bound.intersection(
                id(binding) for _, binding in self._program.bindings(fit.module, given)
            ):
                return True
        return False

    def _is_setting(self, module: Module, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            origins = self._program.origins(module, node)
            return not self._program.kinds(module, node) and all(
                origin.node is node or isinstance(origin.node, ast.Constant) for origin in origins
            )
        return isinstance(node, ast.Name) and node.id in _SETTINGS


def _is_over_samples(call: ast.Call) -> bool:
    """Return whether a mean or sum goes over the samples too, not only over other axes."""
    axis = argument(call, 1, "axis")
    try:
        axes: object = None if axis is None else ast.literal_eval(axis)
    except ValueError:
        return False
    return axes is None or 0 in (axes if isinstance(axes, tuple | list) else (axes,))
