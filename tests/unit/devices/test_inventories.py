"""GPUs that are used, and the reasons of those that are not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import evener
from evener.devices.inventories import GpuLink, Inventory, join
from evener.devices.machine import (
    CudaEnvironment,
    NvmlFailure,
    NvmlGpu,
    NvmlMachine,
    TensorFlowView,
)
from evener.devices.reasons import match_gpus, min_multiprocessors, shown_by_cuda
from evener.devices.spec import SpecError, spec_from
from unit.devices.machines import (
    EIGHT,
    GIB,
    HOST,
    MIB,
    MISMATCH,
    NO_DRIVER,
    NO_GPUS,
    ONE_LOST,
    SMALL,
    TWO_EQUAL,
    UNEQUAL,
    gpu,
    machine,
    seen,
    shows,
    view,
)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, list(range(8))),
        ("", []),
        ("-1", []),
        ("2", [2]),
        ("3,1", [3, 1]),
        ("0,-1,2", [0]),
        ("0, 9,2", [0]),
        ("GPU-4000,GPU-1", [4, 1]),
        ("MIG-GPU-4000/1/0", []),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    visible: str | None, expected: list[int]
) -> None:
    assert [gpu.index for gpu in shown_by_cuda(EIGHT.gpus, visible)] == expected


LARGE = UNEQUAL.gpus[0]
FORBIDDEN = NvmlMachine(failure=NvmlFailure(kind="other", message="Insufficient Permissions"))


@pytest.mark.parametrize(
    ("listed", "of_driver", "visible", "matched"),
    [
        (TWO_EQUAL.gpus, TWO_EQUAL.gpus, None, {0: 0, 1: 1}),
        # Hidden GPUs shift the numbers.
        ((EIGHT.gpus[5], EIGHT.gpus[2]), EIGHT.gpus, "5,2", {0: 5, 1: 2}),
        # Unequal ones match by product: CUDA's 0 is its fastest, not the first on the bus.
        ((SMALL, LARGE), UNEQUAL.gpus, None, {0: 1, 1: 0}),
        ((SMALL,), UNEQUAL.gpus, "0", {0: 1}),
        # One that is lost, and one that the driver does not list.
        ((ONE_LOST.gpus[0],), ONE_LOST.gpus, None, {0: 0}),
        ((SMALL,), TWO_EQUAL.gpus, None, {}),
    ],
)
def test_gpus_of_tensorflow_match_those_of_the_driver(
    listed: tuple[NvmlGpu, ...],
    of_driver: tuple[NvmlGpu, ...],
    visible: str | None,
    matched: dict[int, int],
) -> None:
    found = match_gpus(seen(*listed), of_driver, visible)
    assert {index: gpu.index for index, gpu in found.items()} == matched


def found(
    recorded: NvmlMachine, seen_so: TensorFlowView, spec: str | None = "all", **changes: int
) -> Inventory:
    return join(spec_from(spec, {}), recorded, seen_so, HOST, **changes)


def codes(inventory: Inventory) -> dict[str, str | None]:
    return {d.name: d.reason and d.reason.code for d in inventory.devices if d.kind == "gpu"}


def used(inventory: Inventory) -> list[str]:
    return [device.name for device in inventory.used]


class TestWhatIsUsed:
    def test_all_means_every_gpu(self) -> None:
        inventory = found(UNEQUAL, view(*UNEQUAL.gpus))
        assert used(inventory) == ["gpu:0", "gpu:1"]
        assert (inventory.fallback, inventory.problems) == (None, ())
        large, small, host = inventory.devices
        assert host.use == "host"
        assert (large.product, small.product) == ("RTX 3090", "RTX 3060")
        assert (small.memory_total_bytes, small.memory_free_bytes) == (12 * GIB, 11 * GIB)
        assert small.compute_capability == (8, 6)
        assert (small.nvml_index, small.uuid) == (1, "GPU-1000")

    def test_links_are_named_once_per_pair(self) -> None:
        links = found(EIGHT, view(*EIGHT.gpus)).links
        assert len(links) == 28
        assert links[0] == GpuLink(devices=("gpu:0", "gpu:1"), kind="nvlink", count=12)
        assert str(links[0]) == "nvlink x12"

    def test_spec_leaves_out_the_others(self) -> None:
        inventory = found(TWO_EQUAL, view(*TWO_EQUAL.gpus), "gpu:1@10GiB")
        assert codes(inventory) == {"gpu:0": "DEV-113", "gpu:1": None}
        assert inventory.devices[1].caps_bytes == (10 * GIB,)
        assert inventory.fallback is None

    def test_stand_ins_take_no_gpu(self) -> None:
        inventory = found(TWO_EQUAL, view(*TWO_EQUAL.gpus), "cpu:3")
        assert used(inventory) == ["cpu:0", "cpu:1", "cpu:2"]
        assert set(codes(inventory).values()) == {"DEV-113"}
        assert inventory.fallback is None

    def test_stand_ins_that_somebody_made_are_used_where_nobody_asks(self) -> None:
        made = view(num_logical_cpus=5)
        by_default = found(NO_DRIVER, made, None)
        assert used(by_default) == [f"cpu:{index}" for index in range(5)]
        assert by_default.fallback is None
        asked = found(NO_DRIVER, made, "all")
        assert used(asked) == ["cpu:0"]
        assert asked.fallback is not None

    def test_gpu_without_a_driver_to_ask_is_used(self) -> None:
        inventory = found(MISMATCH, view(*TWO_EQUAL.gpus))
        assert used(inventory) == ["gpu:0", "gpu:1"]
        assert inventory.devices[0].memory_total_bytes is None
        assert [problem.code for problem in inventory.problems] == ["DEV-110"]


class TestWhyNot:
    def test_hidden_by_cuda_visible_devices(self) -> None:
        inventory = found(TWO_EQUAL, view(TWO_EQUAL.gpus[1], environment=shows("1")))
        assert codes(inventory) == {"gpu:0": None, "nvidia:0": "DEV-101"}
        assert inventory.devices[0].nvml_index == 1
        assert inventory.fallback is None, "who hides a GPU needs no warning"

        # All of them.
        inventory = found(TWO_EQUAL, view(environment=shows("-1")))
        assert set(codes(inventory).values()) == {"DEV-101"}
        assert inventory.fallback is not None
        assert "CUDA_VISIBLE_DEVICES='-1'" in inventory.fallback.why
        assert "nvidia:0, nvidia:1" in inventory.fallback.why

    def test_cpu_only_wheel(self) -> None:
        cpu_only = view(built_with_cuda=False, cuda_version=None)
        inventory = found(TWO_EQUAL, cpu_only)
        assert set(codes(inventory).values()) == {"DEV-102"}
        assert inventory.problems == (), "it is said with the GPUs"
        assert [p.code for p in found(MISMATCH, cpu_only).problems] == ["DEV-110", "DEV-102"]
        assert [p.code for p in found(NO_DRIVER, cpu_only).problems] == ["DEV-112"]

    def test_cuda_13_beside_a_build_for_12(self) -> None:
        packages = ("nvidia-cublas-cu13", "nvidia-cudnn-cu13")
        inventory = found(TWO_EQUAL, view(cuda_13_packages=packages))
        assert set(codes(inventory).values()) == {"DEV-103"}
        (reason,) = {d.reason for d in inventory.devices if d.reason}
        assert "nvidia-cublas-cu13, nvidia-cudnn-cu13" in reason.why
        assert "12.5.1" in reason.why
        # They do no harm where TensorFlow sees its GPUs, or was built for them.
        works = found(TWO_EQUAL, view(*TWO_EQUAL.gpus, cuda_13_packages=packages))
        assert set(codes(works).values()) == {None}
        built_for_13 = view(cuda_13_packages=packages, cuda_version="13.0")
        newer = replace(TWO_EQUAL, driver_version="590.1", cuda_driver_version=(13, 0))
        assert set(codes(found(newer, built_for_13)).values()) == {"DEV-107"}

        # It is said without GPUs, too.
        inventory = found(NO_GPUS, view(cuda_13_packages=packages))
        assert [problem.code for problem in inventory.problems] == ["DEV-116", "DEV-103"]

    @pytest.mark.parametrize(
        ("driver", "cuda", "code"),
        [
            ("525.60.12", (11, 8), "DEV-104"),
            ("470.256.02", (11, 4), "DEV-104"),
            ("525.60.13", (12, 0), None),
            ("1000.1", (12, 4), None),
            # NVIDIA's forward compatibility package: an old driver with a new library.
            ("470.256.02", (12, 4), None),
        ],
    )
    def test_driver_too_old(self, driver: str, cuda: tuple[int, int], code: str | None) -> None:
        recorded = machine(gpu(0), driver=driver, cuda=cuda)
        # TensorFlow may list the GPU and still fail when it starts on it.
        assert codes(found(recorded, view(gpu(0)))) == {"gpu:0": code}
        unseen = codes(found(recorded, view()))
        assert unseen == {"nvidia:0": code or "DEV-107"}

    def test_too_few_multiprocessors(self) -> None:
        recorded = machine(gpu(0), gpu(1, name="GT 1030", multiprocessors=3))
        inventory = found(recorded, view(recorded.gpus[0]))
        assert codes(inventory) == {"gpu:0": None, "nvidia:1": "DEV-105"}
        assert inventory.fallback is not None
        assert inventory.fallback.code == "DEV-021"
        assert "TF_MIN_GPU_MULTIPROCESSOR_COUNT=3" in inventory.fallback.fix

        # The environment may allow it.
        allowed = CudaEnvironment(min_multiprocessors=3)
        inventory = found(recorded, view(recorded.gpus[0], environment=allowed))
        assert codes(inventory)["nvidia:1"] == "DEV-107"

    @pytest.mark.parametrize(
        ("counts", "wanted", "minimum"),
        [([108, 6], None, 8), ([6, 5], None, 6), ([], None, 8), ([108], 20, 20), ([4], 0, 0)],
    )
    def test_multiprocessor_rule(self, counts: list[int], wanted: int | None, minimum: int) -> None:
        assert min_multiprocessors(counts, wanted) == minimum

    def test_not_enough_free_memory(self) -> None:
        recorded = machine(gpu(0), gpu(1, free=500 * MIB))
        inventory = found(recorded, view(*recorded.gpus))
        assert codes(inventory) == {"gpu:0": None, "gpu:1": "DEV-106"}
        assert inventory.fallback is not None
        assert inventory.fallback.what == "Only gpu:0 will be used, not gpu:1."
        assert "500.0 MiB" in inventory.fallback.why
        assert "512.0 MiB" in inventory.fallback.why
        lenient = found(recorded, view(*recorded.gpus), min_free_bytes=400 * MIB)
        assert used(lenient) == ["gpu:0", "gpu:1"]

        # What our own runtime holds does not count.
        recorded = machine(gpu(0, free=100 * MIB))
        inventory = found(recorded, view(*recorded.gpus, runtime_initialised=True))
        assert used(inventory) == ["gpu:0"]

    @pytest.mark.parametrize(
        ("packages", "phrase"),
        [((), "not installed"), (("nvidia-cublas-cu12",), "could not load")],
    )
    def test_libraries_missing(self, packages: tuple[str, ...], phrase: str) -> None:
        inventory = found(TWO_EQUAL, view(cuda_12_packages=packages))
        assert set(codes(inventory).values()) == {"DEV-107"}
        assert inventory.fallback is not None
        assert phrase in inventory.fallback.why
        assert "pip install 'tensorflow[and-cuda]'" in inventory.fallback.fix

    def test_gpu_lost(self) -> None:
        inventory = found(ONE_LOST, view(gpu(0)))
        assert codes(inventory) == {"gpu:0": None, "nvidia:1": "DEV-108"}
        assert inventory.fallback is not None
        assert "GPU is lost" in inventory.fallback.why
        (reason,) = {device.reason for device in inventory.devices if device.reason}
        begins = [line.split(" ")[0] for line in str(reason).splitlines()]
        assert begins == ["[DEV-108]", "Why:", "Fix:"]

    def test_capability_too_low(self) -> None:
        old = gpu(1, name="Tesla K80", capability=(3, 7))
        inventory = found(machine(gpu(0), old), view(gpu(0)))
        assert codes(inventory)["nvidia:1"] == "DEV-111"

    def test_hidden_by_the_program(self) -> None:
        first, second = seen(*TWO_EQUAL.gpus)
        hidden = view(gpus=(first, replace(second, visible=False)))
        inventory = found(TWO_EQUAL, hidden, None)
        assert codes(inventory) == {"gpu:0": None, "gpu:1": "DEV-115"}
        assert inventory.fallback is None
        # A spec that names it takes it back.
        assert used(found(TWO_EQUAL, hidden, "gpu:1")) == ["gpu:1"]

    @pytest.mark.parametrize(
        ("recorded", "code", "says"),
        [
            (NO_DRIVER, "DEV-112", ""),
            (MISMATCH, "DEV-110", ""),
            (NO_GPUS, "DEV-116", ""),
            (FORBIDDEN, "DEV-114", "Insufficient Permissions"),
        ],
    )
    def test_machine_without_usable_gpus(self, recorded: NvmlMachine, code: str, says: str) -> None:
        inventory = found(recorded, view())
        assert [problem.code for problem in inventory.problems] == [code]
        assert used(inventory) == ["cpu:0"]
        assert inventory.fallback is not None
        assert inventory.fallback.code == "DEV-020"
        assert inventory.problems[0].fix == inventory.fallback.fix
        assert inventory.problems[0].what.rstrip(".") in inventory.fallback.why
        assert says in str(inventory.problems[0])

    def test_only_the_gpus_asked_for_are_missed(self) -> None:
        recorded = machine(gpu(0), gpu(1, free=0), gpu(2))
        assert found(recorded, view(*recorded.gpus), "gpu:0,gpu:2").fallback is None
        fallback = found(recorded, view(*recorded.gpus), "gpu:1,gpu:2").fallback
        assert fallback is not None
        assert fallback.what == "Only gpu:2 will be used, not gpu:1."


class TestSpecThatCannotBe:
    def test_unknown_gpu(self) -> None:
        with pytest.raises(SpecError) as caught:
            found(TWO_EQUAL, view(*TWO_EQUAL.gpus), "gpu:0,gpu:7")
        assert caught.value.code == "DEV-010"
        assert "no device 'gpu:7'. Did you mean 'gpu:" in caught.value.what
        assert "gpu:0, gpu:1" in caught.value.why
        assert caught.value.fix.startswith("use gpu:0 or gpu:1, or all;")

    def test_no_gpu_at_all_says_why(self) -> None:
        with pytest.raises(SpecError) as caught:
            found(TWO_EQUAL, view(environment=shows("")), "gpu:0")
        assert caught.value.code == "DEV-010"
        assert "CUDA_VISIBLE_DEVICES=''" in caught.value.why
        assert caught.value.fix.startswith(
            "use cpu:1, one CPU device, which is named cpu:0, or all;"
        )

    @pytest.mark.parametrize("spec", ["gpu:1@13GiB", "gpu:0,gpu:1@8GiB,gpu:1@5GiB"])
    def test_cap_above_the_memory(self, spec: str) -> None:
        with pytest.raises(SpecError) as caught:
            found(UNEQUAL, view(*UNEQUAL.gpus), spec)
        assert caught.value.code == "DEV-011"
        assert "13.0 GiB" in caught.value.why
        assert "12.0 GiB" in caught.value.why
        assert "gpu:1@6GiB" in caught.value.fix

        # All the memory is no more than there is.
        assert used(found(UNEQUAL, view(*UNEQUAL.gpus), "gpu:1@12GiB")) == ["gpu:1"]


def test_json_says_it_all() -> None:
    inventory = found(ONE_LOST, view(gpu(0)), "gpu:0@10GiB")
    read = json.loads(inventory.to_json())
    assert read["spec"] == "gpu:0@10GiB"
    assert read["driver_version"] == "550.54.15"
    first, lost, cpu = read["devices"]
    assert first["caps_bytes"] == [10 * GIB]
    assert lost["reason"]["code"] == "DEV-108"
    assert (cpu["name"], cpu["use"], cpu["num_cores"]) == ("cpu:0", "host", 8)


def test_every_code_is_documented_and_tested() -> None:
    folder = Path(evener.__file__).parent
    sources = [path.read_text() for path in (folder / "devices").glob("*.py")]
    raised = {code for text in sources for code in re.findall(r'"(DEV-\d{3})"', text)}
    page = (folder / "doctor" / "pages" / "errors.md").read_text()
    assert sorted(raised) == sorted(re.findall(r"^\| (DEV-\d{3}) \|", page, re.MULTILINE))
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [code for code in raised if code not in tests] == []
