"""`Checkpoint`: saves the state of a training in the background, and restores it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from evener.checkpoint import others, random_state, storage
from evener.checkpoint.storage import Contents, DamagedError, Loaded, UnknownFormatError
from evener.checkpoint.variables import ProgramVariables, matched, variables_of
from evener.errors import CheckpointError, listed, warn

_LOG = logging.getLogger("evener")


class Termination:
    """Notes SIGINT and SIGTERM within its ``with`` block, and lets them act later."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._noted: tuple[int, Any] | None = None

    def __enter__(self) -> None:
        """Note signals, but not those that are ignored, as under ``nohup``."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._note)

    def __exit__(self, *error: object) -> None:
        """Handle signals as before, and let one that was noted act."""
        self._put_back()
        if self.is_requested:
            self.act()
            self._put_back()

    @property
    def is_requested(self) -> bool:
        """Whether a signal was noted that has not acted yet."""
        return self._noted is not None

    def act(self) -> None:
        """Do what the signal does without this object; end as by SIGTERM if there was none."""
        number, handler = self._noted or (int(signal.SIGTERM), None)
        self._noted = None
        if not callable(handler):
            raise SystemExit(128 + number)
        handler(number, None)
        # It has returned, so the program goes on.
        self.__enter__()

    def _note(self, number: int, frame: Any) -> None:
        del frame
        self._noted = number, self._before[number]
        self._put_back()

    def _put_back(self) -> None:
        for number, handler in [*self._before.items()]:
            # Otherwise the program has set another one meanwhile.
            if signal.getsignal(number) == self._note:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Point of a training at which a checkpoint was taken.

    Attributes:
        step: Number of steps since the start of the training, from 0.
        epoch: Index of the epoch, from 0.
        position: Value of the program, such as its step in the epoch; as JSON has it.
    """

    step: int
    epoch: int = 0
    position: Any = None


