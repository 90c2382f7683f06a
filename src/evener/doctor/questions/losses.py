"""What a loss is made of: which terms, how each is brought to one number, and how scaled."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace

from evener.doctor.program import FUNCTIONS, Module, Program, argument, returns_of
from evener.doctor.questions.numbers import counts_replicas, is_global_batch
from evener.doctor.questions.reductions import Reduction, is_mean_over_samples, reduction_called
from evener.doctor.questions.scalars import MEANS, SUMS


class Scaling(enum.Enum):
    """What a term is divided by."""

    REPLICAS = "the number of replicas"
    GLOBAL_BATCH = "the global batch size"
    AVERAGE = "tf.nn.compute_average_loss"
    OTHER = "something else"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """One division of a term."""

    by: Scaling
    module: Module
    node: ast.AST


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A part of a loss.

    Args:
        module: Where it stands.
        node: What computes it.
        reduction: How it becomes one number.
        scaled: By what it is divided, the outermost first.
    """

    module: Module
    node: ast.AST
    reduction: Reduction
    scaled: tuple[Scaled, ...] = ()


_THROUGH = (
    "tf.cast",
    "tf.identity",
    "tf.squeeze",
    "tf.convert_to_tensor",
    "tf.debugging.check_numerics",
    "keras.ops.cast",
)
_ADDING = ("tf.add_n", "tf.math.add_n", "sum", "tf.add", "tf.math.add", "keras.ops.add")
_DIVIDING = ("tf.divide", "tf.math.divide", "tf.math.divide_no_nan", "keras.ops.divide")
_SCALING_METHODS = ("get_scaled_loss", "scale_loss")
_DEEPEST = 30


def terms_of(program: Program, module: Module, node: ast.AST) -> tuple[Term, ...]:
    """Return the terms of a loss, as far as the text tells.

    Args:
        program: The program.
        module: Where the expression stands.
        node: What the gradient is taken of.
    """
    found: dict[tuple[ast.AST, tuple[ast.AST, ...]], Term] = {}
    for term in _Walk(program).terms(module, node, ()):
        found.setdefault((term.node, tuple(one.node for one in term.scaled)), term)
    return tuple(found.values())


