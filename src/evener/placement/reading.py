"""Reading a placed graph: its operations, its copies, and what does not run on its GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from evener.placement import devices, kernels
from evener.placement.dry_run import Placed
from evener.placement.flow import (
    CALLS,
    PLUMBING,
    flow_of,
    in_loops,
    is_data,
    kinds_after,
    kinds_of,
)
from evener.placement.origins import Origins
from evener.placement.parts import Collective, Copy, Fallback, Kind, Operation
from evener.placement.sizes import Sizes, bytes_of

_COLLECTIVE = re.compile(
    r"Collective(Reduce|Gather|BcastSend|BcastRecv|AllToAll|ReduceScatter)\w*|Nccl\w+"
)
# What carries, names or describes tensors: nobody misses it on the GPU.
_NO_WORK = frozenset(
    "Const Identity IdentityN Shape ShapeN Rank Size VariableShape Placeholder VarHandleOp "
    "StopGradient PreventGradient Assert ControlTrigger "
    "Switch Merge Enter Exit NextIteration LoopCond".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """An operation with what it is judged by."""

    operation: Operation
    node: Any
    made: tf.Operation | None


class Reading:
    """Reads one placed graph.

    Args:
        placed: The graph and its parts.
        meant_for: ``"gpu"`` if operations that ask for no device are meant for GPUs.
        drawn: The outputs of nodes that are known, such as those that draw a batch.
    """

    def __init__(
        self,
        placed: Placed,
        meant_for: Literal["gpu"] | None,
        drawn: Mapping[str, Sequence[Any]],
    ) -> None:
        self._placed = placed
        self._meant_for = meant_for
        self._origins = Origins(placed.functions, placed.name)
        self._flow = flow_of(placed.graph.node)
        written = flow_of(placed.written.node)
        kinds = kinds_of(written, self._origins)
        self._kinds = kinds_after(self._flow, written, kinds, self._origins)
        self._library = {one.signature.name: one for one in placed.graph.library.function}
        self._sizes = Sizes(placed.graph, placed.inputs, drawn)
        self._present = devices.present()
        self._seen = [*self._outside(), *self._inside()]

    def operations(self) -> tuple[Operation, ...]:
        """Return all operations, those of functions that stay whole included."""
        return tuple(seen.operation for seen in self._seen)

    def copies(self) -> tuple[Copy, ...]:
        """Return all tensors that go from one device to another."""
        looped = in_loops(self._flow)
        return tuple(
            self._copy(node, looped)
            for part in self._placed.parts
            for node in part.node
            if node.op == "_Send" and _carries_data(node)
        )

    def collectives(self) -> tuple[Collective, ...]:
        """Return the devices' parts in operations of all replicas together."""
        return tuple(
            Collective(
                operation=name,
                type=node.op,
                device=devices.short_name(node.device) or "",
                num_bytes=self._sizes.num_bytes(name),
                line=self._line(name),
            )
            for name, node in self._flow.nodes.items()
            if _COLLECTIVE.fullmatch(node.op)
        )

    def fallbacks(self) -> tuple[Fallback, ...]:
        """Return the operations that do not compute on the GPU they are meant for."""
        return tuple(found for seen in self._seen if (found := self._fallback(seen)) is not None)

    def _outside(self) -> Iterator[_Seen]:
        for name, node in self._flow.nodes.items():
            if node.op in PLUMBING or (node.op in CALLS and _called(node)):
                continue
            used = devices.short_name(node.device) or ""
            yield self._operation(node, used, self._kinds[name], self._origins.of(node), None)

    def _inside(self) -> Iterator[_Seen]:
        """Yield what is in functions that are not taken apart, each once."""
        for name, node in self._flow.nodes.items():
            used = devices.short_name(node.device) or ""
            for function in _called(node):
                yield from self._of_function(function, self._kinds[name], used, name, {name})

    def _of_function(
        self, function: str, kind: Kind, used: str, within: str, entered: set[str]
    ) -> Iterator[_Seen]:
        if function not in self._library or function in entered:
            return
        flow = flow_of(self._library[function].node_def)
        kinds = kinds_of(flow, self._origins, function)
        trains = "gradient" in kinds.values()
        for name, node in flow.nodes.items():
            # What is forward in there does the work that the function is called for.
            own = kind if kinds[name] == "forward" and not trains else kinds[name]
            if node.op not in PLUMBING and not (node.op in CALLS and _called(node)):
                made = self._origins.of(node, function)
                yield self._operation(node, used, own, made, within)
            for inner in _called(node):
                yield from self._of_function(inner, own, used, within, {*entered, function})

    def _operation(
        self, node: Any, used: str, kind: Kind, made: tf.Operation | None, within: str | None
    ) -> _Seen:
        operation = Operation(
            name=node.name,
            type=node.op,
            asked=None if made is None else devices.asked(made),
            used=used,
            kind=kind,
            line=self._origins.line(made),
            within=within,
        )
        return _Seen(operation=operation, node=node, made=made)

    def _copy(self, send: Any, looped: set[str]) -> Copy:
        tensor = send.input[0]
        name = tensor.partition(":")[0]
        target = send.attr["recv_device"].s.decode()
        return Copy(
            tensor=tensor,
            num_bytes=self._num_bytes(tensor),
            source=devices.short_name(send.attr["send_device"].s.decode()) or "",
            target=devices.short_name(target) or "",
            kind=self._kinds.get(name, "forward"),
            line=self._line(name),
            needed_by=self._needed_by(name, target),
            in_loop=name in looped,
        )

    def _num_bytes(self, tensor: str) -> int | None:
        """Return the size of a tensor; in loops, Python knows more than the placed graph."""
        known = self._sizes.num_bytes(tensor)
        name, _, index = tensor.partition(":")
        node = self._flow.nodes.get(name)
        made = None if node is None else self._origins.of(node)
        if known is not None or node is None or made is None or made.type != node.op:
            return known
        # Fused operations have outputs that nobody wrote.
        number = int(index or 0)
        return bytes_of(made.outputs[number]) if number < len(made.outputs) else None

    def _line(self, name: str) -> Any:
        node = self._flow.nodes.get(name)
        return None if node is None else self._origins.line(self._origins.of(node))

    def _needed_by(self, name: str, device: str) -> Any:
        takers = [
            taker
            for taker in self._flow.outputs.get(name, ())
            if self._flow.nodes[taker].device == device
        ]
        return next((line for taker in takers if (line := self._line(taker)) is not None), None)

    def _fallback(self, seen: _Seen) -> Fallback | None:
        operation = seen.operation
        if operation.within is not None or operation.type in _NO_WORK:
            return None
        if operation.kind == "input" and is_data(operation.type):
            return None
        found = self._why_not(seen)
        if found is None:
            return None
        return Fallback(
            operation=operation.name,
            type=operation.type if seen.made is None else seen.made.type,
            asked=operation.asked,
            used=operation.used,
            reason=found.reason,
            why=found.why,
            line=operation.line,
        )

    def _why_not(self, seen: _Seen) -> kernels.Verdict | None:
        asked, used = seen.operation.asked, seen.operation.used
        meant = asked is None and self._meant_for == "gpu"
        if meant or (asked is not None and devices.is_gpu(asked)):
            # Grappler may have made of it what only the CPU has.
            op_type, attr = _as_made(seen)
            found = kernels.verdict(op_type, _dtypes(attr))
            if found is not None:
                return found
        # Where a CPU device answers as the GPU that is asked for, it is that device.
        here = asked if seen.made is None else devices.short_name(seen.made.device)
        if asked is None or used in (asked, here):
            return None
        if asked not in self._present and here not in self._present:
            return None if self._is_imagined(asked) else _no_such_device(asked, self._present)
        return _beside(asked, used) if devices.is_gpu(asked) and not devices.is_gpu(used) else None

    def _is_imagined(self, asked: str) -> bool:
        """Return whether a GPU is asked for that is only imagined to be here."""
        return (
            self._meant_for == "gpu"
            and devices.is_gpu(asked)
            and not any(map(devices.is_gpu, self._present))
        )


