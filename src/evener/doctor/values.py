"""Values and calls of the symbolic walk: what an expression may give, and what a program calls."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from evener.doctor.sources import Location, Source


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A value that an expression may give.

    Args:
        kind: Kind such as ``"model"`` or ``"dataset"``; ``""`` if it is not known.
    """

    kind: str = ""


UNKNOWN = Value()


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Value):
    """A number, text or None that the program writes."""

    value: object = None


@dataclass(frozen=True, slots=True, eq=False)
class Library(Value):
    """A thing of a library, by its one name."""

    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Made(Value):
    """A value that a call of a library gives, or a part of it."""

    call: Call | None = None
    path: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Attribute(Value):
    """An attribute of a value, such as ``model.trainable_variables``."""

    owner: Value = UNKNOWN
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Computed(Value):
    """A value that an operator gives, with its operands."""

    operands: tuple[Value, ...] = ()
    sign: type[ast.AST] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Items(Value):
    """A list, tuple or dict that the program writes; what is appended later is not in it."""

    values: tuple[Value, ...] = ()
    keys: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class OwnFunction(Value):
    """A function of the program.

    Args:
        traced: Whether it is a `tf.function`.
        given: First arguments that ``functools.partial`` gives.
    """

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda = field(kw_only=True)
    scope: Scope = field(kw_only=True)
    owner: Value | None = field(default=None, kw_only=True)
    traced: bool = field(default=False, kw_only=True)
    given: tuple[Value, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True, eq=False)
class Class(Value):
    """A class of the program, with its bases."""

    node: ast.ClassDef = field(kw_only=True)
    scope: Scope = field(kw_only=True)
    bases: tuple[Value, ...] = field(default=(), kw_only=True)
    methods: dict[str, Value] = field(default_factory=dict[str, Value], kw_only=True)

    def find(self, name: str) -> Value | None:
        """Return an attribute of the class or its bases."""
        if name in self.methods:
            return self.methods[name]
        for base in self.bases:
            if isinstance(base, Class) and (inherited := base.find(name)) is not None:
                return inherited
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Instance(Value):
    """An object of a class of the program."""

    made: Class = field(kw_only=True)
    attributes: dict[str, Value] = field(default_factory=dict[str, Value], kw_only=True)
    call: Call | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True, eq=False)
class Either(Value):
    """One of several values."""

    options: tuple[Value, ...] = ()


@dataclass(slots=True, eq=False)
class Scope:
    """The names of a function or module."""

    source: Source
    names: dict[str, Value] = field(default_factory=dict[str, Value])
    outer: Scope | None = None
    shared: set[str] = field(default_factory=set[str])  # of `global` and `nonlocal`
    is_class: bool = False  # its names are not seen from its methods

    def find(self, name: str) -> Value | None:
        """Return what a name stands for."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None

    def bind(self, name: str, value: Value) -> None:
        """Bind a name."""
        scope = self
        while name in scope.shared and scope.outer is not None:
            scope = scope.outer
        scope.names[name] = value


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop around a call: its node, and what it goes through."""

    node: ast.AST
    over: Value
    function: ast.AST | None


@dataclass(frozen=True, slots=True)
class Context:
    """Surroundings of a call when it runs.

    Args:
        loops: Loops around it, of its callers too, the outermost first.
        blocks: Values that the ``with`` statements around it were given.
        guards: Conditions around it: node, number of the branch, value of the condition.
        functions: Functions that are entered, the outermost first.
        roles: Why functions are entered: ``"traced"``, ``"replica"``, ``"map"``, ``"host"``
            (a generator or py_function), ``"keras"``, ``"unreached"``.
        catches: Whether an exception is caught around it.
    """

    loops: tuple[Loop, ...] = ()
    blocks: tuple[Value, ...] = ()
    guards: tuple[tuple[ast.AST, int, Value], ...] = ()
    functions: tuple[ast.AST, ...] = ()
    roles: frozenset[str] = frozenset()
    catches: bool = False

    @property
    def scope(self) -> Value | None:
        """The strategy whose scope is around it, or None."""
        for value in reversed(self.blocks):
            for option in options(value):
                if isinstance(option, Made) and option.call is not None:
                    if option.call.method == "scope":
                        return option.call.owner or UNKNOWN
        return None

    def excludes(self, other: Context) -> bool:
        """Return whether only one of both can run."""
        branches = {node: branch for node, branch, _ in self.guards}
        return any(branches.get(node, branch) != branch for node, branch, _ in other.guards)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Call:
    """A call, import, or assignment to an attribute or item, when it runs for the first time.

    Args:
        name: Name in the library, such as ``"tf.data.Dataset.range"``; a method of a kind, such as
            ``"model.fit"``; ``"import"``, ``"environ"`` (a variable is set) or ``"set NAME"``.
            ``"?.NAME"`` for a method of an unknown value.
        order: Position in the order in which the program runs.
        owner: Object whose method it is.
        args: Arguments by position; None behind ``*args``.
        keywords: Arguments by name; `unpacks` if there is a ``**``.
        is_certain: Whether it is known whose method it is, or which function.
    """

    name: str
    node: ast.AST
    source: Source
    order: int
    context: Context
    owner: Value | None = None
    args: tuple[Value, ...] = ()
    keywords: dict[str, Value] = field(default_factory=dict[str, Value])
    unpacks: bool = False
    is_certain: bool = True

    @property
    def location(self) -> Location:
        """Line of the program."""
        return self.source.location(self.node)

    @property
    def method(self) -> str:
        """Last part of the name."""
        return self.name.rpartition(".")[2]

    def argument(self, position: int | None, name: str) -> Value | None:
        """Return an argument, None if it is not given, `UNKNOWN` if it may be unpacked."""
        if name in self.keywords:
            return self.keywords[name]
        if position is not None and position < len(self.args):
            return self.args[position]
        return UNKNOWN if self.unpacks else None

    def constant(self, position: int | None, name: str) -> object:
        """Return the constant that an argument is, or None."""
        return constant(self.argument(position, name))

    def written(self, position: int, name: str) -> str:
        """Return the text of an argument, ``""`` if it is not given."""
        assert isinstance(self.node, ast.Call)
        for keyword in self.node.keywords:
            if keyword.arg == name:
                return ast.unparse(keyword.value)
        return ast.unparse(self.node.args[position]) if position < len(self.node.args) else ""


def constant(value: Value | None) -> object:
    """Return the constant that a value is, or None."""
    return value.value if isinstance(value, Constant) else None


def options(value: Value | None) -> tuple[Value, ...]:
    """Return the values that a value may be."""
    return value.options if isinstance(value, Either) else () if value is None else (value,)


def made_by(value: Value | None) -> Call | None:
    """Return the call that makes a value, None if it is not known or not one."""
    if isinstance(value, Made) and not value.path:
        return value.call
    return value.call if isinstance(value, Instance) else None


def joined(values: Iterable[Value]) -> Value:
    """Return one value for several that it may be."""
    found: list[Value] = []
    for value in values:
        for option in options(value):
            if not any(option is each or _is_same(option, each) for each in found):
                found.append(option)
    if not found:
        return UNKNOWN
    if len(found) == 1:
        return found[0]
    kinds = {each.kind for each in found if not _is_none(each)}
    return Either(kinds.pop() if len(kinds) == 1 else "", tuple(found[:6]))


def _is_same(first: Value, second: Value) -> bool:
    return (
        isinstance(first, Constant)
        and isinstance(second, Constant)
        and (type(first.value), first.value) == (type(second.value), second.value)
    )


def _is_none(value: Value) -> bool:
    return isinstance(value, Constant) and value.value is None
