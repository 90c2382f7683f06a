"""What the layers of a model cost: in memory anywhere, and in time on each type of device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from evener.errors import ProfileError, did_you_mean
from evener.profile.cluster import Cluster
from evener.profile.curve import Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """What a layer needs wherever it is computed.

    Args:
        name: The path of the layer, as stages of a plan name it.
        weight_bytes: Of its trained weights.
        optimizer_bytes: Of the optimizer's state for these weights.
        state_bytes: Of variables that are not trained, such as moving means.
        other_gradient_bytes: Of gradients beyond those as large as the weights, such as the sums
            of squares that Adam takes of the gradient of an embedding.
        update_bytes: Of what is needed only while the optimizer updates the weights.
        activation_bytes: Per sample: what is kept from its forward to its backward pass.
        boundary_bytes: Per sample: what crosses to later layers if the model is cut behind it,
            results of earlier layers that are still needed included. The same bytes come back as
            gradients.
        workspace_bytes: Per sample: what is needed only while it is computed.
        fused_workspace_bytes: Per sample: the most that is there beside what is kept, gradients of
            activations included, in one call of the passes of all layers; None if not known.
        fused_gradient_bytes: The most by which its gradients exceed its weights that are no longer
            read, in such a call; None if not known.
        kernel_workspace: The bytes that devices were seen to need while it is computed, as a
            function of the samples; None if they do not tell. The greater of both counts.
        forward_flops: Per sample, of the forward pass.
        forward_barriers: How often all micro-batches of all replicas meet in its forward pass,
            as at a `BatchNormalization` of the whole batch.
        backward_barriers: How often they meet in its backward pass.
        barrier_bytes: Per sample: what waits at such a barrier besides what is kept anyway.
        kind: Layers of one kind cost the same; empty where each has its own costs.
    """

    name: str
    weight_bytes: int = 0
    optimizer_bytes: int = 0
    state_bytes: int = 0
    other_gradient_bytes: int = 0
    update_bytes: int = 0
    activation_bytes: float = 0.0
    boundary_bytes: float = 0.0
    workspace_bytes: float = 0.0
    fused_workspace_bytes: float | None = None
    fused_gradient_bytes: int | None = None
    kernel_workspace: Curve | None = None
    forward_flops: float = 0.0
    forward_barriers: int = 0
    backward_barriers: int = 0
    barrier_bytes: float = 0.0
    kind: str = ""

    @property
    def owned_bytes(self) -> int:
        """What the owner of its variables keeps."""
        return self.weight_bytes + self.optimizer_bytes + self.state_bytes

    def workspace(self, samples: float) -> float:
        """Return the bytes that are needed only while it is computed, for so many samples."""
        return self.workspace_bytes * samples + self._unseen(samples)

    def fused_workspace(self, samples: float) -> float:
        """Return the bytes beside what is kept in one call of all passes, for so many samples.

        That is as in a call of its own if nothing else is known, gradients of activations left out.
        """
        known = self.fused_workspace_bytes
        per_sample = self.workspace_bytes if known is None else known
        return per_sample * samples + self._unseen(samples)

    def _unseen(self, samples: float) -> float:
        """Return the bytes that kernels need beyond the tensors of a step."""
        seen = 0.0 if self.kernel_workspace is None else self.kernel_workspace(samples)
        return max(0.0, seen - self.workspace_bytes * samples)

    @property
    def gradient_bytes(self) -> int:
        """What a device hands over to that owner."""
        return self.weight_bytes + self.other_gradient_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosts:
    """A model as a chain of layers, in the order in which samples pass through them.

    Args:
        name: Of the model, for tables.
        layers: At least one, with different names.
        input_bytes: Per sample, of what the step is given.
        updates_wait: Whether no weight is updated before all gradients are there, as with
            clipping by the norm of all.
    """

    name: str
    layers: tuple[LayerCosts, ...]
    input_bytes: float = 0.0
    updates_wait: bool = False

    def __post_init__(self) -> None:
        """Refuse a model without layers, or with two of one name."""
        names = [layer.name for layer in self.layers]
        twice = next((name for name in names if names.count(name) > 1), None)
        if not names or twice is not None:
            raise ProfileError(
                "PROF-002",
                f"The costs of {self.name!r} name the layer {twice!r} twice."
                if names
                else f"The costs of {self.name!r} have no layers.",
                why="A plan names each layer once, to say where it is computed.",
                fix="Profile the model again, or correct the file.",
            )

    @property
    def last_barrier(self) -> int:
        """The place of the last layer at which all micro-batches meet; -1 if there is none."""
        places = range(len(self.layers))
        met = (
            k for k in places if self.layers[k].forward_barriers + self.layers[k].backward_barriers
        )
        return max(met, default=-1)

    @property
    def weight_bytes(self) -> int:
        """Of all trained weights."""
        return sum(layer.weight_bytes for layer in self.layers)

    @property
    def owned_bytes(self) -> int:
        """Of all variables and the optimizer's state."""
        return sum(layer.owned_bytes for layer in self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """What one type of device takes for a layer.

    Args:
        forward: The forward pass of one micro-batch.
        backward: Backward seconds of one micro-batch when fused with the forward pass.
        backward_separate: Seconds of the backward pass in a call of its own, in which kernels cannot
            reuse what the forward kernels cached; None if they are those of `backward`.
        update_seconds: The optimizer's update of its weights, once per step.
        accumulate_seconds: Adding the gradients of one more micro-batch to those before.
        workspace: The bytes that a pass was seen to need beside what it is given and hands over,
            as a function of the samples; None if the device does not tell.
    """

    forward: Curve
    backward: Curve
    backward_separate: Curve | None = None
    update_seconds: float = 0.0
    accumulate_seconds: float = 0.0
    workspace: Curve | None = None

    def backward_seconds(self, samples: float, *, recompute: bool, separate: bool) -> float:
        """Return the time of the backward pass of one micro-batch.

        Args:
            samples: Of the micro-batch.
            recompute: Whether activations are computed again, in the same call.
            separate: Whether the backward pass is a call of its own.
        """
        return sum(
            one(samples) for one in self.backward_curves(recompute=recompute, separate=separate)
        )

    def backward_curves(self, *, recompute: bool, separate: bool) -> tuple[Curve, ...]:
        """Return the curves whose sum is the time of the backward pass; see `backward_seconds`."""
        if recompute:
            return self.forward, self.backward
        return (self.backward_separate or self.backward if separate else self.backward,)

    def scaled(self, factor: float) -> LayerTimes:
        """Return the times of a device that computes both passes ``factor`` times as long."""
        separate = self.backward_separate
        return dataclasses.replace(
            self,
            forward=self.forward.scaled(factor),
            backward=self.backward.scaled(factor),
            backward_separate=None if separate is None else separate.scaled(factor),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CostProfile:
    """All that a planner has to know: the model, the devices, and the time of each on each.

    Args:
        model: The layers.
        cluster: The devices and the links between them.
        times: For each type of device the times of the layers, in the order of the model.
        step_overhead_seconds: What every step costs beside its layers.

    Raises:
        ProfileError: PROF-003 if the times of a type of device are missing or incomplete.
    """

    model: ModelCosts
    cluster: Cluster
    times: Mapping[str, tuple[LayerTimes, ...]] = field(hash=False)
    step_overhead_seconds: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a profile that lacks times."""
        for device in self.cluster.devices:
            found = self.times.get(device.type)
            if found is None or len(found) != len(self.model.layers):
                count = 0 if found is None else len(found)
                raise ProfileError(
                    "PROF-003",
                    f"The profile has times of {count} layers for devices of type {device.type!r}; "
                    f"the model has {len(self.model.layers)}.",
                    why="Each type of device needs the time of every layer."
                    + did_you_mean(device.type, list(self.times)),
                    fix="Profile again.",
                )
