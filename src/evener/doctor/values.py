"""Values and calls of the symbolic walk: what an expression may give, and what a program calls."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from evener.doctor.sources import Location, Source


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A value that an expression may give."""

    kind: str = ""  # Kind such as ``"model"`` or ``"dataset"``; ``""`` if it is not known


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
class Items(Value):
    """A list, tuple or dict that the program writes; what is appended later is not in it."""

    values: tuple[Value, ...] = ()
    keys: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class OwnFunction(Value):
    """A function of the program."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda = field(kw_only=True)
    scope: Scope = field(kw_only=True)
    owner: Value | None = field(default=None, kw_only=True)
    traced: bool = field(default=False, kw_only=True)  # Whether it is a `tf.function`


@dataclass(frozen=True, slots=True, eq=False)
class Class(Value):
    """A class of the program, with its bases."""

    bases: tuple[Value, ...] = ()
    names: dict[str, Value] = field(default_factory=dict[str, Value])  # Methods, and what else

    def find(self, name: str) -> Value | None:
        """Return an attribute of the class or its bases."""
        inherited = (base.find(name) for base in self.bases if isinstance(base, Class))
        return self.names.get(name) or next(filter(None, inherited), None)


@dataclass(frozen=True, slots=True, eq=False)
class Instance(Value):
    """An object of a class of the program."""

    made: Class = field(kw_only=True)
    call: Call = field(kw_only=True)
    attributes: dict[str, Value] = field(default_factory=dict[str, Value], kw_only=True)


@dataclass(slots=True, eq=False)
class Scope:
    """The names of a function or module."""

    source: Source
    names: dict[str, Value] = field(default_factory=dict[str, Value])
    outer: Scope | None = None
    shared: set[str] = field(default_factory=set[str])  # of `global` and `nonlocal`
    is_class: bool = False  # its names are not seen from its methods

    def find(self, name: str) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None

    def bind(self, name: str, value: Value) -> None:
        scope = self
        while name in scope.shared and scope.outer is not None:
            scope = scope.outer
        scope.names[name] = value


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop around a call: its node, and what it goes through."""

    node: ast.AST
    over: Value


@dataclass(frozen=True, slots=True)
class Context:
    """Surroundings of a call when it runs."""

    loops: tuple[Loop, ...] = ()  # Loops around it, of its callers too, the outermost first
    blocks: tuple[Value, ...] = ()  # Values that the ``with`` statements around it were given
    guards: tuple[tuple[ast.AST, int], ...] = ()  # Conditions around it: node, number of the branch
    functions: tuple[ast.AST, ...] = ()  # Functions that are entered, the outermost first
    # Why functions are entered: "traced", "replica", "keras" (it calls them), "unreached"
    roles: frozenset[str] = frozenset()
    catches: bool = False  # Whether an exception is caught around it

    @property
    def is_scoped(self) -> bool:
        """Whether the scope of a strategy is around it."""
        made = [each.call for each in self.blocks if isinstance(each, Made)]
        return any(call is not None and call.method == "scope" for call in made)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Call:
    """A call, import, or setting of an environment variable, when it runs for the first time."""

    # Name in the library; a method of a kind, such as "model.fit", or "?.fit" of an unknown value;
    # "import", "environ" (a variable is set), "own" or "class"
    name: str
    node: ast.AST
    source: Source
    order: int  # Position in the order in which the program runs
    context: Context
    owner: Value | None = None  # Object whose method it is
    args: tuple[Value, ...] = ()  # Arguments by position, up to the first ``*args``
    keywords: dict[str, Value] = field(default_factory=dict[str, Value])  # Arguments by name
    unpacks: bool = False

    @property
    def location(self) -> Location:
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


def constant(value: Value | None) -> object:
    return value.value if isinstance(value, Constant) else None


def made_by(value: Value | None) -> Call | None:
    """Return the call that makes a value, None if it is not known or not one."""
    if isinstance(value, Made) and not value.path:
        return value.call
    return value.call if isinstance(value, Instance) else None


def joined(values: Iterable[Value]) -> Value:
    """Return one value for several that it may be: of others than one, only the kind is known."""
    found = list(values)
    same = {id(each): each for each in found}
    constants = {repr(each.value) for each in found if isinstance(each, Constant)}
    if len(same) == 1 or (len(constants) == 1 and all(isinstance(e, Constant) for e in found)):
        return found[0]
    kinds = {each.kind for each in found if not isinstance(each, Constant) or each.value}
    return Value(kinds.pop()) if len(kinds) == 1 else UNKNOWN