class Checkpoint:
    """Checkpoints of a training in a folder, one folder for each.

    They hold the model, its metrics, the optimizer, other objects with variables, the states of the
    global random generators, and the position. They are restored under any plan and on any number
    of devices. ``tf.train.Checkpoint`` and ``model.load_weights`` read them without evener.

    In a ``with`` block, a step during which SIGINT or SIGTERM comes is finished: `save` writes a
    checkpoint, whatever its ``every``, and then the signal acts. A second signal acts at once.

    Args:
        path: Folder for the checkpoints of one job at a time, or an address that TensorFlow can
            write, such as ``"gs://bucket/run"``.
        model: Keras model to keep.
        optimizer: Optimizer to keep; by default that of the compiled model.
        keep: Number of newest checkpoints to keep, from 1.
        **trackables: Other objects with variables, such as `tf.random.Generator`, by name.

    Raises:
        CheckpointError: CKPT-001 if ``keep`` is below 1.

    Example:
        >>> import tempfile, tensorflow as tf
        >>> weight = tf.Variable(1.0)
        >>> checkpoint = Checkpoint(tempfile.mkdtemp(), weight=weight)
        >>> checkpoint.save(step=10, position={"line": 320})
        >>> checkpoint.wait()
        >>> _ = weight.assign(5.0)
        >>> checkpoint.restore()
        Position(step=10, epoch=0, position={'line': 320})
        >>> float(weight)
        1.0
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        model: keras.Model | None = None,
        optimizer: Any = None,
        keep: int = 3,
        **trackables: Any,
    ) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise CheckpointError(
                "CKPT-001",
                f"keep is {keep!r}.",
                why="It is the number of newest checkpoints to keep, a whole number from 1.",
                fix="Set keep=3, for example.",
            )
        self.path = os.fspath(path)
        if not storage.is_remote(self.path):
            # A program may change its working folder.
            self.path = str(Path(self.path).expanduser().absolute())
        self.keep, self._model, self._optimizer = keep, model, optimizer
        self._trackables = dict(trackables)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._damaged = set[str]()
        self._begun: str | None = None
        self._cleared = False
        self._buffers: list[np.ndarray] | None = None
        self._buffer_graph = b""
        self._lock: storage.FolderLock | None = None
        self._termination = Termination()

    def __enter__(self) -> Self:
        """Take the folder for this job, and note SIGINT and SIGTERM until the end of the block."""
        self._agree("checkpoints", self._take_writable)
        self._termination.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Wait until the last checkpoint is on disk."""
        try:
            self.wait()
        finally:
            self.leave_folder()
            self._termination.__exit__()

    @property
    def latest(self) -> str | None:
        """Path of the newest complete checkpoint, or None. It is verified when it is restored."""
        names = [n for n in storage.whole_names(self.path) if n not in self._damaged]
        return storage.join(self.path, names[-1]) if names else None

    def save(
        self,
        *,
        step: int,
        epoch: int = 0,
        position: Any = None,
        extra: Mapping[str, Any] | None = None,
        every: int = 1,
    ) -> None:
        """Copy the state, and write it in the background.

        It waits for the checkpoint before this one, and for the copy, not for the disk.

        Args:
            step: Number of steps since the start of the training, from 0.
            epoch: Index of the epoch, from 0.
            position: Value that `restore` returns, such as the step in the epoch; as JSON has it.
            extra: Entries for ``state.json``, as JSON has them.
            every: Number of steps between checkpoints, from 1; in other steps, nothing is saved
                but for a signal.

        Raises:
            CheckpointError: CKPT-004 if the checkpoint before could not be written; CKPT-005 if
                the model is not built; CKPT-011 for a wrong number; CKPT-013 if there is nothing
                to keep; CKPT-016 if another job has the folder.
        """
        for name, number, least in (("step", step, 0), ("epoch", epoch, 0), ("every", every, 1)):
            if type(number) is not int or not least <= number < 2**63:
                raise wrong_number(name, number, f"It is a whole number from {least}.")
        stops = others.stops(is_requested=self._termination.is_requested)
        if stops or step % every == 0:
            self.write(Position(step=step, epoch=epoch, position=position), extra or {})
        if stops:
            self.wait()
            self._termination.act()

    def write(
        self,
        position: Position,
        extra: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Copy the state, and write it in the background; see `save`."""
        self.wait()
        if not others.writes():
            return
        self._take_writable()
        found = self._variables()
        reusable = self._buffers if self._buffer_graph == found.graph else None
        self._buffers = storage.copy_values(found, reusable)
        self._buffer_graph = found.graph
        strategy = getattr(self._model, "distribute_strategy", None)
        plan, shares = getattr(strategy, "plan", None), getattr(strategy, "shares", None)
        state = {
            **extra,
            "versions": {library.__name__: library.__version__ for library in (tf, keras, np)},
            "position": dataclasses.asdict(position),
            "random": random_state.read(),
            # For readers of the file: they do not matter to restore.
            "plan": None if plan is None else json.loads(plan.to_json()),
            "shares": None if shares is None else list(shares),
        }
        made = Contents(
            variables=found,
            values=self._buffers,
            state=state,
            model=self._model,
            arrays=arrays or {},
        )
        # It is no daemon: when the interpreter exits, it waits for what is written.
        self._thread = threading.Thread(
            target=self._write, args=(storage.name_of(position.step), made), daemon=False
        )
        self._thread.start()

    def leave_folder(self) -> None:
        self._lock = None

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk.

        Raises:
            CheckpointError: CKPT-004 if it could not be written. Older ones are whole.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is None:
            return
        if not isinstance(error, tf.errors.OpError | OSError):
            raise error
        raise CheckpointError(
            "CKPT-004",
            f"A checkpoint cannot be written to {self.path}.",
            why=f"{type(error).__name__}: {error}",
            fix="Free space or permit writing there; older checkpoints are whole.",
        ) from error

    def restore(self) -> Position | None:
        """Restore the newest whole checkpoint.

        A damaged one is skipped with the warning CKPT-006. Nothing is assigned before all values
        are read and verified.

        Returns:
            Position at which it was taken, or None if there is no checkpoint.

        Raises:
            CheckpointError: CKPT-002 or CKPT-003 for a checkpoint of another model; CKPT-005 if
                the model is not built; CKPT-007 for one of another version of evener; CKPT-015 if
                all are damaged.
        """
        loaded = self.load()
        if loaded is None:
            return None
        self.assign(loaded)
        random_state.restore(loaded.state["random"])
        stored = loaded.state["position"]
        return Position(**{name: stored[name] for name in ("step", "epoch", "position")})

    def load(
        self,
        check: storage.Check = lambda state: None,
        *,
        locks: bool = False,
    ) -> Loaded | None:
        """Read the newest whole checkpoint, and assign nothing."""
        self.wait()
        own: dict[str, Loaded] = {}

        def newest() -> str | None:
            if locks:
                self._take_writable()
            own.update(self._newest(check))
            return next(iter(own), None)

        # All workers restore the same one.
        self._begun = name = self._agree("checkpoint", newest)
        if name is None or name in own:
            return own.get(name or "")
        folder = storage.join(self.path, name)
        try:
            return storage.read(folder, name, check)
        except DamagedError as error:
            raise CheckpointError(
                "CKPT-014",
                f"The checkpoint {folder} cannot be read by this worker; the others begin with it.",
                why=f"{error}.",
                fix="Give all workers a folder that they share, such as one of a network drive.",
            ) from error

    def _take_writable(self) -> None:
        # What cannot be written now fails in the thread too, which says so.
        with contextlib.suppress(OSError, tf.errors.OpError):
            self._take_folder()

    def _take_folder(self) -> None:
        try:
            self._lock = storage.lock(self.path, others.job())
        except storage.LockedError as error:
            raise CheckpointError(
                "CKPT-016",
                f"Another job writes its checkpoints to {self.path}.",
                why=f"It is {error}; checkpoints of two jobs would replace each other.",
                fix="Wait until it has ended, or end it; or use another folder.",
            ) from error

    def _agree(self, name: str, value: Callable[[], Any]) -> Any:
        """Return the chief's value on every worker, or raise its error there."""

        def outcome() -> dict[str, Any]:
            try:
                return {"value": value()}
            except CheckpointError as error:
                return {"error": [error.code, error.what, error.why, error.fix]}

        told = others.agree(name, outcome)
        if "error" in told:
            code, what, why, fix = told["error"]
            raise CheckpointError(code, what, why=why, fix=fix)
        return told["value"]

    def _newest(self, check: storage.Check) -> dict[str, Loaded]:
        """Return the newest whole checkpoint by its name, if there is one."""
        is_remote = storage.is_remote(self.path)
        names = storage.whole_names(self.path) if is_remote else storage.names_in(self.path)
        damages: dict[str, DamagedError] = {}
        loaded: dict[str, Loaded] = {}
        for name in reversed(names):
            try:
                loaded = {name: storage.read(storage.join(self.path, name), name, check)}
                break
            except DamagedError as error:
                damages[name] = error
            except UnknownFormatError as error:
                raise CheckpointError(
                    "CKPT-007",
                    f"The checkpoint {name} in {self.path} is of another version of evener.",
                    why=f"{error}.",
                    fix="Install that version; the newest is pip install --upgrade evener.",
                ) from error
        self._damaged |= damages.keys()
        if damages and not loaded:
            raise CheckpointError(
                "CKPT-015",
                f"All checkpoints in {self.path} are damaged.",
                why=listed([f"{name}: {error}" for name, error in damages.items()], 3) + ".",
                fix="Look at the disk. To begin from the start, remove the folder.",
            )
        for name, error in damages.items():
            warn(
                "CKPT-006",
                f"The checkpoint {name} in {self.path} is damaged; {min(loaded)} is used.",
                why=f"{error}.",
                fix="Look at the disk; remove the folder.",
                stacklevel=3,
            )
        return loaded

    def assign(self, loaded: Loaded) -> None:
        """Assign the values of a checkpoint to all variables."""
        folder = storage.join(self.path, loaded.name)
        pairs = matched(self._variables().named, loaded.specs, folder)
        values = {spec.path: value for spec, value in zip(loaded.specs, loaded.values, strict=True)}
        for item, spec in pairs:
            item.variable.assign(values[spec.path])

    def variables(self) -> list[tf.Variable]:
        """Return all variables that are kept."""
        kept = [item.variable for item in self._variables().named]
        return [v.value if isinstance(v, keras.Variable) else v for v in kept]

    def _variables(self) -> ProgramVariables:
        objects = dict(self._trackables)
        if self._model is not None:
            if not self._model.built:
                raise CheckpointError(
                    "CKPT-005",
                    f"The model {self._model.name!r} has no variables yet.",
                    why="Keras makes them when the shapes of its inputs are known.",
                    fix="Give the model a keras.Input, or call it on a batch before.",
                )
            objects["model"] = self._model
        optimizer = self._optimizer or getattr(self._model, "optimizer", None)
        if optimizer is not None:
            if not optimizer.built and self._model is not None:
                optimizer.build(self._model.trainable_variables)
            objects["optimizer"] = optimizer
        if not objects:
            raise CheckpointError(
                "CKPT-013",
                "The checkpoint has nothing to keep.",
                why="It was given no model, no optimizer and no other object.",
                fix="Use evener.Checkpoint(path, model=model), for example.",
            )
        return variables_of(objects)

    def _write(self, name: str, made: Contents) -> None:
        try:
            self._take_folder()
            tf.io.gfile.makedirs(self.path)
            if not self._cleared:
                storage.remove_remains(self.path)
                self._cleared = True
            with storage.replacing(self.path, name) as folder:
                storage.write(folder, made)
            _LOG.info("checkpoint %s is written", storage.join(self.path, name))
            self._damaged.discard(name)
            whole = [each for each in storage.whole_names(self.path) if each not in self._damaged]
            # A worker that is replaced reads what the others have begun with.
            kept = {name, self._begun} if others.are_there() else {name}
            for old in whole[: -self.keep]:
                if old not in kept:
                    storage.remove(self.path, old)
        except BaseException as error:
            # `wait` raises it.
            self._error = error


def wrong_number(name: str, value: Any, why: str) -> CheckpointError:
    fix = f"Set {name}=100, for example."
    return CheckpointError("CKPT-011", f"{name} is {value!r}.", why=why, fix=fix)
