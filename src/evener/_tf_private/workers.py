"""Several workers: files and downloads by one of them, and calls made again after a death."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import io
import itertools
import os
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import tensorflow as tf

from evener._tf_private.fits import is_read_by_keras, keras_reads
from evener._tf_private.functions import TRACED_FUNCTIONS, left_to_autograph
from evener._tf_private.patches import Patch, setting, wrap_with

Write = Callable[[str, Any, Callable[[], Any]], Any]
"""Function that lets one worker write: of a name, a path, and the function that writes."""

_DOWNLOADS = Patch(
    "downloads of workers",
    "keras.src.utils.file_utils:get_file",
    "keras.utils:get_file",
    *(
        f"keras.src.datasets.{name}:get_file"
        for name in (
            *("boston_housing", "california_housing", "cifar10", "cifar100"),
            *("fashion_mnist", "imdb", "mnist", "reuters"),
        )
    ),
    why="Workers of a machine download the same file to the same place at the same time, and one "
    "of them reads what another one has half written. Datasets have imported the function.",
    if_it_changes="The first start of several workers fails where a dataset is not there yet.",
)
_CALLBACKS = "keras.src.callbacks"
_WITH_FILES = ("backup_and_restore", "csv_logger", "model_checkpoint", "tensorboard")
_FILES = Patch(
    "files that workers write and read",
    "keras.src.saving.saving_api:save_model",
    "keras.src.saving.saving_api:save_weights",
    "keras.src.saving.saving_lib:save_model",
    "keras.src.saving.saving_lib:save_weights_only",
    "keras.src.legacy.saving.legacy_h5_format:save_model_to_hdf5",
    "keras.src.models.model:Model.export",
    "tensorflow.python.saved_model.save:save_and_return_nodes",
    "tensorflow.python.checkpoint.functional_saver:MultiDeviceSaver.save",
    "tensorflow.python.checkpoint.checkpoint_management:update_checkpoint_state_internal",
    "tensorflow.python.checkpoint.checkpoint_management:CheckpointManager._sweep",
    "keras.src.callbacks.backup_and_restore:BackupAndRestore._save_model",
    "keras.src.callbacks.backup_and_restore:BackupAndRestore.on_train_end",
    *(f"{_CALLBACKS}.{name}:file_utils" for name in _WITH_FILES),
    "keras.src.saving.saving_lib:load_model",
    "keras.src.saving.saving_lib:load_weights_only",
    "tensorflow.python.checkpoint.checkpoint:TrackableSaver.restore",
    why="All workers run the same program, and one of them writes each file and deletes old ones. "
    "All that saves passes these functions, and none of them has a hook. `tf.train.Checkpoint` "
    "counts its checkpoints in a variable, so all workers run what is around the write. Callbacks "
    "open, copy and delete files by ``file_utils``, and ask which are there: one worker does, and "
    "all get its answer; log files are gone on with if it dies. Machines without a common file "
    "system do not have what another one has written: the latest checkpoint is None there.",
    if_it_changes="Workers write into the same files, and delete them, at the same time. One that "
    "lacks a file raises the error of Keras, while the others train on, or begins with other "
    "weights than the first.",
)
_SUMMARIES = Patch(
    "summaries and profiles of workers",
    "tensorflow.python.ops.gen_summary_ops:create_summary_file_writer",
    "tensorflow.python.profiler.internal._pywrap_profiler:ProfilerSession",
    why="The graph of a step with summaries has to be the same on all workers, so the others write "
    "too, to other folders. Profiles of a machine have one name, whichever worker writes them.",
    if_it_changes="Each worker writes summaries and profiles to the same log folder.",
)


def download_in_turn() -> None:
    """Let the workers of a machine download one after another: all but the first find the file."""

    def get_file(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        path = Path(tempfile.gettempdir()) / f"evener-downloads-{os.getuid()}.lock"
        # Freed by the kernel if the worker dies.
        with path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return original(*args, **kwargs)

    _DOWNLOADS.apply(wrap_with(get_file))


def write_once(
    write: Write,
    check_there: Callable[..., None],
    open_text: Callable[[str, str], Any] | None = None,
) -> None:
    """Let one worker write files, and check that all find what they read.

    ``open_text`` opens text files of callbacks; without it, callbacks have their own files.
    """
    actions: dict[str, Callable[..., Any]] = {
        "save": functools.partial(_save_checkpoint, write),
        "update_checkpoint_state_internal": functools.partial(_update_state, write),
        "_sweep": functools.partial(_sweep, write),
        "_save_model": functools.partial(_back_up, write, "_save_model"),
        "on_train_end": functools.partial(_back_up, write, "on_train_end"),
        "load_model": functools.partial(_load_model, check_there, 0),
        "load_weights_only": functools.partial(_load_model, check_there, 1),
        "restore": functools.partial(_restore, check_there),
    }

    def wrap(original: Any, name: str) -> Any:
        if name == "file_utils":
            return original if open_text is None else _CallbackFiles(original, write, open_text)
        return wrap_with(actions.get(name) or functools.partial(_save_model, write, name))(original)

    _FILES.apply_by_name(wrap)


@contextlib.contextmanager
def writing_by(write: Write, check_there: Callable[..., None]) -> Generator[None]:
    """Let functions of one process write and look for files, until the end of the block."""
    write_once(write, check_there)
    try:
        yield
    finally:
        _FILES.undo()


def _save_model(write: Write, name: str, original, model, filepath, *args, **kwargs) -> Any:
    action = functools.partial(original, model, filepath, *args, **kwargs)
    if not isinstance(filepath, str | os.PathLike):
        # An open file is the program's own.
        return action()
    what = {"save_and_return_nodes": "tf.saved_model.save", "export": "Model.export"}
    written = write(what.get(name, "the save of a model"), filepath, action)
    return ([], {}) if written is None and name == "save_and_return_nodes" else written


def _save_checkpoint(write: Write, original, saver, file_prefix, options=None) -> Any:
    action = functools.partial(original, saver, file_prefix, options=options)
    if not tf.executing_eagerly():
        return action()
    return write("the save of a checkpoint", _path_text(file_prefix), action)


def _update_state(write: Write, original: Callable[..., Any], save_dir, *args, **kwargs) -> None:
    action = functools.partial(original, save_dir, *args, **kwargs)
    write("the list of checkpoints", save_dir, action)


def _sweep(write: Write, original: Callable[..., Any], manager: Any) -> None:
    """Delete old checkpoints, once. What is kept depends on the time: the others take it over."""

    def delete() -> list[Any]:
        original(manager)
        return [list(manager._maybe_delete.items()), manager._last_preserved_timestamp]

    state = write("the deletion of checkpoints", manager.directory, delete)
    if state is not None:
        kept, manager._last_preserved_timestamp = state
        manager._maybe_delete = OrderedDict(tuple(item) for item in kept)


def _back_up(write: Write, name: str, original, callback, *args, **kwargs) -> None:
    """Let one worker do the whole: the callback asks which files are there and changes them."""
    action = functools.partial(original, callback, *args, **kwargs)
    write(f"BackupAndRestore.{name}", callback.backup_dir, action)


def _load_model(
    check_there: Callable[..., None],
    position: int,
    original: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    path = args[position] if len(args) > position else kwargs.get("filepath")
    # Keras itself fetches from Hugging Face.
    if isinstance(path, str | os.PathLike) and not os.fspath(path).startswith("hf://"):
        check_there("the load of a model", path, is_there=tf.io.gfile.exists(os.fspath(path)))
    return original(*args, **kwargs)


def _restore(check_there: Callable[..., None], original, saver, save_path, options=None) -> Any:
    if tf.executing_eagerly():
        path = "" if save_path is None else os.fspath(save_path)
        is_there = bool(path) and tf.io.gfile.exists(f"{path}.index")
        check_there("the restore of a checkpoint", path, is_there=is_there)
    return original(saver, save_path, options)


def _path_text(value: Any) -> str:
    """Return a path that may be a tensor."""
    if isinstance(value, tf.Tensor):
        value = value.numpy()
    return value.decode() if isinstance(value, bytes) else os.fspath(value)


class _CallbackFiles:
    """Keras's ``file_utils`` for callbacks of several workers."""

    def __init__(self, original: Any, write: Write, open_text: Callable[[str, str], Any]) -> None:
        self._original = original
        self._write = write
        self._open_text = open_text

    def __getattr__(self, name: str) -> Any:
        original = getattr(self._original, name)
        what = {
            "exists": "the look for a file",
            "copy": "a copy of a file",
            "remove": "the end of a file",
            "rmtree": "the end of a folder",
        }.get(name)
        if what is None:
            return original
        return lambda *paths: self._write(what, paths[-1], functools.partial(original, *paths))

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


