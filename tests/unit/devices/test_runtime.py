"""Calls of the runtime into TensorFlow, recorded by a fake TensorFlow."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from evener.devices.spec import parse_spec
from evener.devices.use import InitialiseError, RuntimeLayout, TensorFlowRuntime
from evener.errors import DeviceError

GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


class FakeTensorFlow(SimpleNamespace):
    """`tf.config` as far as it is used, with three GPUs."""

    def __init__(self, *, threads: int = 0) -> None:
        self.visible: list[str] = ["GPU0", "GPU1", "GPU2"]
        self.cuts: dict[str, list[int | None]] = {}
        self.growth: dict[str, bool] = {}
        self.threads = {"intra": threads, "inter": threads}
        self.failure: Exception | None = None
        self.errors = SimpleNamespace(OpError=KeyError)
        self.config = SimpleNamespace(
            list_physical_devices=lambda kind: (
                ["GPU0", "GPU1", "GPU2"] if kind == "GPU" else ["CPU0"]
            ),
            set_visible_devices=lambda gpus, kind: setattr(self, "visible", gpus),
            LogicalDeviceConfiguration=lambda memory_limit=None: memory_limit,
            set_logical_device_configuration=self.cuts.__setitem__,
            get_logical_device_configuration=self.cuts.get,
            experimental=SimpleNamespace(set_memory_growth=self.growth.__setitem__),
            threading=SimpleNamespace(
                get_intra_op_parallelism_threads=lambda: self.threads["intra"],
                get_inter_op_parallelism_threads=lambda: self.threads["inter"],
                set_intra_op_parallelism_threads=lambda n: self.threads.update(intra=n),
                set_inter_op_parallelism_threads=lambda n: self.threads.update(inter=n),
            ),
            list_logical_devices=self._start,
        )

    def _start(self) -> None:
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def tf(monkeypatch: pytest.MonkeyPatch) -> FakeTensorFlow:
    fake = FakeTensorFlow()
    monkeypatch.setitem(sys.modules, "tensorflow", fake)  # pyright: ignore
    # Set and deleted, so that whatever the test leaves is taken back.
    monkeypatch.setenv(GROWTH, "")
    monkeypatch.delenv(GROWTH)
    return fake


def configure(text: str, *, memory_growth: bool = True) -> None:
    layout = RuntimeLayout(gpus=parse_spec(text).gpus)
    TensorFlowRuntime().configure(layout, memory_growth=memory_growth)


@pytest.mark.parametrize("memory_growth", [True, False])
def test_memory_growth_is_the_same_on_all(tf: FakeTensorFlow, *, memory_growth: bool) -> None:
    configure("gpu:2,gpu:0", memory_growth=memory_growth)
    assert tf.visible == ["GPU0", "GPU2"]
    assert tf.growth == {"GPU0": memory_growth, "GPU2": memory_growth}
    assert tf.cuts == {}
    assert GROWTH not in os.environ


def test_caps_are_logical_devices_in_mebibytes(tf: FakeTensorFlow) -> None:
    configure("gpu:1@10GiB,gpu:0,gpu:1@5GiB")
    assert tf.visible == ["GPU0", "GPU1"]
    assert tf.cuts == {"GPU1": [10 * 1024, 5 * 1024]}
    # TensorFlow ignores the setting beside caps, and refuses it on a GPU that is cut.
    assert tf.growth == {}
    assert os.environ[GROWTH] == "true"


def test_growth_that_somebody_chose_stays(
    tf: FakeTensorFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GROWTH, "false")
    configure("gpu:1@10GiB")
    assert os.environ[GROWTH] == "false"
    monkeypatch.delenv(GROWTH)
    configure("gpu:1@10GiB", memory_growth=False)
    assert GROWTH not in os.environ


@pytest.mark.parametrize(("num_cpus", "inter"), [(1, 2), (2, 2), (3, 3)])
def test_stand_ins_have_one_thread_each(tf: FakeTensorFlow, num_cpus: int, inter: int) -> None:
    layout = RuntimeLayout(num_cpus=num_cpus, limit_threads=True)
    TensorFlowRuntime().configure(layout, memory_growth=True)
    assert tf.visible == []
    assert len(tf.cuts.get("CPU0", [None])) == num_cpus
    assert tf.threads == {"intra": 1, "inter": inter}


def test_threads_that_somebody_chose_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTensorFlow(threads=7)
    monkeypatch.setitem(sys.modules, "tensorflow", fake)  # pyright: ignore
    layout = RuntimeLayout(num_cpus=2, limit_threads=True)
    TensorFlowRuntime().configure(layout, memory_growth=True)
    assert fake.threads == {"intra": 7, "inter": 7}


def test_the_cpu_alone_keeps_all_threads(tf: FakeTensorFlow) -> None:
    TensorFlowRuntime().configure(RuntimeLayout(), memory_growth=True)
    assert tf.threads == {"intra": 0, "inter": 0}


def test_setting_that_tensorflow_refuses(tf: FakeTensorFlow) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("Cannot set memory growth on device when virtual devices configured")

    tf.config.experimental.set_memory_growth = refuse
    with pytest.raises(DeviceError) as caught:
        configure("gpu:0")
    assert caught.value.code == "DEV-014"
    assert "when virtual devices configured" in caught.value.why


@pytest.mark.parametrize("failure", [RuntimeError("broken"), KeyError("broken")])
def test_start_that_fails(tf: FakeTensorFlow, failure: Exception) -> None:
    tf.failure = failure
    with pytest.raises(InitialiseError, match="broken"):
        TensorFlowRuntime().initialise()
