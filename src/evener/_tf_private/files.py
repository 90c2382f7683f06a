"""Functions of Keras and TensorFlow that write files, where several workers run them."""

from __future__ import annotations

import functools
import io
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from evener._tf_private.patches import Patch

Write = Callable[[str, Any, Callable[[], Any]], Any]
"""Function that lets one worker write: of a name, a path, and the function that writes."""

_MODELS = Patch(
    "models that workers save",
    "keras.src.saving.saving_api:save_model",
    "keras.src.saving.saving_api:save_weights",
    "keras.src.saving.saving_lib:save_model",
    "keras.src.saving.saving_lib:save_weights_only",
    "keras.src.legacy.saving.legacy_h5_format:save_model_to_hdf5",
    "keras.src.models.model:Model.export",
    "tensorflow.python.saved_model.save:save_and_return_nodes",
    why="All workers run the same program, and one of them writes each file. All that saves models "
    "passes these functions, and none of them has a hook.",
    if_it_changes="Workers write models at the same time into the same files.",
)
_CHECKPOINTS = Patch(
    "checkpoints that workers write",
    "tensorflow.python.checkpoint.functional_saver:MultiDeviceSaver.save",
    why="As for models. `tf.train.Checkpoint` counts its checkpoints in a variable, so all workers "
    "run what is around the write.",
    if_it_changes="Workers write checkpoints of TensorFlow at the same time into the same files.",
)
_STATES = Patch(
    "lists of checkpoints that workers write",
    "tensorflow.python.checkpoint.checkpoint_management:update_checkpoint_state_internal",
    why="As for models; it is the file from which the latest checkpoint is known.",
    if_it_changes="Workers write this file at the same time.",
)
_SWEEPS = Patch(
    "old checkpoints that workers delete",
    "tensorflow.python.checkpoint.checkpoint_management:CheckpointManager._sweep",
    why="One worker deletes. What it keeps depends on the time, so the others take that over.",
    if_it_changes="Workers delete files that another one has deleted.",
)
_BACKUPS = Patch(
    "backups that workers write",
    "keras.src.callbacks.backup_and_restore:BackupAndRestore._save_model",
    "keras.src.callbacks.backup_and_restore:BackupAndRestore.on_train_end",
    why="The callback asks which files are there and changes them, which one worker does whole.",
    if_it_changes="Workers write and delete backups at the same time.",
)
_FILES = Patch(
    "files of callbacks",
    "keras.src.callbacks.backup_and_restore:file_utils",
    "keras.src.callbacks.csv_logger:file_utils",
    "keras.src.callbacks.model_checkpoint:file_utils",
    "keras.src.callbacks.tensorboard:file_utils",
    why="Callbacks open, copy and delete files by this module, and ask which are there. One worker "
    "does, and all get its answer; log files are gone on with if it dies.",
    if_it_changes="Workers write log files of callbacks at the same time.",
)
_READS = Patch(
    "models that workers read",
    "keras.src.saving.saving_lib:load_model",
    "keras.src.saving.saving_lib:load_weights_only",
    why="Machines without a common file system do not have what another one has written.",
    if_it_changes="Such a worker raises the error of Keras, while the others train on.",
)
_RESTORES = Patch(
    "checkpoints that workers read",
    "tensorflow.python.checkpoint.checkpoint:TrackableSaver.restore",
    why="As for models: the latest checkpoint is None for a worker that does not find it.",
    if_it_changes="Workers without a common file system begin with other weights than the first.",
)
_SUMMARIES = Patch(
    "summary writers of workers",
    "tensorflow.python.ops.gen_summary_ops:create_summary_file_writer",
    why="The graph of a step with summaries has to be the same on all workers, so the others write "
    "too, to other folders.",
    if_it_changes="Each worker writes the summaries to the log folder.",
)
_PROFILES = Patch(
    "profiles of workers",
    "tensorflow.python.profiler.internal._pywrap_profiler:ProfilerSession",
    why="As for summaries. Profiles of a machine have one name, whichever worker writes them.",
    if_it_changes="Workers write profiles at the same time into the same files.",
)


def write_once(write: Write, check_there: Callable[..., None]) -> None:
    """Let one worker write models and checkpoints, and check that all find what they read.

    Args:
        write: Function that lets one worker write.
        check_there: Function of a name and a path, with ``is_there``, that raises an error if
            some workers find the file and others do not.
    """
    _MODELS.apply_by_name(functools.partial(_writing_models, write))
    _CHECKPOINTS.apply(functools.partial(_writing_checkpoints, write))
    _STATES.apply(functools.partial(_writing_states, write))
    _SWEEPS.apply(functools.partial(_sweeping, write))
    _READS.apply_by_name(functools.partial(_reading, check_there))
    _RESTORES.apply(functools.partial(_restoring, check_there))


