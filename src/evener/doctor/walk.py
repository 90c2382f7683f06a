"""A symbolic walk of a program: its calls in the order in which they run, and what is around each.

The walk goes through the script from its first line as Python would, with values that are known
only as far as the text says: constants, things of the libraries, what their calls made, functions
and objects of the program. It enters imports, functions and methods where they are called, with
what they are given. Both branches of a condition are walked unless the condition is a constant;
a loop is walked once. What no line calls is walked at the end, with nothing known.
"""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Iterable
from dataclasses import replace

from evener.doctor.names import CALLED, ELEMENTS, canonical, kind_made_by, kind_of_base
from evener.doctor.sources import Source, from_module
from evener.doctor.values import (
    UNKNOWN,
    Attribute,
    Call,
    Class,
    Computed,
    Constant,
    Context,
    Either,
    Instance,
    Items,
    Library,
    Loop,
    Made,
    OwnFunction,
    Scope,
    Value,
    constant,
    joined,
    made_by,
    options,
)

_MOST_CALLS = 20_000
_MOST_WALKS = 6  # of one function: its callers differ in what they give
_DEEPEST = 40
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_USUAL_IMPORTS = {"os": "os", "np": "np", "tf": "tf", "keras": "keras"}
# Calls that give the function that they are given.
_WRAPPERS = ("tf.function", "functools.partial", "tf.recompute_grad", "functools.wraps")
_LEAVING = ("sys.exit", "exit", "quit", "os._exit")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
}
_COMPARISONS = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class _Full(Exception):
    """The program has more calls than are looked at."""


class _Left(Exception):
    """The rest of a block is not reached."""


