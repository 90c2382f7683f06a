"""Several workers.

Files and downloads by one of them, and calls that are made again after a death.
"""

from __future__ import annotations

import fcntl
import functools
import io
import itertools
import os
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from evener._tf_private.fits import is_read_by_keras, keras_reads
from evener._tf_private.functions import CALL
from evener._tf_private.patches import Patch

# Downloads of Keras, where several workers of a machine share its cache.

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


# Functions of Keras and TensorFlow that write files, where several workers run them.

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
    """Let one worker write models and checkpoints, and check that all find what they read."""
    _MODELS.apply_by_name(functools.partial(_writing_models, write))
    _CHECKPOINTS.apply(functools.partial(_writing_checkpoints, write))
    _STATES.apply(functools.partial(_writing_states, write))
    _SWEEPS.apply(functools.partial(_sweeping, write))
    _READS.apply_by_name(functools.partial(_reading, check_there))
    _RESTORES.apply(functools.partial(_restoring, check_there))


def share_text_files(write: Write, open_text: Callable[[str, str], Any]) -> None:
    """Let one worker write the files of Keras's callbacks."""

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
    """Let all workers but the chief write summaries and profiles to other folders."""

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
    """Keras's ``file_utils`` for callbacks of several workers."""

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


# Calls that several workers compute together, and that are made again if one of them dies.

_CALLS = Patch(
    "traced functions of workers",
    CALL,
    why="A call that the death of another worker breaks off is made again with the same arguments. "
    "A program's own functions may call `strategy.run`, and there is no public hook around them.",
    if_it_changes="The death of a worker ends custom loops of the others.",
)
_WORKERS_READS = Patch(
    "reads of replaced workers",
    "tensorflow.python.ops.resource_variable_ops:BaseResourceVariable._read_variable_op",
    why="A replacement runs the program with the results of the other workers, and its weights are "
    "not theirs before it stands with them. There is no public hook around reads.",
    if_it_changes="A replacement gives wrong weights to a program that reads them between steps.",
)
_BATCHES = Patch(
    "batches of workers",
    "keras.src.backend.tensorflow.trainer:TensorFlowTrainer._make_function",
    why="Keras's step takes its batch from an iterator inside of a traced function, and a batch "
    "that was taken is lost when the function fails. Here it is taken before.",
    if_it_changes="The death of a worker ends `fit` of the others.",
)
_STOPPING = Patch(
    "best weights of workers",
    "keras.src.callbacks.early_stopping:EarlyStopping.on_train_begin",
    "keras.src.callbacks.early_stopping:EarlyStopping.on_epoch_end",
    why="The callback reads weights between two steps, which a replacement does not know yet. It "
    "is handed over the best ones of another worker instead.",
    if_it_changes="A worker of a program with `restore_best_weights=True` cannot be replaced.",
)
_NEXT = Patch(
    "batches of loops on several workers",
    "tensorflow.python.data.ops.iterator_ops:OwnedIterator.__next__",
    why="To tell what it costs that every worker reads whole batches in a loop of the program. The "
    "class has no public name.",
    if_it_changes="Workers do not tell that such loops wait for their data.",
)


class Group(Protocol):
    """The workers."""

    @property
    def is_late(self) -> bool:
        """Whether this worker does not stand with the others yet."""
        ...

    def hand_over(self, owner: object, name: str) -> None:
        """Let a replacement have an attribute of an object: a list of arrays."""
        ...

    def check_read(self, handle: Any) -> None:
        """Refuse to read a variable whose value this worker does not know yet."""
        ...

    def compare_state(self) -> None:
        """Compare the whole state of all workers before the next call with exchanges."""
        ...

    def call(
        self,
        function: Callable[[], Any],
        *,
        outline: Any,
        key: object = None,
        is_repeatable: bool = True,
        batch: Any = None,
    ) -> Any:
        """Call a function, and call it again if the death of a worker broke it off."""
        ...


class Batch(Protocol):
    """Batch that may lack rows."""

    def as_it_is(self) -> Any:
        """Return its nested tensors."""
        ...

    def expected(self) -> Any:
        """Return its nested tensors with the rows that a step is expected to need."""
        ...


