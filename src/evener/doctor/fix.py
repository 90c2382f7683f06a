"""Makes the edits that rules offer, and holds each to what the doctor then finds.

::

    read ─► fixes that do not overlap ─► edit ─► read again ─► fewer findings, none new: keep
      ▲                                                  └───► else one fix at a time
      └──────────────────── until there are none

Nothing is written meanwhile: the doctor reads the edited text from memory.
"""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from evener.doctor.configuration import configuration_for
from evener.doctor.diagnose import Diagnosis, examine
from evener.doctor.edit import Edit, Fix
from evener.doctor.rule import Rule
from evener.doctor.rules import all_rules
from evener.doctor.source_file import edited, source_file, write_all
from evener.doctor.surroundings import Surroundings, surroundings_here

# A fix may make room for another; more rounds than this are a mistake of a rule.
_MOST_ROUNDS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A fix that is not made.

    Args:
        fix: The fix.
        reason: Clause that says why.
    """

    fix: Fix
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A program with its fixes made, in memory.

    Args:
        before: Diagnosis of the program as it is.
        after: Diagnosis of the program with the fixes.
        made: Fixes that are made. Lines are those of the text at that time.
        left_out: Fixes that are not made.
        contents: Bytes that were read and bytes with the fixes, by absolute path, of the files
            that change.
    """

    before: Diagnosis
    after: Diagnosis
    made: tuple[Fix, ...]
    left_out: tuple[LeftOut, ...]
    contents: dict[str, tuple[bytes, bytes]]

    def diff(self) -> bytes:
        """Return the changes as a unified diff, for ``patch -p0`` in the current folder."""
        return b"".join(
            _diff_of(path, before, after) for path, (before, after) in self.contents.items()
        )

    def write(self) -> None:
        """Write the files that change: each atomically, with its permissions.

        Raises:
            RunError: RUN-015 if a file has changed since it was read; RUN-016 if it is outside of
                the script's folder or cannot be written. Then no file is written.
        """
        write_all(self.contents, Path(self.before.script).resolve().parent)


def fix_program(
    script: Path,
    *,
    num_gpus: int | None = None,
    select: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
) -> Fixed:
    """Make the fixes that are certain, in memory.

    Args:
        script: Path of a Python script.
        num_gpus: Number of GPUs to assume, as for `diagnose`.
        select: Codes to fix, as for `diagnose`.
        ignore: Codes not to fix, as for `diagnose`.

    Raises:
        RunError: RUN-011 to RUN-013 if a code, the table or the number of GPUs is wrong.
    """
    chosen = configuration_for(script, select=select, ignore=ignore, num_gpus=num_gpus)
    rules = [rule for rule in all_rules() if chosen.reports(rule.code)]
    return fix_for(script, surroundings_here().judged_for(chosen.num_gpus), rules)


def fix_for(script: Path, surroundings: Surroundings, rules: Iterable[Rule] | None = None) -> Fixed:
    """Make the fixes that are certain for a machine, in memory.

    Args:
        script: Path of a Python script.
        surroundings: The machine, the environment, the packages.
        rules: The rules; None for all.
    """
    return _Fixing(script, surroundings, None if rules is None else tuple(rules)).run()


