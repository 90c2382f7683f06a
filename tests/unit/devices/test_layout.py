from __future__ import annotations

from evener.devices.inventories import join
from evener.devices.machine import TensorFlowGpu, TensorFlowView
from evener.devices.spec import GpuRequest, parse_spec
from evener.devices.use import (
    RuntimeLayout,
    UsedDevice,
    choose_layout,
    running_devices,
    select_devices,
    smaller_layouts,
)
from unit.devices.machines import GIB, HOST, TWO_EQUAL, UNEQUAL, seen, view


def layout(text: str) -> RuntimeLayout:
    return RuntimeLayout(gpus=parse_spec(text).gpus)


def test_layout_follows_the_spec() -> None:
    spec = parse_spec("gpu:1,gpu:0@10GiB")
    found = join(spec, UNEQUAL, view(*UNEQUAL.gpus), HOST)
    assert str(choose_layout(spec, found)) == "gpu:1, gpu:0@10GiB"


def test_choose_layout_stand_ins_has_one_thread_each() -> None:
    spec = parse_spec("cpu:3")
    found = join(spec, TWO_EQUAL, view(*TWO_EQUAL.gpus), HOST)
    assert choose_layout(spec, found) == RuntimeLayout(num_cpus=3, limit_threads=True)


def test_gpu_that_the_program_has_cut_stays_cut() -> None:
    cut = view(gpus=(TensorFlowGpu(index=0, name="NVIDIA A100", caps_bytes=(4 * GIB, 2 * GIB)),))
    spec = parse_spec("all")
    assert choose_layout(spec, join(spec, TWO_EQUAL, cut, HOST)) == layout("gpu:0@4GiB,gpu:0@2GiB")


class TestPick:
    # The picture in layout.py: gpu:1 is hidden, gpu:2 is cut in two.
    GPUS = (
        TensorFlowGpu(index=0),
        TensorFlowGpu(index=1, visible=False),
        TensorFlowGpu(index=2, caps_bytes=(10 * GIB, 5 * GIB)),
    )

    def select_devices(self, text: str) -> list[tuple[str, str]] | None:
        there = view(gpus=self.GPUS)
        found = join(parse_spec("cpu:1"), TWO_EQUAL, there, HOST)
        picked = select_devices(layout(text), there, found)
        return None if picked is None else [(d.name, d.physical) for d in picked]

    def test_devices_come_in_the_order_of_the_spec(self) -> None:
        assert self.select_devices("gpu:2@10GiB,gpu:2@5GiB,gpu:0") == [
            ("gpu:1", "gpu:2"),
            ("gpu:2", "gpu:2"),
            ("gpu:0", "gpu:0"),
        ]
        assert self.select_devices("gpu:2@5GiB") == [("gpu:2", "gpu:2")]

    def test_what_is_not_there_is_not_picked(self) -> None:
        assert self.select_devices("gpu:1") is None
        assert self.select_devices("gpu:0@5GiB") is None
        assert self.select_devices("gpu:2") is None
        assert self.select_devices("gpu:2@5GiB,gpu:2@5GiB") is None

    def test_cpus(self) -> None:
        there = view(num_logical_cpus=3)
        found = join(parse_spec("cpu:1"), TWO_EQUAL, there, HOST)
        assert select_devices(RuntimeLayout(num_cpus=4), there, found) is None
        picked = select_devices(RuntimeLayout(num_cpus=2), there, found)
        assert picked == tuple(
            UsedDevice(name=f"cpu:{index}", kind="cpu", memory_bytes=None, physical="cpu:0")
            for index in range(2)
        )


def test_running_devices_know_their_memory() -> None:
    large, small = seen(*UNEQUAL.gpus)
    there: TensorFlowView = view(gpus=(large, small))
    found = join(parse_spec("all"), UNEQUAL, there, HOST)
    devices = running_devices(there, found)
    assert [(d.name, d.memory_bytes) for d in devices] == [
        ("gpu:0", 24 * GIB),
        ("gpu:1", 12 * GIB),
        ("cpu:0", None),
    ]


def test_fewer_leaves_out_each_then_tries_each() -> None:
    assert [str(less) for less in smaller_layouts(layout("gpu:0,gpu:1"))] == [
        "gpu:0",
        "gpu:1",
        "cpu:0",
    ]
    assert [str(less) for less in smaller_layouts(layout("gpu:3"))] == ["cpu:0"]
    assert list(smaller_layouts(RuntimeLayout(num_cpus=2))) == []
    eight = RuntimeLayout(gpus=tuple(GpuRequest(index=index) for index in range(8)))
    assert len(list(smaller_layouts(eight))) == 8 + 8 + 1
