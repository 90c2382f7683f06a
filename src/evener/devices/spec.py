"""The device spec: a small language for the devices to use.

    all                      every GPU that can be used; without one, the CPU
    gpu:0,gpu:2              these GPUs, as TensorFlow numbers them
    gpu:0@10GiB,gpu:1        a cap on the memory of one of them
    gpu:0@10GiB,gpu:0@5GiB   one GPU split into two devices
    cpu:2                    two stand-ins: logical CPU devices, to try programs without GPUs
    cpu:0                    the CPU alone, by its name; cpu:0,cpu:1 is the same as cpu:2
    cpu:1@2GiB,cpu:1@1GiB    stand-ins with a memory cap that only the planner respects:
                             TensorFlow cannot limit the memory of CPU devices

It means the same as an argument, as ``--devices`` and in the environment (`ENVIRONMENT`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from evener.base.text import format_bytes, parse_bytes
from evener.errors import DeviceError, did_you_mean

ENVIRONMENT = "EVENER_DEVICES"
MAX_STAND_INS = 256
_MEBIBYTE = 2**20
_EXAMPLES = ("all", "gpu:0", "gpu:0,gpu:1", "gpu:0@10GiB", "cpu:2")
_FORMS = f"write one of these forms: {'  '.join(_EXAMPLES)}"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,5}")
# TensorFlow's full names (/device:GPU:0), those of other libraries (cuda:0), and slips (gpu0).
_NEARLY = re.compile(
    r"(?:/?(?:physical_)?device:|/)?(?P<kind>gpu|cuda|cpu)\W?0*(?P<number>\d{1,6})"
)
_ITEM = re.compile(r"(?P<word>[^:@]*)(?::(?P<number>[^@]*))?(?:@(?P<cap>.*))?", re.DOTALL)

SpecKind = Literal["all", "gpu", "cpu"]
SpecSource = Literal["argument", "environment", "default"]


class SpecError(DeviceError):
    """A device spec or a device name is invalid: wrong usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    index: int  # TensorFlow's number of the physical GPU
    cap_bytes: int | None = None  # at least 1 MiB; None for all of its memory

    @property
    def name(self) -> str:
        return f"gpu:{self.index}"

    def __str__(self) -> str:
        return f"{self.name}{_cap_text(self.cap_bytes)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    kind: SpecKind
    num_stand_ins: int = 0  # logical CPU devices, from 1, with kind "cpu"
    stand_in_caps: tuple[int, ...] = ()  # bytes that a planner assumes for each; empty: no limit
    gpus: tuple[GpuRequest, ...] = ()  # in the order in which they were named, with kind "gpu"
    source: SpecSource = "argument"

    @property
    def num_devices(self) -> int | None:
        """Number of devices that the spec names; None with kind ``"all"``."""
        return {"all": None, "gpu": len(self.gpus), "cpu": self.num_stand_ins}[self.kind]

    def __str__(self) -> str:
        if self.kind == "gpu":
            return ",".join(map(str, self.gpus))
        if self.stand_in_caps:
            alike = itertools.groupby(self.stand_in_caps)
            return ",".join(f"cpu:{len(list(some))}{_cap_text(cap)}" for cap, some in alike)
        return "all" if self.kind == "all" else f"cpu:{self.num_stand_ins}"


def _cap_text(cap_bytes: int | None) -> str:
    if cap_bytes is None:
        return ""
    units = {"GiB": 2**30, "MiB": _MEBIBYTE, "B": 1}
    unit = next(unit for unit, size in units.items() if cap_bytes % size == 0)
    return f"@{cap_bytes // units[unit]}{unit}"


def spec_from(spec: str | None, environ: Mapping[str, str]) -> DeviceSpec:
    """Return the effective spec: the argument, else the environment's, else ``all``."""
    if spec is not None:
        return parse_spec(spec)
    text = environ.get(ENVIRONMENT, "")
    if text.strip():
        return parse_spec(text, source="environment")
    return DeviceSpec(kind="all", source="default")


def parse_spec(text: str, *, source: SpecSource = "argument") -> DeviceSpec:
    context = f"{ENVIRONMENT}={text!r}" if source == "environment" else f"Device spec {text!r}"
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise _not_a_device(context, str(text))
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise no_device_named(
            f"{context} is empty" if not text.strip() else f"{context} has an empty item",
            why="a spec lists at least one device, separated by commas.",
            fix=_FORMS,
        )
    names = [item.partition("@")[0].strip() for item in items]
    if "cpu:0" in names:
        # By their names, cpu:0, cpu:1, ...: here they are counted.
        if names != [f"cpu:{k}" for k in range(len(items))]:
            raise _mixed(context, "cpu:0")
        has_caps = any("@" in item for item in items)
        by_count = ["@".join(["cpu:1", *item.split("@")[1:]]) for item in items]
        items = by_count if has_caps else [f"cpu:{len(items)}"]
    parsed = [_parse_item(item, context) for item in items]
    exclusive = [item for item in parsed if isinstance(item, DeviceSpec)]
    gpus = tuple(item for item in parsed if isinstance(item, GpuRequest))
    if len(parsed) == 1 and exclusive:
        return replace(exclusive[0], source=source)
    if len(parsed) == len([item for item in exclusive if item.stand_in_caps]):
        caps = tuple(cap for item in exclusive for cap in item.stand_in_caps)
        _check_number_of_stand_ins(len(caps), str(len(caps)), context)
        return DeviceSpec(kind="cpu", num_stand_ins=len(caps), stand_in_caps=caps, source=source)
    if exclusive:
        raise _mixed(context, str(exclusive[0]))
    indices = [gpu.index for gpu in gpus]
    for gpu in gpus:
        if gpu.cap_bytes is None and indices.count(gpu.index) > 1:
            raise duplicate_device(
                f"{context} names {gpu.name} {indices.count(gpu.index)} times",
                why="a GPU can be split into several devices only if each has a memory cap.",
                fix=f"list it once, or split it: {gpu.name}@10GiB,{gpu.name}@5GiB.",
            )
    return DeviceSpec(kind="gpu", gpus=gpus, source=source)


