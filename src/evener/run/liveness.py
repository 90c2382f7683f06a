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


class StatementNames:
    """Names of statements, which are followed in the order in which Python evaluates them."""

    def __init__(self) -> None:
        self.read: set[str] = set()  # Names that may be read before the statements have bound them
        self.bound: set[str] = set()  # Names that they may bind
        self.certain: set[str] = set()  # Names that are bound when the last of them has run
        self.deleted: set[str] = set()  # Names that they may delete

    def follow(self, statements: Iterable[ast.stmt]) -> None:
        for node in statements:
            match node:
                case ast.Assign():
                    self._read(node.value)
                    self._bind(*node.targets)
                case ast.AugAssign():
                    if isinstance(node.target, ast.Name):
                        self._read(ast.Name(node.target.id, ast.Load()))
                    self._read(node.value)
                    self._bind(node.target)
                case ast.AnnAssign():
                    self._read(node.annotation)
                    if node.value is not None:
                        self._read(node.value)
                        self._bind(node.target)
                case ast.If():
                    self._read(node.test)
                    certain = self._follow_block(node.body)
                    self.certain |= certain & self._follow_block(node.orelse)
                case ast.For():
                    self._read(node.iter)
                    self._follow_block(node.body, node.target)
                    self._follow_block(node.orelse)
                case ast.While():
                    self._read(node.test)
                    self._follow_block(node.body)
                    self._follow_block(node.orelse)
                case ast.With():
                    for item in node.items:
                        self._read(item.context_expr)
                        self._bind(*filter(None, [item.optional_vars]))
                    self.follow(node.body)
                case ast.Delete():
                    for target in node.targets:
                        deleted = stores_in(target)
                        self.read |= deleted - self.certain
                        self.deleted |= deleted
                        self.certain -= deleted
                        self._read(target)
                case _:
                    self._read(node)

    def _follow_block(self, statements: Iterable[ast.stmt], *targets: ast.expr) -> set[str]:
        """Follow a block that may not run; return what is certain if it does."""
        before, self.certain = self.certain, set(self.certain)
        self._bind(*targets)
        self.follow(statements)
        certain, self.certain = self.certain, before
        return certain

    def _bind(self, *targets: ast.expr) -> None:
        for target in targets:
            self.bound |= stores_in(target)
            self.certain |= stores_in(target)
            # What is stored into is read.
            self._read(target)

    def _read(self, node: ast.AST, hidden: frozenset[str] = frozenset()) -> None:
        """Add the names that an expression reads; ``hidden`` are those of a scope within it."""
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load) and node.id not in hidden | self.certain:
                self.read.add(node.id)
        elif isinstance(node, ast.NamedExpr):
            self._read(node.value, hidden)
            # It may stand where it is not always reached.
            self.bound.add(node.target.id)
        elif isinstance(node, ast.Lambda):
            for default in filter(None, (*node.args.defaults, *node.args.kw_defaults)):
                self._read(default, hidden)
            self._read(node.body, hidden | _parameters(node))
        elif isinstance(node, _COMPREHENSIONS):
            first = node.generators[0].iter
            self._read(first, hidden)
            hidden = hidden.union(*(stores_in(part.target) for part in node.generators))
            for child in ast.iter_child_nodes(node):
                is_clause = isinstance(child, ast.comprehension)
                for part in ast.iter_child_nodes(child) if is_clause else [child]:
                    if part is not first:
                        self._read(part, hidden)
        else:
            for child in ast.iter_child_nodes(node):
                self._read(child, hidden)


def names_of(statements: Sequence[ast.stmt]) -> StatementNames:
    r"""Return the names of statements.

    Example:
        >>> found = names_of(ast.parse("y = x\ntotal += y\nif y: z = 1").body)
        >>> sorted(found.read), sorted(found.bound), sorted(found.certain)
        (['total', 'x'], ['total', 'y', 'z'], ['total', 'y'])
    """
    names = StatementNames()
    names.follow(statements)
    return names


def loads_in(*nodes: ast.AST) -> set[str]:
    names = (inner for node in nodes for inner in ast.walk(node) if isinstance(inner, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}


def stores_in(node: ast.AST) -> set[str]:
    """Return the names that a target, or a statement with what is in it, binds or deletes."""
    names = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
    return {name.id for name in names if not isinstance(name.ctx, ast.Load)}


def bound_name(node: object) -> str | None:
    """Return the name that a node itself binds."""
    match node:
        case ast.Name(ctx=ast.Store() | ast.Del()):
            return node.id
        case ast.arg():
            return node.arg
        case ast.alias():
            return node.asname or node.name.partition(".")[0]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.ExceptHandler():
            return node.name
        case _:
            return None


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
        is_pure = not statement.orelse and _only_reads(statement.test)
        return is_pure and all(map(is_deferrable, statement.body))
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    call = statement.value
    parts = [*call.args, *call.keywords]
    function = call.func
    if ast.unparse(function) in ("print", "tf.print"):
        return all(map(_only_reads, parts))
    if isinstance(function, ast.Attribute) and function.attr == "append":
        return _only_reads(function.value) and all(map(_is_number, parts))
    return False


def _is_number(node: ast.AST) -> bool:
    """Return whether an expression is certainly no tensor."""
    if not isinstance(node, ast.Call) or not _only_reads(node):
        return False
    is_name = isinstance(node.func, ast.Name)
    return last_name(node.func) in (("float", "int") if is_name else ("numpy", "item"))


def _only_reads(node: ast.AST) -> bool:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute):
            if inner.attr not in _READS and not f"{ast.unparse(inner)}.".startswith(_COMPUTES):
                return False
        elif isinstance(inner, ast.Call):
            function = inner.func
            is_known = isinstance(function, ast.Name) and function.id in _FUNCTIONS
            if not is_known and not isinstance(function, ast.Attribute):
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
            read |= loads_in(statement)
        elif read & stores_in(statement):
            return False
    return True


