"""Devices that are laid out, started and used, on recorded machines and a fake TensorFlow."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import evener
from evener.devices import resolve_devices, use, use_devices
from evener.devices.inventories import join
from evener.devices.machine import NvmlMachine, TensorFlowGpu
from evener.devices.reasons import Problem
from evener.devices.spec import SpecError, parse_spec, spec_from
from evener.devices.use import (
    InitialiseError,
    RuntimeLayout,
    TensorFlowRuntime,
    UsedDevice,
    choose_layout,
    lay_out,
    resolve,
    running_devices,
    select_devices,
    take,
)
from evener.errors import DeviceError
from unit.devices.machines import (
    EIGHT,
    GIB,
    HOST,
    NO_DRIVER,
    TWO_EQUAL,
    UNEQUAL,
    FakeRuntime,
    RecordedNvml,
    gpu,
    machine,
    seen,
    view,
)


def fresh(recorded: NvmlMachine, *, broken: Sequence[int] = ()) -> FakeRuntime:
    return FakeRuntime(view(*recorded.gpus), broken=broken)


def taken(
    spec: str | None, recorded: NvmlMachine, runtime: FakeRuntime
) -> tuple[tuple[UsedDevice, ...], Problem | None]:
    return take(spec_from(spec, {}), machine=recorded, runtime=runtime)


def names(spec: str | None, recorded: NvmlMachine, runtime: FakeRuntime) -> list[str]:
    return [device.name for device in taken(spec, recorded, runtime)[0]]


class TestFirstUse:
    def test_all_gpus_with_their_memory(self) -> None:
        used, fallback = taken("all", UNEQUAL, fresh(UNEQUAL))
        assert used == (
            UsedDevice(name="gpu:0", kind="gpu", memory_bytes=24 * GIB, physical="gpu:0"),
            UsedDevice(name="gpu:1", kind="gpu", memory_bytes=12 * GIB, physical="gpu:1"),
        )
        assert fallback is None

    def test_names_are_logical_and_the_order_is_the_specs(self) -> None:
        runtime = fresh(EIGHT)
        used, _ = taken("gpu:7,gpu:2@4GiB,gpu:2@5GiB", EIGHT, runtime)
        assert [(device.name, device.physical, device.memory_bytes) for device in used] == [
            ("gpu:2", "gpu:7", 40 * GIB),
            ("gpu:0", "gpu:2", 4 * GIB),
            ("gpu:1", "gpu:2", 5 * GIB),
        ]
        assert runtime.tried == ["gpu:7, gpu:2@4GiB, gpu:2@5GiB"]

    def test_stand_ins(self) -> None:
        runtime = fresh(TWO_EQUAL)
        assert names("cpu:2", TWO_EQUAL, runtime) == ["cpu:0", "cpu:1"]
        assert (runtime.limits_threads, runtime.growth) == ([True], [True])
        assert not any(gpu.visible for gpu in runtime.view().gpus)

    def test_no_gpu_falls_back_to_the_cpu(self) -> None:
        runtime = fresh(NO_DRIVER)
        spec = spec_from("all", {})
        used, fallback = take(spec, machine=NO_DRIVER, runtime=runtime, memory_growth=False)
        assert [device.name for device in used] == ["cpu:0"]
        assert fallback is not None
        assert fallback.code == "DEV-020"
        assert runtime.growth == [False]

    @pytest.mark.parametrize(("spec", "code"), [("gpu:2", "DEV-010"), ("gpu:1@13GiB", "DEV-011")])
    def test_what_cannot_be_leaves_the_runtime_alone(self, spec: str, code: str) -> None:
        runtime = fresh(UNEQUAL)
        with pytest.raises(SpecError, match=code):
            taken(spec, UNEQUAL, runtime)
        assert runtime.tried == []


class TestStartingFails:
    def test_the_others_are_used_and_it_is_said(self) -> None:
        runtime = fresh(TWO_EQUAL, broken=[0])
        used, fallback = taken("all", TWO_EQUAL, runtime)
        assert [(d.name, d.physical) for d in used] == [("gpu:0", "gpu:1")]
        assert runtime.tried == ["gpu:0, gpu:1", "gpu:0", "gpu:1"]
        assert fallback is not None
        assert fallback.code == "DEV-021"
        assert fallback.what == "Only gpu:1 will be used, not gpu:0."
        assert "could not be started on gpu:0, gpu:1" in fallback.why
        assert "CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error" in fallback.why

    def test_one_of_eight(self) -> None:
        runtime = fresh(EIGHT, broken=[3])
        used, _ = taken("all", EIGHT, runtime)
        assert len(used) == 7
        assert "gpu:3" not in [device.physical for device in used]
        # All, each alone, the others together.
        assert len(runtime.tried) <= 1 + 8 + 8

    def test_all_fail(self) -> None:
        used, fallback = taken("all", TWO_EQUAL, fresh(TWO_EQUAL, broken=[0, 1]))
        assert [device.name for device in used] == ["cpu:0"]
        assert fallback is not None
        assert fallback.code == "DEV-020"
        assert "DEV-109" not in fallback.what
        assert "could not be started" in fallback.why

    def test_even_the_cpu_fails(self) -> None:
        with pytest.raises(DeviceError, match="DEV-012") as caught:
            taken("all", TWO_EQUAL, fresh(TWO_EQUAL, broken=[-1]))
        assert "CUDA_ERROR_ECC_UNCORRECTABLE" in caught.value.why

    @pytest.mark.parametrize("spec", ["all", "gpu:0,gpu:1"])
    def test_the_same_again_gives_the_same(self, spec: str) -> None:
        runtime = fresh(TWO_EQUAL, broken=[1])
        first, _ = taken(spec, TWO_EQUAL, runtime)
        tried = list(runtime.tried)
        assert taken(spec, TWO_EQUAL, runtime) == (first, None)
        assert taken(None, TWO_EQUAL, runtime) == (first, None)
        assert runtime.tried == tried

    def test_a_gpu_cut_in_two_that_starts_only_whole(self) -> None:
        class OnlyWhole(FakeRuntime):
            def initialise(self) -> None:
                if len(self.view().gpus[0].caps_bytes) > 1:
                    raise InitialiseError("out of memory")
                super().initialise()

        recorded = machine(gpu(0))
        used, fallback = taken("gpu:0@8GiB,gpu:0@4GiB", recorded, OnlyWhole(view(gpu(0))))
        assert [device.memory_bytes for device in used] == [8 * GIB]
        assert fallback is not None
        assert fallback.code == "DEV-109"


class TestSecondUse:
    def test_the_same_a_part_or_what_runs_by_default(self) -> None:
        runtime = fresh(TWO_EQUAL)
        first = taken("gpu:0,gpu:1", TWO_EQUAL, runtime)
        assert taken("all", TWO_EQUAL, runtime) == first
        assert taken(" gpu:0 , gpu:1", TWO_EQUAL, runtime) == first
        assert names("gpu:1", TWO_EQUAL, runtime) == ["gpu:1"]
        assert len(runtime.tried) == 1

        runtime = fresh(TWO_EQUAL)
        taken("cpu:2", TWO_EQUAL, runtime)
        assert names(None, TWO_EQUAL, runtime) == ["cpu:0", "cpu:1"]

    @pytest.mark.parametrize(
        ("first", "second"),
        [
            ("gpu:0", "gpu:0,gpu:1"),
            ("gpu:0", "gpu:0@4GiB"),
            ("gpu:0@4GiB", "gpu:0"),
            ("gpu:0@4GiB", "gpu:0@4GiB,gpu:0@4GiB"),
            ("cpu:2", "cpu:3"),
            ("cpu:2", "gpu:0"),
        ],
    )
    def test_another_meaning_is_refused(self, first: str, second: str) -> None:
        runtime = fresh(TWO_EQUAL)
        taken(first, TWO_EQUAL, runtime)
        with pytest.raises(DeviceError) as caught:
            taken(second, TWO_EQUAL, runtime)
        assert caught.value.code == "DEV-013"
        assert not isinstance(caught.value, SpecError), "the spec itself is fine"
        assert f"evener.use_devices('{second}')" in caught.value.fix
        assert "before any tensor or model is created" in caught.value.fix


class TestResolve:
    def resolve(
        self,
        wanted: Sequence[str],
        runtime: FakeRuntime,
        recorded: NvmlMachine = NO_DRIVER,
        **environ: str,
    ) -> list[str]:
        devices = resolve(wanted, environ, machine=recorded, runtime=runtime)
        return [device.name for device in devices]

    def test_stand_ins_are_made_as_needed(self) -> None:
        runtime = fresh(NO_DRIVER)
        assert self.resolve(["cpu:2", "cpu:0"], runtime) == ["cpu:2", "cpu:0"]
        assert runtime.view().num_logical_cpus == 3

    def test_the_cpu_alone_keeps_its_threads(self) -> None:
        runtime = fresh(NO_DRIVER)
        assert self.resolve(["cpu:0"], runtime) == ["cpu:0"]
        assert runtime.limits_threads == [False]

    @pytest.mark.parametrize("wanted", [["gpu:1"], ["gpu:0", "cpu:0"]])
    def test_gpus_keep_their_numbers(self, wanted: list[str]) -> None:
        assert self.resolve(wanted, fresh(TWO_EQUAL), TWO_EQUAL) == wanted

    @pytest.mark.parametrize(
        ("wanted", "code", "phrase"),
        [
            ([], "DEV-001", "list of devices is empty"),
            (["gpu0"], "DEV-002", "Did you mean 'gpu:0'?"),
            (["cpu:0", "GPU:1"], "DEV-002", "Did you mean 'gpu:1'?"),
            (["gpu:0@1GiB"], "DEV-002", "without a cap"),
            ([0, 1], "DEV-002", "0 is not a device"),
            (["cpu:0", "cpu:0"], "DEV-005", "names cpu:0 2 times"),
            (["cpu:900"], "DEV-010", "no device 'cpu:900'"),
            (["gpu:0"], "DEV-010", "No NVIDIA driver was found"),
        ],
    )
    def test_wrong_names(self, wanted: list[str], code: str, phrase: str) -> None:
        with pytest.raises(SpecError) as caught:
            self.resolve(wanted, fresh(NO_DRIVER))
        assert caught.value.code == code
        assert phrase in str(caught.value)

    def test_unknown_name_beside_those_that_run(self) -> None:
        runtime = fresh(NO_DRIVER)
        assert self.resolve(["cpu:1"], runtime, EVENER_DEVICES="cpu:2") == ["cpu:1"]
        with pytest.raises(SpecError, match="DEV-010") as caught:
            self.resolve(["cpu:5"], runtime)
        assert "Did you mean 'cpu:" in caught.value.what
        assert "cpu:0, cpu:1" in caught.value.why


class TestOnTensorFlow:
    """In this process TensorFlow has five logical CPUs already."""

    def test_some_of_them_and_more_than_there_are(self, logical_cpus: tuple[str, ...]) -> None:
        used = use_devices("cpu:2")
        assert [device.name for device in used] == list(logical_cpus[:2])
        assert use_devices("cpu:2") == used
        with pytest.raises(evener.DeviceError, match="DEV-013"):
            use_devices(f"cpu:{len(logical_cpus) + 1}")

    def test_all_of_them_where_nobody_asks(
        self, logical_cpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("EVENER_DEVICES", raising=False)
        assert tuple(device.name for device in use_devices()) == logical_cpus

    def test_by_name(self, logical_cpus: tuple[str, ...]) -> None:
        used = resolve_devices(["cpu:4", "cpu:1"])
        assert [device.name for device in used] == [logical_cpus[4], logical_cpus[1]]
        with pytest.raises(evener.DeviceError, match="DEV-010"):
            resolve_devices(["cpu:5"])


def test_a_layout_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = fresh(NO_DRIVER)
    monkeypatch.setattr(use, "_RUNTIME", runtime)
    monkeypatch.setattr(use, "Nvml", lambda: RecordedNvml(NO_DRIVER))
    lay_out("cpu:3")
    assert runtime.view().num_logical_cpus == 3
    assert not runtime.view().runtime_initialised
    monkeypatch.setattr(use, "_RUNTIME", fresh(NO_DRIVER))
    with pytest.raises(DeviceError, match="DEV-010"):
        lay_out("gpu:0")


def layout_of(text: str) -> RuntimeLayout:
    return RuntimeLayout(gpus=parse_spec(text).gpus)


def test_gpu_that_the_program_has_cut_stays_cut() -> None:
    cut = view(gpus=(TensorFlowGpu(index=0, name="NVIDIA A100", caps_bytes=(4 * GIB, 2 * GIB)),))
    spec = parse_spec("all")
    chosen = choose_layout(spec, join(spec, TWO_EQUAL, cut, HOST))
    assert chosen == layout_of("gpu:0@4GiB,gpu:0@2GiB")


@pytest.mark.parametrize(
    ("spec", "picked"),
    [
        (
            "gpu:2@10GiB,gpu:2@5GiB,gpu:0",
            [("gpu:1", "gpu:2"), ("gpu:2", "gpu:2"), ("gpu:0", "gpu:0")],
        ),
        ("gpu:2@5GiB", [("gpu:2", "gpu:2")]),
        ("gpu:1", None),
        ("gpu:0@5GiB", None),
        ("gpu:2", None),
        ("gpu:2@5GiB,gpu:2@5GiB", None),
    ],
)
def test_devices_that_run_are_picked_in_the_order_of_the_spec(
    spec: str, picked: list[tuple[str, str]] | None
) -> None:
    """Of three GPUs, one is hidden and one is cut in two."""
    there = view(
        gpus=(
            TensorFlowGpu(index=0),
            TensorFlowGpu(index=1, visible=False),
            TensorFlowGpu(index=2, caps_bytes=(10 * GIB, 5 * GIB)),
        )
    )
    found = join(parse_spec("cpu:1"), TWO_EQUAL, there, HOST)
    devices = select_devices(layout_of(spec), there, found)
    assert (devices and [(device.name, device.physical) for device in devices]) == picked


def test_running_devices_know_their_memory() -> None:
    there = view(gpus=seen(*UNEQUAL.gpus))
    devices = running_devices(there, join(parse_spec("all"), UNEQUAL, there, HOST))
    memory = {device.name: device.memory_bytes for device in devices}
    assert memory == {"gpu:0": 24 * GIB, "gpu:1": 12 * GIB, "cpu:0": None}


GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


class FakeTensorFlow(SimpleNamespace):
    """`tf.config` as far as it is used, with three GPUs."""

    def __init__(self) -> None:
        self.visible: list[str] = ["GPU0", "GPU1", "GPU2"]
        self.cuts: dict[str, list[int | None]] = {}
        self.growth: dict[str, bool] = {}
        self.threads = {"intra": 0, "inter": 0}
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


@pytest.mark.parametrize(
    ("layout", "chosen", "threads"),
    [
        # Stand-ins have one thread each, unless somebody has chosen.
        (RuntimeLayout(num_cpus=1, limit_threads=True), 0, (1, 2)),
        (RuntimeLayout(num_cpus=2, limit_threads=True), 0, (1, 2)),
        (RuntimeLayout(num_cpus=3, limit_threads=True), 0, (1, 3)),
        (RuntimeLayout(num_cpus=2, limit_threads=True), 7, (7, 7)),
        # The CPU alone keeps all threads.
        (RuntimeLayout(), 0, (0, 0)),
    ],
)
def test_threads(
    tf: FakeTensorFlow, layout: RuntimeLayout, chosen: int, threads: tuple[int, int]
) -> None:
    tf.threads = {"intra": chosen, "inter": chosen}
    TensorFlowRuntime().configure(layout, memory_growth=True)
    assert tf.visible == []
    assert len(tf.cuts.get("CPU0", [None])) == max(1, layout.num_cpus)
    assert tf.threads == dict(zip(("intra", "inter"), threads, strict=True))


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
