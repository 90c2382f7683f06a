"""Data that a program draws from: the stages of its pipelines, and values of some batches.

Stages are noted where the program makes them. Values are looked at when the run is over: batches
are drawn once more from the same data, so that nothing is added to the program's own draws.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from evener._tf_private import watched
from evener._tf_private.functions import leave_to_autograph, left_to_autograph
from evener._tf_private.patches import Patch
from evener.doctor.facts import CodeLine, DataStage, Pipeline, ValueRange
from evener.doctor.watch.loops import Loops
from evener.doctor.watch.losses import draws_constants, shape_of
from evener.doctor.watch.recorder import (
    Recorder,
    inside,
    is_asked_by_user,
    own_line,
    states_of_numpy,
    targets,
)

_SOURCES = ("from_tensor_slices", "from_tensors", "from_generator", "range", "list_files", "zip")
_STAGES = (
    "apply batch bucket_by_sequence_length cache concatenate enumerate filter flat_map "
    "interleave map padded_batch prefetch ragged_batch rebatch repeat shard shuffle skip take "
    "unbatch with_options"
).split()
_MADE = Patch(
    "datasets that a watched program makes",
    *(f"tensorflow:data.Dataset.{name}" for name in (*_SOURCES, *_STAGES)),
    *targets("tensorflow:data.{TFRecord TextLine FixedLengthRecord}Dataset.__init__"),
    why="To know the stages of a pipeline, with their lines.",
    if_it_changes="The doctor does not know what a pipeline is made of.",
)
# Names of tf.data's own iterators, as profiles have them, of the methods that make them.
_ITERATORS = {
    "map": ("Map", "ParallelMap", "MapAndBatch"),
    "batch": ("Batch", "ParallelBatch"),
    "padded_batch": ("PaddedBatch",),
    "from_generator": ("Generator", "FlatMap"),
    "shuffle": ("Shuffle", "ShuffleAndRepeat"),
    "prefetch": ("Prefetch",),
    "cache": ("MemoryCache", "FileCache", "Cache"),
    "interleave": ("Interleave", "ParallelInterleave"),
    "filter": ("Filter",),
    "flat_map": ("FlatMap",),
    "from_tensor_slices": ("TensorSlice",),
}
_RANDOM = ("Multinomial", "StatelessTruncated")
_FILES = ("ReadFile", "Decode", "ParseExample", "ParseSingle")
_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless", "NumpyFunction")
_BATCHES = 8
_MOST_VALUES = 2_000_000
_EXAMINE_SECONDS = 10.0
_DRAW_SECONDS = 2.0
_MOST_ROWS = 1000
_MOST_COMPARED_ROWS = 100_000
_LABELS = 4096


class Data:
    def __init__(self, recorder: Recorder, loops: Loops) -> None:
        self._recorder = recorder
        self._loops = loops
        self._iterated: dict[int, dict[str, Any]] = {}
        self._of_iterator: weakref.WeakKeyDictionary[Any, dict[str, Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._last_drawn: dict[str, Any] | None = None
        self._fits: list[dict[str, Any]] = []
        self._pipelines: list[Pipeline] = []
        self.stage_seconds: dict[str, float] = {}

    def watch(self) -> None:
        _MADE.apply_by_name(self._around_made)
        watched.ITERATIONS.apply(left_to_autograph(self._iteration))

    def facts(self) -> dict[str, Any]:
        return {"pipelines": tuple(self._pipelines or self._described())}

    def _around_made(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        if name == "__init__":
            return self._recorder.after_init(self._note_reader)(original)
        signature = inspect.signature(original)

        def made(*args: Any, **kwargs: Any) -> Any:
            function = kwargs.get("map_func", args[1] if len(args) > 1 else None)
            drawn = states_of_numpy(function)
            with inside(_here, "makes") as outer:
                result = original(*args, **kwargs)
            is_own = not outer and is_asked_by_user(sys._getframe(1))
            if is_own and isinstance(result, tf.data.Dataset):
                self._recorder.safely(self._note, name, signature, result, args, kwargs)
                if name == "map" and drawn != states_of_numpy(function):
                    self._recorder.safely(result._evener_stage.update, {"draws_numpy": True})
            return result

        made.__name__, made.__doc__ = name, original.__doc__
        made.__wrapped__ = original  # pyright: ignore[reportFunctionMemberAccess]
        leave_to_autograph(made)
        return staticmethod(made) if name in _SOURCES else made

    def _note(self, name: str, signature: Any, result: Any, args: Any, kwargs: Any) -> None:
        given = signature.bind_partial(*args, **kwargs).arguments
        parent = args[0] if args and isinstance(args[0], tf.data.Dataset) else None
        if name == "zip":
            zipped = tf.nest.flatten((given.get("args"), given.get("datasets")))
            zipped = [each for each in zipped if isinstance(each, tf.data.Dataset)]
            parent, given["shuffled"] = zipped[0], _num_shuffled(zipped)
        result._evener_stage = {"kind": name, "where": own_line(), "given": given, "of": parent}

    def _note_reader(self, dataset: Any) -> None:
        made = {"kind": type(dataset).__name__, "where": own_line(), "given": {}, "of": None}
        dataset._evener_stage = made

    def _iteration(self, original: Callable[..., Any], dataset: Any) -> Any:
        with inside(_here, "iterates") as outer:
            iterator = original(dataset)
        # A distributed dataset iterates over datasets of its own.
        if not outer:
            source = getattr(dataset, "_evener_of", dataset)
            self._recorder.safely(self._iterate, source, iterator)
        return iterator

    def _iterate(self, dataset: Any, iterator: Any) -> None:
        if not tf.executing_eagerly() or self._recorder.ending is not None:
            return
        calls = [call for call in self._loops.open_calls if not call.startswith("callback")]
        if "fit" in calls:
            return  # What `fit` was given is known.
        role = {"evaluate": "validation", "predict": "predict"}.get(calls[-1] if calls else "")
        begun = {"dataset": dataset, "where": own_line(), "role": role or "other", "draws": []}
        is_later = self._recorder.num_steps > 0
        entry = self._iterated.setdefault(id(dataset), {**begun, "is_later": is_later})
        entry["draws"].append(0)
        self._of_iterator[iterator] = entry
        if entry["role"] == "train":
            self._loops.begin_epoch()

    def on_draw(self, iterator: Any) -> None:
        self._last_drawn = self._of_iterator.get(iterator)
        if self._last_drawn is not None:
            self._last_drawn["draws"][-1] += 1

    def on_step(self, _: bool) -> None:
        entry = self._last_drawn
        if entry is not None and entry["role"] == "other" and not self._loops.in_fit:
            entry["role"] = "train"

    def on_fit(self, where: CodeLine | None, args: Any, kwargs: Any) -> None:
        _model, *rest = args
        names = ("x", "y", "batch_size", "epochs", "verbose", "callbacks", "validation_split")
        names = (*names, "validation_data", "shuffle")
        given = {**dict(zip(names, rest, strict=False)), **kwargs, "where": where}
        # The same line is called again in a loop: the last call counts, with what comes behind it.
        if where in [fit["where"] for fit in self._fits]:
            validated = ("validation", "predict")
            self._iterated = {k: v for k, v in self._iterated.items() if v["role"] not in validated}
        self._fits = [fit for fit in self._fits if fit["where"] != where] + [given]

    def _sources(self) -> Iterator[tuple[str, CodeLine | None, Any, dict[str, Any]]]:
        """Yield role, line, data and further arguments of all that loops draw from."""
        for fit in self._fits:
            yield "train", fit["where"], (fit.get("x"), fit.get("y")), fit
            validation = fit.get("validation_data")
            if validation is not None:
                pair = validation if isinstance(validation, tuple) else (validation, None)
                yield "validation", fit["where"], pair[:2], {"shuffle": False}
        trained = [each["dataset"] for each in self._iterated.values() if each["role"] == "train"]
        for entry in self._iterated.values():
            # What a loop draws between its steps, and is no part of its training data.
            is_other = entry["role"] == "other" and entry["is_later"] and trained
            is_apart = is_other and not any(each in trained for each in _chain(entry["dataset"]))
            role = "validation" if is_apart else entry["role"]
            yield role, entry["where"], (entry["dataset"], None), entry

    def _described(self, *, examine: bool = False) -> Iterator[Pipeline]:
        train_rows: set[bytes] | None = None
        sources = list(self._sources())
        is_compared = any(role == "validation" for role, *_ in sources)
        for role, where, (x, y), options in sources:
            fields: dict[str, Any] = {"kind": "other"}
            if isinstance(x, tf.data.Dataset):
                stages = self._stages(x, is_train=role == "train")
                is_shuffled = any(stage.kind == "shuffle" for stage in stages)
                fields = {
                    "kind": "dataset",
                    "num_missing": _missing(x, options),
                    "num_single_draws": options.get("draws", []).count(1),
                    "stages": stages,
                    "num_samples": _num_samples(stages),
                    "is_shuffled": is_shuffled if stages else None,
                    "constant_bytes": _constant_bytes(x),
                }
            elif hasattr(x, "shape") or isinstance(x, list | dict):
                first = next(iter(tf.nest.flatten(x)), None)
                num = len(first) if first is not None and getattr(first, "shape", ()) else None
                is_shuffled = bool(options.get("shuffle", True))
                fields = {"kind": "arrays", "num_samples": num, "is_shuffled": is_shuffled}
            elif inspect.isgenerator(x) or hasattr(x, "__getitem__"):
                fields = {"kind": "generator"}
            if examine:
                fields.update(self._recorder.safely(_values, x, y) or {})
                rows = self._recorder.safely(_rows, x, role == "train") if is_compared else None
                # Of folds, each validation is compared with the training before it.
                if role == "train":
                    train_rows = rows
                elif role == "validation" and train_rows and rows:
                    fields["num_rows_compared"] = len(rows)
                    fields["num_rows_of_training"] = len(rows & train_rows)
            yield Pipeline(role=role, where=where, **fields)

    def steps_per_epoch(self) -> int | None:
        trained = [entry for entry in self._iterated.values() if entry["role"] == "train"]
        return _cardinality(trained[-1]["dataset"]) if trained else None

    def examine(self) -> None:
        """Draw some batches of all data, and look at their values, for a few seconds at most."""
        described = list(self._described())

        def look() -> None:
            for index, pipeline in enumerate(self._described(examine=True)):
                described[index] = pipeline

        thread = threading.Thread(
            target=lambda: self._recorder.safely(look), name="evener-data", daemon=True
        )
        thread.start()
        thread.join(_EXAMINE_SECONDS)
        self._pipelines = described
        if thread.is_alive():
            self._recorder.miss("values of the data", TimeoutError(f"{_EXAMINE_SECONDS:.0f} s"))

    def _stages(self, dataset: Any, *, is_train: bool) -> tuple[DataStage, ...]:
        found: list[DataStage] = []
        while dataset is not None:
            note = getattr(dataset, "_evener_stage", None)
            if note is None:
                parents = dataset._inputs()
                dataset = parents[0] if parents else None
                continue
            if note["kind"] not in ("apply", "with_options"):
                found.append(self._stage(dataset, note, is_train=is_train))
            dataset = note["of"]
        return tuple(reversed(found))

    def _stage(self, dataset: Any, note: dict[str, Any], *, is_train: bool) -> DataStage:
        given, kind = note["given"], note["kind"]
        function = given.get("map_func", given.get("predicate"))
        operations = watched.operations_of_map(dataset)
        types = {operation.type for operation in operations}
        names = [name for name in _ITERATORS.get(kind, ()) if name in self.stage_seconds]
        sizes = map(given.get, ("buffer_size", "batch_size", "count"))
        size = next((each for each in sizes if each is not None), None)
        return DataStage(
            kind=kind,
            where=note["where"],
            seconds=sum(map(self.stage_seconds.__getitem__, names)) if is_train and names else None,
            function=getattr(function, "__name__", ""),
            calls_python=kind == "from_generator" or not types.isdisjoint(_PYTHON),
            draws_numpy=note.get("draws_numpy", False),
            draws_constants=any(map(draws_constants, operations)),
            num_shuffled=given.get("shuffled", 0),
            is_random=any("Random" in name or name.startswith(_RANDOM) for name in types),
            reads_files=kind in ("TFRecordDataset", "TextLineDataset")
            or any(name.startswith(_FILES) for name in types),
            is_parallel=given.get("num_parallel_calls") is not None,
            size=None if size is None else int(size),
            num_elements=_cardinality(dataset),
            element_bytes=_element_bytes(dataset.element_spec),
            reshuffles=given.get("reshuffle_each_iteration", True) if kind == "shuffle" else None,
        )


_here = threading.local()


def _chain(dataset: Any) -> Iterator[Any]:
    while dataset is not None:
        yield dataset
        dataset = getattr(dataset, "_evener_stage", {}).get("of")


def _num_shuffled(datasets: list[Any]) -> int:
    """Return how many of inputs and labels that are zipped are shuffled, each on its own."""
    *_, labels = (each.element_spec for each in datasets)
    sizes = {_cardinality(each) for each in datasets}
    # Pairs of pictures, or data with labels beside data without, may be mixed at will.
    if len(sizes) > 1 or not isinstance(labels, tf.TensorSpec) or len(shape_of(labels)) > 1:
        return 0
    notes = [[getattr(d, "_evener_stage", {}) for d in _chain(each)] for each in datasets]
    return sum(
        any(n.get("kind") == "shuffle" and n["given"].get("seed") is None for n in each)
        for each in notes
    )


def _cardinality(dataset: Any) -> int | None:
    num = int(dataset.cardinality())
    return num if num >= 0 else None


def _num_samples(stages: tuple[DataStage, ...]) -> int | None:
    for before, stage in reversed(list(itertools.pairwise(stages))):
        if "batch" in stage.kind:
            return before.num_elements
    return None


def _missing(dataset: Any, options: dict[str, Any]) -> int:
    """Return the batches that an epoch of `fit` lacks, as the data ends within it."""
    steps, num = options.get("steps_per_epoch"), _cardinality(dataset)
    if not isinstance(steps, int) or num is None or steps * (options.get("epochs") or 1) <= num:
        return 0
    # At the end of an epoch Keras begins the data anew.
    return -num % steps


def _constant_bytes(dataset: Any) -> int:
    *_, source = _chain(dataset)
    given = getattr(source, "_evener_stage", {}).get("given", {})
    arrays = [part for part in tf.nest.flatten(given.get("tensors")) if hasattr(part, "dtype")]
    return sum(int(getattr(part, "nbytes", 0) or 0) for part in arrays)


def _element_bytes(spec: Any) -> int | None:
    parts = tf.nest.flatten(spec)
    if not all(isinstance(part, tf.TensorSpec) and part.shape.is_fully_defined() for part in parts):
        return None
    return sum(int(part.shape.num_elements() or 1) * part.dtype.size for part in parts)


def _drawn_batches(
    x: Any, y: Any, *, num_batches: int, num_rows: int
) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
    if inspect.isgenerator(x) or x is None:
        return  # A generator has no second beginning.
    is_sequence = hasattr(x, "__getitem__") and hasattr(x, "__len__")
    if isinstance(x, tf.data.Dataset):
        batches = x.take(num_batches)
    elif is_sequence and not hasattr(x, "shape") and not isinstance(x, list | dict):
        items = map(x.__getitem__, range(min(len(x), num_batches)))
        batches = (item for item in items if isinstance(item, tuple))
    else:
        flat = (tf.nest.flatten(each) for each in (x, y))
        batches = [tuple([part[:num_rows] for part in each if part is not None] for each in flat)]
    end = time.monotonic() + _DRAW_SECONDS
    for batch in batches:
        # Of inputs alone there are no labels.
        pair = batch[:2] if isinstance(batch, tuple) and len(batch) > 1 else (batch, None)
        yield _arrays(pair[0]), _arrays(pair[1])
        if time.monotonic() > end:
            return


def _values(x: Any, y: Any) -> dict[str, Any]:
    batches = list(_drawn_batches(x, y, num_batches=_BATCHES, num_rows=_LABELS))
    inputs, labels = ([batch[part] for batch in batches] for part in (0, 1))
    return {"inputs": _values_of(inputs), "labels_are_sorted": _are_sorted(labels)}


def _arrays(structure: Any) -> list[np.ndarray]:
    parts = [part for part in tf.nest.flatten(structure) if part is not None]
    return [np.asarray(part) for part in parts if getattr(part, "shape", None) is not None]


def _values_of(batches: list[list[np.ndarray]]) -> tuple[ValueRange, ...]:
    if not batches or not batches[0]:
        return ()
    found: list[ValueRange] = []
    for parts in zip(*batches, strict=False):
        first = parts[0]
        shape = tuple(int(size) for size in first.shape)
        flat = np.zeros(0)
        if first.dtype.kind in "fiub" or "float" in str(first.dtype):
            flat = np.concatenate([np.asarray(part).reshape(-1) for part in parts])[:_MOST_VALUES]
            flat = flat.astype(np.float64)
        finite = flat[np.isfinite(flat)]
        if not len(finite):
            found.append(ValueRange(shape=shape))
            continue
        low, high, mean = float(finite.min()), float(finite.max()), float(finite.mean())
        is_integral = bool((finite == np.round(finite)).all())
        found.append(ValueRange(shape=shape, min=low, max=high, mean=mean, is_integral=is_integral))
    return tuple(found)


def _are_sorted(labels: list[list[np.ndarray]]) -> bool | None:
    """Return whether integral labels come in order, several equal ones after each other."""
    if not labels or len(labels[0]) != 1:
        return None
    parts = [batch[0] for batch in labels if batch]
    if parts[0].dtype.kind not in "fiub":
        return None
    if parts[0].ndim > 1 and parts[0].shape[-1] > 1:
        parts = [part.argmax(-1) for part in parts]
    flat = np.concatenate([part.reshape(-1) for part in parts])[:_LABELS]
    if len(flat) < 32 or not (flat == np.round(flat)).all() or len(np.unique(flat)) > len(flat) / 8:
        return None
    if (np.diff(flat) >= 0).all():
        return True
    # Hardly shuffled labels change seldom from one to the next.
    shares = np.unique(flat, return_counts=True)[1] / len(flat)
    changes = 1 - float(np.sum(shares**2))
    is_flat = parts[0].ndim == 1 or parts[0].shape[1:] == (1,)
    return is_flat and changes > 0.1 and float(np.mean(np.diff(flat) != 0)) < 0.3 * changes


def _rows(x: Any, is_train: bool) -> set[bytes] | None:
    """Return the rows of inputs, as bytes, to compare training with validation."""
    most = _MOST_COMPARED_ROWS if is_train else _MOST_ROWS
    if isinstance(x, tf.data.Dataset):
        most = min(most, 10 * _MOST_ROWS)
    rows, num = set[bytes](), 0
    for arrays, labels in _drawn_batches(x, None, num_batches=most, num_rows=most):
        if labels and arrays and labels[0].shape == arrays[0].shape:
            arrays = labels  # Inputs of an autoencoder may have noise.
        sizes = {len(part) if part.ndim else 0 for part in arrays}
        if len(sizes) != 1 or max(sizes) < 1 or any(part.dtype == object for part in arrays):
            return None
        parts = [part.reshape(len(part), -1) for part in arrays]
        rows.update(b"".join(part.tobytes() for part in row) for row in zip(*parts, strict=True))
        num += max(sizes)
        if num >= most:
            break
    # Rows of few values are equal by chance.
    return rows if rows and len(next(iter(rows))) >= 16 else None
