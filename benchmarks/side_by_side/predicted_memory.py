"""The bytes that a plan is predicted to need on each device, beside those of its steps.

Every device is a process of its own, whose allocator is the GPU's (BFC) and counts bytes; see
``apart.py``. A process ends with its case: what one plan leaves behind is not counted for another.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from side_by_side.apart import LIKE_A_GPU, connect, devices_apart, take_memory
from side_by_side.layouts import DEVICES, MODELS, PLANS
from side_by_side.predicted import Planned
from side_by_side.problems import make_loss, make_optimizer
from side_by_side.workers import Worker, closing

_STEPS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The memory of one device under a plan, in bytes.

    Attributes:
        device: Name of the device in the plan.
        peak: Peak of a step: the median of several steps.
        most: Largest peak of these steps.
        between: Bytes in use between steps.
        predicted: Bytes by the cost model, by kind.
    """

    device: str
    peak: int
    most: int
    between: int
    predicted: dict[str, float]

    @property
    def total(self) -> float:
        """Bytes by the cost model, all kinds together."""
        return sum(self.predicted.values())

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.total / self.peak


class PlannedApart:
    """A model that is trained under a plan, on devices of a cluster.

    Args:
        addresses: Host and port of each device.
        model: A name of `MODELS`.
        optimizer: A name of `make_optimizer`.
        profile: Cost profile of the layers, as JSON.
    """

    def __init__(self, *, addresses: list[str], model: str, optimizer: str, profile: str) -> None:
        self._names = connect(addresses)
        self._profile = profile
        self._trained = MODELS[model]
        self._optimizer = optimizer
        self._fit: Any = None

    def prepare(self, name: str) -> list[dict[str, float]]:
        """Take the first steps; return what is predicted for each device, by kind."""
        import tensorflow as tf

        import evener

        plan = _moved(PLANS[name](self._trained), self._names)
        strategy = evener.Strategy(plan)
        with strategy.scope():
            model = self._make()
        data = tf.data.Dataset.from_tensors(self._trained.batch()).repeat()
        self._fit = lambda: model.fit(data, steps_per_epoch=1, verbose=0)
        self._fit()
        self._fit()
        return self._predicted(plan)

    def train(self) -> None:
        """Take a step."""
        self._fit()

    def _predicted(self, plan: Any) -> list[dict[str, float]]:
        from evener.plan.profile_files import profile_from_json
        from evener.planner.prediction import predict_plan
        from evener.profile import Cluster, ClusterDevice, CostProfile

        measured = profile_from_json(self._profile)
        ((name, times),) = measured.times.items()
        devices = tuple(ClusterDevice(name=device, type=name) for device in self._names)
        profile = CostProfile(
            model=measured.model, cluster=Cluster(devices=devices), times={name: times}
        )
        found = predict_plan(plan, profile, self._trained.batch_size).memory
        return [asdict(found[place]) if place in found else {} for place in range(len(devices))]

    def _make(self) -> Any:
        import keras

        keras.utils.set_random_seed(1)
        model = self._trained.chain.build()
        model.compile(make_optimizer(self._optimizer), make_loss(), jit_compile=False)
        return model


class ProfiledApart(Planned):
    """A model whose layers are measured with the allocator of the devices."""

    def __init__(self, *, model: str, optimizer: str) -> None:
        super().__init__(model=model, optimizer=optimizer)
        take_memory()


def profile_of(model: str, optimizer: str) -> str:
    """Measure what the layers of a model cost; return it as JSON."""
    worker = Worker(ProfiledApart, environment=LIKE_A_GPU, model=model, optimizer=optimizer)
    with closing(worker):
        worker.call("profile", by_processor=True)
        return worker.call("profile_json")


def measure_memory(model: str, plan: str, optimizer: str, profile: str) -> list[DeviceMemory]:
    """Train a model under a plan; return the memory of each device that it uses."""
    used = {device.name for device in PLANS[plan](MODELS[model]).devices}
    with devices_apart(len(used)) as devices:
        addresses = [device.call("address") for device in devices]
        host = Worker(
            PlannedApart, addresses=addresses, model=model, optimizer=optimizer, profile=profile
        )
        with closing(host):
            predicted = host.call("prepare", plan)
            peaks: list[list[int]] = []
            between: list[list[int]] = []
            for _ in range(_STEPS):
                for device in devices:
                    device.call("forget")
                host.call("train")
                now = [device.call("used") for device in devices]
                peaks.append([memory["peak"] for memory in now])
                between.append([memory["current"] for memory in now])
    # What arrives early from another process is on the device for longer in some steps.
    columns = zip(zip(*peaks, strict=True), zip(*between, strict=True), strict=True)
    return [
        DeviceMemory(
            device=f"cpu:{number}",
            peak=round(statistics.median(most)),
            most=max(most),
            between=round(statistics.median(left)),
            predicted=predicted[number],
        )
        for number, (most, left) in enumerate(columns)
        if predicted[number]
    ]


def _moved(plan: Any, names: list[str]) -> Any:
    """Return a plan on other devices: ``cpu:0`` is the host where devices are processes."""
    from evener import Plan

    text = plan.to_json()
    for device, name in reversed(list(zip(DEVICES, names, strict=False))):
        text = text.replace(f'"{device}"', f'"{name}"')
    return Plan.from_json(text)