def _called(node: Any) -> list[str]:
    """Return the names of the functions that a node calls."""
    names = []
    for value in node.attr.values():
        if value.HasField("func"):
            names.append(value.func.name)
        names += [one.name for one in value.list.func]
    return names


def _carries_data(send: Any) -> bool:
    """Return whether a node sends a tensor, not only word that something has run."""
    if send.attr["client_terminated"].b:
        return False
    name = send.input[0].partition(":")[0]
    return not (name.startswith("^") or "/ctrl/_" in name)


def _as_made(seen: _Seen) -> tuple[str, Any]:
    if seen.made is None:
        return seen.node.op, seen.node.attr
    return seen.made.type, seen.made.node_def.attr


def _dtypes(attr: Any) -> dict[str, str]:
    return {
        name: tf.dtypes.as_dtype(value.type).name
        for name, value in attr.items()
        if value.HasField("type") and value.type
    }


def _no_such_device(asked: str, present: tuple[str, ...]) -> kernels.Verdict:
    return kernels.Verdict(
        reason="no_such_device",
        why=f"{asked} is not here, only {', '.join(present)}; soft placement took another",
    )


def _beside(asked: str, used: str) -> kernels.Verdict:
    return kernels.Verdict(
        reason="beside",
        why=f"{asked} is here; TensorFlow put it on {used}, beside a variable or what it needs",
    )
