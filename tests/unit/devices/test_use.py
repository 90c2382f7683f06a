from __future__ import annotations

from collections.abc import Sequence

import pytest

import evener
from evener.devices import UsedDevice, resolve_devices, use, use_devices
from evener.devices.machine import NvmlMachine
from evener.devices.reasons import Problem
from evener.devices.spec import SpecError, spec_from
from evener.devices.use import InitialiseError, RuntimeLayout, lay_out, resolve, take
from evener.errors import DeviceError
from unit.devices.machines import (
    EIGHT,
    GIB,
    NO_DRIVER,
    TWO_EQUAL,
    UNEQUAL,
    FakeRuntime,
    RecordedNvml,
    gpu,
    machine,
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
        used, _ = taken("gpu:7,gpu:2@4GiB", EIGHT, fresh(EIGHT))
        assert [(d.name, d.physical) for d in used] == [("gpu:1", "gpu:7"), ("gpu:0", "gpu:2")]
        assert [d.memory_bytes for d in used] == [40 * GIB, 4 * GIB]

    def test_one_gpu_cut_in_two(self) -> None:
        recorded = machine(gpu(0))
        used, _ = taken("gpu:0@10GiB,gpu:0@5GiB", recorded, fresh(recorded))
        assert [(d.name, d.memory_bytes) for d in used] == [
            ("gpu:0", 10 * GIB),
            ("gpu:1", 5 * GIB),
        ]

    def test_stand_ins(self) -> None:
        runtime = fresh(TWO_EQUAL)
        assert names("cpu:2", TWO_EQUAL, runtime) == ["cpu:0", "cpu:1"]
        assert not any(gpu.visible for gpu in runtime.view().gpus)

    def test_memory_growth_is_passed_on(self) -> None:
        runtime = fresh(TWO_EQUAL)
        spec = spec_from("all", {})
        take(spec, machine=TWO_EQUAL, runtime=runtime, memory_growth=False)
        assert runtime.growth == [False]

    def test_no_gpu_falls_back_to_the_cpu(self) -> None:
        used, fallback = taken("all", NO_DRIVER, fresh(NO_DRIVER))
        assert [device.name for device in used] == ["cpu:0"]
        assert fallback is not None
        assert fallback.code == "DEV-020"

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
        used, _ = taken("all", EIGHT, fresh(EIGHT, broken=[3]))
        assert len(used) == 7
        assert "gpu:3" not in [device.physical for device in used]

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
    def test_the_same_meaning_gives_the_same(self) -> None:
        runtime = fresh(TWO_EQUAL)
        first = taken("gpu:0,gpu:1", TWO_EQUAL, runtime)
        assert taken("all", TWO_EQUAL, runtime) == first
        assert taken(" gpu:0 , gpu:1", TWO_EQUAL, runtime) == first
        assert len(runtime.tried) == 1

    def test_a_part_of_what_runs(self) -> None:
        runtime = fresh(TWO_EQUAL)
        taken("all", TWO_EQUAL, runtime)
        assert names("gpu:1", TWO_EQUAL, runtime) == ["gpu:1"]

    def test_what_runs_is_the_default(self) -> None:
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
        class Threads(FakeRuntime):
            limited = False

            def configure(self, layout: RuntimeLayout, *, memory_growth: bool) -> None:
                self.limited = layout.limit_threads
                super().configure(layout, memory_growth=memory_growth)

        runtime = Threads(view())
        assert self.resolve(["cpu:0"], runtime) == ["cpu:0"]
        assert not runtime.limited

    def test_gpus_keep_their_numbers(self) -> None:
        assert self.resolve(["gpu:1"], fresh(TWO_EQUAL), TWO_EQUAL) == ["gpu:1"]

    def test_gpu_and_cpu(self) -> None:
        assert self.resolve(["gpu:0", "cpu:0"], fresh(TWO_EQUAL), TWO_EQUAL) == ["gpu:0", "cpu:0"]

    def test_environment_holds(self) -> None:
        runtime = fresh(NO_DRIVER)
        assert self.resolve(["cpu:1"], runtime, EVENER_DEVICES="cpu:4") == ["cpu:1"]
        assert runtime.view().num_logical_cpus == 4

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
        self.resolve(["cpu:0", "cpu:1"], runtime)
        with pytest.raises(SpecError, match="DEV-010") as caught:
            self.resolve(["cpu:5"], runtime)
        assert "Did you mean 'cpu:" in caught.value.what
        assert "cpu:0, cpu:1" in caught.value.why


class TestOnTensorFlow:
    """In this process TensorFlow has five logical CPUs already."""

    def test_some_of_them(self, logical_cpus: tuple[str, ...]) -> None:
        used = use_devices("cpu:2")
        assert [device.name for device in used] == list(logical_cpus[:2])
        assert use_devices("cpu:2") == used

    def test_all_of_them_where_nobody_asks(
        self, logical_cpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("EVENER_DEVICES", raising=False)
        assert tuple(device.name for device in use_devices()) == logical_cpus

    def test_more_than_there_are(self, logical_cpus: tuple[str, ...]) -> None:
        with pytest.raises(evener.DeviceError, match="DEV-013"):
            use_devices(f"cpu:{len(logical_cpus) + 1}")

    def test_by_name(self, logical_cpus: tuple[str, ...]) -> None:
        used = resolve_devices(["cpu:4", "cpu:1"])
        assert [device.name for device in used] == [logical_cpus[4], logical_cpus[1]]
        with pytest.raises(evener.DeviceError, match="DEV-010"):
            resolve_devices(["cpu:5"])


class TestLayOut:
    def test_nothing_is_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime = fresh(NO_DRIVER)
        monkeypatch.setattr(use, "_RUNTIME", runtime)
        monkeypatch.setattr(use, "Nvml", lambda: RecordedNvml(NO_DRIVER))
        lay_out("cpu:3")
        assert runtime.view().num_logical_cpus == 3
        assert not runtime.view().runtime_initialised

    def test_a_gpu_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(use, "_RUNTIME", fresh(NO_DRIVER))
        monkeypatch.setattr(use, "Nvml", lambda: RecordedNvml(NO_DRIVER))
        with pytest.raises(DeviceError, match="DEV-010"):
            lay_out("gpu:0")
