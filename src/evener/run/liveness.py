"""Names that statements read and write, and which of them are live: read again later.

Statements in a step that only show its values can run behind it::

    with tf.GradientTape() as tape:
        loss = ...
        print(loss.numpy())        reads `loss`, which nothing changes any more
    gradients = ...

Tensors do not change, so the text is the same a few lines later. Variables do: a name that holds
one is refused when the step runs.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
Node = TypeVar("Node", bound=ast.AST)


class SyntaxTree:
    """Syntax tree of a text; SyntaxError if it is not Python."""

    def __init__(self, source: str, path: str = "<unknown>") -> None:
        self.root = ast.parse(source, filename=path)
        self._nodes = list(ast.walk(self.root))
        self.parents = {child: node for node in self._nodes for child in ast.iter_child_nodes(node)}

    def every(self, *types: type[Node]) -> Iterator[Node]:
        yield from (node for node in self._nodes if isinstance(node, types))

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, from the inside out, up to the module."""
        parent = self.parents.get(node)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)


def last_name(node: ast.AST) -> str:
    """Return the name that an expression ends in, such as ``model`` of ``self.model``; else ``""``.

    >>> last_name(ast.parse("self.model", mode="eval").body)
    'model'
    """
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(slots=True, kw_only=True)
class StatementNames:
    # Names that may be read before these statements have bound them
    read: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)  # Names that they may bind
    # Names that are bound when the last of them has run
    certain: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)  # Names that they may delete


def names_of(statements: Sequence[ast.stmt]) -> StatementNames:
    r"""Return the names of statements.

    Example:
        >>> found = names_of(ast.parse("y = x\ntotal += y\nif y: z = 1").body)
        >>> sorted(found.read), sorted(found.bound), sorted(found.certain)
        (['total', 'x'], ['total', 'y', 'z'], ['total', 'y'])
    """
    names = StatementNames()
    _follow(statements, names, names.certain)
    return names


def loads_in(node: ast.AST) -> Iterator[ast.Name]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
            yield inner


def targets_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Tuple | ast.List):
        for element in node.elts:
            yield from targets_of(element)
    elif isinstance(node, ast.Starred):
        yield from targets_of(node.value)


def _follow(statements: Iterable[ast.stmt], names: StatementNames, certain: set[str]) -> None:
    """Add the names of statements; ``certain`` is what is bound before and, then, behind them."""
    for node in statements:
        if isinstance(node, ast.Assign):
            _reads(node.value, names, certain)
            for target in node.targets:
                _bind(target, names, certain)
        elif isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name):
                _reads(ast.Name(node.target.id, ast.Load()), names, certain)
            _reads(node.value, names, certain)
            _bind(node.target, names, certain)
        elif isinstance(node, ast.AnnAssign):
            _reads(node.annotation, names, certain)
            if node.value is not None:
                _reads(node.value, names, certain)
                _bind(node.target, names, certain)
        elif isinstance(node, ast.If):
            _reads(node.test, names, certain)
            branches = [set(certain), set(certain)]
            _follow(node.body, names, branches[0])
            _follow(node.orelse, names, branches[1])
            certain |= branches[0] & branches[1]
        elif isinstance(node, ast.For | ast.While):
            body = set(certain)
            if isinstance(node, ast.For):
                _reads(node.iter, names, certain)
                _bind(node.target, names, body)
            else:
                _reads(node.test, names, certain)
            _follow(node.body, names, body)
            # The body may not run at all.
            _follow(node.orelse, names, set(certain))
        elif isinstance(node, ast.With):
            for item in node.items:
                _reads(item.context_expr, names, certain)
                if item.optional_vars is not None:
                    _bind(item.optional_vars, names, certain)
            _follow(node.body, names, certain)
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                deleted = set(targets_of(target))
                names.read |= deleted - certain
                names.deleted |= deleted
                certain -= deleted
                _reads(target, names, certain)
        else:
            _reads(node, names, certain)


def _bind(target: ast.AST, names: StatementNames, certain: set[str]) -> None:
    bound = set(targets_of(target))
    names.bound |= bound
    certain |= bound
    # What is stored into is read.
    _reads(target, names, certain)


