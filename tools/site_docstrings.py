"""Docstrings as Markdown: an extension of griffe, which reads them for the site."""

from __future__ import annotations

import re

import griffe

_SESSION = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_LITERAL = re.compile(r"\s*::$", re.MULTILINE)


class MarkdownDocstrings(griffe.Extension):
    """Rewrite what Markdown and griffe do not know in docstrings of Google's form."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rewrite the docstring of an object.

        Args:
            obj: Module, class, function or attribute that was read.
        """
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Return a docstring with its examples and literal blocks as Markdown shows them.

    Args:
        text: Docstring without indentation.
    """
    text = _SESSION.sub(lambda session: f"```pycon\n{session[0]}\n```", text)
    # griffe knows the section by its plural; a literal block is indented, as in Markdown.
    return _LITERAL.sub("", _EXAMPLE.sub("Examples:", text))
