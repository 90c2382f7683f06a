"""Which device owns the variables of each layer, where memory is short.

An owner keeps a layer's weights and optimizer state, and the partial gradients that arrive for
them; it need not fetch the weights. Where every device has room, owners are spread as the engine
does. Else each layer goes to the device that has the most room left, and what fits nowhere to the
host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evener.cost_model.assignment import HOST_OWNER, holders_of
from evener.cost_model.assignment import ReplicaAssignment as Replicas
from evener.profile import LayerCosts, ModelCosts


def owning_bytes(layer: LayerCosts, num_holders: int, *, sums_wait: bool) -> int:
    """Return what the owner of a layer needs for it, beyond fetching its weights.

    Args:
        layer: That it computes with too.
        num_holders: How many devices compute with the layer.
        sums_wait: Whether the gradients of the others lie on it while it computes; else its own
            wait for them.
    """
    num_others = num_holders - 1
    num_waiting = num_others if sums_wait else min(1, num_others)
    return layer.owned_bytes - layer.weight_bytes + layer.gradient_bytes * num_waiting


def owners_that_fit(
    model: ModelCosts,
    replicas: Sequence[Replicas],
    room: Mapping[int, float],
    *,
    allow_host: bool,
    sums_wait: bool = True,
) -> tuple[int, ...] | None:
    """Return owners that fit into the room that devices have left.

    Args:
        model: The layers.
        replicas: Who computes with them.
        room: For each device what it has left if it owns nothing and fetches every weight.
        allow_host: Whether the host may own what fits nowhere.
        sums_wait: See `owning_bytes`.

    Returns:
        None if they do not fit.
    """
    left = dict(room)
    owners: dict[int, int] = {}
    holders = holders_of(replicas, len(model.layers))
    for place in sorted(range(len(model.layers)), key=lambda k: -model.layers[k].owned_bytes):
        layer, devices = model.layers[place], holders[place]
        needed = owning_bytes(layer, len(devices), sums_wait=sums_wait)
        device = max(devices, key=lambda one: left[one])
        if needed <= left[device] or needed <= 0:
            left[device] -= needed
            owners[place] = device
        elif allow_host:
            owners[place] = HOST_OWNER
        else:
            return None
    return tuple(owners[place] for place in range(len(model.layers)))
