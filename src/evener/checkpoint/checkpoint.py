"""`Checkpoint`: saves the state of a training in the background, and restores it."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener.checkpoint import contents, folders, others, random_state
from evener.checkpoint.contents import Contents, Loaded
from evener.checkpoint.position import Position
from evener.checkpoint.state_file import DamagedError, UnknownFormatError
from evener.checkpoint.variables import ProgramVariables, matched, variables_of
from evener.checkpoint.writer import BackgroundWriter
from evener.errors import CheckpointError, warn

_LOG = logging.getLogger("evener")


class Checkpoint:
    """Checkpoints of a training in a folder, one folder for each.

    They hold the model, its metrics, the optimizer, other objects with variables, the states of the
    global random generators, and the position. They are restored under any plan and on any number
    of devices. ``tf.train.Checkpoint`` and ``model.load_weights`` read them without evener.

    Args:
        path: Folder for the checkpoints, or an address that TensorFlow can write, such as
            ``"gs://bucket/run"``.
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
        if not folders.is_remote(self.path):
            # A program may change its working folder.
            self.path = str(Path(self.path).expanduser().absolute())
        self.keep = keep
        self._model = model
        self._optimizer = optimizer
        self._trackables = dict(trackables)
        self._writer = BackgroundWriter()
        self._damaged = set[str]()
        self._begun: str | None = None
        self._cleared = False
        self._buffers: list[np.ndarray] | None = None
        self._buffer_graph = b""

    @property
    def latest(self) -> str | None:
        """Path of the newest complete checkpoint, or None. It is verified when it is restored."""
        names = [n for n in folders.whole_names(self.path) if n not in self._damaged]
        return folders.join(self.path, names[-1]) if names else None

    def save(
        self,
        *,
        step: int,
        epoch: int = 0,
        position: Any = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Copy the state, and write it in the background.

        It waits for the checkpoint before this one, and for the copy, not for the disk.

        Args:
            step: Number of steps since the start of the training, from 0.
            epoch: Index of the epoch, from 0.
            position: Value that `restore` returns, such as the step in the epoch; as JSON has it.
            extra: Entries for ``state.json``, as JSON has them.

        Raises:
            CheckpointError: CKPT-004 if the checkpoint before could not be written; CKPT-005 if
                the model is not built; CKPT-013 if there is nothing to keep.
        """
        self.wait()
        if not others.writes():
            return
        found = self._variables()
        reusable = self._buffers if self._buffer_graph == found.graph else None
        self._buffers = contents.copied_values(found, reusable)
        self._buffer_graph = found.graph
        state = {
            "versions": _versions(),
            "position": dataclasses.asdict(Position(step=step, epoch=epoch, position=position)),
            "random": random_state.read(),
            **_layout(self._model),
            **(extra or {}),
        }
        made = Contents(variables=found, values=self._buffers, state=state, model=self._model)
        self._writer.start(functools.partial(self._write, folders.name_of(step), made))

    def wait(self) -> None:
        """Wait until the last checkpoint is on disk.

        Raises:
            CheckpointError: CKPT-004 if it could not be written. Older ones are whole.
        """
        error = self._writer.wait()
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
                the model is not built; CKPT-007 for one of a newer version of evener.
        """
        loaded = self.load()
        if loaded is None:
            return None
        self.assign(loaded)
        random_state.restore(loaded.state["random"])
        return Position(**loaded.state["position"])

    def load(self) -> Loaded | None:
        """Read the newest whole checkpoint, and assign nothing.

        Returns:
            The checkpoint, or None if there is none.

        Raises:
            CheckpointError: CKPT-007 for one of a newer version of evener; CKPT-014 if other
                workers restore one that cannot be read here.
        """
        self.wait()
        own: dict[str, Loaded] = {}

        def newest() -> str | None:
            own.update(self._newest())
            return next(iter(own), None)

        # All workers restore the same one.
        self._begun = name = others.agree("checkpoint", newest)
        if name is None or name in own:
            return own.get(name or "")
        folder = folders.join(self.path, name)
        try:
            return contents.read(folder, name)
        except DamagedError as error:
            raise CheckpointError(
                "CKPT-014",
                f"The checkpoint {folder} cannot be read by this worker; the others begin with it.",
                why=f"{error}.",
                fix="Give all workers a folder that they share, such as one of a network drive.",
            ) from error

    def _newest(self) -> dict[str, Loaded]:
        """Return the newest whole checkpoint by its name, if there is one."""
        for name in reversed(folders.whole_names(self.path)):
            folder = folders.join(self.path, name)
            try:
                return {name: contents.read(folder, name)}
            except DamagedError as error:
                self._damaged.add(name)
                warn(
                    "CKPT-006",
                    f"The checkpoint {folder} is damaged; the one before is used.",
                    why=f"{error}.",
                    fix="Look at the disk; remove the folder.",
                    stacklevel=3,
                )
            except UnknownFormatError as error:
                raise CheckpointError(
                    "CKPT-007",
                    f"The checkpoint {folder} is of a newer version of evener.",
                    why=f"{error}.",
                    fix="Install that version: pip install --upgrade evener.",
                ) from error
        return {}

    def assign(self, loaded: Loaded) -> None:
        """Assign the values of a checkpoint to all variables.

        Args:
            loaded: Checkpoint that `load` returned.

        Raises:
            CheckpointError: CKPT-002 or CKPT-003 for a checkpoint of another model, before
                anything is assigned.
        """
        folder = folders.join(self.path, loaded.name)
        pairs = matched(self._variables().named, loaded.specs, folder)
        values = {spec.path: value for spec, value in zip(loaded.specs, loaded.values, strict=True)}
        for item, spec in pairs:
            item.variable.assign(values[spec.path])

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
        tf.io.gfile.makedirs(self.path)
        if not self._cleared:
            folders.remove_remains(self.path)
            self._cleared = True
        with folders.replacing(self.path, name) as folder:
            contents.write(folder, made)
        _LOG.info("checkpoint %s is written", folders.join(self.path, name))
        self._damaged.discard(name)
        self._remove_old(name)

    def _remove_old(self, newest: str) -> None:
        whole = [name for name in folders.whole_names(self.path) if name not in self._damaged]
        # A worker that is replaced reads what the others have begun with.
        kept = {newest, self._begun} if others.are_there() else {newest}
        for name in whole[: -self.keep]:
            if name not in kept:
                folders.remove(self.path, name)


def _layout(model: keras.Model | None) -> dict[str, Any]:
    """Return the plan and the shares, for readers of the file: they do not matter to restore."""
    strategy = getattr(model, "distribute_strategy", None)
    plan, shares = getattr(strategy, "plan", None), getattr(strategy, "shares", None)
    return {
        "plan": None if plan is None else json.loads(plan.to_json()),
        "shares": None if shares is None else list(shares),
    }


def _versions() -> dict[str, str]:
    return {"tensorflow": tf.__version__, "keras": keras.__version__, "numpy": np.__version__}
