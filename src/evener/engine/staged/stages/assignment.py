"""Which stage every operation of a traced forward pass belongs to.

    operation                         its stage
    made by a layer                   the layer's stage
    made between layers               the latest stage among its inputs
    a shared layer, called again      the latest stage among its inputs: the stage that asks
    of the batch alone                none: every stage that needs it computes it

The stage of an operation is never before that of its inputs, so samples pass through the
stages in line, and whatever jumps over a stage is handed on as one more tensor.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine.staged.stages.trace import LayerCall, Trace, layer_paths
from evener.errors import EngineError, did_you_mean

Patterns = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The stages of the operations of a trace.

    Attributes:
        num_stages: How many stages there are.
        stages: The stage of every operation of the forward pass; None for those that any
            stage may compute for itself. It grows when a gradient asks for shapes.
        regions: For operations whose results are computed again in the backward pass, the
            number of the layer call they belong to.
    """

    num_stages: int
    stages: dict[tf.Operation, int | None]
    regions: dict[tf.Operation, int]

    def stage_of(self, tensor: tf.Tensor) -> int | None:
        """Return the stage that makes a tensor of the forward pass."""
        return self.stages.get(tensor.op)

    def home_of(self, tensor: tf.Tensor) -> int:
        """Return the stage that has to return a tensor: its own, or the last."""
        stage = self.stage_of(tensor)
        return self.num_stages - 1 if stage is None else stage


def assign(trace: Trace, patterns: Patterns, recompute: Sequence[str]) -> Assignment:
    """Give every operation of a trace its stage.

    Args:
        trace: The traced forward pass.
        patterns: For each stage, patterns of its layers.
        recompute: Patterns of the layers whose activations are computed again.

    Raises:
        EngineError: If a layer is in no stage or in two, if the stages are not in line, or
            if a cut would go through a layer that cannot be cut.
    """
    call_stages = stages_of_calls(trace.calls, patterns)
    operations = trace.graph.get_operations()[: trace.num_operations]
    makers = _makers(trace, len(operations))
    fed = {tensor.op for tensor in trace.inputs}
    fed.update(placeholder.op for _, placeholder in trace.captured)
    stages: dict[tf.Operation, int | None] = {}
    for op, maker in zip(operations, makers, strict=True):
        own = None if maker is None else call_stages[maker]
        stages[op] = None if op in fed else _stage_of(op, own, stages)
    _check_in_line(trace, operations, call_stages, stages)
    regions = _regions(trace, recompute)
    return Assignment(
        num_stages=len(patterns),
        stages=stages,
        regions={op: regions[k] for k, op in enumerate(operations) if k in regions},
    )


def stage_of_path(path: str, patterns: Patterns) -> int | None:
    """Return the stage whose patterns match a layer's path, or None.

    Raises:
        EngineError: If there are two of them.
    """
    found = [k for k, stage in enumerate(patterns) if matching(path, stage)]
    if len(found) > 1:
        first, second = found[:2]
        raise EngineError(
            "ENG-041",
            f"The layer {path!r} is in two stages, {first} and {second}.",
            why=f"It matches {matching(path, patterns[first])[0]!r} of stage {first} and "
            f"{matching(path, patterns[second])[0]!r} of stage {second}, and a layer is "
            "computed in one stage.",
            fix="Make the patterns of one stage narrower.",
        )
    return found[0] if found else None


def check_patterns(model: keras.Model, patterns: Iterable[str], place: str) -> None:
    """Refuse patterns that no layer of a model matches.

    Raises:
        EngineError: With the layers that are nearest.
    """
    paths = [path for path in layer_paths(model).values() if path]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(path, pattern) for path in paths):
            raise EngineError(
                "ENG-042",
                f"{place} names {pattern!r}, but the model {model.name!r} has no such layer.",
                why=f"Its layers are {_listed(paths)}.{did_you_mean(pattern, paths)}",
                fix="Write the names of layers as `model.summary()` shows them, with / before "
                "a layer inside a layer.",
            )


def stages_of_calls(calls: Sequence[LayerCall], patterns: Patterns) -> list[int | None]:
    """Return the stage of every call: the layer's own, or that of the call around it."""
    stages: list[int | None] = []
    stray: dict[str, None] = {}
    for call in calls:
        outer = None if call.outer is None else stages[call.outer]
        own = stage_of_path(call.path, patterns)
        if own is not None and outer is not None and own != outer and call.inner_graph:
            raise _cut_inside(call, own, calls, outer)
        stages.append(outer if own is None else own)
        if stages[-1] is None and call.end > call.begin and is_leaf(call.layer):
            stray[call.path] = None
    if stray:
        raise in_no_stage(list(stray))
    return stages


