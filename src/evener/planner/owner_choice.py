"""Choice of owners if memory is short.

An owner holds a layer's weights and optimizer state, and the partial gradients that arrive for
them; it does not fetch the weights. If every device has enough memory, owners are spread as the
engine does. Otherwise each layer goes to the device with the most free memory, and layers that fit
on no device go to the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evener.cost_model.assignment import HOST_OWNER
from evener.cost_model.assignment import ReplicaAssignment as Replicas
from evener.cost_model.ownership import holders_of
from evener.profile import LayerCosts, ModelCosts


def owning_bytes(layer: LayerCosts, num_holders: int, *, sums_wait: bool) -> int:
    """Return the bytes that owning a layer needs on a device, beyond fetching its weights.

    Args:
        layer: Costs of the layer, which the owner computes too.
        num_holders: Number of devices that compute the layer.
        sums_wait: Whether the gradients of all other devices may be on the owner while it computes;
            otherwise its own gradients wait for theirs.
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
    """Return owners that fit into the free memory of the devices.

    Args:
        model: Costs of the layers.
        replicas: Replicas that compute the layers.
        room: Free bytes of each device if it owns nothing and fetches every weight.
        allow_host: Whether the host may own layers that fit on no device.
        sums_wait: See `owning_bytes`.

    Returns:
        The owner of each layer; None if they do not fit.
    """
    left = dict(room)
    owners: dict[int, int] = {}
    holders = holders_of(replicas, len(model.layers))
    for layer_index in sorted(range(len(model.layers)), key=lambda k: -model.layers[k].owned_bytes):
        layer, devices = model.layers[layer_index], holders[layer_index]
        needed = owning_bytes(layer, len(devices), sums_wait=sums_wait)
        device = max(devices, key=lambda index: left[index])
        if needed <= left[device] or needed <= 0:
            left[device] -= needed
            owners[layer_index] = device
        elif allow_host:
            owners[layer_index] = HOST_OWNER
        else:
            return None
    return tuple(owners[layer_index] for layer_index in range(len(model.layers)))
