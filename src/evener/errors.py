"""All errors that evener raises on purpose.

    EvenerError
      DeviceError   DEV-...   a device spec, a cap, a device that cannot be used
      PlanError     PLAN-...  a Plan that is wrong or does not fit
      EngineError   ENG-...   training: models, scopes, strategies
      DataError     DATA-...  batches that cannot be trained on
      RunError      RUN-...   scripts that cannot be run on all devices
      PlacementError  PLACE-...  pins, and steps that cannot be audited
      ProfileError    PROF-...   costs of layers and devices that cannot be measured or read
      CheckpointError  CKPT-...  checkpoints that cannot be written or restored
    EvenerWarning   a warning in the same form

An error says what happened, why, and what to do, under a code that stays the same. The
command line, the log and the report print the same object.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Sequence

from evener.base.text import printable

_DEVICE = re.compile(r"(cpu|gpu|tpu):\d+")


def house_form(code: str, what: str, why: str, fix: str) -> str:
    """Return the three lines in which every message of evener is written."""
    return printable(f"[{code}] {what}\nWhy: {why}\nFix: {fix}")


class EvenerError(Exception):
    """Base class of all errors that evener raises on purpose.

    ``evener doctor --explain CODE`` prints the help page of a code.

    Args:
        code: Stable code of the error, such as ``"PLAN-012"``.
        what: Sentence that says what happened.
        why: Reason, with the numbers.
        fix: Remedy: the code, option or command to use.
    """

    # Otherwise AutoGraph replaces the error, because its signature is not a message alone.
    ag_pass_through = True
    # Otherwise Keras replaces it by a RuntimeError when it leaves the call of a layer.
    _keras_call_info_injected = True

    def __init__(self, code: str, what: str, *, why: str, fix: str) -> None:
        super().__init__(house_form(code, what, why, fix))
        self.code = code
        self.what = what
        self.why = why
        self.fix = fix

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle all fields, so that the error can cross a process boundary."""
        return _rebuild, (type(self), self.code, self.what, self.why, self.fix)


def _rebuild(kind: type[EvenerError], code: str, what: str, why: str, fix: str) -> EvenerError:
    return kind(code, what, why=why, fix=fix)


class DeviceError(EvenerError):
    """DEV-...: a device spec, a memory cap or a device is wrong or cannot be used."""


class PlanError(EvenerError, ValueError):
    """PLAN-...: a plan is inconsistent, or does not fit the devices, the model or the batch."""


class EngineError(EvenerError, RuntimeError):
    """ENG-...: a model, a scope or a strategy is used in a way that cannot train exactly."""


class DataError(EvenerError, ValueError):
    """DATA-...: a batch cannot be trained on, such as tensors with unlike numbers of samples."""


class RunError(EvenerError):
    """RUN-...: a script cannot be run, or not on all devices."""


class PlacementError(EvenerError, ValueError):
    """PLACE-...: something cannot be pinned to a device, or a step cannot be audited."""


class ProfileError(EvenerError, ValueError):
    """PROF-...: the costs of layers, devices or links cannot be measured or read."""


class CheckpointError(EvenerError):
    """CKPT-...: a checkpoint cannot be written, or does not belong to the program."""


class EvenerWarning(UserWarning):
    """Warning of evener; its text has the code, the reason and the remedy, as errors have."""


def warn(code: str, what: str, *, why: str, fix: str, stacklevel: int = 2) -> None:
    """Warn in the house form, as an `EvenerWarning`."""
    warnings.warn(EvenerWarning(house_form(code, what, why, fix)), stacklevel=stacklevel + 1)


def listed(names: Sequence[str], most: int) -> str:
    """Return names for a message, with the number of those that are left out."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest known name, or an empty string.

    A device such as ``gpu:1`` is only compared with devices of its kind.
    """
    names = list(known)
    if _DEVICE.fullmatch(name):
        kind = name.partition(":")[0]
        names = [other for other in names if other.startswith(f"{kind}:")]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
