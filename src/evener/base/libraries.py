"""The installed TensorFlow and Keras: supported versions, the backend, and a quick import.

evener replaces parts of TensorFlow and of the Keras trainer that change between minor versions.
``make matrix`` tests the versions that are listed here, and pyproject.toml has the same ranges.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import re
import sys
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from evener.errors import EngineError, RunError

Minor = tuple[int, int]
"""The first two numbers of a version: ``(2, 21)``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supported:
    """A package and its minor versions that evener works with."""

    title: str  # in messages
    packages: tuple[str, ...]  # distributions that contain it; the first is recommended
    first: Minor
    last: Minor  # its patch releases are included

    @property
    def requirement(self) -> str:
        """The range as pip writes it.

        >>> Supported(title="Keras", packages=("keras",), first=(3, 12), last=(3, 15)).requirement
        'keras>=3.12,<3.16'
        """
        (first, minor), (major, last) = self.first, self.last
        return f"{self.packages[0]}>={first}.{minor},<{major}.{last + 1}"


SUPPORTED = (
    Supported(
        title="TensorFlow", packages=("tensorflow", "tensorflow-cpu"), first=(2, 20), last=(2, 21)
    ),
    Supported(title="Keras", packages=("keras",), first=(3, 12), last=(3, 15)),
)


def check_installed() -> None:
    """Refuse a Python without TensorFlow and Keras, and versions and backends of other kinds.

    It reads the installed packages and imports none of them. The version of a package that is
    installed under another name is not checked.
    """
    installed: dict[str, str] = {}
    for supported in SUPPORTED:
        check_is_there(supported)
        for name in supported.packages:
            with contextlib.suppress(metadata.PackageNotFoundError):
                installed[name] = metadata.version(name)
    check_versions(installed)
    check_backend(_backend(os.environ))


def check_is_there(supported: Supported) -> None:
    """Refuse a Python that cannot import a package."""
    name = supported.packages[0]
    if name in sys.modules or importlib.util.find_spec(name) is not None:
        return
    raise EngineError(
        "ENG-098",
        f"{supported.title} is not installed for the Python of evener.",
        why=f"there is no module {name!r} in {sys.prefix}.",
        fix=f"{sys.executable} -m pip install {supported.requirement!r}, or install evener where "
        f"{supported.title} is.",
    )


def check_versions(installed: Mapping[str, str]) -> None:
    """Refuse versions outside of the ranges: of distributions by name, ``{"keras": "3.15.1"}``."""
    for supported in SUPPORTED:
        version = next((installed[name] for name in supported.packages if name in installed), "")
        match = re.match(r"(\d+)\.(\d+)", version)
        if match is None or supported.first <= (int(match[1]), int(match[2])) <= supported.last:
            continue
        ranges = (
            "{} {}.{} to {}.{}".format(package.title, *package.first, *package.last)
            for package in SUPPORTED
        )
        raise EngineError(
            "ENG-091",
            f"evener does not work with {supported.title} {version}.",
            why="it replaces parts of TensorFlow and Keras that change between minor versions; it "
            f"is tested with {' and '.join(ranges)}.",
            fix=f"pip install {' '.join(repr(package.requirement) for package in SUPPORTED)}",
        )


def check_backend(name: str) -> None:
    """Refuse another backend of Keras than TensorFlow."""
    if name in ("", "tensorflow"):
        return
    raise RunError(
        "RUN-004",
        f"The backend of Keras is {name}.",
        why="evener needs the TensorFlow backend, and Keras selects its backend on import.",
        fix="Set KERAS_BACKEND=tensorflow; it takes precedence over keras.json.",
    )


def _backend(environ: Mapping[str, str]) -> str:
    """Return the backend that Keras has, or will have: by the rules of `keras.config.backend`."""
    keras = sys.modules.get("keras")
    if keras is not None and hasattr(keras, "config"):
        return str(keras.config.backend())
    if environ.get("KERAS_BACKEND"):
        return environ["KERAS_BACKEND"]
    folder = environ.get("KERAS_HOME") or "~/.keras"
    try:
        text = (Path(folder).expanduser() / "keras.json").read_text(encoding="utf-8")
        settings: Any = json.loads(text)
    except (OSError, ValueError):
        # Keras then takes its defaults too.
        return ""
    if not isinstance(settings, dict):
        return ""
    return str(cast("dict[str, object]", settings).get("backend", ""))


def version_numbers(version: str) -> tuple[int, ...]:
    """Return all numbers in the text of a version.

    >>> version_numbers("12.5.82")
    (12, 5, 82)
    """
    return tuple(int(text) for text in re.findall(r"\d+", version))


@contextlib.contextmanager
def paused_collector() -> Generator[None]:
    """Collect no garbage inside.

    The imports of TensorFlow and Keras make objects by the hundred thousand and leave no garbage;
    a fifth of their time is spent in looking for some, and as much again when the process ends.
    For commands only, before the user's program begins: what it had made would never be freed if
    it is a part of a cycle.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        # Nor later: what is imported stays until the process ends.
        gc.freeze()
        if was_enabled:
            gc.enable()
