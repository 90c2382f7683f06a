"""Downloads of Keras, where several workers of a machine share its cache."""

from __future__ import annotations

import fcntl
import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evener._tf_private.patches import Patch

_DATASETS = (
    *("boston_housing", "california_housing", "cifar10", "cifar100"),
    *("fashion_mnist", "imdb", "mnist", "reuters"),
)
_DOWNLOADS = Patch(
    "downloads of workers",
    "keras.src.utils.file_utils:get_file",
    "keras.utils:get_file",
    *(f"keras.src.datasets.{name}:get_file" for name in _DATASETS),
    why="Workers of a machine download the same file to the same place at the same time, and one "
    "of them reads what another one has half written. Datasets have imported the function.",
    if_it_changes="The first start of several workers fails where a dataset is not there yet.",
)


def download_in_turn() -> None:
    """Let the workers of a machine download one after another: all but the first find the file."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def get_file(*args: Any, **kwargs: Any) -> Any:
            path = Path(tempfile.gettempdir()) / f"evener-downloads-{os.getuid()}.lock"
            # Freed by the kernel if the worker dies.
            with path.open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                return original(*args, **kwargs)

        return get_file

    _DOWNLOADS.apply(wrap)
