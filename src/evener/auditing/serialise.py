"""Audits to and from JSON, in version 1."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from evener.auditing.fields import AuditFields
from evener.auditing.gathered import GatheredOperation
from evener.auditing.records import VERSION, Collective, Copy, Fallback, Line, Operation
from evener.errors import PlacementError

T = TypeVar("T")


def write_audit(audit: AuditFields) -> str:
    """Return an audit as JSON, with its totals, which other readers need not compute."""
    fields = dataclasses.asdict(audit)
    fields = {"version": fields.pop("version"), **fields}
    fields["totals"] = [dataclasses.asdict(total) for total in audit.totals]
    fields["traffic"] = [dataclasses.asdict(total) for total in audit.traffic]
    return json.dumps(fields, indent=1, ensure_ascii=False, allow_nan=False)


def read_fields(text: str) -> dict[str, Any]:
    """Return the arguments of the `Audit` in a JSON text; its totals are computed again.

    Raises:
        PlacementError: PLACE-034 if it is not an audit of version 1.
    """
    try:
        fields = json.loads(text)
        if fields["version"] != VERSION:
            raise ValueError(f"it is of version {fields['version']}, not {VERSION}")
        return dict(
            step=fields["step"],
            devices=tuple(fields["devices"]),
            assume_gpus=fields["assume_gpus"],
            kernels_from=fields["kernels_from"],
            operations=_read(Operation, fields["operations"]),
            copies=_read(Copy, fields["copies"]),
            collectives=_read(Collective, fields["collectives"]),
            fallbacks=_read(Fallback, fields["fallbacks"]),
            gathered=tuple(GatheredOperation(**operation) for operation in fields["gathered"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise PlacementError(
            "PLACE-034",
            "The text is not an audit.",
            why=f"{type(error).__name__}: {error}.",
            fix="Pass the output of Audit.to_json or `evener audit --json`, of the same version of "
            "evener.",
        ) from error


def _read(kind: Callable[..., T], entries: list[Mapping[str, Any]]) -> tuple[T, ...]:
    return tuple(kind(**{**entry, **_lines(entry)}) for entry in entries)


def _lines(entry: Mapping[str, Any]) -> dict[str, Line | None]:
    given = {name: entry[name] for name in ("line", "needed_by") if name in entry}
    return {name: None if line is None else Line(**line) for name, line in given.items()}