def _reads(
    node: ast.AST, names: StatementNames, certain: set[str], hidden: frozenset[str] = frozenset()
):
    """Add the names that an expression reads; ``hidden`` are those of a scope within it."""
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load) and node.id not in hidden and node.id not in certain:
            names.read.add(node.id)
    elif isinstance(node, ast.NamedExpr):
        _reads(node.value, names, certain, hidden)
        # It may stand where it is not always reached.
        names.bound |= set(targets_of(node.target))
    elif isinstance(node, ast.Lambda):
        given = node.args
        for default in (*given.defaults, *given.kw_defaults):
            if default is not None:
                _reads(default, names, certain, hidden)
        _reads(node.body, names, certain, hidden | _parameters(node))
    elif isinstance(node, _COMPREHENSIONS):
        inner = frozenset(
            name for generator in node.generators for name in targets_of(generator.target)
        )
        _reads(node.generators[0].iter, names, certain, hidden)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.comprehension):
                for part in (*child.ifs, *([child.iter] * (child is not node.generators[0]))):
                    _reads(part, names, certain, hidden | inner)
            else:
                _reads(child, names, certain, hidden | inner)
    else:
        for child in ast.iter_child_nodes(node):
            _reads(child, names, certain, hidden)


_READS = ("numpy", "item", "tolist", "format", "shape", "join")
# What computes from tensors alone, and where `tf.print` writes.
_COMPUTES = (
    *("tf.reduce_", "tf.math.", "tf.linalg.", "tf.norm.", "tf.shape.", "tf.cast."),
    *("tf.float", "tf.int", "tf.argmax.", "tf.sqrt.", "sys.stdout.", "sys.stderr."),
)
_FUNCTIONS = ("float", "int", "str", "len", "round", "abs", "print", "repr", "bool")
_EXPRESSIONS = (
    *(ast.Constant, ast.Name, ast.JoinedStr, ast.FormattedValue, ast.BinOp, ast.UnaryOp),
    *(ast.Compare, ast.BoolOp, ast.Tuple, ast.List, ast.IfExp, ast.Subscript, ast.keyword),
    *(ast.operator, ast.unaryop, ast.cmpop, ast.boolop, ast.expr_context, ast.Slice),
)


def is_deferrable(statement: ast.stmt) -> bool:
    """Return whether a statement only prints values, or appends them to a list as numbers."""
    if isinstance(statement, ast.If):
        return (
            not statement.orelse
            and _only_reads(statement.test)
            and all(is_deferrable(inner) for inner in statement.body)
        )
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    call = statement.value
    parts = [*call.args, *call.keywords]
    function = call.func
    if ast.unparse(function) in ("print", "tf.print"):
        return all(_only_reads(part) for part in parts)
    if isinstance(function, ast.Attribute) and function.attr == "append":
        return _only_reads(function.value) and all(map(_is_number, parts))
    return False


def _is_number(node: ast.AST) -> bool:
    """Return whether an expression is certainly no tensor."""
    if not isinstance(node, ast.Call) or not _only_reads(node):
        return False
    function = node.func
    if isinstance(function, ast.Name):
        return function.id in ("float", "int")
    return isinstance(function, ast.Attribute) and function.attr in ("numpy", "item")


def _only_reads(node: ast.AST) -> bool:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute):
            if inner.attr not in _READS and not f"{ast.unparse(inner)}.".startswith(_COMPUTES):
                return False
        elif isinstance(inner, ast.Call):
            function = inner.func
            if isinstance(function, ast.Name) and function.id not in _FUNCTIONS:
                return False
            if not isinstance(function, ast.Name | ast.Attribute):
                return False
        elif not isinstance(inner, _EXPRESSIONS):
            return False
    return True