class _Fixing:
    def __init__(
        self, script: Path, surroundings: Surroundings, rules: tuple[Rule, ...] | None
    ) -> None:
        self._script, self._surroundings, self._rules = script, surroundings, rules
        self._read: dict[str, bytes] = {}
        self._now: dict[str, bytes] = {}
        self._made: list[Fix] = []
        self._refused: dict[tuple[object, ...], LeftOut] = {}
        self._overlapped: list[Fix] = []

    def run(self) -> Fixed:
        before = found = self._examine(self._now)
        for _ in range(_MOST_ROUNDS):
            chosen = self._without_overlaps(found.fixes)
            if not chosen:
                break
            after = self._tried(found, chosen)
            found = after if after is not None else self._one_at_a_time(found, chosen)
            self._name_overlaps(found)
        changed = {path: (self._read[path], now) for path, now in self._now.items()}
        return Fixed(
            before=before,
            after=found,
            made=tuple(self._made),
            left_out=tuple(self._refused.values()),
            contents={path: both for path, both in changed.items() if both[0] != both[1]},
        )

    def _examine(self, contents: Mapping[str, bytes]) -> Diagnosis:
        return examine(self._script, self._surroundings, rules=self._rules, contents=dict(contents))

    def _without_overlaps(self, fixes: Iterable[Fix]) -> list[Fix]:
        """Return fixes that do not overlap, the first of those that do; the others come later."""
        chosen: list[Fix] = []
        edits: list[Edit] = []
        self._overlapped.clear()
        for fix in fixes:
            if _key(fix) in self._refused:
                continue
            if any(_overlap(edit, other) for edit in fix.edits for other in edits):
                self._overlapped.append(fix)
            else:
                chosen.append(fix)
                edits += fix.edits
        return chosen

    def _name_overlaps(self, found: Diagnosis) -> None:
        """Refuse the fixes that overlapped, and are not offered for the edited text."""
        offered = {(fix.code, fix.location.path) for fix in found.fixes}
        for fix in self._overlapped:
            if (fix.code, fix.location.path) not in offered:
                reason = "it overlaps another fix, which was made"
                self._refused[_key(fix)] = LeftOut(fix=fix, reason=reason)

    def _tried(self, found: Diagnosis, fixes: Sequence[Fix]) -> Diagnosis | None:
        """Make fixes and read the program again; None, and nothing made, if they do not hold."""
        contents = self._edited(fixes)
        if contents is None:
            return None
        after = self._examine(contents)
        if not _holds(found, after, fixes):
            return None
        self._now = contents
        self._made += fixes
        return after

    def _one_at_a_time(self, found: Diagnosis, fixes: Sequence[Fix]) -> Diagnosis:
        """Make the first fix that holds by itself, and refuse those before it."""
        for fix in fixes:
            after = self._tried(found, [fix])
            if after is not None:
                return after
            self._refused[_key(fix)] = LeftOut(fix=fix, reason=self._reason(found, fix))
        return found

    def _reason(self, found: Diagnosis, fix: Fix) -> str:
        contents = self._edited([fix])
        if contents is None:
            return "the file does not have the text that was read"
        after = self._examine(contents)
        new = sorted(set(after.num_violations) - set(found.num_violations))
        if new:
            return f"with it the doctor would find {', '.join(new)}"
        return "the doctor would still find the mistake"

    def _edited(self, fixes: Iterable[Fix]) -> dict[str, bytes] | None:
        by_path: dict[str, list[Edit]] = {}
        for fix in fixes:
            for edit in fix.edits:
                by_path.setdefault(edit.path, []).append(edit)
        contents = dict(self._now)
        for path, edits in by_path.items():
            if path not in contents:
                self._read[path] = contents[path] = Path(path).read_bytes()
            source = source_file(path, contents[path])
            result = None if source is None else edited(source, edits)
            if result is None or not _compiles(path, result.content):
                return None
            contents[path] = result.content
        return contents


def _key(fix: Fix) -> tuple[object, ...]:
    """Return what tells a fix from others, wherever its line is by now."""
    edits = tuple((edit.old, edit.new) for edit in fix.edits)
    return fix.code, fix.location.path, fix.location.text, edits


def _overlap(edit: Edit, other: Edit) -> bool:
    """Return whether two edits cannot both be made. Equal ones are one edit."""
    if edit == other or edit.path != other.path:
        return False
    if edit.start == other.start:
        return True
    return edit.start < other.end and other.start < edit.end


def _compiles(path: str, content: bytes) -> bool:
    try:
        compile(content, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _holds(before: Diagnosis, after: Diagnosis, fixes: Iterable[Fix]) -> bool:
    """Return whether what was fixed is gone, and nothing new is found."""
    allowed = Counter(before.num_violations)
    allowed.subtract(fix.code for fix in fixes)
    return all(number <= allowed[code] for code, number in after.num_violations.items())


def _diff_of(path: str, before: bytes, after: bytes) -> bytes:
    name = _shown(path).encode(errors="surrogateescape")
    # A tab ends a name with spaces in it.
    name += b"\t" if b" " in name else b""
    lines = difflib.diff_bytes(
        difflib.unified_diff, _lines(before), _lines(after), name, name, lineterm=b"\n"
    )
    return b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
        for line in lines
    )


def _lines(content: bytes) -> list[bytes]:
    """Return lines as `patch` counts them."""
    parts = content.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _shown(path: str) -> str:
    here = Path.cwd()
    return os.fspath(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path