class Walk:
    """The walk of one program.

    Args:
        sources: Files by dotted name, the script first.
    """

    def __init__(self, sources: dict[str, Source]) -> None:
        self.calls: list[Call] = []
        self._sources = sources
        self._modules: dict[str, Scope] = {}
        self._context = Context()
        self._num_walks: dict[ast.AST, int] = {}
        self._returned: dict[ast.AST, Value] = {}
        self._is_certain = True
        self._returns: list[list[Value]] = []
        self._defined: list[OwnFunction] = []
        self._objects: list[Instance] = []
        # Rules hold for what was walked: they need no complete list.
        with contextlib.suppress(_Full):
            for name in list(sources)[:1]:
                self._module(name)
            self._unreached()

    # ---- modules and blocks

    def _module(self, name: str) -> Scope:
        if name in self._modules:
            return self._modules[name]
        source = self._sources[name]
        scope = Scope(source)
        scope.names["__name__"] = Constant("", name)
        self._modules[name] = scope
        # A module that a branch or function imports first runs with that around it.
        self._block(source.tree.body, scope)
        return scope

    def _unreached(self) -> None:
        """Walk the functions and methods that nothing calls."""
        for instance in list(self._objects):
            for name in ("call", "train_step", "update_state", "on_train_batch_end", "__call__"):
                method = instance.made.find(name)
                if isinstance(method, OwnFunction) and method.node not in self._num_walks:
                    bound = replace(method, owner=instance)
                    self._enter(bound, (), {}, {"keras"})
        for function in self._defined:
            if function.node not in self._num_walks:
                self._enter(function, (), {}, {"unreached"})

    def _block(self, statements: Iterable[ast.stmt], scope: Scope) -> bool:
        """Walk statements; return whether their end is not reached."""
        try:
            for statement in statements:
                self._statement(statement, scope)
        except _Left:
            return True
        return False

    def _inside(self, **changes: object) -> _Around:
        return _Around(self, replace(self._context, **changes))  # type: ignore[arg-type]

    @property
    def context(self) -> Context:
        """Surroundings of the current line."""
        return self._context

    def set_context(self, context: Context) -> None:
        """Set what is around the lines that follow."""
        self._context = context

    def _statement(self, node: ast.stmt, scope: Scope) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self._import(node, scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.bind(node.name, self._function(node, scope))
            case ast.ClassDef():
                scope.bind(node.name, self._class(node, scope))
            case ast.Assign():
                value = self._value(node.value, scope)
                for target in node.targets:
                    self._bind(target, value, scope, node)
            case ast.AnnAssign():
                if node.value is not None:
                    self._bind(node.target, self._value(node.value, scope), scope, node)
            case ast.AugAssign():
                before = self._value(node.target, scope)
                value = self._computed(before, node.op, self._value(node.value, scope))
                self._bind(node.target, value, scope, node)
            case ast.If():
                self._if(node, scope)
            case ast.For() | ast.AsyncFor():
                over = self._value(node.iter, scope)
                loop = Loop(node, over, self._here())
                with self._inside(loops=(*self._context.loops, loop)):
                    self._bind(node.target, self._element(over, node.iter, scope), scope, node)
                    self._block(node.body, scope)
                self._block(node.orelse, scope)
            case ast.While():
                loop = Loop(node, UNKNOWN, self._here())
                with self._inside(loops=(*self._context.loops, loop)):
                    test = self._value(node.test, scope)
                    self._block(node.body, scope)
                if constant(test) is True and not _breaks(node):
                    raise _Left
                self._block(node.orelse, scope)
            case ast.With() | ast.AsyncWith():
                self._with(node, scope)
            case ast.Try() | ast.TryStar():
                self._try(node, scope)
            case ast.Return():
                value = UNKNOWN if node.value is None else self._value(node.value, scope)
                if self._returns:
                    self._returns[-1].append(value)
                raise _Left
            case ast.Raise():
                for part in (node.exc, node.cause):
                    if part is not None:
                        self._value(part, scope)
                raise _Left
            case ast.Break() | ast.Continue():
                raise _Left
            case ast.Global() | ast.Nonlocal():
                scope.shared.update(node.names)
            case ast.Expr():
                self._value(node.value, scope)
            case ast.Match():
                self._value(node.subject, scope)
                ends = [
                    self._branch(node, n, UNKNOWN, case.body, scope)
                    for n, case in enumerate(node.cases)
                ]
                self._join(scope, [*ends, dict(scope.names)])
            case ast.Delete():
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        scope.names.pop(target.id, None)
            case ast.Assert():
                self._value(node.test, scope)
            case _:
                pass

    def _here(self) -> ast.AST | None:
        return self._context.functions[-1] if self._context.functions else None

    def _if(self, node: ast.If, scope: Scope) -> None:
        test = self._value(node.test, scope)
        truth = _truth(test)
        if truth is not None:
            if self._block(node.body if truth else node.orelse, scope):
                raise _Left
            return
        ends = [
            self._branch(node, number, test, body, scope)
            for number, body in enumerate((node.body, node.orelse))
        ]
        if all(end is None for end in ends):
            raise _Left
        # `if not gpus: return` guards everything behind it, as an else branch would.
        self._join(scope, ends)
        for number, end in enumerate(ends):
            if end is None:
                guard = (node, 1 - number, test)
                self._context = replace(self._context, guards=(*self._context.guards, guard))

    def _branch(
        self, node: ast.AST, number: int, test: Value, body: list[ast.stmt], scope: Scope
    ) -> dict[str, Value] | None:
        """Walk a branch; return its names, and leave those of the scope as they were."""
        before = dict(scope.names)
        with self._inside(guards=(*self._context.guards, (node, number, test))):
            is_left = self._block(body, scope)
        after, scope.names = scope.names, before
        return None if is_left else after

    def _join(self, scope: Scope, ends: list[dict[str, Value] | None]) -> None:
        reached = [end for end in ends if end is not None]
        names = {name for end in reached for name in end}
        for name in names:
            scope.names[name] = joined(end[name] for end in reached if name in end)

    def _with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> None:
        values: list[Value] = []
        for item in node.items:
            with self._inside(blocks=(*self._context.blocks, *values)):
                values.append(self._value(item.context_expr, scope))
            if item.optional_vars is not None:
                self._bind(item.optional_vars, values[-1], scope, node)
        with self._inside(blocks=(*self._context.blocks, *values)):
            is_left = self._block(node.body, scope)
        if is_left:
            raise _Left

    def _try(self, node: ast.Try | ast.TryStar, scope: Scope) -> None:
        # An exception may come from any line of the body, so that its names may be bound or not.
        before = dict(scope.names)
        with self._inside(catches=self._context.catches or bool(node.handlers)):
            is_left = self._block(node.body, scope)
        if not is_left:
            is_left = self._block(node.orelse, scope)
        ends: list[dict[str, Value] | None] = [None if is_left else dict(scope.names)]
        for number, handler in enumerate(node.handlers, start=1):
            scope.names = {**before, **scope.names}
            with self._inside(guards=(*self._context.guards, (handler, number, UNKNOWN))):
                left = self._block(handler.body, scope)
            ends.append(None if left else dict(scope.names))
        self._join(scope, ends)
        if self._block(node.finalbody, scope) or all(end is None for end in ends):
            raise _Left

    # ---- definitions and bindings

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name if alias.asname else alias.name.partition(".")[0]
                self._record("import", node, scope, args=(Constant("", canonical(alias.name)),))
                if alias.name in self._sources:
                    self._module(alias.name)
                scope.bind(
                    alias.asname or root,
                    Library("", root if root in self._sources else canonical(root)),
                )
            return
        base = from_module(scope.source, node)
        self._record("import", node, scope, args=(Constant("", canonical(base)),))
        own = self._module(base) if base in self._sources else None
        for alias in node.names:
            dotted = f"{base}.{alias.name}" if base else alias.name
            if alias.name == "*":
                if own is not None:
                    scope.names.update(own.names)
                else:
                    scope.names["*"] = Library("", canonical(base))
                continue
            if own is not None and alias.name in own.names:
                value = own.names[alias.name]
            elif dotted in self._sources:
                self._module(dotted)
                value = Library("", dotted)
            else:
                value = Library("", canonical(dotted)) if own is None else UNKNOWN
            scope.bind(alias.asname or alias.name, value)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> Value:
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self._value(default, scope)
        function: Value = OwnFunction(node=node, scope=scope)
        self._defined.append(function)  # type: ignore[arg-type]
        for decorator in reversed(node.decorator_list):
            wrapper = self._value(decorator, scope)
            name = wrapper.name if isinstance(wrapper, Library) else ""
            made = made_by(wrapper)
            if "tf.function" in (name, made.name if made is not None else ""):
                if isinstance(function, OwnFunction):
                    function = replace(function, traced=True)
                if made is None:
                    self._record("tf.function", decorator, scope, args=(function,))
            elif isinstance(wrapper, OwnFunction):
                given = self._enter(wrapper, (function,), {}, set())
                function = given if isinstance(given, OwnFunction) else function
        return function

    def _class(self, node: ast.ClassDef, scope: Scope) -> Class:
        bases = tuple(self._value(base, scope) for base in node.bases)
        kind = next(
            (
                found
                for base in bases
                if (found := kind_of_base(base.name) if isinstance(base, Library) else base.kind)
            ),
            "",
        )
        inner = Scope(scope.source, outer=scope, is_class=True)
        self._block(node.body, inner)
        return Class(kind, node=node, scope=scope, bases=bases, methods=inner.names)

    def _bind(self, target: ast.expr, value: Value, scope: Scope, node: ast.AST) -> None:
        match target:
            case ast.Name():
                scope.bind(target.id, value)
            case ast.Starred():
                self._bind(target.value, Value(value.kind), scope, node)
            case ast.Tuple() | ast.List():
                for number, part in enumerate(target.elts):
                    self._bind(part, self._item(value, number), scope, node)
            case ast.Attribute():
                owner = self._value(target.value, scope)
                for option in options(owner):
                    if isinstance(option, Instance):
                        option.attributes[target.attr] = value
                self._record(f"set {target.attr}", node, scope, owner=owner, args=(value,))
            case ast.Subscript():
                owner = self._value(target.value, scope)
                key = self._value(target.slice, scope)
                if isinstance(owner, Library) and owner.name == "os.environ":
                    self._record("environ", node, scope, args=(key, value))
            case _:
                pass

    # ---- expressions

    def _value(self, node: ast.AST, scope: Scope) -> Value:
        match node:
            case ast.Constant():
                return Constant("", node.value)
            case ast.Name():
                return self._named(node.id, scope)
            case ast.Attribute():
                return self._attribute(self._value(node.value, scope), node.attr)
            case ast.Call():
                return self._call(node, scope)
            case ast.BinOp():
                left, right = self._value(node.left, scope), self._value(node.right, scope)
                return self._computed(left, node.op, right)
            case ast.UnaryOp():
                value = self._value(node.operand, scope)
                return _unary(node.op, value)
            case ast.BoolOp():
                values = tuple(self._value(each, scope) for each in node.values)
                return _boolean(node.op, values)
            case ast.Compare():
                parts = tuple(self._value(each, scope) for each in (node.left, *node.comparators))
                return _compared(node.ops, parts)
            case ast.IfExp():
                test = self._value(node.test, scope)
                truth = _truth(test)
                found: list[Value] = []
                for number, part in enumerate((node.body, node.orelse)):
                    if truth is None or truth is not bool(number):
                        guard = (node, number, test)
                        with self._inside(guards=(*self._context.guards, guard)):
                            found.append(self._value(part, scope))
                return joined(found)
            case ast.List() | ast.Tuple() | ast.Set():
                return Items("", tuple(self._value(each, scope) for each in node.elts))
            case ast.Dict():
                keys = tuple(
                    constant(self._value(key, scope)) if key is not None else None
                    for key in node.keys
                )
                return Items("", tuple(self._value(each, scope) for each in node.values), keys)
            case ast.Subscript():
                owner = self._value(node.value, scope)
                index = self._value(node.slice, scope)
                return self._item(owner, constant(index))
            case ast.Lambda():
                function = OwnFunction(node=node, scope=scope)
                self._defined.append(function)
                return function
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, scope)
            case ast.NamedExpr():
                value = self._value(node.value, scope)
                self._bind(node.target, value, scope, node)
                return value
            case ast.Starred() | ast.Await() | ast.FormattedValue() | ast.YieldFrom():
                value = self._value(node.value, scope)
                if isinstance(node, ast.FormattedValue):
                    self._record("format", node, scope, args=(value,))
                return value
            case ast.Yield():
                if node.value is not None:
                    self._value(node.value, scope)
                return UNKNOWN
            case ast.JoinedStr():
                parts = [self._value(each, scope) for each in node.values]
                if all(isinstance(part, Constant) for part in parts):
                    return Constant("", "".join(str(constant(part)) for part in parts))
                return Computed("", tuple(parts), ast.JoinedStr)
            case ast.Slice():
                for part in (node.lower, node.upper, node.step):
                    if part is not None:
                        self._value(part, scope)
                return UNKNOWN
            case _:
                return UNKNOWN

    def _named(self, name: str, scope: Scope) -> Value:
        value = scope.find(name)
        if value is not None:
            return value
        star = scope.find("*")
        if star is not None and isinstance(star, Library):
            return Library("", canonical(f"{star.name}.{name}"))
        return Library("", _USUAL_IMPORTS.get(name, name))

    def _attribute(self, owner: Value, name: str) -> Value:
        if isinstance(owner, Either):
            return joined(self._attribute(option, name) for option in owner.options)
        if isinstance(owner, Library):
            if owner.name in self._sources:
                own = self._module(owner.name)
                if name in own.names:
                    return own.names[name]
                inner = f"{owner.name}.{name}"
                return Library("", inner) if inner in self._sources else UNKNOWN
            return Library("", canonical(f"{owner.name}.{name}"))
        if isinstance(owner, Instance):
            if name in owner.attributes:
                return owner.attributes[name]
            method = owner.made.find(name)
            if isinstance(method, OwnFunction):
                return replace(method, owner=owner)
            if method is not None:
                return method
        if isinstance(owner, Class):
            found = owner.find(name)
            if found is not None:
                return found
        kinds = {
            "optimizer": "optimizer",
            "loss": "loss",
            "trainable_variables": "variables",
            "trainable_weights": "variables",
            "variables": "variables",
            "weights": "variables",
            "layers": "layers",
        }
        if owner.kind in ("batch", "per_replica", "tensor", "array"):
            return Attribute("tensor" if name == "shape" else "", owner, name)
        return Attribute(
            kinds.get(name, "") if owner.kind in ("model", "layer") else "", owner, name
        )

    def _computed(self, left: Value, sign: ast.operator, right: Value) -> Value:
        first, second = constant(left), constant(right)
        operate = _OPERATORS.get(type(sign))
        are_numbers = isinstance(first, int | float) and isinstance(second, int | float)
        # A text repeated or formatted, or a number shifted, may be as long as memory.
        is_short = isinstance(sign, ast.Add) if not are_numbers else _is_small(second)
        if not is_short and not (are_numbers and not isinstance(sign, ast.LShift)):
            operate = None
        if isinstance(sign, ast.Pow) and _is_small(first) and _is_small(second):
            operate = operator.pow
        if operate is not None and first is not None and second is not None:
            try:
                return Constant("", operate(first, second))
            except (TypeError, ValueError, ArithmeticError, MemoryError):
                return UNKNOWN
        kind = next(
            (
                k
                for k in ("per_replica", "tensor", "batch", "variable", "symbolic", "array")
                if k in (left.kind, right.kind)
            ),
            "",
        )
        return Computed(
            "tensor" if kind in ("batch", "variable") else kind, (left, right), type(sign)
        )

    def _item(self, owner: Value, index: object) -> Value:
        if isinstance(owner, Either):
            return joined(self._item(option, index) for option in owner.options)
        if isinstance(owner, Items):
            if owner.keys:
                for key, value in zip(owner.keys, owner.values, strict=False):
                    if key == index and key is not None:
                        return value
                return joined(owner.values)
            if isinstance(index, int) and -len(owner.values) <= index < len(owner.values):
                return owner.values[index]
            return joined(owner.values) if owner.values else UNKNOWN
        if isinstance(owner, Made):
            kind = {"layers": "layer"}.get(owner.kind, ELEMENTS.get(owner.kind, ""))
            return Made(kind, owner.call, (*owner.path, index))
        if isinstance(owner, Attribute) and owner.kind in ("layers", "variables"):
            return Attribute(
                {"layers": "layer", "variables": "variable"}[owner.kind], owner, "item"
            )
        return Value(ELEMENTS.get(owner.kind, ""))

    def _element(self, over: Value, node: ast.AST, scope: Scope) -> Value:
        """Return what a loop's target is bound to."""
        call = made_by(over)
        name = call.name if call is not None else ""
        if call is not None and name in ("enumerate", "zip"):
            inner = [self._element(value, node, scope) for value in call.args]
            return Items("", (UNKNOWN, *inner[:1]) if name == "enumerate" else tuple(inner))
        if (
            call is not None
            and name
            in (
                "tqdm.tqdm",
                "tqdm.auto.tqdm",
                "iter",
                "reversed",
                "tqdm.notebook.tqdm",
                "list",
                "sorted",
            )
            and call.args
        ):
            return self._element(call.args[0], node, scope)
        if name in ("range", "tf.range"):
            return Value("tensor" if name == "tf.range" else "number")
        if isinstance(over, Items):
            return joined(over.values)
        return self._item(over, "each")

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: Scope
    ) -> Value:
        inner = Scope(scope.source, outer=scope)
        loops: list[Loop] = []
        for part in node.generators:
            with self._inside(loops=(*self._context.loops, *loops)):
                over = self._value(part.iter, inner)
            loops.append(Loop(node, over, self._here()))
            self._bind(part.target, self._element(over, part.iter, inner), inner, node)
        with self._inside(loops=(*self._context.loops, *loops)):
            for part in node.generators:
                for test in part.ifs:
                    self._value(test, inner)
            if isinstance(node, ast.DictComp):
                self._value(node.key, inner)
                return Items("", (self._value(node.value, inner),), (None,))
            value = self._value(node.elt, inner)
        return Items("", (value,)) if value.kind != "device" else Items("devices", (value,))

    # ---- calls

    def _record(
        self,
        name: str,
        node: ast.AST,
        scope: Scope,
        *,
        owner: Value | None = None,
        args: tuple[Value, ...] = (),
        keywords: dict[str, Value] | None = None,
        unpacks: bool = False,
    ) -> Call:
        if len(self.calls) >= _MOST_CALLS:
            raise _Full
        call = Call(
            name=name,
            node=node,
            source=scope.source,
            order=len(self.calls),
            context=self._context,
            owner=owner,
            args=args,
            keywords=keywords or {},
            unpacks=unpacks,
            is_certain=self._is_certain,
        )
        self.calls.append(call)
        return call

    def _call(self, node: ast.Call, scope: Scope) -> Value:
        owner: Value | None = None
        if isinstance(node.func, ast.Attribute):
            owner = self._value(node.func.value, scope)
            if isinstance(node.func.value, ast.Call) and _is_super(node.func.value):
                function: Value = self._super(node.func.attr, scope)
            else:
                function = self._attribute(owner, node.func.attr)
        else:
            function = self._value(node.func, scope)
        args: list[Value] = []
        unpacks = False
        for given in node.args:
            value = self._value(given, scope)
            if not isinstance(given, ast.Starred):
                args.append(value)
            elif isinstance(value, Items):
                args += value.values
            else:
                unpacks = True
                break
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            value = self._value(keyword.value, scope)
            if keyword.arg is not None:
                keywords[keyword.arg] = value
            elif isinstance(value, Items) and all(isinstance(key, str) for key in value.keys):
                keywords.update(zip(map(str, value.keys), value.values, strict=False))
            else:
                unpacks = True
        before = self._is_certain
        self._is_certain = before and not isinstance(function, Either)
        found = [
            self._called(option, owner, node, scope, tuple(args), keywords, unpacks)
            for option in options(function)
        ]
        self._is_certain = before
        return joined(found)

    def _super(self, name: str, scope: Scope) -> Value:
        outer: Scope | None = scope
        while outer is not None and "__class__" not in outer.names:
            outer = outer.outer
        defining = outer.names["__class__"] if outer is not None else UNKNOWN
        if isinstance(defining, Class):
            for base in defining.bases:
                if isinstance(base, Class) and (method := base.find(name)) is not None:
                    self_value = scope.find("self")
                    if isinstance(method, OwnFunction):
                        return replace(method, owner=self_value)
        return Library("", f"super.{name}")

    def _called(
        self,
        function: Value,
        owner: Value | None,
        node: ast.Call,
        scope: Scope,
        args: tuple[Value, ...],
        keywords: dict[str, Value],
        unpacks: bool,
    ) -> Value:
        if isinstance(function, OwnFunction):
            roles = {"traced"} if function.traced else set[str]()
            self._record("own", node, scope, owner=function, args=args, keywords=keywords)
            return self._enter(function, args, keywords, roles)
        if isinstance(function, Class):
            call = self._record("class", node, scope, owner=function, args=args, keywords=keywords)
            instance = Instance(function.kind, made=function, call=call)
            self._objects.append(instance)
            method = function.find("__init__")
            if isinstance(method, OwnFunction):
                self._enter(replace(method, owner=instance), args, keywords, set())
            return instance
        if isinstance(function, Instance):
            name = f"{function.kind or '?'}.__call__"
            call = self._record(name, node, scope, owner=function, args=args, keywords=keywords)
            for method_name in ("__call__", "call"):
                method = function.made.find(method_name)
                if isinstance(method, OwnFunction):
                    value = self._enter(replace(method, owner=function), args, keywords, set())
                    return (
                        value if value is not UNKNOWN else Made(CALLED.get(function.kind, ""), call)
                    )
            return Made(CALLED.get(function.kind, ""), call)
        if isinstance(function, Library):
            name = function.name
        elif isinstance(function, Attribute):
            name = f"{function.owner.kind or '?'}.{function.name}"
            owner = function.owner
        else:
            name = f"{function.kind or '?'}.__call__"
            owner = function
        call = self._record(
            name, node, scope, owner=owner, args=args, keywords=keywords, unpacks=unpacks
        )
        if name in _LEAVING:
            raise _Left
        entered = self._callbacks(call)
        if name in _WRAPPERS and args and isinstance(args[0], OwnFunction):
            return replace(
                args[0],
                traced=args[0].traced or name == "tf.function",
                given=(*args[0].given, *args[1:]) if name == "functools.partial" else args[0].given,
            )
        if name in ("os.environ.setdefault", "os.putenv"):
            self._record("environ", node, scope, args=args)
        if name == "os.environ.update":
            for given in (*args, Items("", tuple(keywords.values()), tuple(keywords))):
                if isinstance(given, Items):
                    for key, value in zip(given.keys, given.values, strict=False):
                        self._record("environ", node, scope, args=(Constant("", key), value))
        if name.endswith(".__call__"):
            return Made(CALLED.get(owner.kind if owner is not None else "", ""), call)
        if name in ("int", "float", "str", "bool") and args and constant(args[0]) is not None:
            return _converted(name, constant(args[0]))
        if name == "strategy.run" and entered is not None:
            return Made("per_replica", call)
        if owner is not None and isinstance(function, Attribute) and function.name == "append":
            return UNKNOWN
        kind = kind_made_by(name)
        if kind == "array" and name.endswith((".shape", ".tolist", ".item", ".mean", ".sum")):
            kind = ""
        return Made(kind, call)

    def _callbacks(self, call: Call) -> Value | None:
        """Enter the functions that a call of a library is given: it calls them."""
        name, returned = call.name, None
        if name in ("tf.function", "functools.partial", "functools.wraps", "super.__init__"):
            return None
        args: tuple[Value, ...] = ()
        keywords: dict[str, Value] = {}
        roles = set[str]()
        if name in ("strategy.run", "strategy.experimental_run_v2"):
            given, named = call.argument(1, "args"), call.argument(2, "kwargs")
            args = given.values if isinstance(given, Items) else ()
            if isinstance(named, Items):
                keywords = dict(zip(map(str, named.keys), named.values, strict=False))
            roles.add("replica")
        elif name.startswith("dataset.") and call.owner is not None:
            roles.add("map")
            args = tuple(Value("tensor") for _ in range(8))
        elif name.endswith(("py_function", "numpy_function", "from_generator")):
            roles.add("host")
        elif name in ("model.fit", "model.train_on_batch") and isinstance(call.owner, Instance):
            method = call.owner.made.find("train_step")
            if isinstance(method, OwnFunction):
                self._enter(replace(method, owner=call.owner), (Value("batch"),), {}, {"keras"})
        for value in (*call.args, *call.keywords.values()):
            for option in options(value):
                if isinstance(option, OwnFunction):
                    own = {*roles, "traced"} if option.traced else roles
                    returned = self._enter(option, args, keywords, own)
        return returned

    def _enter(
        self,
        function: OwnFunction,
        args: tuple[Value, ...],
        keywords: dict[str, Value],
        roles: set[str],
    ) -> Value:
        """Walk a function with what it is given; return what it returns."""
        node = function.node
        count = self._num_walks.get(node, 0)
        if (
            node in self._context.functions
            or count >= _MOST_WALKS
            or (len(self._context.functions) >= _DEEPEST)
        ):
            return self._returned.get(node, UNKNOWN)
        self._num_walks[node] = count + 1
        outer = function.scope.outer if function.scope.is_class else function.scope
        scope = Scope(function.scope.source, outer=outer)
        self._parameters(function, args, keywords, scope)
        before, self._returns = self._returns, [*self._returns, []]
        with self._inside(
            functions=(*self._context.functions, node), roles=self._context.roles | roles
        ):
            if isinstance(node, ast.Lambda):
                value = self._value(node.body, scope)
            else:
                self._block(node.body, scope)
                value = joined(self._returns[-1])
        self._returns = before
        self._returned[node] = value
        return value

    def _parameters(
        self,
        function: OwnFunction,
        args: tuple[Value, ...],
        keywords: dict[str, Value],
        scope: Scope,
    ) -> None:
        node = function.node
        names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        given = (*function.given, *args)
        is_static = not isinstance(node, ast.Lambda) and any(
            isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list
        )
        if function.owner is not None and not is_static:
            given = (function.owner, *given)
            if isinstance(function.owner, Instance):
                scope.names["__class__"] = _defining(function.owner.made, node)
        defaults = dict(zip(reversed(names), reversed(node.args.defaults), strict=False))
        defaults |= {
            each.arg: default
            for each, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            if default is not None
        }
        for name in (*names, *(each.arg for each in node.args.kwonlyargs)):
            if name in keywords:
                scope.names[name] = keywords[name]
            elif name in names and names.index(name) < len(given):
                scope.names[name] = given[names.index(name)]
            elif name in defaults:
                value = self._value(defaults[name], function.scope)
                # Of a call that is not known, a default is only one of the possible values.
                scope.names[name] = (
                    value if args or keywords or function.owner else joined([value, UNKNOWN])
                )
            else:
                scope.names[name] = Value(_usual_kind(name))
        if node.args.vararg is not None:
            scope.names[node.args.vararg.arg] = Items("", tuple(given[len(names) :]))
        if node.args.kwarg is not None:
            scope.names[node.args.kwarg.arg] = UNKNOWN