def deferred_in(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    return [statement for statement in _in_order(statements) if is_deferrable(statement)]


def can_defer(statements: Sequence[ast.stmt]) -> bool:
    """Return whether no statement binds a name that a deferred one before it reads."""
    read: set[str] = set()
    for statement in _in_order(statements):
        if is_deferrable(statement):
            read |= {load.id for load in loads_in(statement)}
        elif read & bound_by(statement):
            return False
    return True


def without_deferred(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return a copy of statements in which nothing stands for each deferrable one."""
    found: list[ast.stmt] = []
    for statement in statements:
        if is_deferrable(statement):
            found.append(ast.copy_location(ast.Pass(), statement))
            continue
        kept = copy.deepcopy(statement)
        if isinstance(kept, ast.With):
            kept.body = without_deferred(kept.body)
        found.append(kept)
    return found


def _in_order(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, and those in ``with`` blocks instead of the block."""
    for statement in statements:
        if isinstance(statement, ast.With):
            yield from _in_order(statement.body)
        else:
            yield statement


def bound_by(statement: ast.stmt) -> set[str]:
    return {
        name
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
        for name in targets_of(node)
    }


class Liveness:
    def __init__(self, module: SyntaxTree) -> None:
        self._module = module
        self._loads: dict[str, list[ast.Name]] = {}
        for node in module.every(ast.Name):
            if not isinstance(node.ctx, ast.Store):
                self._loads.setdefault(node.id, []).append(node)
        self._blocks = {
            id(statement): (parent, block, index)
            for parent in ast.walk(module.root)
            for block in blocks_of(parent)
            for index, statement in enumerate(block)
        }

    def is_read_after(self, name: str, block: Sequence[ast.stmt], first: int, last: int) -> bool:
        scope = self._scope_of(name, block[first])
        inside = {id(node) for statement in block[first : last + 1] for node in ast.walk(statement)}
        around = {id(outer) for outer in self._module.around(block[first])}
        for load in self._loads.get(name, ()):
            if id(load) in inside or (
                scope is not self._module.root
                and not any(outer is scope for outer in self._module.around(load))
            ):
                continue
            if self._reaches(load, name, scope, (block, last), around):
                return True
        return False

    def is_carried(self, name: str, block: Sequence[ast.stmt], first: int, last: int) -> bool:
        """Return whether statements may read, in the next turn of a loop, what they gave a name."""
        around = {id(outer) for outer in self._module.around(block[first])}
        scope = self._scope_of(name, block[first])
        is_in_function = any(isinstance(o, FUNCTIONS) for o in self._module.around(block[first]))
        if scope is self._module.root and is_in_function:
            return True
        return self._reaches(block[first], name, scope, (block, last), around)

    def _scope_of(self, name: str, statement: ast.stmt) -> ast.AST:
        for outer in self._module.around(statement):
            if isinstance(outer, FUNCTIONS):
                declared = [
                    node for node in ast.walk(outer) if isinstance(node, ast.Global | ast.Nonlocal)
                ]
                if any(name in node.names for node in declared):
                    # Of an outer scope: every read in the module may be meant.
                    return self._module.root
                return outer
        return self._module.root

    def _reaches(
        self,
        load: ast.AST,
        name: str,
        scope: ast.AST,
        region: tuple[Sequence[ast.stmt], int],
        around: set[int],
    ) -> bool:
        """Return whether a load may see what a region bound: no binding is between them."""
        block, last = region
        node: ast.AST = load
        while True:
            found = self._blocks.get(id(node))
            if found is None:
                if self._is_hidden(node, name):
                    return False
                node = self._module.parents[node]
                if isinstance(node, ast.Lambda) and node is not scope:
                    return True
                if isinstance(node, ast.Module) or node is scope:
                    return False
                if id(node) in around and isinstance(node, ast.While | ast.Try):
                    # The test of a loop, and handlers of what the region raises, come later.
                    return True
                continue
            parent, siblings, index = found
            for before in range(index - 1, -1, -1):
                if siblings is block and before == last:
                    return True
                if id(siblings[before]) in around:
                    return True
                if _binds(siblings[before], name):
                    return False
            if siblings is block and index > last:
                return True
            if parent is scope or isinstance(parent, ast.Module):
                return False
            if isinstance(parent, FUNCTIONS):
                # It may be called at any time, unless the name is its own.
                return not _is_local(parent, name)
            if _binds_head(parent, siblings, name):
                return False
            is_alternative = isinstance(parent, ast.If) and siblings is not block
            if id(parent) in around and not is_alternative:
                return True
            node = parent

    def _is_hidden(self, node: ast.AST, name: str) -> bool:
        """Return whether a comprehension or lambda right around a node has the name for itself."""
        parent = self._module.parents[node]
        if isinstance(parent, _COMPREHENSIONS):
            return any(name in targets_of(part.target) for part in parent.generators)
        return isinstance(parent, ast.Lambda) and _is_local(parent, name)


def blocks_of(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block:
            yield block


def _binds(statement: ast.stmt, name: str) -> bool:
    """Return whether a name is certainly bound once a statement has run."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return statement.name == name
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return any(
            (alias.asname or alias.name.partition(".")[0]) == name for alias in statement.names
        )
    return name in names_of([statement]).certain


def _binds_head(parent: ast.AST, block: list[ast.stmt], name: str) -> bool:
    if isinstance(parent, ast.With | ast.AsyncWith):
        named = (item.optional_vars for item in parent.items)
        return any(name in targets_of(target) for target in named if target is not None)
    is_body = block is getattr(parent, "body", None)
    return isinstance(parent, ast.For) and is_body and name in targets_of(parent.target)


def _parameters(function: Function) -> set[str]:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {parameter.arg for parameter in named if parameter is not None}


def _is_local(function: Function, name: str) -> bool:
    if name in _parameters(function):
        return True
    if isinstance(function, ast.Lambda):
        return False
    nodes = list(ast.walk(function))
    outer = (node for node in nodes if isinstance(node, ast.Global | ast.Nonlocal))
    if any(name in node.names for node in outer):
        return False
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in nodes
    )
