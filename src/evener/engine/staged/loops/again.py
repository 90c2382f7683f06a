"""Activations that are computed again in the backward pass of a run.

The person's tape has used what the forward pass made. When the run ends, what it has used of
the inside of a layer that the plan recomputes is replaced by a copy, computed from the layer's
inputs once the gradient of its results is there:

      x ──► [ layer: a ──► b ] ──► y ──► ...         kept: x and y
      x ──► [ copy:  a'──► b'] ──► gradient ◄── dy   a' waits for dy
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import tensorflow as tf

from evener import _tf_private
from evener.engine.staged.loops.entered import Entered, has_state
from evener.engine.staged.stages.cut import copy_operations, operations_between


class _Region:
    """One call whose activations are computed again, and what the backward pass takes of it."""

    def __init__(self) -> None:
        self.operations: set[tf.Operation] = set()
        self.users: list[tf.Operation] = []


def compute_again(entered: Entered, kept: Sequence[tf.Tensor]) -> None:
    """Let backward passes use copies of what plans compute again.

    Args:
        entered: The operations of a run; the copies are entered too.
        kept: What the replicas have returned.
    """
    regions: dict[int, _Region] = defaultdict(_Region)
    for op, made in entered.items():
        if made.again is not None and made.kind == "forward" and not has_state(op):
            regions[made.again].operations.add(op)
    for op, made in entered.items():
        if made.kind != "backward":
            continue
        for number in {_number(entered, tensor) for tensor in op.inputs}:
            if number in regions:
                regions[number].users.append(op)
    returned = {id(tensor) for tensor in kept}
    for region in regions.values():
        _replace(entered, region, returned)


def _number(entered: Entered, tensor: tf.Tensor) -> int | None:
    made = entered.get(tensor.op)
    return made.again if made is not None and made.kind == "forward" else None


def _replace(entered: Entered, region: _Region, returned: set[int]) -> None:
    """Let the backward pass of one call use copies of its operations."""

    def is_fed(tensor: tf.Tensor) -> bool:
        if tensor.op not in region.operations or id(tensor) in returned:
            return True
        users = (entered.get(user) for user in tensor.consumers() if user not in region.operations)
        return any(made is None or made.kind != "backward" for made in users)

    places = [
        (user, k, tensor)
        for user in region.users
        for k, tensor in enumerate(user.inputs)
        if not is_fed(tensor)
    ]
    if not places:
        return
    inside = [tensor for _, _, tensor in places]
    operations, feeds = operations_between(inside, is_fed)
    # A tape goes back from the end: what was made first has the gradient of the results.
    gradients = [
        tensor
        for tensor in region.users[0].inputs
        if (made := entered.get(tensor.op)) is not None and made.kind == "backward"
    ]
    in_order = [op for op, _ in entered.items() if op in operations]
    begin = [op for op in in_order if not any(t.op in operations for t in op.inputs)]
    copies = {id(tensor): tensor for tensor in (*feeds, *gradients)}
    graph = region.users[0].graph
    with graph.as_default(), tf.control_dependencies(None):
        copied = copy_operations(in_order, copies, dict.fromkeys(begin, gradients))
    for op, copy in copied.items():
        entered.enter_copy(copy, op, region.users[0])
    for user, k, tensor in places:
        _tf_private.use_instead(user, k, copies[id(tensor)])