def in_no_stage(paths: Sequence[str]) -> EngineError:
    """Return the error for layers that compute something and have no stage."""
    return EngineError(
        "ENG-040",
        f"{'A layer is' if len(paths) == 1 else 'Layers are'} in no stage: {_listed(paths)}.",
        why="Every layer that computes something needs a stage, and with it a device.",
        fix="Add "
        + ("its name" if len(paths) == 1 else "their names")
        + f" to a stage, for example layers=({paths[0]!r}, ...).",
    )


def _cut_inside(call: LayerCall, own: int, calls: Sequence[LayerCall], outer: int) -> EngineError:
    assert call.outer is not None
    around = calls[call.outer].path
    return EngineError(
        "ENG-043",
        f"The cut between stages {min(own, outer)} and {max(own, outer)} goes through the "
        f"layer {around!r}.",
        why=f"{call.path!r} runs in a loop or a function inside it, which is computed as one.",
        fix=f"Put {around!r} and all that is in it into one stage.",
    )


def is_leaf(layer: keras.Layer) -> bool:
    """Return whether a layer computes something itself, and not by layers inside it."""
    inner = _tf_private.sublayers(layer)
    return not inner and not isinstance(layer, keras.layers.InputLayer)


def _makers(trace: Trace, num_operations: int) -> list[int | None]:
    """Return for every operation the innermost call that made it."""
    makers: list[int | None] = [None] * num_operations
    for position, call in enumerate(trace.calls):
        # Inner calls begin later, so they overwrite the outer ones.
        if not call.inner_graph:
            makers[call.begin : call.end] = [position] * (call.end - call.begin)
    return makers


def _stage_of(
    op: tf.Operation, own: int | None, stages: dict[tf.Operation, int | None]
) -> int | None:
    known = [s for t in op.inputs if (s := stages[t.op]) is not None]
    stateful = op.op_def is not None and op.op_def.is_stateful
    if own is None and not known:
        return 0 if stateful else None
    if not op.inputs and not stateful:
        return None  # A constant is cheaper to make again than to send.
    return max([*known, *([] if own is None else [own])])


def _check_in_line(
    trace: Trace,
    operations: Sequence[tf.Operation],
    stages_of_calls: Sequence[int | None],
    stages: dict[tf.Operation, int | None],
) -> None:
    """Refuse a layer whose first call needs what a later stage makes.

    A layer with layers of other stages inside is no such layer: what it does between them
    belongs to the later ones.
    """
    units = _units(trace.calls, stages_of_calls)
    maker_of = dict(zip(operations, _makers(trace, len(operations)), strict=True))
    called: set[int] = set()
    for position in sorted(set(units.values())):
        call, own = trace.calls[position], stages_of_calls[position]
        if own is None or call.inner_graph or id(call.layer) in called:
            continue
        called.add(id(call.layer))
        for op in operations[call.begin : call.end]:
            later = stages[op]
            if later is None or later <= own:
                continue
            before = [maker_of[t.op] for t in op.inputs if stages[t.op] == later]
            sources = [trace.calls[units.get(m, m)].path for m in before if m is not None]
            raise _not_in_line(call.path, own, later, sources)


def _units(calls: Sequence[LayerCall], stages_of_calls: Sequence[int | None]) -> dict[int, int]:
    """Return for every call the outermost one around it whose calls are all of its stage."""
    mixed: set[int] = set()
    for position, call in enumerate(calls):
        outer = call.outer
        while outer is not None:
            if stages_of_calls[outer] != stages_of_calls[position]:
                mixed.add(outer)
            outer = calls[outer].outer
    units: dict[int, int] = {}
    for position, call in enumerate(calls):
        whole = call.outer is not None and call.outer not in mixed
        units[position] = units[call.outer] if whole and call.outer is not None else position
    return {position: unit for position, unit in units.items() if unit not in mixed}


def _not_in_line(path: str, own: int, later: int, sources: Sequence[str]) -> EngineError:
    source = f" (from {sources[0]!r})" if sources else ""
    return EngineError(
        "ENG-044",
        f"The layer {path!r} of stage {own} needs what stage {later} makes{source}.",
        why="Samples pass through the stages in their order, and none comes back.",
        fix=f"Move {path!r} to stage {later} or later, or the layers before it to "
        f"stage {own} or earlier.",
    )


def _regions(trace: Trace, recompute: Sequence[str]) -> dict[int, int]:
    """Return the outermost matching call of every operation that is computed again."""
    regions: dict[int, int] = {}
    for position, call in enumerate(trace.calls):
        if call.inner_graph or call.begin in regions or not matching(call.path, recompute):
            continue
        regions.update(dict.fromkeys(range(call.begin, call.end), position))
    return regions


def matching(path: str, patterns: Sequence[str]) -> list[str]:
    """Return the patterns that a layer's path matches."""
    return [pattern for pattern in patterns if fnmatch.fnmatchcase(path, pattern)]


def _listed(names: Sequence[str]) -> str:
    most = 12
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
