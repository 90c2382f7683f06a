"""Reads a placed graph: its operations, copies between devices, collectives and fallbacks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from evener.auditing import device_names, kernels
from evener.auditing.dry_run import Placed
from evener.auditing.flow import (
    CALLS,
    PLUMBING,
    flow_of,
    in_loops,
    is_data,
    kinds_after,
    kinds_of,
)
from evener.auditing.origins import Origins
from evener.auditing.records import Collective, Copy, Fallback, Kind, Operation
from evener.auditing.tensor_sizes import TensorSizes, num_bytes_of
from evener.devices.names import qualified_name

_COLLECTIVE = re.compile(
    r"Collective(Reduce|Gather|BcastSend|BcastRecv|AllToAll|ReduceScatter)\w*|Nccl\w+"
)
# These carry, name or describe tensors: it does not matter that they are not on the GPU.
_NO_WORK = frozenset(
    "Const Identity IdentityN Shape ShapeN Rank Size VariableShape Placeholder VarHandleOp "
    "StopGradient PreventGradient Assert ControlTrigger "
    "Switch Merge Enter Exit NextIteration LoopCond".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlacedOperation:
    """An operation with its node in the placed graph and the Python operation behind it."""

    operation: Operation
    node: Any
    made: tf.Operation | None


class GraphReader:
    """Reads one placed graph.

    Args:
        placed: The graph and its parts.
        assume_gpus: Whether operations that request no device count as requesting a GPU.
        drawn: Known outputs of nodes, such as a batch drawn from an iterator.
    """

    def __init__(
        self,
        placed: Placed,
        assume_gpus: bool,
        drawn: Mapping[str, Sequence[Any]],
    ) -> None:
        self._placed = placed
        self._assume_gpus = assume_gpus
        self._origins = Origins(placed.functions, placed.name)
        self._flow = flow_of(placed.graph.node)
        written = flow_of(placed.written.node)
        kinds = kinds_of(written, self._origins)
        self._kinds = kinds_after(self._flow, written, kinds, self._origins)
        self._library = {
            function.signature.name: function for function in placed.graph.library.function
        }
        self._sizes = TensorSizes(placed.graph, placed.inputs, drawn)
        self._present = device_names.present()
        self._placed_operations = [*self._inlined(), *self._in_functions()]

    def operations(self) -> tuple[Operation, ...]:
        """Return all operations, including those of functions that are not inlined."""
        return tuple(placed.operation for placed in self._placed_operations)

    def copies(self) -> tuple[Copy, ...]:
        """Return all tensors that are copied from one device to another."""
        looped = in_loops(self._flow)
        return tuple(
            self._copy(node, looped)
            for part in self._placed.parts
            for node in part.node
            if node.op == "_Send" and _carries_data(node)
        )

    def collectives(self) -> tuple[Collective, ...]:
        """Return the collective operations, one for each participating device."""
        return tuple(
            Collective(
                operation=name,
                type=node.op,
                device=qualified_name(node.device) or "",
                num_bytes=self._sizes.num_bytes(name),
                line=self._line(name),
            )
            for name, node in self._flow.nodes.items()
            if _COLLECTIVE.fullmatch(node.op)
        )

    def fallbacks(self) -> tuple[Fallback, ...]:
        """Return the operations that do not run on their requested GPU."""
        found = map(self._fallback, self._placed_operations)
        return tuple(fallback for fallback in found if fallback is not None)

    def _inlined(self) -> Iterator[_PlacedOperation]:
        for name, node in self._flow.nodes.items():
            if node.op in PLUMBING or (node.op in CALLS and _called(node)):
                continue
            used = qualified_name(node.device) or ""
            yield self._operation(node, used, self._kinds[name], self._origins.of(node), None)

    def _in_functions(self) -> Iterator[_PlacedOperation]:
        """Yield the operations of functions that are not inlined, each once."""
        for name, node in self._flow.nodes.items():
            used = qualified_name(node.device) or ""
            for function in _called(node):
                yield from self._of_function(function, self._kinds[name], used, name, {name})

    def _of_function(
        self, function: str, kind: Kind, used: str, within: str, entered: set[str]
    ) -> Iterator[_PlacedOperation]:
        if function not in self._library or function in entered:
            return
        flow = flow_of(self._library[function].node_def)
        kinds = kinds_of(flow, self._origins, function)
        trains = "gradient" in kinds.values()
        for name, node in flow.nodes.items():
            # A forward operation in there does the kind of work of the call.
            inner_kind = kind if kinds[name] == "forward" and not trains else kinds[name]
            if node.op not in PLUMBING and not (node.op in CALLS and _called(node)):
                made = self._origins.of(node, function)
                yield self._operation(node, used, inner_kind, made, within)
            for inner in _called(node):
                yield from self._of_function(inner, inner_kind, used, within, {*entered, function})

    def _operation(
        self, node: Any, used: str, kind: Kind, made: tf.Operation | None, within: str | None
    ) -> _PlacedOperation:
        operation = Operation(
            name=node.name,
            type=node.op,
            requested=None if made is None else device_names.requested(made),
            device=used,
            kind=kind,
            line=self._origins.line(made),
            within=within,
        )
        return _PlacedOperation(operation=operation, node=node, made=made)

    def _copy(self, send: Any, looped: set[str]) -> Copy:
        tensor = send.input[0]
        name = tensor.partition(":")[0]
        target = send.attr["recv_device"].s.decode()
        return Copy(
            tensor=tensor,
            num_bytes=self._num_bytes(tensor),
            source=qualified_name(send.attr["send_device"].s.decode()) or "",
            target=qualified_name(target) or "",
            kind=self._kinds.get(name, "forward"),
            line=self._line(name),
            needed_by=self._needed_by(name, target),
            in_loop=name in looped,
        )

    def _num_bytes(self, tensor: str) -> int | None:
        """Return the size of a tensor; in loops, the Python graph has more static shapes."""
        known = self._sizes.num_bytes(tensor)
        name, _, index = tensor.partition(":")
        node = self._flow.nodes.get(name)
        made = None if node is None else self._origins.of(node)
        if known is not None or node is None or made is None or made.type != node.op:
            return known
        # Fused operations have outputs without a counterpart in Python.
        number = int(index or 0)
        return num_bytes_of(made.outputs[number]) if number < len(made.outputs) else None

    def _line(self, name: str) -> Any:
        node = self._flow.nodes.get(name)
        return None if node is None else self._origins.line(self._origins.of(node))

    def _needed_by(self, name: str, device: str) -> Any:
        consumers = [
            consumer
            for consumer in self._flow.outputs.get(name, ())
            if self._flow.nodes[consumer].device == device
        ]
        return next(
            (line for consumer in consumers if (line := self._line(consumer)) is not None), None
        )

    def _fallback(self, placed: _PlacedOperation) -> Fallback | None:
        operation = placed.operation
        if operation.within is not None or operation.type in _NO_WORK:
            return None
        if operation.kind == "input" and is_data(operation.type):
            return None
        found = self._why_not(placed)
        if found is None:
            return None
        return Fallback(
            operation=operation.name,
            type=operation.type if placed.made is None else placed.made.type,
            requested=operation.requested,
            device=operation.device,
            reason=found.reason,
            why=found.why,
            line=operation.line,
        )

    def _why_not(self, placed: _PlacedOperation) -> kernels.NotOnGpu | None:
        requested, used = placed.operation.requested, placed.operation.device
        if self._assume_gpus if requested is None else device_names.is_gpu(requested):
            # Grappler may have replaced it by an operation that only the CPU has.
            op_type, attr = _before_optimization(placed)
            found = kernels.why_not_on_gpu(op_type, _dtypes(attr))
            if found is not None:
                return found
        # Where a CPU device stands in for the requested GPU, `here` is that device.
        here = requested if placed.made is None else qualified_name(placed.made.device)
        if requested is None or used in (requested, here):
            return None
        if requested not in self._present and here not in self._present:
            return (
                None if self._is_assumed(requested) else _no_such_device(requested, self._present)
            )
        return (
            _colocated(requested, used)
            if device_names.is_gpu(requested) and not device_names.is_gpu(used)
            else None
        )

    def _is_assumed(self, requested: str) -> bool:
        """Return whether the requested GPU is one that the audit only assumes to exist."""
        return (
            self._assume_gpus
            and device_names.is_gpu(requested)
            and not any(map(device_names.is_gpu, self._present))
        )


def _called(node: Any) -> list[str]:
    """Return the names of the functions that a node calls."""
    names = []
    for value in node.attr.values():
        if value.HasField("func"):
            names.append(value.func.name)
        names += [function.name for function in value.list.func]
    return names


def _carries_data(send: Any) -> bool:
    """Return whether a node sends a tensor, and not a control dependency."""
    if send.attr["client_terminated"].b:
        return False
    name = send.input[0].partition(":")[0]
    return not (name.startswith("^") or "/ctrl/_" in name)


def _before_optimization(placed: _PlacedOperation) -> tuple[str, Any]:
    if placed.made is None:
        return placed.node.op, placed.node.attr
    return placed.made.type, placed.made.node_def.attr


def _dtypes(attr: Any) -> dict[str, str]:
    return {
        name: tf.dtypes.as_dtype(value.type).name
        for name, value in attr.items()
        if value.HasField("type") and value.type
    }


def _no_such_device(requested: str, present: tuple[str, ...]) -> kernels.NotOnGpu:
    return kernels.NotOnGpu(
        reason="no_such_device",
        why=f"{requested} does not exist; TensorFlow has {', '.join(present)}, and soft placement "
        "used another device",
    )


def _colocated(requested: str, used: str) -> kernels.NotOnGpu:
    return kernels.NotOnGpu(
        reason="beside",
        why=f"{requested} exists; TensorFlow colocated it with a variable or an input on {used}",
    )
