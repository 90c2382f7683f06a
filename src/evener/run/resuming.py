"""``evener run --checkpoint``: an unchanged script goes on where it was ended.

The script runs from its first line again, with the seeds of its first run. Each ``fit`` has
checkpoints of its own, by its number in the program::

    FOLDER/start.json                seed of all random sources
    FOLDER/fit-001/step-00000640     the first fit, at its end: it makes no step again
    FOLDER/fit-002/step-00000120     the second one goes on from here

What a program keeps where no checkpoint sees it ends the run with the reason, in the first step or
before, instead of other numbers after a restart.
"""

from __future__ import annotations

import collections
import contextlib
import operator
import random
import types
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener._tf_private import fits
from evener._tf_private.functions import before_functions_run
from evener._tf_private.models import EAGER_UPDATES
from evener._tf_private.random_numbers import counting_traced_draws
from evener.base.records import RecordError, from_json, to_json
from evener.base.user_code import is_own
from evener.checkpoint import storage
from evener.checkpoint.callback import CheckpointCallback, added_to_fits, is_plain
from evener.checkpoint.storage import Count
from evener.errors import CheckpointError
from evener.run.hoisted_guards import file_of
from evener.run.hoister import Hoister, all_variables, is_of_evener, value_bytes
from evener.run.replace import replace_with
from evener.run.replaying import SECONDS, KeptHoister, ResumableLoop, checksum
from evener.run.script import Notes, UserLine, user_line
from evener.workers.process import draw_seed, group_of_process

_CONSTANT = (types.FunctionType, types.ModuleType, type)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    seed: Count


def seed_of(folder: str) -> int:
    """Return the seed of all runs of a folder, drawn by the first one."""
    path = storage.join(folder, "start.json")
    try:
        if not tf.io.gfile.exists(path):
            tf.io.gfile.makedirs(folder)
            seed = draw_seed()
            storage.write_text(path, to_json(_Start(seed=seed)))
            return seed
        with tf.io.gfile.GFile(path, "r") as file:
            return from_json(file.read(), _Start).seed
    except (tf.errors.OpError, OSError, RecordError) as error:
        raise CheckpointError(
            "CKPT-019",
            f"The seed of the run cannot be read from {path}, nor written there.",
            why=f"{type(error).__name__}: {error}",
            fix="Name a folder that can be written, and that other programs do not use.",
        ) from error


