"""Names of devices, and specs of the devices to use."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.devices.names import canonical_device, device_name, qualified_name
from evener.devices.spec import DeviceSpec, GpuRequest, SpecError, parse_spec, spec_from
from evener.errors import DeviceError


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


GIB = 2**30


def gpus(*requests: tuple[int, int | None]) -> DeviceSpec:
    listed = tuple(GpuRequest(index=index, cap_bytes=cap) for index, cap in requests)
    return DeviceSpec(kind="gpu", gpus=listed)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", DeviceSpec(kind="all")),
        ("cpu:1", DeviceSpec(kind="cpu", num_stand_ins=1)),
        # The names that `evener devices` prints.
        ("cpu:0", DeviceSpec(kind="cpu", num_stand_ins=1)),
        ("cpu:0, cpu:1,cpu:2", DeviceSpec(kind="cpu", num_stand_ins=3)),
        (
            "cpu:0@2GiB, cpu:1@1GiB",
            DeviceSpec(kind="cpu", num_stand_ins=2, stand_in_caps=(2**31, 2**30)),
        ),
        (" cpu:12 ", DeviceSpec(kind="cpu", num_stand_ins=12)),
        (
            "cpu:1@2GiB, cpu:2@1GiB",
            DeviceSpec(kind="cpu", num_stand_ins=3, stand_in_caps=(2**31, 2**30, 2**30)),
        ),
        ("gpu:0", gpus((0, None))),
        ("gpu:2,gpu:0", gpus((2, None), (0, None))),
        ("gpu:1@10GiB", gpus((1, 10 * GIB))),
        ("gpu:0, gpu:1@512 MiB", gpus((0, None), (1, GIB // 2))),
        ("gpu:0@10GiB,gpu:0@5GiB", gpus((0, 10 * GIB), (0, 5 * GIB))),
        ("gpu:0@1.5gib", gpus((0, 3 * GIB // 2))),
    ],
)
def test_spec_is_taken_apart(text: str, expected: DeviceSpec) -> None:
    assert parse_spec(text) == expected


@pytest.mark.parametrize(
    ("text", "code", "phrase"),
    [
        ("", "DEV-001", "is empty"),
        ("  ", "DEV-001", "is empty"),
        ("gpu:0,,gpu:1", "DEV-001", "empty item"),
        ("gpu:0,", "DEV-001", "empty item"),
        ("gpu0", "DEV-002", "Did you mean 'gpu:0'?"),
        ("GPU:0", "DEV-002", "Did you mean 'gpu:0'?"),
        ("cuda:0", "DEV-002", "Did you mean 'gpu:0'?"),
        ("/device:GPU:3", "DEV-002", "Did you mean 'gpu:3'?"),
        ("cpu0", "DEV-002", "Did you mean 'cpu:0'?"),
        ("al", "DEV-002", "Did you mean 'all'?"),
        ("cpu", "DEV-002", "'cpu' is not a device"),
        ("all:1", "DEV-002", "'all:1' is not a device"),
        ("tpu:0", "DEV-002", "'tpu:0' is not a device"),
        ("@10GiB", "DEV-002", "'@10GiB' is not a device"),
        ("cpu:00", "DEV-003", "write cpu:1 for the CPU alone"),
        ("cpu:0,cpu:2", "DEV-007", "by their names from cpu:0 on"),
        ("gpu:0,cpu:0", "DEV-007", "mixes 'cpu:0' with other devices"),
        ("cpu:-1", "DEV-003", "'-1' is not a number of stand-ins"),
        ("cpu:two", "DEV-003", "'two'"),
        ("cpu:257", "DEV-003", "from 1 to 256"),
        ("cpu:", "DEV-003", "'' is not a number"),
        ("gpu:-1", "DEV-004", "'-1' is not the number of a GPU"),
        ("gpu:", "DEV-004", "`evener devices`"),
        ("gpu:00", "DEV-004", "'00'"),
        ("gpu:0:1", "DEV-004", "'0:1'"),
        ("gpu:1,gpu:1", "DEV-005", "names gpu:1 2 times"),
        ("gpu:0@1GiB,gpu:0", "DEV-005", "only if each has a memory cap"),
        ("gpu:0@", "DEV-006", "cap ''"),
        ("gpu:0@lots", "DEV-006", "'lots' is not a size"),
        ("gpu:0@-1GiB", "DEV-006", "'-1GiB'"),
        ("gpu:0@0", "DEV-006", "less than 1 MiB"),
        ("gpu:0@5", "DEV-006", "less than 1 MiB"),
        ("cpu:1@1GiB,cpu:1", "DEV-007", "mixes 'cpu:1"),
        ("cpu:1,cpu:2", "DEV-007", "mixes 'cpu:1'"),
        ("cpu:200@1GiB,cpu:100@1GiB", "DEV-003", "'300' is not a number of stand-ins"),
        ("all@1GiB", "DEV-006", "'all@1GiB'"),
        ("all,gpu:0", "DEV-007", "mixes 'all'"),
        ("gpu:0,cpu:2", "DEV-007", "mixes 'cpu:2'"),
        ("all,all", "DEV-007", "mixes 'all'"),
    ],
)
def test_wrong_spec_is_explained(text: str, code: str, phrase: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    assert caught.value.code == code
    assert phrase in str(caught.value)
    assert isinstance(caught.value, DeviceError)


@pytest.mark.parametrize("value", [2, ["gpu:0"], b"all"])
def test_spec_that_is_no_text(value: Any) -> None:
    with pytest.raises(SpecError, match="DEV-002"):
        spec_from(value, {})


@pytest.mark.parametrize(
    ("value", "environ", "spec"),
    [
        (None, None, DeviceSpec(kind="all", source="default")),
        (None, "cpu:3", DeviceSpec(kind="cpu", num_stand_ins=3, source="environment")),
        ("all", "cpu:3", DeviceSpec(kind="all")),
        # Empty counts as not set.
        (None, " ", DeviceSpec(kind="all", source="default")),
    ],
)
def test_the_argument_comes_before_the_environment(
    value: str | None, environ: str | None, spec: DeviceSpec
) -> None:
    assert spec_from(value, {} if environ is None else {"EVENER_DEVICES": environ}) == spec


def test_an_error_names_the_environment() -> None:
    with pytest.raises(SpecError, match="EVENER_DEVICES='gpu0'"):
        spec_from(None, {"EVENER_DEVICES": "gpu0"})


REQUESTS = st.builds(GpuRequest, index=st.integers(0, 999_999), cap_bytes=st.integers(2**20, 2**50))


@given(
    st.one_of(
        st.just(DeviceSpec(kind="all")),
        st.builds(DeviceSpec, kind=st.just("cpu"), num_stand_ins=st.integers(1, 256)),
        st.lists(st.integers(2**20, 2**50), min_size=1, max_size=8).map(
            lambda caps: DeviceSpec(kind="cpu", num_stand_ins=len(caps), stand_in_caps=tuple(caps))
        ),
        st.builds(
            DeviceSpec,
            kind=st.just("gpu"),
            gpus=st.lists(REQUESTS, min_size=1).map(tuple),
        ),
    )
)
def test_spec_is_read_as_it_is_written(spec: DeviceSpec) -> None:
    assert parse_spec(str(spec)) == spec


@given(st.text(alphabet="gpucal:0129@GiMB,.- "))
def test_any_text_is_a_spec_or_a_spec_error(text: str) -> None:
    try:
        parse_spec(text)
    except SpecError as error:
        assert error.code.startswith("DEV-00")
