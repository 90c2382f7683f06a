"""A device on the CPU is measured on the cores that it has for itself."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import Any

import keras
import pytest
import tensorflow as tf

from evener.devices import UsedDevice
from evener.profiler import profile
from evener.profiler.profile import affinity, cores_of_each, held_to, trace_keras_step

CPUS = [
    UsedDevice(name=f"cpu:{k}", kind="cpu", memory_bytes=None, physical="cpu:0") for k in range(2)
]
GPU = UsedDevice(name="gpu:0", kind="gpu", memory_bytes=None, physical="gpu:0")


@pytest.mark.parametrize(
    ("num_cores", "devices", "expected"),
    [
        (8, CPUS, [0, 1, 2, 3]),
        (8, [CPUS[0], GPU], list(range(8))),
        (1, CPUS, [0]),
        (3, CPUS, [0]),
        (2, [GPU], [0, 1]),
        (0, CPUS, []),
    ],
)
def test_the_cores_of_each(
    num_cores: int, devices: list[UsedDevice], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evener.profiler.profile.affinity", lambda: set(range(num_cores)))
    assert cores_of_each(devices) == expected


def test_all_threads_are_held_and_get_their_own_cores_back() -> None:
    (first, *_), every = sorted(affinity()), affinity()
    found: dict[str, set[int]] = {}
    go_on, ends = threading.Event(), threading.Event()

    def work() -> None:
        go_on.wait()
        found["held"] = affinity()
        ends.wait()
        found["after"] = affinity()

    thread = threading.Thread(target=work)
    thread.start()
    with pytest.raises(ValueError, match="inside"), held_to([first]):
        go_on.set()
        begun = threading.Thread(target=lambda: found.update(begun=affinity()))
        begun.start()
        begun.join()
        while "held" not in found:
            pass
        raise ValueError("inside")
    ends.set()
    thread.join()
    assert found == {"held": {first}, "begun": {first}, "after": every}
    assert affinity() == every


def test_nothing_is_held_where_no_cores_are_known() -> None:
    before = affinity()
    with held_to([]):
        assert affinity() == before


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be divided")
def test_a_step_is_measured_on_the_cores_of_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    measure: Any = profile.measure_step

    def measured(*args: Any, **kwargs: Any) -> Any:
        seen.append(len(affinity()))
        return measure(*args, **kwargs)

    monkeypatch.setattr(profile, "measure_step", measured)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    traced = trace_keras_step(model, tf.TensorSpec([4]), tf.TensorSpec([1]))
    before = affinity()
    profile.profile_step(traced, CPUS, 4)
    profile.profile_step(traced, [replace(CPUS[1])], 4)
    assert seen == [max(1, len(before) // 2), len(before)]
    assert affinity() == before