class Resumption:
    def __init__(self, folder: str, every_steps: int | None, notes: Notes) -> None:
        self.loop = ResumableLoop(storage.join(folder, "loop"), every_steps, notes, self)
        self._folder = folder
        self._every_steps = every_steps
        self.notes = notes
        self.num_fits = 0
        self.open: list[UserLine | None] = []
        self._iterators: list[Any] = []
        # Those that fits have had so far; with ``steps_per_epoch``, a pass begins in mid-epoch.
        self._shuffles: list[Any] = []
        self._shuffles_with_steps: list[Any] = []

    @contextlib.contextmanager
    def resuming(self) -> Generator[None]:
        """Let the script go on, and refuse what cannot; until the end of the block."""
        keeping = self.loop.keeping() if group_of_process() is None else contextlib.nullcontext()
        update = replace_with(self._update)
        with added_to_fits(self._callback), EAGER_UPDATES.applied(update), keeping:
            yield
        if not self.num_fits and self.loop.line is None:
            self.notes.add("--checkpoint has kept nothing: the script has made no step")

    def kept(self, hoister: Hoister) -> Hoister | KeptHoister:
        """Return what the script calls for the steps that are made of its eager lines."""
        return hoister if group_of_process() is not None else KeptHoister(hoister, self.loop)

    def _update(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Update variables by an optimizer; refuse what is in no step that can be told."""
        loop = self.loop
        if self.open or loop.is_inside:
            return original(*args, **kwargs)
        if group_of_process() is not None:
            raise loop.not_resumable(
                "With several workers, --checkpoint resumes calls of fit alone"
            )
        if tf.executing_eagerly() and not loop.is_as_written:
            raise loop.not_resumable(
                "Its step runs as single operations: no @tf.function, and no lines that evener run "
                "makes a step of"
            )
        result = original(*args, **kwargs)
        if tf.executing_eagerly() and loop.line is None:
            loop.begin()
        return result

    def _callback(
        self, model: keras.Model, callbacks: list[Any], arguments: Mapping[str, Any]
    ) -> CheckpointCallback:
        line = user_line()
        if self.open:
            raise not_resumable(line, f"It is called within the fit at {self.open[-1]}")
        data = arguments.get("x")
        if self.loop.line is not None:
            raise not_resumable(line, f"The script also trains in a loop, at {self.loop.line}")
        if any(data is used for used in self._iterators):
            raise not_resumable(line, "Another fit has taken data from the same generator before")
        if hasattr(data, "__next__"):
            self._iterators.append(data)
        validation = arguments.get("validation_data")
        if hasattr(validation, "__next__"):
            raise not_resumable(
                line, "Its validation data is a generator, which cannot be drawn again"
            )
        # Its seeds would be drawn by other data between the passes of this.
        own, of_validation = fits.shuffles_in(data), fits.shuffles_in(validation)
        has_steps = arguments.get("steps_per_epoch") is not None
        others = [*of_validation, *self._shuffles] if has_steps else self._shuffles_with_steps
        if any(shuffle is other for shuffle in own for other in others):
            raise not_resumable(
                line,
                "With steps_per_epoch it takes its data from a shuffle that another fit or the "
                "validation has too, and each pass draws from the same seeds",
                fix="Shuffle for each fit: dataset.shuffle(...) in its own line.",
            )
        self._shuffles += [*own, *of_validation]
        self._shuffles_with_steps += own if has_steps else []
        given = arguments.get("callbacks")
        if isinstance(given, keras.callbacks.CallbackList):
            raise not_resumable(line, "Its callbacks are a CallbackList, which takes no others")
        if isinstance(data, keras.utils.PyDataset):
            for name, value in vars(data).items():
                if isinstance(value, _GENERATORS):
                    raise not_resumable(
                        line, f"{type(data).__name__} draws from a generator of its own: {name}"
                    )
        self.num_fits += 1
        folder = storage.join(self._folder, f"fit-{self.num_fits:03d}")
        by_time = self._every_steps is None
        every = {"every_seconds": SECONDS} if by_time else {"every_steps": self._every_steps}
        arrays = tf.nest.flatten([arguments.get(name) for name in ("x", "y", "sample_weight")])
        found = (each for each in arrays if isinstance(each, np.ndarray))
        fingerprint = ", ".join(map(checksum, found))
        own_callbacks = [each for each in callbacks if not isinstance(each, CheckpointCallback)]
        return ResumableFit(
            folder, self, line=line, own=own_callbacks, fingerprint=fingerprint, every=every
        )


class ResumableFit(CheckpointCallback):
    """Checkpoints of one ``fit`` of a script; refuses (CKPT-017) what no checkpoint has."""

    def __init__(
        self,
        folder: str,
        resumption: Resumption,
        *,
        line: UserLine | None,
        own: list[Any],
        fingerprint: str,
        every: Mapping[str, Any],
    ) -> None:
        super().__init__(folder, keep=2, **every)
        self.fingerprint = fingerprint
        self._resumption = resumption
        self._line = line
        self._own = own  # Callbacks of the script
        self._places: dict[str, Any] = {}
        self._num_draws: Callable[[], int] = lambda: 0
        self._first_step: contextlib.ExitStack | None = None
        self._handles: list[Any] = []
        self._lost: list[tuple[tf.Variable, bytes]] = []
        self._has_stepped = False

    def run_fit(
        self,
        model: keras.Model,
        callbacks: list[Any],
        proceed: Callable[[list[Any]], Any],
        arguments: Mapping[str, Any],
    ) -> Any:
        self._resumption.open.append(self._line)
        try:
            with counting_traced_draws() as self._num_draws:
                return super().run_fit(model, callbacks, proceed, arguments)
        finally:
            self._resumption.open.pop()
            if self._first_step is not None:
                self._first_step.close()

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        loaded = self._loaded
        if loaded is not None:
            if loaded.more.data.fingerprint != self.fingerprint:
                raise CheckpointError(
                    "CKPT-020",
                    f"The fit at {self._line} has other data than the run that is resumed.",
                    why=f"The arrays x and y have other shapes, types or values than those with "
                    f"which {self.checkpoint.path} was begun.",
                    fix="Make the data as that run did: --checkpoint repeats the seeds of Python, "
                    "NumPy and TensorFlow, not the order of a set or the time. Or name a new "
                    "folder.",
                )
            position = loaded.state["position"]
            done = f"{position['step']} steps, {position['epoch']} epochs"
            text = f"this fit goes on behind what was done: {done}"
            self._resumption.notes.add(text, self._line)
        super().on_train_begin(logs)
        self._num_draws_before = self._num_draws()
        self._places = dict(self._read_places())

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if self._has_stepped or self._first_step is not None:
            return
        known = {id(variable) for variable in self.checkpoint.variables()}
        others = (v for v in all_variables() if not is_of_evener(v))
        self._lost = [(v, value_bytes(v)) for v in others if id(v) not in known]
        self._first_step = contextlib.ExitStack()
        self._first_step.enter_context(
            before_functions_run(lambda _, inputs: self._handles.extend(inputs))
        )

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if self._first_step is not None:
            self._first_step.close()
            self._first_step, self._has_stepped = None, True
            used = {id(handle) for handle in self._handles}
            self._handles.clear()
            self._lost = [entry for entry in self._lost if id(entry[0].handle) in used]
            self._refuse_lost_state()
        super().on_train_batch_end(batch, logs)

    def _save(self) -> None:
        self._refuse_lost_state()
        super()._save()

    def _refuse_lost_state(self) -> None:
        """Refuse what has changed since the fit began and is in no checkpoint."""
        if self._num_draws() > self._num_draws_before:
            raise not_resumable(
                self._line,
                "Its step draws random numbers without a generator (such as tf.nn.dropout or "
                "tf.random.uniform), whose state nothing can read",
                fix="Draw by keras.random with a keras.random.SeedGenerator of the layer, or by "
                "keras.layers.Dropout.",
            )
        for variable, before in self._lost:
            if value_bytes(variable) != before:
                raise not_resumable(
                    self._line,
                    f"Its step changes the variable {variable.name}, which does not belong to the "
                    "model",
                    fix="Make it an attribute of the model or of one of its layers.",
                )
        for place, value in self._read_places():
            if place not in self._places or not _is_same(self._places[place], value):
                raise not_resumable(
                    self._line,
                    f"{place} changes while it trains, and a checkpoint does not keep it",
                    fix="Let the callback keep numbers, texts, and lists and dicts of them, as "
                    "attributes of its own.",
                )

    def _read_places(self) -> Iterator[tuple[str, Any]]:
        """Yield what the script's own callbacks may change and no checkpoint keeps."""
        functions: list[Any] = []
        # Restored in place, so that other names have them too.
        kept = [v for each in self._own for v in vars(each).values() if isinstance(v, list | dict)]
        for callback in self._own:
            own = [kind for kind in type(callback).__mro__ if is_own(file_of(kind))]
            functions += vars(callback).values()
            for name, value in vars(callback).items():
                if own and name != "params" and not is_plain(value):
                    yield f"{type(callback).__name__}.{name}", _snapshot(value)
            for kind in own:
                functions += vars(kind).values()
                for name, value in vars(kind).items():
                    if not name.startswith("__"):
                        yield f"{kind.__name__}.{name}", _snapshot(value)
        seen = set[types.FunctionType]()
        while functions:
            function = functions.pop()
            if not isinstance(function, types.FunctionType) or function in seen:
                continue
            seen.add(function)
            if is_own(function.__code__.co_filename):
                for name, value in _names_read_by(function):
                    functions.append(value)
                    is_kept = any(value is each and is_plain(each) for each in kept)
                    if not is_kept and not isinstance(value, _CONSTANT):
                        yield name, _snapshot(value)


def not_resumable(
    line: UserLine | None, why: str, fix: str = "Give it data and callbacks that can begin again."
) -> CheckpointError:
    return CheckpointError(
        "CKPT-017",
        f"The fit at {line} cannot be resumed.",
        why=f"{why}.",
        fix=f"{fix} Or leave out --checkpoint.",
    )


def _names_read_by(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the global names and those of enclosing functions that a function may read."""
    codes = [function.__code__]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
        for name in code.co_names:
            if name in function.__globals__:
                yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):
            # Nothing is assigned to it yet.
            yield name, cell.cell_contents


def _snapshot(value: Any) -> Any:
    if is_plain(value):
        return repr(value)
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | set | collections.deque):
        return [*value]
    if isinstance(value, np.ndarray):
        return checksum(value)
    return value


def _is_same(before: Any, now: Any) -> bool:
    if type(before) is type(now) is list:
        return len(before) == len(now) and all(map(operator.is_, before, now))
    return before is now or (type(before) is type(now) is str and before == now)
