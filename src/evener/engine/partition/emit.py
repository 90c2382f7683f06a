"""The step on several devices: calls of the tasks' functions, with what travels between them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from evener.engine.partition.build import TaskFunction, build_task
from evener.engine.partition.functions import (
    Argument,
    FunctionBuilder,
    NumberArgument,
    SumArgument,
    TensorArgument,
)
from evener.engine.partition.homes import HOST
from evener.engine.partition.no_samples import branches_of
from evener.engine.partition.sizes import micro_batch_sizes, offsets_of, rows_by_samples
from evener.engine.partition.tasks import Partition
from evener.engine.partition.times import Recorder, Times
from evener.engine.partition.turns import Turns
from evener.engine.partition.units import units_of
from evener.engine.sharding.states import (
    REPLICATED,
    SUM,
    Partial,
    PerPart,
    Sharded,
    State,
    Unset,
    rows_per_sample,
    serves,
)
from evener.engine.trace.dims import BATCH, PartSymbol, Size, evaluate
from evener.engine.trace.functional import LOOPS
from evener.engine.trace.graph import Tensor
from evener.tf_compat import graphs

_COMBINE = {
    "sum": tf.add_n,
    "prod": lambda parts: functools.reduce(tf.multiply, parts),
    "max": lambda parts: functools.reduce(tf.maximum, parts),
    "min": lambda parts: functools.reduce(tf.minimum, parts),
    "all": lambda parts: functools.reduce(tf.logical_and, parts),
    "any": lambda parts: functools.reduce(tf.logical_or, parts),
}


class PartitionedStep:
    """A step in functions, which any graph can call.

    Args:
        partition: The step in tasks.
        keeps: What the nodes of the step refer to by name.

    Attributes:
        partition: As given.
        functions: The functions of the tasks, in their order.
        units: Their calls, in the order in which they are made.
    """

    def __init__(self, partition: Partition, keeps: Any = None) -> None:
        self.partition = partition
        self.functions = [build_task(partition, task, keeps) for task in partition.tasks]
        self.units = units_of(partition, self.functions)
        self._branches = {
            id(function): branches
            for function in self.functions
            if (branches := branches_of(function, partition)) is not None
        }

    def __call__(
        self, inputs: Sequence[Any], sizes: tf.Tensor, recorder: Recorder | None = None
    ) -> list[Any]:
        """Run the step in the graph that is being made.

        Args:
            inputs: The tensors for the arguments of the traced step, captures included.
            sizes: How many samples each replica gets; int32 vector.
            recorder: Takes the time of each replica; None to measure none.

        Returns:
            What the step returns, as flat tensors.
        """
        run = _Run(
            self.partition, inputs, micro_batch_sizes(sizes, self.partition.layout), recorder
        )
        for unit in self.units:
            function = self.functions[unit.task]
            if unit.micro_batch is None:
                run.call(function)
            else:
                run.call_part(function, self._branches.get(id(function)), unit.micro_batch)
        run.end()
        return [run.result(tensor) for tensor in self.partition.graph.outputs]

    def run_some(
        self,
        inputs: Sequence[Any],
        part_sizes: Sequence[tf.Tensor],
        runs: Collection[int],
        given: Mapping[Tensor, Any],
        fetches: Iterable[Tensor],
    ) -> list[Any]:
        """Run some tasks in the graph that is being made, on the first parts alone.

        Args:
            inputs: As for a whole run; None for those that no task reads.
            part_sizes: The samples of each part, one or more; no further part is there.
            runs: The numbers of the functions that are called.
            given: What they read of others.
            fetches: The tensors to return, each as a whole.
        """
        run = _Run(self.partition, inputs, part_sizes, None, given)
        for unit in self.units:
            if unit.task in runs and (unit.micro_batch or 0) < len(part_sizes):
                function = dataclasses.replace(self.functions[unit.task], by_xla=False)
                if unit.micro_batch is None:
                    run.call(function)
                else:
                    run.call_part(function, None, unit.micro_batch)
        return [run.result(tensor) for tensor in fetches]


class _Run:
    """The tensors of one run of a step."""

    def __init__(
        self,
        partition: Partition,
        inputs: Sequence[Any],
        part_sizes: Sequence[tf.Tensor],
        recorder: Recorder | None,
        given: Mapping[Tensor, Any] | None = None,
    ) -> None:
        self._partition = partition
        self._layout = partition.layout
        self._whole: dict[Tensor, Any] = dict(given or {})
        self._parts: dict[tuple[Tensor, State], list[Any]] = {}
        self._sums: dict[tuple[Tensor, str], Any] = {}
        self._turns = Turns() if self._layout.is_scheduled else None
        self._ran: dict[Any, list[tf.Operation]] = {}
        self._symbols: dict[str, tf.Tensor] = {}
        self._are_there: dict[tuple[int, Size], tf.Tensor] = {}
        with tf.device(HOST):
            self._sizes = list(part_sizes)
            self._split_rows: dict[Size, tuple[list[Any], list[Any]]] = {
                BATCH: (self._sizes, offsets_of(self._sizes))
            }
            self._total = tf.add_n(self._sizes)
        self._times = None
        if recorder is not None:
            replicas = [micro_batch.replica for micro_batch in self._layout.micro_batches]
            self._times = Times(self._sizes, replicas, recorder)
        self._of_samples = set() if recorder is None else _made_of_samples(partition)
        for tensor, value in zip(partition.graph.inputs, inputs, strict=True):
            self._whole[tensor] = value

    def call_part(
        self,
        function: TaskFunction,
        branches: tuple[FunctionBuilder, FunctionBuilder] | None,
        part: int,
    ) -> None:
        """Run a task on a part.

        Args:
            function: Of the task.
            branches: What runs instead with samples and without, where it makes a difference.
            part: The number of the part.
        """
        task = function.task
        device = self._layout.device(part, task.place.stages)
        before = [op for one in function.after for op in self._ran.get(one, ())]
        if self._turns is not None:
            before += self._turns.begin(device, task)
        # Outside of the call's own place and order: weights of another device are fetched early.
        arguments = [self._argument(a, part, device) for a in function.builder.arguments]
        has_samples = None if branches is None else self._has_samples(part, task.place.rows)
        with tf.control_dependencies(before), tf.device(device):
            results = self._call_part(function, branches, part, arguments, has_samples)
        done = [self._end_of(results[0], branches is not None, device)] if results else []
        for tensor, result in zip(task.fetches, results, strict=True):
            state = self._partition.sharding.states[tensor]
            parts = self._parts.setdefault((tensor, state), [None] * len(self._sizes))
            parts[part] = result
            # Of what the parts need themselves, all are kept, and nothing is added up before.
            is_read = state == SUM and tensor not in self._partition.summed
            if self._turns is not None and isinstance(state, Partial) and not is_read:
                # Added up at once, so that no more than the sum and one more are kept.
                earlier = self._sums.get((tensor, device))
                if earlier is not None and tensor not in function.added_inside:
                    with tf.device(device):
                        result = _COMBINE[state.combine]([earlier, result])
                    done.append(result.op)
                self._sums[tensor, device] = result
        if self._turns is not None:
            self._turns.end(device, done)

    def call(self, function: TaskFunction) -> None:
        """Run a task that is computed once, on its device."""
        task = function.task
        before = [op for one in function.after for op in self._ran.get(one, ())]
        arguments = [self._argument(a, None, task.where) for a in function.builder.arguments]
        graph: Any = tf.compat.v1.get_default_graph()
        first = len(graph.get_operations())
        with tf.control_dependencies(before), tf.device(task.where):
            results = graphs.call(
                function.builder.function,
                arguments,
                function.builder.outputs,
                stateful=function.is_stateful,
                by_xla=function.by_xla,
            )
            operation = graph.get_operations()[-1] if len(graph.get_operations()) > first else None
        if operation is not None:
            self._ran[task] = [operation]
            if function.is_read_only and function.is_stateful:
                graphs.mark_read_only(operation)
        self._whole.update(zip(task.fetches, results, strict=True))

    def end(self) -> None:
        """Hand the times of the parts over, if they were measured."""
        if self._times is not None:
            self._times.hand_over()

    def result(self, tensor: Tensor) -> Any:
        """Return an output of the step; what is joined for the caller is joined on the host."""
        is_joined = tensor not in self._whole and tensor.node.op != "Const"
        value = self._get_whole(tensor, HOST if is_joined else "")
        static = tensor.node.static_shapes[tensor.index]
        if static is not None and tensor.dtype not in (tf.resource, tf.variant):
            value = tf.identity(value)
            value.set_shape(static)
        return value

    def _call_part(
        self,
        function: TaskFunction,
        branches: tuple[FunctionBuilder, FunctionBuilder] | None,
        part: int,
        arguments: list[Any],
        has_samples: Any,
    ) -> list[Any]:
        builder = function.builder

        def call(given: list[Any]) -> list[Any]:
            if branches is None:
                return graphs.call(
                    builder.function,
                    given,
                    builder.outputs,
                    stateful=False,
                    by_xla=function.by_xla,
                )
            with_samples, no_samples = branches
            return graphs.call_if(
                has_samples,
                with_samples.function,
                no_samples.function,
                given,
                builder.outputs,
            )

        waits = [
            k
            for k, one in enumerate(builder.arguments)
            if isinstance(one, TensorArgument) and one.tensor in self._of_samples
        ]
        if self._times is None or not waits:
            return call(arguments)
        return self._times.timed(part, call, arguments, waits)

    def _end_of(self, result: Any, is_branch: bool, device: str) -> tf.Operation:
        """Return the operation that ends a call.

        Where TensorFlow puts branches in the place of a condition, what waits for the condition
        waits for the choice of the branch only, and what reads a result for the branch.
        """
        if not is_branch or self._turns is None:
            return result.op
        with tf.device(device):
            return tf.identity(result).op

    def _has_samples(self, part: int, rows: Size) -> Any:
        """Return whether a part has some of the rows, as a tensor that waits for nothing.

        Made once, outside of the control dependencies of calls. TensorFlow leaves these out for an
        operation that reads one of the same block: a call would be in order by way of this alone.
        """
        key = (part, rows)
        if key not in self._are_there:
            with tf.device(HOST):
                self._are_there[key] = self._rows(rows)[0][part] > 0
        return self._are_there[key]

    def _argument(self, argument: Argument, part: int | None, device: str) -> Any:
        if isinstance(argument, NumberArgument):
            return self._number(argument.name, part)
        if isinstance(argument, SumArgument):
            return self._sum_so_far(argument.tensor, device)
        assert isinstance(argument, TensorArgument), argument
        tensor, state = argument.tensor, argument.state
        held = self._partition.sharding.states[tensor]
        if part is not None and (tensor, held) in self._parts and serves(held, state):
            return self._parts[tensor, held][part]
        if part is None or state == REPLICATED:
            value = self._get_whole(tensor, device)
            return value if part is None else self._fetched(tensor, value, device)
        return self._get_parts(tensor, state)[part]

    def _sum_so_far(self, tensor: Tensor, device: str) -> Any:
        key = (tensor, device)
        if key not in self._sums:
            with tf.device(device), tf.control_dependencies(None):
                shape: Any = tensor.shape
                self._sums[key] = tf.zeros(shape, tensor.dtype)
        return self._sums[key]

    def _fetched(self, tensor: Tensor, value: Any, device: str) -> Any:
        """Return a tensor that another device holds, fetched in time for the turn of a stage."""
        task = self._partition.task_of.get(tensor.node)
        if self._turns is None or task is None or task.is_parts or task.where == device:
            return value
        return self._turns.fetch(device, value, task.where)

    def _number(self, name: str, part: int | None) -> tf.Tensor:
        if name == "B":
            return self._total
        if isinstance(name, PartSymbol):
            assert part is not None
            return self._rows(name.rows)[name.is_offset][part]
        if name not in self._symbols:
            source = self._partition.inference.symbols[name]
            with tf.device(HOST):
                if source.axis is None:
                    value = tf.reshape(self._get_whole(source.tensor, HOST), [-1])[source.index]
                else:
                    value = self._length(source.tensor, source.axis)
                self._symbols[name] = tf.cast(value, tf.int32)
        return self._symbols[name]

    def _rows(self, rows: Size) -> tuple[list[Any], list[Any]]:
        """Return how many of some rows each part has, and how many the parts before it have."""
        if rows not in self._split_rows:
            with tf.device(HOST), tf.control_dependencies(None):
                sizes = rows_by_samples(self._size(rows, tf.int32), self._sizes)
                self._split_rows[rows] = (sizes, offsets_of(sizes))
        return self._split_rows[rows]

    def _length(self, tensor: Tensor, axis: int) -> Any:
        """Return the size of an axis that is the same in all parts.

        It is read where there are samples: of none, some kernels make tensors of another size.
        """
        if tensor in self._whole:
            return tf.shape(self._whole[tensor])[axis]
        state, parts = next((s, parts) for (t, s), parts in self._parts.items() if t is tensor)
        lengths = tf.stack([tf.shape(part)[axis] for part in parts])
        rows = state.rows if isinstance(state, Sharded) else BATCH
        return lengths[tf.argmax(tf.stack(self._rows(rows)[0]))]

    def _get_whole(self, tensor: Tensor, device: str) -> Any:
        if tensor in self._whole:
            return self._whole[tensor]
        with tf.device(device or HOST):
            if tensor.node.op == "Const":
                value: Any = tf.constant(tf.make_ndarray(tensor.node.attrs["value"].tensor))
            elif tensor.is_sizes:
                assert tensor.value is not None
                numbers = [self._size(size, tensor.dtype) for size in tensor.value]
                value = numbers[0] if tensor.rank == 0 else tf.stack(numbers)
            else:
                value = self._join(tensor)
        self._whole[tensor] = value
        return value

    def _join(self, tensor: Tensor) -> Any:
        state = self._partition.sharding.states[tensor]
        parts = self._parts[tensor, state]
        if isinstance(state, Partial):
            sums = [total for (one, _), total in self._sums.items() if one is tensor]
            parts = sums or parts
            return _COMBINE[state.combine](parts) if len(parts) > 1 else parts[0]
        if isinstance(state, PerPart):
            return self._mean_by_samples(parts)
        if not isinstance(state, Sharded):
            return parts[0]
        assert tensor.shape is not None
        if tensor.dtype == tf.variant:
            return self._join_lists(tensor, state, parts)
        return self._join_rows(tensor, state, parts)

    def _join_rows(self, tensor: Tensor, state: Sharded, parts: Sequence[Any]) -> Any:
        """Join the rows of the parts; of several blocks, block by block."""
        if state.outer == 1:
            return tf.concat(parts, state.axis)
        assert tensor.shape is not None
        rank = len(tensor.shape)
        # [outer, b, inner] of every part -> [outer, B, inner].
        outer = self._size(state.outer, tf.int32)
        per_sample = self._rows_per_sample(tensor, state)
        seen = []
        for part, size in zip(parts, self._rows(state.rows)[0], strict=True):
            front, _, behind = tf.split(tf.shape(part), [state.axis, 1, rank - state.axis - 1])
            seen.append(tf.reshape(part, tf.concat([front, [outer, size * per_sample], behind], 0)))
        joined = tf.concat(seen, state.axis + 1)
        front, rows, behind = tf.split(tf.shape(joined), [state.axis, 2, rank - state.axis - 1])
        return tf.reshape(joined, tf.concat([front, [rows[0] * rows[1]], behind], 0))

    def _mean_by_samples(self, parts: Sequence[Any]) -> Any:
        """Return the mean of what the parts hold; a part without samples may hold anything."""
        weighted = []
        for part, size in zip(parts, self._sizes, strict=True):
            weight = tf.cast(size, part.dtype) / tf.cast(self._total, part.dtype)
            weighted.append(tf.where(size > 0, part * weight, tf.zeros_like(part)))
        return tf.add_n(weighted)

    def _join_lists(self, tensor: Tensor, state: Sharded, parts: Sequence[Any]) -> Any:
        """Join tensor lists element by element; of rows, one list behind the other."""
        dtype = element_dtype(tensor)
        if state.axis == 0:
            return functools.reduce(
                lambda one, other: tf.raw_ops.TensorListConcatLists(
                    input_a=one, input_b=other, element_dtype=dtype
                ),
                parts,
            )
        assert tensor.shape is not None
        shape: list[Any] = [size if isinstance(size, int) else -1 for size in tensor.shape[1:]]
        per_sample = rows_per_sample(tensor.shape[state.axis], state)
        stacked = []
        for part, rows in zip(parts, self._rows(state.rows)[0], strict=True):
            known = list(shape)
            # A loop without rounds leaves its list empty: then nothing else says what is stacked.
            if isinstance(per_sample, int) and isinstance(state.outer, int):
                known[state.axis - 1] = rows * (per_sample * state.outer)
            stacked.append(
                tf.raw_ops.TensorListStack(
                    input_handle=part, element_shape=known, element_dtype=dtype
                )
            )
        return tf.raw_ops.TensorListFromTensor(
            tensor=self._join_rows(tensor, state, stacked), element_shape=shape
        )

    def _get_parts(self, tensor: Tensor, state: State) -> list[Any]:
        if (tensor, state) not in self._parts:
            whole = self._get_whole(tensor, "")
            with tf.device(_device_of(whole)):
                self._parts[tensor, state] = self._split(tensor, state, whole)
        return self._parts[tensor, state]

    def _split(self, tensor: Tensor, state: State, whole: Any) -> list[Any]:
        count = len(self._sizes)
        if isinstance(state, Unset):
            return [whole] * count
        if isinstance(state, Partial):
            # Counted once: the other parts have what changes nothing.
            if state.combine in ("sum", "prod"):
                neutral = tf.zeros_like if state.combine == "sum" else tf.ones_like
                return [whole] + [neutral(whole)] * (count - 1)
            return [whole] * count
        assert isinstance(state, Sharded) and tensor.shape is not None
        per_sample = self._rows_per_sample(tensor, state)
        sizes = [size * per_sample for size in self._rows(state.rows)[0]]
        if state.outer == 1:
            return _slices(whole, sizes, state.axis, len(tensor.shape))
        outer = self._size(state.outer, tf.int32)
        shape = tf.shape(whole)
        axis = state.axis
        front, _, behind = tf.split(shape, [axis, 1, len(tensor.shape) - axis - 1])
        rows = self._size(state.rows, tf.int32) * per_sample
        seen = tf.reshape(whole, tf.concat([front, [outer, rows], behind], 0))
        parts = _slices(seen, sizes, axis + 1, len(tensor.shape) + 1)
        return [
            tf.reshape(part, tf.concat([front, [outer * size], behind], 0))
            for part, size in zip(parts, sizes, strict=True)
        ]

    def _rows_per_sample(self, tensor: Tensor, state: Sharded) -> Any:
        """Return the rows of a sample in one block, also where there are no blocks: ``x * 0``."""
        assert tensor.shape is not None
        rows = rows_per_sample(tensor.shape[state.axis], state)
        assert rows is not None
        return self._size(rows, tf.int32)

    def _size(self, size: Size, dtype: tf.DType) -> Any:
        """Return a size as a scalar."""
        if isinstance(size, int):
            return tf.constant(size, dtype)
        names = {name for monomial in size.terms for name in monomial}
        values = {name: tf.cast(self._number(name, None), dtype) for name in names}
        return evaluate(size, values, tf.constant(1, dtype))


def _made_of_samples(partition: Partition) -> set[Tensor]:
    """Return the tensors that depend on the batch, and not on variables alone."""
    states = partition.sharding.states
    found = {tensor for tensor in partition.graph.inputs if isinstance(states[tensor], Sharded)}
    for node in partition.graph:
        if any(tensor in found for tensor in node.inputs):
            found.update(node.outputs)
    return found


def _slices(whole: Any, sizes: Sequence[tf.Tensor], axis: int, rank: int) -> list[Any]:
    """Cut a tensor along an axis.

    Not by `tf.split`: TensorFlow's graph optimizer gives wrong numbers for the maximum of a
    monotonic function of what was split.
    """
    parts, begin = [], tf.constant(0)
    for size in sizes:
        begins = [begin if k == axis else 0 for k in range(rank)]
        lengths = [size if k == axis else -1 for k in range(rank)]
        parts.append(tf.slice(whole, begins, lengths))
        begin = begin + size
    return parts


def element_dtype(tensor: Tensor) -> tf.DType:
    """Return the dtype of the elements of a tensor list."""
    node = tensor.node
    if "element_dtype" in node.attrs:
        return tf.as_dtype(node.attrs["element_dtype"].type)
    if node.op in LOOPS:
        return element_dtype(node.inputs[tensor.index])
    for body in node.bodies.values():
        if len(body.outputs) > tensor.index and body.outputs[tensor.index].dtype == tf.variant:
            return element_dtype(body.outputs[tensor.index])
    return element_dtype(node.inputs[0])


def _device_of(value: Any) -> str:
    return getattr(value, "device", "") or HOST
