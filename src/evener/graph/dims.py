"""Symbolic dimensions: sizes of tensors as polynomials in the batch size and other symbols.

A traced step does not know how many samples it will be given. Its tensors have sizes such as
``B`` (the batch), ``3*B``, ``B*T`` (samples times time steps). Two sizes are the same for every
batch if and only if their polynomials are.

    >>> rows = BATCH * 3
    >>> rows // 3 == BATCH, rows + 0 == BATCH * 2 + BATCH
    (True, True)

A size without symbols is a plain ``int``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

# A product of symbols in sorted order: ``("B", "T")`` is ``B*T``; ``()`` is 1.
Monomial: TypeAlias = tuple[str, ...]


class Dim:
    """A polynomial with integer coefficients that has at least one symbol."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = dict(terms)
        self._hash = hash(frozenset(self.terms.items()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __add__(self, other: Size) -> Size:
        terms = dict(self.terms)
        for monomial, factor in _terms(other).items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return _simplest(terms)

    def __mul__(self, other: Size) -> Size:
        terms: dict[Monomial, int] = {}
        for symbols, factor in self.terms.items():
            for another, times in _terms(other).items():
                product = tuple(sorted(symbols + another))
                terms[product] = terms.get(product, 0) + factor * times
        return _simplest(terms)

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def __rsub__(self, other: int) -> Size:
        return self * -1 + other

    def __floordiv__(self, other: Size) -> Size:
        quotient = divide(self, other)
        if quotient is None:
            raise ValueError(f"{self} does not divide by {other}.")
        return quotient

    __radd__ = __add__
    __rmul__ = __mul__

    def __repr__(self) -> str:
        parts = []
        for monomial, factor in sorted(self.terms.items(), reverse=True):
            symbols = "*".join(monomial)
            parts.append(
                f"{factor}*{symbols}" if symbols and factor != 1 else symbols or f"{factor}"
            )
        return " + ".join(parts)


Size: TypeAlias = int | Dim  # A size: known, or a polynomial of symbols

BATCH = Dim({("B",): 1})  # The number of samples in the global batch


def symbol(name: str) -> Dim:
    return Dim({(name,): 1})


class PartSymbol(str):
    """A symbol with a number of its own in every part: rows of the part, or rows before them."""

    rows: Size  # The size that is split over the parts

    def __new__(cls, kind: str, rows: Size) -> PartSymbol:
        symbol = super().__new__(cls, kind if rows == BATCH else f"{kind}[{rows}]")
        symbol.rows = rows
        return symbol

    @property
    def is_offset(self) -> bool:
        """Whether it is the rows of the parts before, and not those of the part."""
        return self.startswith("o")


def symbols_of_step(*sizes: Size) -> set[str]:
    """Return the symbols in sizes whose numbers come from tensors of the step.

    Neither the batch size is among them nor what is another number in every part.
    """
    names: set[str] = set()
    for name in symbols_of(*sizes):
        names |= symbols_of_step(name.rows) if isinstance(name, PartSymbol) else {name}
    return names - {"B"}


def symbols_of(*sizes: Size) -> set[str]:
    monomials = [monomial for size in sizes if isinstance(size, Dim) for monomial in size.terms]
    return set[str]().union(*monomials)


def substitute(size: Size, names: Mapping[str, str]) -> Size:
    if isinstance(size, int) or not symbols_of(size) & set(names):
        return size
    terms: dict[Monomial, int] = {}
    for monomial, factor in size.terms.items():
        renamed = tuple(sorted(names.get(name, name) for name in monomial))
        terms[renamed] = terms.get(renamed, 0) + factor
    return _simplest(terms)


def has_batch(size: Size) -> bool:
    return isinstance(size, Dim) and any("B" in monomial for monomial in size.terms)


def product(sizes: Iterable[Size]) -> Size:
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def divide(size: Size, divisor: Size) -> Size | None:
    """Return the quotient, or None if the division leaves a rest or may leave one."""
    if isinstance(size, int) and isinstance(divisor, int):
        return size // divisor if divisor and size % divisor == 0 else None
    if size == divisor:
        return 1
    terms = _terms(divisor)
    if len(terms) != 1:
        return None
    ((below, number),) = terms.items()
    quotient: dict[Monomial, int] = {}
    for monomial, factor in _terms(size).items():
        rest = list(monomial)
        for name in below:
            if name not in rest:
                return None
            rest.remove(name)
        if factor % number:
            return None
        quotient[tuple(rest)] = factor // number
    return _simplest(quotient)


def per_sample(size: Size) -> Size | None:
    """Return how many rows belong to a sample: ``3*T`` for ``3*B*T``; None if that is not fixed."""
    rows = divide(size, BATCH)
    return None if rows is None or has_batch(rows) else rows


def is_at_least(size: Size, bound: int) -> bool:
    """Return whether a size is not below a bound, whatever the sizes are that it is made of.

    A batch has a sample at least; other symbols may be 0.
    """
    terms = dict(_terms(size))
    smallest = terms.pop((), 0)
    for monomial, factor in terms.items():
        if factor < 0:
            return False
        smallest += factor if set(monomial) == {"B"} else 0
    return smallest >= bound


def evaluate(size: Size, values: Mapping[str, Any], unit: Any = 1) -> Any:
    if isinstance(size, int):
        return unit * size
    total: Any = None
    for monomial, factor in size.terms.items():
        term: Any = None
        for name in monomial:
            term = values[name] if term is None else term * values[name]
        term = unit * factor if term is None else term if factor == 1 else term * factor
        total = term if total is None else total + term
    return total


def _terms(size: Size) -> Mapping[Monomial, int]:
    if isinstance(size, Dim):
        return size.terms
    return {(): size} if size else {}


def _simplest(terms: dict[Monomial, int]) -> Size:
    kept = {monomial: factor for monomial, factor in terms.items() if factor}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Dim(kept)
