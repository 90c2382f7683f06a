"""Names of GPUs on stand-ins; `tests/cli/test_gpu_programs.py` runs programs with them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import tensorflow as tf

from evener._tf_private.patches import owner_of
from evener.run import device_calls
from evener.run.device_calls import EmulatedGpus
from evener.run.script import UserLine
from evener.strategy.placed_graph import ASKED

GPU = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
# Functions of tf.config that are given devices, or list them, and what they are left for.
LEFT_ALONE = {"experimental_connect_to_cluster", "experimental_connect_to_host"}


class Said(list[str]):
    """Reported texts, without their lines."""

    def __call__(self, text: str, line: UserLine | None) -> None:
        self.append(text)


def answers_of(stand_ins: list[str] | None, said: Said) -> Any:
    return EmulatedGpus(stand_ins, said, are_trained_on=True)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("/GPU:1", "/device:CPU:2"),
        ("gpu:1", "/device:CPU:2"),
        ("/device:GPU:0", "/device:CPU:0"),
        ("/gpu", "/device:CPU:0"),
        ("/job:localhost/device:GPU:1", "/job:localhost/device:CPU:2"),
        (tf.DeviceSpec(device_type="GPU", device_index=1), "/device:CPU:2"),
        (tf.config.LogicalDevice("/device:GPU:1", "GPU"), "/device:CPU:2"),
        (["/gpu:0", "/gpu:1", "/GPU:0"], ["/device:CPU:0", "/device:CPU:2"]),
        # Not a GPU of this machine, or no name at all: TensorFlow's answer is its own.
        ("/GPU:2", "/GPU:2"),
        ("/cpu:0", "/cpu:0"),
        ("/job:worker/device:GPU:0", "/job:worker/device:GPU:0"),
        ("/physical_device:GPU:0", "/physical_device:GPU:0"),
        ("my GPU", "my GPU"),
        (None, None),
    ],
)
def test_a_name_leads_to_the_stand_in_of_its_number(asked: Any, expected: Any) -> None:
    said = Said()
    assert EmulatedGpus(["cpu:0", "cpu:2"], said).substitute(asked) == expected
    assert len(said) == (asked != expected)
    if said:
        assert said[0].startswith("no GPU was found: cpu:0 and cpu:2 appear as GPU:0 and GPU:1; ")


def test_a_function_of_operations_may_name_gpus() -> None:
    device = EmulatedGpus(["cpu:0", "cpu:2"], Said()).substitute(lambda operation: "/gpu:1")
    with tf.Graph().as_default(), tf.compat.v1.device(device):
        assert tf.constant(1.0).device == "/device:CPU:2"


def test_the_stand_ins_of_a_runtime_that_is_the_programs(logical_cpus: list[str]) -> None:
    said = Said()
    answers = answers_of(None, said)
    gpus = answers._listed("physical", tf.config.list_physical_devices, "GPU")
    assert len(gpus) == len(logical_cpus) > 1
    # As TensorFlow does, what changes nothing is accepted when it has started, and no more.
    answers.set_visible_devices(None, gpus, "GPU")
    for late in (
        lambda: answers.set_visible_devices(None, gpus[0], "GPU"),
        lambda: answers.set_memory_growth(None, gpus[0], True),
        lambda: answers.set_logical_device_configuration(None, gpus[0], [None, None]),
    ):
        with pytest.raises(RuntimeError, match="cannot be modified after being initialized"):
            late()


def test_what_is_no_gpu_is_left_to_tensorflow() -> None:
    answers = answers_of(["cpu:0", "cpu:1"], Said())
    cpu = tf.config.list_physical_devices("CPU")[0]
    for name, *args in (
        ("set_visible_devices", cpu, "CPU"),
        ("get_memory_growth", cpu),
        ("set_memory_growth", cpu, True),
        ("get_logical_device_configuration", cpu),
        ("set_logical_device_configuration", cpu, [None]),
        ("get_device_details", cpu),
        ("get_memory_info", "CPU:1"),
    ):
        seen = list[Any]()
        answers.replace(lambda *given, seen=seen: seen.extend(given), name)(*args)
        assert seen == args
    # Both kinds at once: each has its own.
    seen = []
    gpus = answers._listed("physical", tf.config.list_physical_devices, "GPU")
    answers.set_visible_devices(lambda *given: seen.extend(given), [cpu, gpus[0]])
    assert seen == [[cpu]]
    assert answers._listed("visible", lambda *_: [cpu]) == [cpu, gpus[0]]


def test_operations_of_a_graph_know_which_gpu_they_ask_for() -> None:
    answers = EmulatedGpus(["cpu:0", "cpu:2"], print)
    device = answers.replace(tf.device, "device")

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with device("/gpu:1"):
            x = tf.sin(x)
            with tf.device("/cpu:1"):
                x = tf.cos(x)
            with device("/GPU:0"):
                x = tf.tan(x)
            return tf.exp(x)

    graph = step.get_concrete_function(tf.ones(())).graph
    found = {
        operation.type: (operation.device, getattr(operation, ASKED, None))
        for operation in graph.get_operations()
        if operation.type in ("Sin", "Cos", "Tan", "Exp")
    }
    assert found == {
        "Sin": ("/device:CPU:2", "gpu:1"),
        "Cos": ("/device:CPU:1", None),
        "Tan": ("/device:CPU:0", "gpu:0"),
        "Exp": ("/device:CPU:2", "gpu:1"),
    }


def test_a_strategy_is_made_on_the_stand_ins() -> None:
    answers = answers_of(["cpu:0", "cpu:2"], Said())
    given = list[Any]()

    def original(strategy, devices=None, cross_device_ops=None):
        given.append((devices, cross_device_ops))

    make = functools.partial(answers.init_strategy, original)
    make(None)
    make(None, ["/gpu:1", "/cpu:0"], 3)
    make(None, devices=None, cross_device_ops=4)
    both = ["/device:CPU:0", "/device:CPU:2"]
    assert given == [(both, None), (["/device:CPU:2", "/cpu:0"], 3), (both, 4)]
    answers.set_visible_devices(None, [], "GPU")
    make(None)
    assert given[-1] == (None, None)


@pytest.mark.parametrize("stand_ins", [["cpu:0", "cpu:1"], ["gpu:0"]])
def test_nothing_is_replaced_where_a_gpu_is(
    stand_ins: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if stand_ins == ["cpu:0", "cpu:1"]:
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [GPU])
    before = functions()
    said = Said()
    device_calls.answer_as_gpus(stand_ins, said)
    assert before == functions()
    assert not said


def test_a_gpu_that_is_found_later_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [GPU])
    said = Said()
    assert EmulatedGpus(None, said).substitute("/GPU:0") == "/GPU:0"
    answers = answers_of(None, said)
    listed = answers.replace(tf.config.list_physical_devices, "list_physical_devices")
    assert listed() == [GPU]
    init = lambda strategy, devices=None: given.append(devices)  # noqa: E731
    make = functools.partial(answers.init_strategy, init)
    given = list[Any]()
    make(None)
    make(None, ["/gpu:0", "/gpu:0"])
    assert given == [None, ["/gpu:0", "/gpu:0"]]
    assert not said


def functions() -> dict[str, Any]:
    """Return the functions that may be replaced, by target."""
    found = {target: owner_of(target) for target in device_calls.FUNCTIONS.targets}
    return {target: getattr(module, name) for target, (module, name) in found.items()}


def test_every_function_of_tensorflow_that_lists_devices_is_in_the_table() -> None:
    there = {target.partition(":")[2] for target in device_calls.FUNCTIONS.targets}
    there = {path.removeprefix("compat.v1.").removeprefix("compat.v2.") for path in there}
    assert there == set(device_calls.REPLACED)
    for folder, module in (("config", tf.config), ("config.experimental", tf.config.experimental)):
        names = {
            name
            for name in vars(module)
            if name.startswith(("list_", "get_", "set_", "reset_", "experimental_connect"))
            and any(word in name for word in ("device", "memory", "connect"))
        }
        settings = {name for name in names if name.endswith(("_placement", "_policy"))}
        left = names - settings - LEFT_ALONE
        assert {f"{folder}.{name}" for name in left} <= set(device_calls.REPLACED)


def test_memory_that_tensorflow_does_not_count_is_none() -> None:
    answers = EmulatedGpus(["cpu:0"], print)

    def refuse(device: str) -> Any:
        raise ValueError(f"No memory info for {device}")

    found = {
        name: answers.replace(refuse, name)("GPU:0")
        for name in ("get_memory_info", "get_memory_usage", "reset_memory_stats")
    }
    assert found == {
        "get_memory_info": {"current": 0, "peak": 0},
        "get_memory_usage": 0,
        "reset_memory_stats": None,
    }
    with pytest.raises(ValueError, match="CPU:0"):
        answers.replace(refuse, "get_memory_info")("CPU:0")