class _Walk:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._open: list[ast.AST] = []

    def terms(self, module: Module, node: ast.AST, scaled: tuple[Scaled, ...]) -> Iterator[Term]:
        if node in self._open or len(self._open) > _DEEPEST:
            return
        self._open.append(node)
        try:
            yield from self._of_node(module, node, scaled)
        finally:
            self._open.pop()

    def _of_node(self, module: Module, node: ast.AST, scaled: tuple[Scaled, ...]) -> Iterator[Term]:
        if isinstance(node, ast.Name):
            yield from self._of_name(module, node, scaled)
        elif isinstance(node, ast.BinOp):
            yield from self._of_arithmetic(module, node, scaled)
        elif isinstance(node, ast.UnaryOp):
            yield from self.terms(module, node.operand, scaled)
        elif isinstance(node, ast.IfExp):
            yield from self.terms(module, node.body, scaled)
            yield from self.terms(module, node.orelse, scaled)
        elif isinstance(node, ast.List | ast.Tuple):
            for one in node.elts:
                yield from self.terms(module, one, scaled)
        elif isinstance(node, ast.Lambda):
            yield from self.terms(module, node.body, scaled)
        elif isinstance(node, ast.Attribute) and node.attr == "losses":
            yield Term(module=module, node=node, reduction=Reduction.ADDED, scaled=scaled)
        elif isinstance(node, ast.ListComp | ast.GeneratorExp):
            losses = _losses_in(node.generators[0].iter)
            if losses is not None:
                yield Term(module=module, node=losses, reduction=Reduction.ADDED, scaled=scaled)
        elif isinstance(node, ast.Call):
            yield from self._of_call(module, node, scaled)
        elif isinstance(node, ast.Attribute | ast.Subscript):
            for value in self._program.origins(module, node):
                if value.node is not node and not value.steps:
                    yield from self.terms(value.module, value.node, scaled)

    def _of_name(
        self, module: Module, node: ast.Name, scaled: tuple[Scaled, ...]
    ) -> Iterator[Term]:
        function = self._program.around.function(module, node) or module.tree
        for one in ast.walk(function):
            if (
                isinstance(one, ast.AugAssign)
                and isinstance(one.target, ast.Name)
                and one.target.id == node.id
                and one.lineno < node.lineno
            ):
                if isinstance(one.op, ast.Add):
                    yield from self.terms(module, one.value, scaled)
                elif isinstance(one.op, ast.Div | ast.Mult):
                    divisor = one.value if isinstance(one.op, ast.Div) else _inverse_of(one.value)
                    scaled = (*scaled, self._scaled(module, divisor or one.value, one))
        for where, binding in self._program.bindings(module, node):
            if binding.value is not None and not binding.steps:
                yield from self.terms(where, binding.value, scaled)
            elif binding.value is not None:
                for value in self._program.origins(where, binding.value, binding.steps):
                    if not value.steps and value.node is not node:
                        yield from self.terms(value.module, value.node, scaled)
            elif binding.parameter_of is not None:
                for value in self._program.origins(module, node):
                    if not value.steps and isinstance(value.node, ast.expr | ast.Lambda):
                        yield from self.terms(value.module, value.node, scaled)
            elif isinstance(binding.definition, ast.FunctionDef):
                for returned in returns_of(binding.definition):
                    yield from self.terms(where, returned, scaled)

    def _of_arithmetic(
        self, module: Module, node: ast.BinOp, scaled: tuple[Scaled, ...]
    ) -> Iterator[Term]:
        if isinstance(node.op, ast.Div):
            by = self._scaled(module, node.right, node)
            yield from self.terms(module, node.left, (*scaled, by))
        elif isinstance(node.op, ast.Mult):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                divisor = _inverse_of(self._one_origin(module, other))
                if divisor is not None:
                    by = self._scaled(module, divisor, node)
                    yield from self.terms(module, one, (*scaled, by))
                    return
            yield from self.terms(module, node.left, scaled)
            yield from self.terms(module, node.right, scaled)
        elif isinstance(node.op, ast.Add | ast.Sub):
            yield from self.terms(module, node.left, scaled)
            yield from self.terms(module, node.right, scaled)

    def _of_call(
        self, module: Module, node: ast.Call, scaled: tuple[Scaled, ...]
    ) -> Iterator[Term]:
        name = self._program.callee(module, node)
        first = node.args[0] if node.args else argument(node, None, "per_example_loss")
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in MEANS:
            yield from self._of_mean(module, node, scaled)
        elif name in SUMS:
            yield from self._of_sum(module, node, scaled)
        elif name == "tf.nn.compute_average_loss" and first is not None:
            by = Scaled(by=Scaling.AVERAGE, module=module, node=node)
            inner = list(self.terms(module, first, (*scaled, by)))
            each = Term(module=module, node=node, reduction=Reduction.EACH, scaled=(*scaled, by))
            yield from inner or [each]
        elif name == "tf.nn.scale_regularization_loss":
            return
        elif name in _DIVIDING and len(node.args) > 1:
            by = self._scaled(module, node.args[1], node)
            yield from self.terms(module, node.args[0], (*scaled, by))
        elif name in _ADDING:
            for one in node.args:
                yield from self.terms(module, one, scaled)
        elif (name in _THROUGH or method in _SCALING_METHODS) and first is not None:
            yield from self.terms(module, first, scaled)
        elif name.startswith("keras.losses.") and name[13:14].islower():
            yield Term(module=module, node=node, reduction=Reduction.EACH, scaled=scaled)
        elif name.startswith("tf.nn.") and ("loss" in name or "entropy" in name):
            yield Term(module=module, node=node, reduction=Reduction.EACH, scaled=scaled)
        else:
            yield from self._of_own(module, node, method, scaled)

    def _of_own(
        self, module: Module, node: ast.Call, method: str, scaled: tuple[Scaled, ...]
    ) -> Iterator[Term]:
        loss = reduction_called(self._program, module, node)
        if loss is not None:
            yield Term(module=module, node=node, reduction=loss, scaled=scaled)
            return
        known = False
        for where, target in self._program.targets(module, node):
            if isinstance(target, FUNCTIONS):
                for returned in returns_of(target):
                    known = True
                    yield from self.terms(where, returned, scaled)
        if not known and method in ("compute_loss", "compiled_loss"):
            yield Term(module=module, node=node, reduction=Reduction.KERAS, scaled=scaled)

    def _of_mean(
        self, module: Module, node: ast.Call, scaled: tuple[Scaled, ...]
    ) -> Iterator[Term]:
        inner = list(self.terms(module, node.args[0], scaled)) if node.args else []
        if not is_mean_over_samples(node):
            yield Term(module=module, node=node, reduction=Reduction.EACH, scaled=scaled)
        elif inner and all(_is_one_number(one) for one in inner):
            yield from inner
        else:
            most = max((one.scaled for one in inner), key=len, default=scaled)
            yield Term(module=module, node=node, reduction=Reduction.MEAN, scaled=most)

    def _of_sum(self, module: Module, node: ast.Call, scaled: tuple[Scaled, ...]) -> Iterator[Term]:
        losses = _losses_in(node.args[0]) if node.args else None
        if losses is not None:
            yield Term(module=module, node=losses, reduction=Reduction.ADDED, scaled=scaled)
            return
        inner = list(self.terms(module, node.args[0], scaled)) if node.args else []
        if not inner:
            yield Term(module=module, node=node, reduction=Reduction.SUM, scaled=scaled)
        for one in inner:
            is_each = one.reduction is Reduction.EACH
            yield replace(one, node=node, reduction=Reduction.SUM) if is_each else one

    def _scaled(self, module: Module, divisor: ast.AST, node: ast.AST) -> Scaled:
        by = Scaling.OTHER
        if is_global_batch(self._program, module, divisor):
            by = Scaling.GLOBAL_BATCH
        elif counts_replicas(self._program, module, divisor):
            by = Scaling.REPLICAS
        return Scaled(by=by, module=module, node=node)

    def _one_origin(self, module: Module, node: ast.expr) -> ast.AST:
        values = self._program.origins(module, node)
        return values[0].node if len(values) == 1 and not values[0].steps else node


def _is_one_number(term: Term) -> bool:
    if term.reduction in (Reduction.KERAS, Reduction.MEAN):
        return True
    return any(one.by is Scaling.AVERAGE for one in term.scaled)


def _inverse_of(node: ast.AST) -> ast.expr | None:
    """Return b of ``1 / b``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        if isinstance(node.left, ast.Constant):
            return node.right
    return None


def _losses_in(node: ast.expr) -> ast.Attribute | None:
    if isinstance(node, ast.Attribute) and node.attr == "losses":
        return node
    return None
