"""The `tf.data` pipelines that a program trains on, from their source to their end."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass

from evener.analysis import Call, Kind, Module, Program
from evener.doctor.queries.steps import steps_of
from evener.doctor.queries.training import fits

_FROM_FILES = (
    "tf.data.TFRecordDataset",
    "tf.data.TextLineDataset",
    "tf.data.FixedLengthRecordDataset",
    "tf.data.Dataset.list_files",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A chain of datasets.

    Args:
        last: The last call of it that is in the program.
        maps: Its calls of ``map``.
        prefetches: Whether it prefetches somewhere after its last map.
        reads_files: Whether it reads files itself.
        generates: Whether it is made by a Python generator.
        is_distributed: Whether a strategy distributes it, and so prefetches.
        num_parallel_interleaves: Number of its interleaves that run in parallel.
    """

    last: Call
    maps: tuple[Call, ...]
    prefetches: bool
    reads_files: bool
    generates: bool
    is_distributed: bool
    num_parallel_interleaves: int


@functools.lru_cache(maxsize=4)
def pipelines_of(program: Program) -> tuple[Pipeline, ...]:
    """Return the pipelines that are trained on: given to ``fit``, or gone through in a loop."""
    by_node = {call.node: call for call in program.all_calls}
    found: dict[ast.AST, Pipeline] = {}
    for module, used in _used(program):
        for value in program.origins(module, used):
            if not isinstance(value.node, ast.Call):
                continue
            pipeline = _pipeline(program, value.module, value.node, by_node)
            if pipeline is not None:
                found.setdefault(pipeline.last.node, pipeline)
    return tuple(found.values())


def _used(program: Program) -> list[tuple[Module, ast.AST]]:
    used: list[tuple[Module, ast.AST]] = []
    for fit in fits(program):
        given = fit.argument(0, "x")
        if given is not None:
            used.append((fit.module, given))
    for loop, module in steps_of(program).loops.items():
        if isinstance(loop, ast.For):
            used.append((module, loop.iter))
            # What enumerate, zip and tqdm are given.
            used += [
                (module, argument)
                for node in ast.walk(loop.iter)
                if isinstance(node, ast.Call)
                for argument in node.args
            ]
    return used


def _pipeline(
    program: Program, module: Module, node: ast.Call, by_node: dict[ast.Call, Call]
) -> Pipeline | None:
    """Go from the end of a pipeline to its source."""
    links: list[Call] = []
    distributed = False
    where, current = module, node
    seen: set[ast.AST] = set()
    while current not in seen:
        seen.add(current)
        call = by_node.get(current)
        if call is None:
            break
        method = current.func.attr if isinstance(current.func, ast.Attribute) else ""
        if method.endswith("distribute_dataset") and current.args:
            distributed, before = True, current.args[0]
        elif method.endswith("distribute_datasets_from_function"):
            return None
        else:
            links.append(call)
            if call.name.startswith(("tf.data.", "keras.utils.", "tfds.", "tensorflow_datasets.")):
                break
            if not isinstance(current.func, ast.Attribute):
                break
            before = current.func.value
        values = [
            value
            for value in program.origins(where, before)
            if isinstance(value.node, ast.Call) and not value.steps
        ]
        if not values:
            break
        where, following = values[0].module, values[0].node
        assert isinstance(following, ast.Call)
        current = following
    if not links or not _is_dataset(program, links[0]):
        return None
    return _described(links, distributed)


def _is_dataset(program: Program, call: Call) -> bool:
    return Kind.DATASET in program.kinds(call.module, call.node)


def _described(links: list[Call], distributed: bool) -> Pipeline:
    methods = [
        link.node.func.attr if isinstance(link.node.func, ast.Attribute) else "" for link in links
    ]
    maps = [link for link, method in zip(links, methods, strict=True) if method == "map"]
    until = methods.index("map") if "map" in methods else len(methods)
    parallel = [
        link
        for link, method in zip(links, methods, strict=True)
        if method == "interleave" and link.argument(None, "num_parallel_calls") is not None
    ]
    return Pipeline(
        last=links[0],
        maps=tuple(maps),
        prefetches="prefetch" in methods[:until],
        reads_files=any(link.name in _FROM_FILES for link in links),
        generates=any(link.name == "tf.data.Dataset.from_generator" for link in links),
        is_distributed=distributed,
        num_parallel_interleaves=len(parallel),
    )