Take = Callable[[Callable[[], Sequence[Any]]], Sequence[Any]]
"""Function that takes batches by another one, and may measure it."""


def repeat_calls(
    group: Group,
    packed_as: Callable[[Any, Sequence[Any]], Any],
    *,
    take: Take,
    take_in_loops: Take,
    batch_type: type[Batch],
) -> None:
    """Let calls that several workers compute together be made again after a death."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            if not tf.executing_eagerly() or tf.config.functions_run_eagerly():
                return original(function, *args, **kwargs)
            leaves = tf.nest.flatten((args, kwargs))
            batch = next((leaf for leaf in leaves if isinstance(leaf, batch_type)), None)

            def run() -> Any:
                given, named = _with_tensors((args, kwargs), batch, batch_type.expected)
                return original(function, *given, **named)

            args_now, kwargs_now = _with_tensors((args, kwargs), batch, batch_type.as_it_is)
            return group.call(
                run,
                outline=_Outline(function, args_now, kwargs_now, packed_as),
                key=function,
                is_repeatable=not any(isinstance(leaf, tf.data.Iterator) for leaf in leaves),
                batch=batch,
            )

        vars(call)["autograph_info__"] = {"artifact": True}
        return call

    def checked(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _read_variable_op(self: Any, *args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly():
                group.check_read(self.handle)
            return original(self, *args, **kwargs)

        return _read_variable_op

    def stopping(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> None:
            restores = self.restore_best_weights
            if restores and name == "on_train_begin":
                group.hand_over(self, "best_weights")
            self.restore_best_weights = restores and not group.is_late
            try:
                original(self, *args, **kwargs)
            finally:
                self.restore_best_weights = restores

        return method

    _STOPPING.apply_by_name(stopping)
    _CALLS.apply(around)
    if group.is_late:
        _WORKERS_READS.apply(checked)
    _BATCHES.apply(lambda make: _with_batches(make, take, group.compare_state))
    _NEXT.apply(lambda original: _taken(original, take_in_loops))


def _with_tensors(
    arguments: Any, batch: Batch | None, tensors_of: Callable[[Batch], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments with the tensors of a batch in its place."""
    if batch is None:
        return arguments
    return tf.nest.map_structure(
        lambda leaf: tensors_of(leaf) if leaf is batch else leaf, arguments
    )


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


def _with_batches(
    make: Callable[..., Any], take: Take, end_epoch: Callable[[], None]
) -> Callable[..., Any]:
    """Return a replacement that takes the batches of a step before it calls it."""

    @functools.wraps(make)
    def _make_function(self: Any, step_function: Any) -> Callable[[Any], Any]:
        on_batches = make(self, step_function)
        is_training = getattr(step_function, "__name__", "") == "train_step"

        def function(iterator: Any) -> Any:
            def read() -> list[Any]:
                # A step that Python runs takes its batch itself.
                is_eager = self.run_eagerly or tf.config.functions_run_eagerly()
                of_own_rows = None if is_eager else getattr(iterator, "of_own_rows", None)
                source = iterator if of_own_rows is None else of_own_rows()
                return list(itertools.islice(source, self.steps_per_execution))

            with keras_reads():
                batches = take(read) if is_training else read()
            if not batches:
                end_epoch()
                raise StopIteration
            # Keras runs one step after another where it is not given an iterator of tf.data.
            return on_batches(iter(batches))

        return function

    return _make_function


def _taken(original: Callable[[Any], Any], take: Take) -> Callable[[Any], Any]:
    """Return a replacement of the next batch of an iterator that takes it by a function."""

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        is_main = threading.current_thread() is threading.main_thread()
        if is_read_by_keras() or not is_main or not tf.executing_eagerly():
            return original(self)

        def read() -> list[Any]:
            try:
                return [original(self)]
            except StopIteration:
                return []

        batches = take(read)
        if not batches:
            raise StopIteration
        return batches[0]

    return __next__