def _parse_item(item: str, context: str) -> DeviceSpec | GpuRequest:
    match = _ITEM.fullmatch(item)
    word, number, cap = match.group("word", "number", "cap") if match else (item, None, None)
    if word not in ("all", "cpu", "gpu") or (word == "all") != (number is None):
        raise _not_a_device(context, item)
    if word == "all" and cap is not None:
        raise bad_cap(
            f"{context}: {item!r} has a memory cap",
            why="a memory cap belongs to one device, and all names several.",
            fix="put the cap on a GPU, for example gpu:0@10GiB, or remove it.",
        )
    if word == "all":
        return DeviceSpec(kind="all")
    number = number or ""
    is_number = _NUMBER.fullmatch(number) is not None
    if word == "gpu":
        if not is_number:
            raise SpecError(
                "DEV-004",
                f"{context}: {number!r} is not the number of a GPU.",
                why="GPUs are numbered 0, 1, 2, ... in TensorFlow's order.",
                fix="write for example gpu:0; `evener devices` lists the GPUs of this machine.",
            )
        return GpuRequest(index=int(number), cap_bytes=_parse_cap(cap, context))
    count = int(number) if is_number else 0
    _check_number_of_stand_ins(count, number, context)
    cap_bytes = _parse_cap(cap, context)
    caps = () if cap_bytes is None else (cap_bytes,) * count
    return DeviceSpec(kind="cpu", num_stand_ins=count, stand_in_caps=caps)


def _parse_cap(cap: str | None, context: str) -> int | None:
    if cap is None:
        return None
    try:
        cap_bytes = parse_bytes(cap)
    except ValueError as error:
        reason = str(error)
    else:
        if cap_bytes >= _MEBIBYTE:
            return cap_bytes
        reason = f"{format_bytes(cap_bytes)} is less than 1 MiB, the unit of TensorFlow's caps"
    raise bad_cap(
        f"{context}: the memory cap {cap!r} cannot be used",
        why=f"{reason}.",
        fix="write a number and a unit, for example gpu:0@10GiB or gpu:0@512MiB.",
    )


def _check_number_of_stand_ins(count: int, number: str, context: str) -> None:
    if not 1 <= count <= MAX_STAND_INS:
        raise SpecError(
            "DEV-003",
            f"{context}: {number!r} is not a number of stand-ins.",
            why=f"cpu:N makes N logical CPU devices, and N is from 1 to {MAX_STAND_INS}.",
            fix="write cpu:1 for the CPU alone, or cpu:2 for two stand-ins.",
        )


def _mixed(context: str, item: str) -> SpecError:
    return SpecError(
        "DEV-007",
        f"{context} mixes {item!r} with other devices.",
        why="'all' and cpu:N must be the whole spec; only GPUs can be listed together, or "
        "stand-ins: by their names from cpu:0 on, or with a memory size each. The host's CPU "
        "always prepares the input and is not listed.",
        fix=_FORMS,
    )


def _not_a_device(context: str, item: str) -> SpecError:
    return not_a_device(
        f"{context}: {item!r} is not a device.{suggestion(item, _EXAMPLES)}",
        why="devices are written all, gpu:NUMBER, gpu:NUMBER@SIZE, cpu:COUNT or cpu:COUNT@SIZE, in "
        "lower case.",
        fix=_FORMS,
    )


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for a text that is not a device, or an empty string.

    Other spellings are known too: ``cuda:0``, ``/GPU:0`` and ``gpu0`` mean ``gpu:0``.
    """
    match = _NEARLY.fullmatch(name.strip().lower())
    if match is None:
        return did_you_mean(name.lower(), known)
    kind = match["kind"].replace("cuda", "gpu")
    return f" Did you mean '{kind}:{int(match['number'])}'?"


# The same mistakes occur in specs and in lists of names, and have the same codes.


def no_device_named(what: str, *, why: str, fix: str) -> SpecError:
    return SpecError("DEV-001", f"{what}.", why=why, fix=fix)


def not_a_device(what: str, *, why: str, fix: str) -> SpecError:
    return SpecError("DEV-002", what, why=why, fix=fix)


def duplicate_device(what: str, *, why: str, fix: str) -> SpecError:
    return SpecError("DEV-005", f"{what}.", why=why, fix=fix)


def bad_cap(what: str, *, why: str, fix: str) -> SpecError:
    return SpecError("DEV-006", f"{what}.", why=why, fix=fix)
