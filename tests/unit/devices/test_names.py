"""Names of devices: TensorFlow's and evener's."""

from __future__ import annotations

import pytest

from evener.devices.names import canonical_device, device_name, qualified_name


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("/job:localhost/replica:0/task:0/device:GPU:1", "/device:GPU:1"),
        ("/device:CPU:2", "/device:CPU:2"),
        ("/cpu:0", "/device:CPU:0"),
        ("/GPU", "/device:GPU:0"),
        ("/device:GPU:*", "/device:GPU:0"),
        ("/job:localhost", ""),
        ("", ""),
    ],
)
def test_devices_have_one_name(name: str, device: str) -> None:
    assert canonical_device(name) == device


@pytest.mark.parametrize(
    ("name", "on_machine", "qualified"),
    [
        ("/job:localhost/replica:0/task:0/device:GPU:1", "gpu:1", "gpu:1"),
        ("/job:worker/replica:0/task:2/device:GPU:1", "gpu:1", "worker:2/gpu:1"),
        ("/job:worker/cpu:0", "cpu:0", "worker:0/cpu:0"),
        ("/job:worker/task:2", "cpu:0", None),
        ("", "cpu:0", None),
    ],
)
def test_only_the_qualified_name_has_the_machine(
    name: str, on_machine: str, qualified: str | None
) -> None:
    assert device_name(name) == on_machine
    assert qualified_name(name) == qualified
