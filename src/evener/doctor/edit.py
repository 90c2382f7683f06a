"""An edit: a span of a file and the text to put there. A fix: the edits of one violation."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from evener.analysis import Location, Module

Position = tuple[int, int]
"""Line from 1, and column in bytes of UTF-8, as in `ast`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Replacement of a span of a file.

    Args:
        path: Absolute path of the file.
        start: First position of the span.
        end: Position behind the span; `start` for an insertion.
        old: Text of the span, which the file must have there.
        new: Text to put there; its lines end with a line feed.
    """

    path: str
    start: Position
    end: Position
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """Edits that remove one violation: all of them are made, or none.

    Args:
        code: Code of the rule.
        location: Source line of the violation.
        edits: The edits; at least one.
    """

    code: str
    location: Location
    edits: tuple[Edit, ...]


def start_of(node: ast.expr | ast.stmt | ast.keyword | ast.alias) -> Position:
    """Return where a node begins."""
    return node.lineno, node.col_offset


def end_of(node: ast.expr | ast.stmt | ast.keyword | ast.alias) -> Position:
    """Return where a node ends."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def text_between(module: Module, start: Position, end: Position) -> str:
    """Return the text of a span of a module."""
    # As the parser counts lines: a form feed does not end one.
    lines = module.source.split("\n")
    chosen = [line.encode() for line in lines[start[0] - 1 : end[0]]]
    if not chosen:
        return ""
    chosen[-1] = chosen[-1][: end[1]]
    chosen[0] = chosen[0][start[1] :]
    return b"\n".join(chosen).decode()


def replaced(module: Module, start: Position, end: Position, new: str) -> Edit:
    """Return the edit that replaces a span of a module."""
    old = text_between(module, start, end)
    return Edit(path=module.path, start=start, end=end, old=old, new=new)


def inserted(module: Module, at: Position, new: str) -> Edit:
    """Return the edit that inserts a text into a module."""
    return Edit(path=module.path, start=at, end=at, old="", new=new)


def renamed_attribute(module: Module, node: ast.Attribute, new: str) -> tuple[Edit, ...]:
    """Return the edit that renames the last name of an attribute."""
    line, column = end_of(node)
    edit = replaced(module, (line, column - len(node.attr.encode())), (line, column), new)
    return (edit,) if edit.old == node.attr else ()


def renamed_argument(module: Module, keyword: ast.keyword, new: str) -> tuple[Edit, ...]:
    """Return the edit that renames an argument that is given by name."""
    line, column = start_of(keyword)
    name = keyword.arg or ""
    edit = replaced(module, (line, column), (line, column + len(name.encode())), new)
    return (edit,) if name and edit.old == name else ()


def without_argument(module: Module, call: ast.Call, keyword: ast.keyword) -> tuple[Edit, ...]:
    """Return the edit that deletes an argument and the comma beside it.

    Nothing if there is more than a comma beside it, such as a comment.
    """
    given = sorted([*call.args, *call.keywords], key=start_of)
    index = given.index(keyword)
    start, end = start_of(keyword), end_of(keyword)
    if index + 1 < len(given):
        next_start = start_of(given[index + 1])
        between = text_between(module, end, next_start)
        end = next_start
    elif index:
        start = end_of(given[index - 1])
        between = text_between(module, start, start_of(keyword))
    else:
        # A comma behind the only argument has to go too.
        before = text_between(module, end, end_of(call)).removesuffix(")")
        between = before or ","
        end = end_of(call)[0], end_of(call)[1] - 1
        if before.strip() not in ("", ","):
            return ()
    if between.strip() not in ("", ","):
        return ()
    return (replaced(module, start, end, ""),)