def share_text_files(write: Write, open_text: Callable[[str, str], Any]) -> None:
    """Let one worker write the files of Keras's callbacks.

    Args:
        write: Function that lets one worker write.
        open_text: Function that opens a text file of all workers, of a path and a mode.
    """

    def wrap(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> None:
            action = functools.partial(original, self, *args, **kwargs)
            write(f"BackupAndRestore.{name}", self.backup_dir, action)

        return method

    _BACKUPS.apply_by_name(wrap)
    _FILES.apply(lambda original: _CallbackFiles(original, write, open_text))


def redirect_summaries(
    folder_of: Callable[[Any, str, Callable[[Any, str], object]], str],
    folder_instead: Callable[[], str | None],
) -> None:
    """Let all workers but the chief write summaries and profiles to other folders.

    Args:
        folder_of: Function that returns the folder for a summary writer, of its resource, its log
            folder, and a function that opens the resource again, with another folder.
        folder_instead: Function that returns a folder for profiles; None for that of the
            program.
    """

    def summaries(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def create(writer: Any, logdir: Any, *args: Any, **kwargs: Any) -> Any:
            if not tf.executing_eagerly():
                return original(writer, logdir, *args, **kwargs)

            def open_in(resource: Any, folder: str) -> Any:
                return original(resource, folder, *args, **kwargs)

            return open_in(writer, folder_of(writer, _text(logdir), open_in))

        return create

    def profiles(original: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: _ProfilerSession(original(), folder_instead)

    _SUMMARIES.apply(summaries)
    _PROFILES.apply(profiles)


class _ProfilerSession:
    """Session of the profiler, which may write to another folder than it is asked to."""

    def __init__(self, session: Any, folder_instead: Callable[[], str | None]) -> None:
        self._session = session
        self._folder_instead = folder_instead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def start(self, logdir: str, options: Any) -> None:
        """Begin to profile."""
        # Keras begins without a folder, to prepare the profiler.
        folder = self._folder_instead() if logdir else None
        self._session.start(folder or logdir, options)


class _CallbackFiles:
    """Keras's ``file_utils`` for callbacks of several workers.

    Args:
        original: The module.
        write: Function that lets one worker write.
        open_text: Function that opens a text file of all workers.
    """

    def __init__(self, original: Any, write: Write, open_text: Callable[[str, str], Any]) -> None:
        self._original = original
        self._write = write
        self._open_text = open_text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def exists(self, path: Any) -> bool:
        """Return whether the worker that writes a file has it."""
        found = functools.partial(self._original.exists, path)
        return self._write("the look for a file", path, found)

    def File(self, path: Any, mode: str = "r") -> Any:
        """Open a file: to read what the worker that writes it has, or to write with it."""
        if mode in ("w", "a"):
            return self._open_text(os.fspath(path), mode)
        if mode != "r":
            return self._original.File(path, mode)

        def read() -> str:
            with self._original.File(path, "r") as file:
                return file.read()

        text = self._write("a read of a file", path, read)
        return io.StringIO(read() if text is None else text)

    def makedirs(self, path: Any) -> None:
        """Make a folder, which another worker may have made."""
        tf.io.gfile.makedirs(os.fspath(path))

    def copy(self, src: Any, dst: Any) -> None:
        """Copy a file, once."""
        self._write("a copy of a file", dst, functools.partial(self._original.copy, src, dst))

    def remove(self, path: Any) -> None:
        """Remove a file, once."""
        self._write("the end of a file", path, functools.partial(self._original.remove, path))

    def rmtree(self, path: Any) -> None:
        """Remove a folder, once."""
        self._write("the end of a folder", path, functools.partial(self._original.rmtree, path))


def _writing_models(write: Write, original: Callable[..., Any], name: str) -> Callable[..., Any]:
    names = {"save_and_return_nodes": "tf.saved_model.save", "export": "Model.export"}
    nothing: Any = ([], {}) if name == "save_and_return_nodes" else None

    @functools.wraps(original)
    def save(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        action = functools.partial(original, model, filepath, *args, **kwargs)
        if not isinstance(filepath, str | os.PathLike):
            # An open file is the program's own.
            return action()
        found = write(names.get(name, "the save of a model"), filepath, action)
        return nothing if found is None else found

    return save


def _writing_checkpoints(write: Write, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(self: Any, file_prefix: Any, options: Any = None) -> Any:
        action = functools.partial(original, self, file_prefix, options=options)
        if not tf.executing_eagerly():
            return action()
        return write("the save of a checkpoint", _text(file_prefix), action)

    return save


def _writing_states(write: Write, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update(save_dir: Any, *args: Any, **kwargs: Any) -> None:
        action = functools.partial(original, save_dir, *args, **kwargs)
        write("the list of checkpoints", save_dir, action)

    return update


def _sweeping(write: Write, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _sweep(self: Any) -> None:
        def swept() -> list[Any]:
            original(self)
            return [list(self._maybe_delete.items()), self._last_preserved_timestamp]

        found = write("the deletion of checkpoints", self.directory, swept)
        if found is not None:
            kept, self._last_preserved_timestamp = found
            self._maybe_delete = OrderedDict(tuple(item) for item in kept)

    return _sweep


def _reading(
    check_there: Callable[..., None], original: Callable[..., Any], name: str
) -> Callable[..., Any]:
    if name == "load_model":

        @functools.wraps(original)
        def load_model(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            _check(check_there, filepath)
            return original(filepath, *args, **kwargs)

        return load_model

    @functools.wraps(original)
    def load_weights(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        _check(check_there, filepath)
        return original(model, filepath, *args, **kwargs)

    return load_weights


def _check(check_there: Callable[..., None], path: Any) -> None:
    # Keras itself fetches from Hugging Face.
    if isinstance(path, str | os.PathLike) and not os.fspath(path).startswith("hf://"):
        is_there = tf.io.gfile.exists(os.fspath(path))
        check_there("the load of a model", path, is_there=is_there)


def _restoring(
    check_there: Callable[..., None], original: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def restore(self: Any, save_path: Any, options: Any = None) -> Any:
        if tf.executing_eagerly():
            path = "" if save_path is None else os.fspath(save_path)
            is_there = bool(path) and tf.io.gfile.exists(f"{path}.index")
            check_there("the restore of a checkpoint", path, is_there=is_there)
        return original(self, save_path, options)

    return restore


def _text(value: Any) -> str:
    """Return a path that may be a tensor."""
    if isinstance(value, tf.Tensor):
        value = value.numpy()
    return value.decode() if isinstance(value, bytes) else os.fspath(value)
