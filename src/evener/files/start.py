"""Start of writing once, in a job of several workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from evener._tf_private import downloads, files
from evener.files.once import Once, Workers
from evener.files.summaries import Summaries
from evener.files.text import open_text


class _Group(Workers, Protocol):
    def keep_common(
        self, state: Callable[[], Any], begin_with: Callable[[Any, Any], None]
    ) -> None: ...


_groups: list[_Group] = []


def write_files_once(workers: _Group) -> None:
    """Let one worker write what Keras and TensorFlow write. Safe to call again."""
    if workers in _groups:
        return
    _groups.append(workers)
    once = Once(workers)
    summaries = Summaries(workers, once)
    downloads.download_in_turn()
    files.write_once(once.write, once.check_there)
    files.share_text_files(once.write, lambda path, mode: open_text(once, path, mode))
    files.redirect_summaries(summaries.folder_of, summaries.folder_instead)
    workers.keep_common(lambda: None, lambda state, view: summaries.take_over())
