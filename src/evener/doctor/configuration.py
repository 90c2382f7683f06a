"""Choice of the findings to report: by options, ``pyproject.toml``, comments in the program."""

from __future__ import annotations

import functools
import io
import re
import tokenize
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from evener.doctor.rules import GONE, all_rules
from evener.doctor.sources import Source
from evener.errors import RunError, did_you_mean

_TABLE = "[tool.evener.doctor]"
_KEYS = ("select", "ignore", "gpus")
# Always reported: a script that cannot be read is not examined.
_ALWAYS = ("DOC-001", "DOC-002")
_COMMENT = re.compile(r"#\s*evener:\s*ignore(?:\[([^\]]*)\])?(?![\w\[])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Rules to report, and the assumed machine."""

    select: tuple[str, ...] | None = None  # Codes, or prefixes of codes such as ``"DOC-4"``
    ignore: tuple[str, ...] = ()  # Codes, or prefixes of codes, that are not reported
    num_gpus: int | None = None  # Number of GPUs to assume; None for those of this machine

    def reports(self, code: str) -> bool:
        """Return whether findings with a code are reported."""
        if code.startswith(self.ignore):
            return False
        return self.select is None or code.startswith((*self.select, *_ALWAYS))


def configuration_for(
    script: Path,
    *,
    select: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
    num_gpus: int | None = None,
) -> Configuration:
    """Return the settings for a script: the given ones, else those of ``pyproject.toml``.

    Raises:
        RunError: RUN-011 if no rule has a code; RUN-012 if the table in the file is wrong;
            RUN-013 if the number of GPUs is below 0.
    """
    path, table = _table_for(script)
    if select is None:
        select = _codes(path, table, "select")
    if ignore is None:
        ignore = _codes(path, table, "ignore")
    if num_gpus is None and (value := table.get("gpus")) is not None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise _wrong(path, f"`gpus` is {value!r}", "It must be a whole number from 0.")
        num_gpus = value
    elif num_gpus is not None and num_gpus < 0:
        raise RunError(
            "RUN-013",
            f"The number of GPUs cannot be {num_gpus}.",
            why="A machine has 0 GPUs or more.",
            fix="Give a number from 0, or none for the GPUs of this machine.",
        )
    return Configuration(
        select=None if select is None else tuple(map(_known, select)),
        ignore=tuple(map(_known, ignore or ())),
        num_gpus=num_gpus,
    )


def _known(given: str) -> str:
    """Return a code, or a prefix of one, in capitals."""
    code = given.strip().upper()
    codes = [rule.code for rule in all_rules()]
    if code and any(known.startswith(code) for known in (*codes, *GONE)):
        return code
    raise RunError(
        "RUN-011",
        f"The doctor has no rule with the code {given!r}.{did_you_mean(code, codes)}",
        why="Codes are those of `evener doctor --rules`, or their beginnings, such as DOC-4.",
        fix="Correct the code, or leave it out.",
    )


def _table_for(script: Path) -> tuple[Path, Mapping[str, object]]:
    """Return the nearest ``pyproject.toml`` above a script, and its table for the doctor."""
    for folder in script.absolute().parents:
        path = folder / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            found: object = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise _wrong(path, "cannot be read", str(error)) from error
        for key in ("tool", "evener", "doctor"):
            found = cast("Mapping[str, object]", found).get(key, {})
            if not isinstance(found, dict):
                raise _wrong(path, f"`{key}` is no table", f"{_TABLE} is a table of keys.")
        table = cast("Mapping[str, object]", found)
        for key in table:
            if key not in _KEYS:
                what = f"has the unknown key `{key}`.{did_you_mean(key, _KEYS)}"
                raise _wrong(path, what, f"The keys are {', '.join(_KEYS)}.")
        return path, table
    return script, {}


def _codes(path: Path, table: Mapping[str, object], key: str) -> list[str] | None:
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong(path, f"`{key}` is {value!r}", 'It must be a list of codes: ["DOC-201"].')
    codes = cast("list[str]", value)
    try:
        return [_known(code) for code in codes]
    except RunError as error:
        raise _wrong(path, f"`{key}`: {error.what}", error.why) from error


def _wrong(path: Path, what: str, why: str) -> RunError:
    return RunError(
        "RUN-012",
        f"{path}: {_TABLE} {what}",
        why=why,
        fix=f"Correct {_TABLE} in this file, or take it out.",
    )


def is_ignored(source: Source | None, line: int, code: str) -> bool:
    """Return whether a comment on a line ignores a code: ``# evener: ignore[DOC-201]``."""
    for match in _COMMENT.finditer(_comments(source).get(line, "")):
        prefixes = [part.strip().upper() for part in (match.group(1) or "").split(",")]
        if match.group(1) is None or code.startswith(tuple(filter(None, prefixes))):
            return True
    return False


# One file is asked for each of its findings.
@functools.lru_cache(maxsize=16)
def _comments(source: Source | None) -> dict[int, str]:
    """Return the comments of a file that ignore codes, by line."""
    lines = () if source is None else source.lines
    found = {number for number, line in enumerate(lines, start=1) if _COMMENT.search(line)}
    if not found:
        return {}
    # The pattern may also be in a string, which is not a comment.
    tokens = tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline)
    return {
        token.start[0]: token.string
        for token in tokens
        if token.type == tokenize.COMMENT and token.start[0] in found
    }
