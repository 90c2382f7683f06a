"""Keeping TensorFlow's log of its own import from the terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, MutableMapping

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@contextlib.contextmanager
def quiet_tensorflow(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Import TensorFlow inside, and nobody hears of it unless it fails.

    The log level is set for the whole process, but TensorFlow 2.21 writes some lines before
    it reads the level; these are held back, and written out if the import raises. Somebody
    who has set ``TF_CPP_MIN_LOG_LEVEL`` gets what they asked for.

    Args:
        environ: The environment of this process.
    """
    if LOG_LEVEL in environ:
        yield
        return
    environ[LOG_LEVEL] = "3"
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(terminal, held.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)
