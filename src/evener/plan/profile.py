"""Cost profiles: costs of the layers of a model, devices, and links between them.

Pure Python: nothing here imports TensorFlow.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from evener.errors import ProfileError, did_you_mean

# Curves: seconds, or bytes, as a function of the number of samples.


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds as a function of the number of samples: piecewise linear, never falling.

    0 samples take 0 seconds. Fewer samples than at the first point take as long as the first point,
    because launch overhead dominates. The curve is extrapolated with the slope of its last part.

    Args:
        points: Pairs (samples, seconds), at least one, in ascending order of samples; samples above
            0, seconds 0 or more. A point below an earlier one, which is noise, is raised to it.

    Raises:
        ProfileError: PROF-001 if points are missing, not ascending or not finite.

    >>> curve = Curve(((1, 0.010), (10, 0.019)))
    >>> round(curve(4), 6), round(curve(20), 6), curve(0)
    (0.013, 0.029, 0.0)
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        points = tuple((float(samples), float(seconds)) for samples, seconds in self.points)
        rising = all(a[0] < b[0] for a, b in itertools.pairwise(points))
        numbers = [number for point in points for number in point]
        usable = all(math.isfinite(n) and n >= 0 for n in numbers)
        if not points or not rising or not usable or points[0][0] <= 0:
            raise ProfileError(
                "PROF-001",
                f"A curve cannot be made of the points {list(self.points)}.",
                why="It needs pairs (samples, seconds), at least one, by rising samples above 0, "
                "with seconds of 0 or more.",
                fix="Write for example [[1, 0.010], [64, 0.080]].",
            )
        raised = itertools.accumulate((seconds for _, seconds in points), max)
        pairs = zip((samples for samples, _ in points), raised, strict=True)
        object.__setattr__(self, "points", tuple(pairs))

    def __call__(self, samples: float) -> float:
        points = self.points
        if samples <= 0:
            return 0.0
        if samples <= points[0][0]:
            return points[0][1]
        if len(points) == 1:
            # With a single point, time beyond it is proportional to the samples.
            return points[0][1] * samples / points[0][0]
        after = min(bisect.bisect_left(points, (samples, -1.0)), len(points) - 1)
        (first, low), (last, high) = points[after - 1], points[after]
        return low + (high - low) * (samples - first) / (last - first)

    def scaled(self, factor: float) -> Curve:
        """Return the curve with all seconds multiplied by a factor, 0 or more."""
        return Curve(tuple((samples, seconds * factor) for samples, seconds in self.points))

    @staticmethod
    def total(curves: Iterable[Curve]) -> Curve:
        """Return the sum of curves, such as those of the layers of a stage.

        >>> Curve.total([Curve(((1, 1.0), (3, 2.0))), Curve(((1, 1.0), (2, 3.0)))])
        Curve(points=((1.0, 2.0), (2.0, 4.5), (3.0, 7.0)))
        """
        return Curve._combined(curves, math.fsum)

    @staticmethod
    def most(curves: Iterable[Curve]) -> Curve:
        """Return the maximum of curves; it is exact at their points."""
        return Curve._combined(curves, max)

    @staticmethod
    def _combined(curves: Iterable[Curve], combine: Callable[[Iterable[float]], float]) -> Curve:
        curves = list(curves)
        sample_counts = sorted({samples for curve in curves for samples, _ in curve.points})
        return Curve(tuple((n, combine(curve(n) for curve in curves)) for n in sample_counts))


# Devices of one or more machines, and the links between them.

HOST_MEMORY = "host"
"""Name of the host memory, which may own variables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Link between devices, or between a device and the host.

    Args:
        bytes_per_second: Bandwidth in each direction, above 0; ``inf`` if devices share memory.
        latency_seconds: Latency of one transfer in seconds, 0 or more.

    Raises:
        ProfileError: PROF-004 for an impossible bandwidth or latency.
    """

    bytes_per_second: float = math.inf
    latency_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_second > 0 or not 0 <= self.latency_seconds < math.inf:
            raise ProfileError(
                "PROF-004",
                f"A link of {self.bytes_per_second:g} bytes per second and "
                f"{self.latency_seconds:g} seconds of latency cannot be planned for.",
                why="The bandwidth must be above 0, and the latency 0 or more.",
                fix="Correct the link, or leave the devices behind it out.",
            )

    def seconds(self, num_bytes: float) -> float:
        """Return the seconds of one transfer; 0 for no bytes."""
        return self.latency_seconds + num_bytes / self.bytes_per_second if num_bytes > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDevice:
    """Device of a cluster.

    Args:
        name: Device name, such as ``"gpu:0"`` or ``"worker:1/gpu:0"``.
        type: Type of the device; devices of one type compute each layer in the same time.
        memory_bytes: Memory that a plan may use; None if it is unlimited.
        machine: Number of its machine, from 0.
    """

    name: str
    type: str
    memory_bytes: int | None = None
    machine: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Machine of a cluster.

    Args:
        link: Link between two of its devices.
        host_link: Link between a device and host memory.
        host_memory_bytes: Memory of the host; None if it is unlimited.
        host_update_bytes_per_second: Bandwidth of the host when it updates variables, reads and
            writes together; about its memory bandwidth.
        shares_link: Whether all transfers between its devices share one bus, as through the host;
            otherwise each device has its own link.
    """

    link: Link = Link()
    host_link: Link = Link()
    host_memory_bytes: int | None = None
    host_update_bytes_per_second: float = 2e10
    shares_link: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Devices, machines and the network between them.

    Args:
        devices: Devices, at least one, with different names.
        machines: Machines, in the order of their numbers.
        network: Link between two machines; each machine has one.
        name: Name of the cluster, for tables.

    Raises:
        ProfileError: PROF-005 for no devices, a duplicate name, or an unknown machine.
    """

    devices: tuple[ClusterDevice, ...]
    machines: tuple[Machine, ...] = (Machine(),)
    network: Link = Link()
    name: str = ""

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        problem = None
        if not names:
            problem = "It has no devices"
        elif len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            problem = f"The device {twice!r} is there twice"
        else:
            for device in self.devices:
                if not 0 <= device.machine < len(self.machines):
                    problem = f"{device.name} is in machine {device.machine}, which is not there"
        if problem is not None:
            raise ProfileError(
                "PROF-005",
                f"The cluster {self.name!r} cannot be planned for.",
                why=f"{problem}.",
                fix="Correct its description.",
            )

    def link(self, device: int, other: int) -> Link:
        """Return the link between two devices, given by their indices in `devices`."""
        if device == other:
            return Link()
        machine = self.devices[device].machine
        if machine == self.devices[other].machine:
            return self.machines[machine].link
        return self.network


# Costs of the layers of a model: memory, and time on each type of device.


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """Device-independent costs of a layer.

    Args:
        name: Path of the layer, as stages of a plan name it.
        weight_bytes: Bytes of its trained weights.
        optimizer_bytes: Bytes of the optimizer state of these weights.
        state_bytes: Bytes of variables that are not trained, such as moving means.
        other_gradient_bytes: Bytes of gradients beyond the size of the weights, such as the sums of
            squares that Adam computes from the gradient of an embedding.
        update_bytes: Temporary bytes of the optimizer's update.
        activation_bytes: Bytes per sample saved from its forward to its backward pass.
        boundary_bytes: Bytes per sample that cross to later layers if the model is cut after it,
            including results of earlier layers that are still needed. As many bytes of gradients
            come back.
        workspace_bytes: Temporary bytes per sample while it is computed.
        fused_workspace_bytes: Peak temporary bytes per sample excluding saved activations, but with
            gradients of activations, when all passes are fused; None if unknown.
        fused_gradient_bytes: Most bytes by which its gradients exceed its weights already freed,
            when all passes are fused; None if unknown.
        kernel_workspace: Measured workspace in bytes as a function of samples; None if unknown. The
            larger of this and ``workspace_bytes`` counts.
        forward_flops: Floating-point operations per sample of the forward pass.
        forward_barriers: Number of barriers in its forward pass, such as those of a
            `BatchNormalization` over the global batch.
        backward_barriers: Number of barriers in its backward pass.
        barrier_bytes: Bytes per sample alive across a barrier, excluding saved activations.
        kind: Signature that layers with the same costs share; empty if it is unique.
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
        """Bytes that the owner of its variables stores."""
        return self.weight_bytes + self.optimizer_bytes + self.state_bytes

    def workspace(self, samples: float) -> float:
        """Return the temporary bytes while it is computed, for a number of samples."""
        return self.workspace_bytes * samples + self._beyond_tensors(samples)

    def fused_workspace(self, samples: float) -> float:
        """Return the temporary bytes when all passes are fused, for a number of samples.

        If they are unknown, they are those of a separate call, without gradients of activations.
        """
        known = self.fused_workspace_bytes
        per_sample = self.workspace_bytes if known is None else known
        return per_sample * samples + self._beyond_tensors(samples)

    def _beyond_tensors(self, samples: float) -> float:
        """Return the bytes that kernels need beyond the tensors of a step."""
        seen = 0.0 if self.kernel_workspace is None else self.kernel_workspace(samples)
        return max(0.0, seen - self.workspace_bytes * samples)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of gradients that a device sends to the owner."""
        return self.weight_bytes + self.other_gradient_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosts:
    """Costs of a model: a chain of layers, in the order in which samples pass through them.

    Args:
        name: Name of the model, for tables.
        layers: Layers, at least one, with different names.
        input_bytes: Bytes per sample of the input of the step.
        updates_wait: Whether no weight is updated before all gradients are computed, as with
            clipping by the global norm.
    """

    name: str
    layers: tuple[LayerCosts, ...]
    input_bytes: float = 0.0
    updates_wait: bool = False

    def __post_init__(self) -> None:
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
        """Index of the last layer with a barrier; -1 if there is none."""
        with_barriers = (
            index
            for index, layer in enumerate(self.layers)
            if layer.forward_barriers + layer.backward_barriers
        )
        return max(with_barriers, default=-1)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all trained weights."""
        return sum(layer.weight_bytes for layer in self.layers)

    @property
    def owned_bytes(self) -> int:
        """Bytes of all variables, optimizer state included."""
        return sum(layer.owned_bytes for layer in self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Times of a layer on one type of device.

    Args:
        forward: Forward seconds of one micro-batch.
        backward: Backward seconds of one micro-batch when fused with the forward pass.
        backward_separate: Seconds of the backward pass in a call of its own, in which kernels
            cannot reuse what the forward kernels cached; None if they are those of `backward`.
        update_seconds: Seconds of the optimizer's update of its weights, once per step.
        accumulate_seconds: Seconds of adding the gradients of one micro-batch to those before.
        workspace: Measured bytes of a pass besides its arguments and results, as a function of
            samples; None if unknown.
    """

    forward: Curve
    backward: Curve
    backward_separate: Curve | None = None
    update_seconds: float = 0.0
    accumulate_seconds: float = 0.0
    workspace: Curve | None = None

    def backward_seconds(self, samples: float, *, recompute: bool, separate: bool) -> float:
        """Return the seconds of the backward pass of one micro-batch.

        Args:
            samples: Samples of the micro-batch.
            recompute: Whether activations are recomputed, in the same call.
            separate: Whether the backward pass is a separate call.
        """
        return sum(
            curve(samples) for curve in self.backward_curves(recompute=recompute, separate=separate)
        )

    def backward_curves(self, *, recompute: bool, separate: bool) -> tuple[Curve, ...]:
        """Return the curves whose sum is the backward time; see `backward_seconds`."""
        if recompute:
            return self.forward, self.backward
        return (self.backward_separate or self.backward if separate else self.backward,)

    def scaled(self, factor: float) -> LayerTimes:
        """Return the times with both passes multiplied by ``factor``."""
        separate = self.backward_separate
        return dataclasses.replace(
            self,
            forward=self.forward.scaled(factor),
            backward=self.backward.scaled(factor),
            backward_separate=None if separate is None else separate.scaled(factor),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CostProfile:
    """Cost profile: everything that the planner needs to know.

    Args:
        model: Costs of the layers.
        cluster: Devices and the links between them.
        times: Times of the layers by type of device, in the order of the model.
        step_overhead_seconds: Seconds of every step outside its layers.

    Raises:
        ProfileError: PROF-003 if the times of a type of device are missing or incomplete.
    """

    model: ModelCosts
    cluster: Cluster
    times: Mapping[str, tuple[LayerTimes, ...]] = field(hash=False)
    step_overhead_seconds: float = 0.0

    def __post_init__(self) -> None:
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