def redirect_summaries(
    folder_of: Callable[[Any, str, Callable[[Any, str], object]], str],
    folder_instead: Callable[[], str | None],
) -> None:
    """Let all workers but the chief write summaries and profiles to other folders."""

    def create(original: Callable[..., Any], writer, logdir, *args, **kwargs) -> Any:
        if not tf.executing_eagerly():
            return original(writer, logdir, *args, **kwargs)

        def open_in(resource: Any, folder: str) -> Any:
            return original(resource, folder, *args, **kwargs)

        return open_in(writer, folder_of(writer, _path_text(logdir), open_in))

    def wrap(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        if name == "ProfilerSession":
            return lambda: _ProfilerSession(original(), folder_instead)
        return wrap_with(create)(original)

    _SUMMARIES.apply_by_name(wrap)


class _ProfilerSession:
    """Session of the profiler, which may write to another folder than it is asked to."""

    def __init__(self, session: Any, folder_instead: Callable[[], str | None]) -> None:
        self._session = session
        self._folder_instead = folder_instead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def start(self, logdir: str, options: Any) -> None:
        # Keras begins without a folder, to prepare the profiler.
        folder = self._folder_instead() if logdir else None
        self._session.start(folder or logdir, options)


# Calls that several workers compute together, and that are made again if one of them dies.

Take = Callable[[Callable[[], Sequence[Any]]], Sequence[Any]]
"""Function that takes batches by another one, and may measure it."""

_TRAINING = Patch(
    "weights and batches of workers",
    "keras.src.callbacks.early_stopping:EarlyStopping.on_train_begin",
    "keras.src.callbacks.early_stopping:EarlyStopping.on_epoch_end",
    "keras.src.backend.tensorflow.trainer:TensorFlowTrainer._make_function",
    "tensorflow.python.data.ops.iterator_ops:OwnedIterator.__next__",
    why="`EarlyStopping` reads weights between two steps, and a replacement is handed over the "
    "best ones of another worker instead. Keras's step takes its batch from an iterator inside of "
    "a traced function, and a batch that was taken is lost when the function fails. Here it is "
    "taken before. In loops of the program, it is told what it costs that every worker reads whole "
    "batches.",
    if_it_changes="A replacement cannot join a program with `restore_best_weights=True`; the death "
    "of a worker ends `fit` of the others, and workers do not tell that loops wait for their data.",
)


_VARIABLES = "tensorflow.python.ops.resource_variable_ops"
_READS = ("_read_variable_op", "read_and_set_handle", "sparse_read", "gather_nd")
_HANDLES = Patch(
    "handles of variables",
    f"{_VARIABLES}:BaseResourceVariable._handle",
    is_new=True,
    why="A replacement, and a loop that is resumed, run the program with results of before, and "
    "its variables do not have their values yet. Python functions read variables, and so does "
    "TensorFlow's C code where one is the argument of an operation: both take the handle.",
    if_it_changes="A program that reads weights between steps gets wrong ones.",
)


def repeat_calls(
    group: Any,
    packed_as: Callable[[Any, Sequence[Any]], Any],
    *,
    take: Take,
    take_in_loops: Take,
    batch_type: type[Any],
) -> None:
    """Let calls that several workers compute together be made again after a death."""

    def call(original: Callable[..., Any], function: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
            return original(function, *args, **kwargs)
        leaves = tf.nest.flatten((args, kwargs))
        batch = next((leaf for leaf in leaves if isinstance(leaf, batch_type)), None)

        def fill(tensors_of: Callable[[Any], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            """Return the arguments with the tensors of the batch in its place."""
            if batch is None:
                return args, kwargs
            return tf.nest.map_structure(
                lambda leaf: tensors_of(leaf) if leaf is batch else leaf, (args, kwargs)
            )

        def run() -> Any:
            given, named = fill(batch_type.expected)
            return original(function, *given, **named)

        return group.call(
            run,
            outline=_Outline(function, *fill(batch_type.as_it_is), packed_as),
            key=function,
            is_repeatable=not any(isinstance(leaf, tf.data.Iterator) for leaf in leaves),
            batch=batch,
        )

    def stop(name: str, original: Callable[..., Any], callback, /, *args, **kwargs) -> None:
        restores = callback.restore_best_weights
        if restores and name == "on_train_begin":
            group.variables.add_list(callback, "best_weights")
        with setting(callback, restore_best_weights=restores and not group.is_late):
            original(callback, *args, **kwargs)

    replacements: dict[str, Callable[..., Any]] = {
        **{name: functools.partial(stop, name) for name in ("on_train_begin", "on_epoch_end")},
        "_make_function": functools.partial(_make_function, take, group.compare_state),
        "__next__": functools.partial(_take_next, take_in_loops),
    }
    if group.is_late:
        _HANDLES.apply(lambda _: _Handle(lambda variable: group.check_read(variable.handle)))
    TRACED_FUNCTIONS.apply_each({"__call__": call}, "workers", by=left_to_autograph)
    _TRAINING.apply_each(replacements)


def before_reads(
    note: Callable[[Any], None],
) -> contextlib.AbstractContextManager[None]:
    """Call ``note(variable)`` before a variable is read outside of graphs."""
    return _HANDLES.applied(lambda _: _Handle(note))


class _Handle:
    """Attribute ``_handle`` of variables, which calls a function before a read."""

    def __init__(self, note: Callable[[Any], None]) -> None:
        self._note = note
        self._noting = threading.local()

    def __get__(self, variable: Any, kind: Any = None) -> Any:
        if variable is None:
            return self
        caller, handle = sys._getframe(1), vars(variable)["_handle"]
        is_noting = getattr(self._noting, "is_so", False)
        if is_noting or not tf.executing_eagerly() or not _reads(caller):
            return handle
        self._noting.is_so = True
        try:
            self._note(variable)
        except Exception as error:
            if caller.f_code.co_name == "handle":
                raise
            # C code takes what it gets for a handle. The text is in TensorFlow's error.
            self._unreadable = tf.raw_ops.VarHandleOp(
                dtype=variable.dtype, shape=variable.shape, shared_name=f"({error})"
            )
            return self._unreadable
        finally:
            self._noting.is_so = False
        return handle

    def __set__(self, variable: Any, handle: Any) -> None:
        vars(variable)["_handle"] = handle


def _reads(caller: FrameType) -> bool:
    """Return whether whoever takes the handle of a variable reads it.

    Python functions that read take ``handle``, as those do that assign, trace or describe. C code
    takes ``_handle``; its caller is the function of an operation, or one of evener in its place.
    """
    is_property = caller.f_code.co_name == "handle"
    if is_property and caller.f_back is not None:
        caller = caller.f_back
    if caller.f_globals.get("__name__") == _VARIABLES:
        return caller.f_code.co_name.startswith(_READS)
    return not is_property


class _Outline:
    """Results of a traced function before it is called."""

    def __init__(
        self,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        packed_as: Callable[[Any, Sequence[Any]], Any],
    ) -> None:
        self._packed_as = packed_as
        self._concrete = functools.partial(function.get_concrete_function, *args, **kwargs)

    def trace(self) -> Sequence[Any]:
        """Trace the function; return the handles that it uses."""
        return [value for value in self._concrete().captured_inputs if value.dtype == tf.resource]

    def pack(self, arrays: Sequence[Any]) -> Any:
        """Return arrays in the structure of the results."""
        return self._packed_as(self._concrete().structured_outputs, arrays)


def _make_function(
    take: Take,
    end_epoch: Callable[[], None],
    original: Callable[..., Any],
    model: Any,
    step_function: Any,
) -> Callable[[Any], Any]:
    """Make Keras's function of a step, with a batch that is taken before."""
    on_batches = original(model, step_function)
    is_training = getattr(step_function, "__name__", "") == "train_step"

    def function(iterator: Any) -> Any:
        def read() -> list[Any]:
            # A step that Python runs takes its batch itself.
            is_eager = model.run_eagerly or tf.config.functions_run_eagerly()
            of_own_rows = None if is_eager else getattr(iterator, "of_own_rows", None)
            source = iterator if of_own_rows is None else of_own_rows()
            return list(itertools.islice(source, model.steps_per_execution))

        with keras_reads():
            batches = take(read) if is_training else read()
        if not batches:
            end_epoch()
            raise StopIteration
        # Keras runs one step after another where it is not given an iterator of tf.data.
        return on_batches(iter(batches))

    return function


def _take_next(take: Take, original: Callable[[Any], Any], iterator: Any) -> Any:
    is_main = threading.current_thread() is threading.main_thread()
    if is_read_by_keras() or not is_main or not tf.executing_eagerly():
        return original(iterator)

    def read() -> list[Any]:
        try:
            return [original(iterator)]
        except StopIteration:
            return []

    batches = take(read)
    if not batches:
        raise StopIteration
    return batches[0]
