"""YAML values with their lines, for error messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeVar, cast

import yaml

from evener.errors import ProfileError, did_you_mean

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Value in a YAML file with its position.

    Args:
        file: Name of the file.
        path: Path in the file, such as ``machines[0].link``; empty for the whole file.
        node: Node that PyYAML composed.
    """

    file: str
    path: str
    node: yaml.Node

    @property
    def position(self) -> str:
        """The file, the line from 1, and the path."""
        return f"{self.file}:{self.node.start_mark.line + 1}: {self.path or 'the file'}"

    def mapping(self) -> dict[str, Value]:
        """Return the values of a mapping by key.

        Raises:
            ProfileError: PROF-031 if it is not a mapping, PROF-036 for a duplicate key.
        """
        if not isinstance(self.node, yaml.MappingNode):
            self._is_not("a mapping")
        found: dict[str, Value] = {}
        for key, node in self.node.value:
            name = str(key.value)
            value = self._child(f"{self.path}.{name}" if self.path else name, node)
            if name in found:
                raise ProfileError(
                    "PROF-036",
                    f"{self._child(value.path, key).position} is there twice.",
                    why="Which of the two is meant cannot be told.",
                    fix="Remove one of them.",
                )
            found[name] = value
        return found

    def fields(self, *, required: tuple[str, ...], optional: tuple[str, ...]) -> dict[str, Value]:
        """Return the values of a mapping whose keys are known.

        Raises:
            ProfileError: PROF-032 for an unknown key, PROF-033 for a missing one,
                and those of `mapping`.
        """
        found = self.mapping()
        known = (*required, *optional)
        for name, value in found.items():
            if name not in known:
                raise ProfileError(
                    "PROF-032",
                    f"{value.position} is not a known key.{did_you_mean(name, known)}",
                    why=f"The keys here are {', '.join(known)}.",
                    fix="Correct or remove it.",
                )
        for name in required:
            if name not in found:
                self.lacks(name)
        return found

    def lacks(self, name: str) -> NoReturn:
        """Raise PROF-033 for a missing key."""
        raise ProfileError(
            "PROF-033",
            f"{self.position} has no {name!r}.",
            why="Without it nothing can be predicted.",
            fix=f"Add {name!r}; docs/clusters.md has an example.",
        )

    def items(self) -> Iterator[Value]:
        """Yield the values of a list.

        Raises:
            ProfileError: PROF-031 if it is not a list.
        """
        if not isinstance(self.node, yaml.SequenceNode):
            self._is_not("a list")
        for index, node in enumerate(self.node.value):
            yield self._child(f"{self.path}[{index}]", node)

    def text(self) -> str:
        """Return the text of a scalar as it is written.

        Raises:
            ProfileError: PROF-031 if it is not a scalar.
        """
        if not isinstance(self.node, yaml.ScalarNode):
            self._is_not("a single value")
        return self.node.value

    def parsed(self, parse: Callable[[str], _Result]) -> _Result:
        """Return the parsed text; a ValueError of the parser becomes PROF-034."""
        text = self.text()
        try:
            return parse(text)
        except ValueError as error:
            self.cannot_be(text, str(error))

    def cannot_be(self, text: str, why: str) -> NoReturn:
        """Raise PROF-034 for an impossible value."""
        raise ProfileError(
            "PROF-034",
            f"{self.position} cannot be {text!r}.",
            why=f"{why[:1].upper()}{why[1:]}.",
            fix="Correct the value.",
        )

    def _child(self, path: str, node: yaml.Node) -> Value:
        return Value(file=self.file, path=path, node=node)

    def _is_not(self, wanted: str) -> NoReturn:
        kinds: dict[type[yaml.Node], str] = {
            yaml.MappingNode: "a mapping",
            yaml.SequenceNode: "a list",
            yaml.ScalarNode: "a single value",
        }
        raise ProfileError(
            "PROF-031",
            f"{self.position} must be {wanted}, and is {kinds[type(self.node)]}.",
            why="Otherwise its parts cannot be found.",
            fix="Compare it with the example in docs/clusters.md.",
        )


def parse_yaml(text: str, file: str) -> Value:
    """Return the content of a YAML file.

    Raises:
        ProfileError: PROF-030 if the text is not YAML, or is empty.
    """
    try:
        # The stubs of PyYAML lack the return type.
        composed = cast("object", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = 1 if mark is None else mark.line + 1
        _not_yaml(file, line, getattr(error, "problem", None) or str(error))
    except RecursionError:
        _not_yaml(file, 1, "it is nested too deeply")
    if not isinstance(composed, yaml.Node):
        _not_yaml(file, 1, "it is empty")
    return Value(file=file, path="", node=composed)


def _not_yaml(file: str, line: int, problem: str) -> NoReturn:
    raise ProfileError(
        "PROF-030",
        f"{file}:{line}: not a YAML description of a cluster.",
        why=f"The parser says: {' '.join(problem.split())}.",
        fix="Correct that line, or start from the example in docs/clusters.md.",
    )