class _Around:
    """Sets what is around the lines of a ``with`` block, and sets it back."""

    def __init__(self, walk: Walk, context: Context) -> None:
        self._walk, self._context = walk, context
        self._before = walk.context

    def __enter__(self) -> None:
        self._walk.set_context(self._context)

    def __exit__(self, *error: object) -> None:
        self._walk.set_context(self._before)


def _defining(made: Class, node: ast.AST) -> Value:
    """Return the class in which a method is written."""
    for value in made.methods.values():
        if isinstance(value, OwnFunction) and value.node is node:
            return made
    for base in made.bases:
        if isinstance(base, Class):
            found = _defining(base, node)
            if isinstance(found, Class):
                return found
    return UNKNOWN


def _usual_kind(name: str) -> str:
    """Return the kind of a parameter of which only the name is known."""
    return name if name in ("strategy", "optimizer", "model", "dataset") else ""


def _is_super(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "super"


def _is_small(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= 4096


def _breaks(loop: ast.While) -> bool:
    return any(isinstance(node, ast.Break) for node in ast.walk(loop))


def _truth(value: Value) -> bool | None:
    """Return whether a condition is certainly true or false."""
    if isinstance(value, Constant):
        return bool(value.value)
    return None


def _unary(sign: ast.unaryop, value: Value) -> Value:
    known = constant(value)
    if isinstance(sign, ast.Not):
        truth = _truth(value)
        return Computed("", (value,), ast.Not) if truth is None else Constant("", not truth)
    if isinstance(known, int | float) and isinstance(sign, ast.USub):
        return Constant("", -known)
    return Computed(value.kind, (value,), type(sign))


def _boolean(sign: ast.boolop, values: tuple[Value, ...]) -> Value:
    decides = isinstance(sign, ast.Or)
    for value in values:
        if _truth(value) is decides:
            return value
    if all(_truth(value) is not None for value in values):
        return values[-1]
    return Computed("", values, type(sign))


def _compared(signs: list[ast.cmpop], parts: tuple[Value, ...]) -> Value:
    compare = _COMPARISONS.get(type(signs[0]))
    if len(parts) == 2 and all(isinstance(part, Constant) for part in parts):
        first, second = map(constant, parts)
        if isinstance(signs[0], ast.Is | ast.IsNot) and second is None:
            return Constant("", (first is None) is isinstance(signs[0], ast.Is))
        if compare is not None:
            try:
                return Constant("", compare(first, second))
            except TypeError:
                return UNKNOWN
    return Computed("", parts, type(signs[0]))


def _converted(name: str, value: object) -> Value:
    try:
        return Constant("", {"int": int, "float": float, "str": str, "bool": bool}[name](value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return UNKNOWN