def without_deferred(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return a copy of statements in which nothing stands for each deferrable one."""
    found: list[ast.stmt] = []
    for statement in statements:
        kept = ast.Pass() if is_deferrable(statement) else copy.deepcopy(statement)
        if isinstance(kept, ast.With):
            kept.body = without_deferred(kept.body)
        found.append(ast.copy_location(kept, statement))
    return found


def _in_order(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, and those in ``with`` blocks instead of the block."""
    for statement in statements:
        yield from _in_order(statement.body) if isinstance(statement, ast.With) else [statement]


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
        is_global = scope is self._module.root
        return any(
            self._reaches(load, name, scope, block, last)
            for load in self._loads.get(name, ())
            if id(load) not in inside
            if is_global or any(outer is scope for outer in self._module.around(load))
        )

    def is_carried(self, name: str, block: Sequence[ast.stmt], first: int, last: int) -> bool:
        """Return whether statements may read, in the next turn of a loop, what they gave a name."""
        scope = self._scope_of(name, block[first])
        is_in_function = any(isinstance(o, FUNCTIONS) for o in self._module.around(block[first]))
        if scope is self._module.root and is_in_function:
            return True
        return self._reaches(block[first], name, scope, block, last)

    def _scope_of(self, name: str, statement: ast.stmt) -> ast.AST:
        around = self._module.around(statement)
        function = next((outer for outer in around if isinstance(outer, FUNCTIONS)), None)
        if function is None or _is_of_outer_scope(function, name):
            return self._module.root  # every read in the module may be meant
        return function

    def _reaches(
        self, load: ast.AST, name: str, scope: ast.AST, block: Sequence[ast.stmt], last: int
    ) -> bool:
        """Return whether a load may see what a region bound: no binding is between them."""
        around = {id(outer) for outer in self._module.around(block[last])}
        node = load
        while True:
            if id(node) not in self._blocks:
                parent = self._module.parents[node]
                # A comprehension or lambda right around it may have the name for itself.
                if isinstance(parent, _COMPREHENSIONS) and any(
                    name in stores_in(part.target) for part in parent.generators
                ):
                    return False
                if isinstance(parent, ast.Lambda) and _is_local(parent, name):
                    return False
                node = parent
                if isinstance(node, ast.Lambda) and node is not scope:
                    return True
                if isinstance(node, ast.Module) or node is scope:
                    return False
                if id(node) in around and isinstance(node, ast.While | ast.Try):
                    # The test of a loop, and handlers of what the region raises, come later.
                    return True
                continue
            parent, siblings, index = self._blocks[id(node)]
            for before in range(index - 1, -1, -1):
                if (siblings is block and before == last) or id(siblings[before]) in around:
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
            targets: list[ast.expr | None] = []
            if isinstance(parent, ast.With | ast.AsyncWith):
                targets = [item.optional_vars for item in parent.items]
            elif isinstance(parent, ast.For) and siblings is parent.body:
                targets = [parent.target]
            if any(name in stores_in(target) for target in targets if target is not None):
                return False
            is_alternative = isinstance(parent, ast.If) and siblings is not block
            if id(parent) in around and not is_alternative:
                return True
            node = parent


def blocks_of(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block:
            yield block


def _binds(statement: ast.stmt, name: str) -> bool:
    """Return whether a name is certainly bound once a statement has run."""
    # The names of an import, each of them a node.
    parts = (statement, *getattr(statement, "names", ()))
    return name in map(bound_name, parts) or name in names_of([statement]).certain


def _parameters(function: Function) -> set[str]:
    return {node.arg for node in ast.iter_child_nodes(function.args) if isinstance(node, ast.arg)}


def _is_of_outer_scope(function: Function, name: str) -> bool:
    outer = (node for node in ast.walk(function) if isinstance(node, ast.Global | ast.Nonlocal))
    return any(name in node.names for node in outer)


def _is_local(function: Function, name: str) -> bool:
    if name in _parameters(function) or isinstance(function, ast.Lambda):
        return name in _parameters(function)
    return name in stores_in(function) and not _is_of_outer_scope(function, name)
