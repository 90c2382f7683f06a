"""Resources that workers ask Ray for."""

from __future__ import annotations

import pytest

from evener.errors import RunError
from evener.workers.on_ray import Resources, lacking, parse_resources, resources_of


def test_names_of_ray_become_options_of_an_actor() -> None:
    found = parse_resources("GPU=0.5, CPU=4,fast_disk=2,slow=0")
    assert (found.num_cpus, found.num_gpus, found.others) == (4.0, 0.5, {"fast_disk": 2.0})
    assert found.quantities() == {"CPU": 4.0, "GPU": 0.5, "fast_disk": 2.0}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is not NAME=NUMBER"),
        ("CPU", "'CPU' is not NAME=NUMBER"),
        ("CPU=1,,GPU=1", "'' is not NAME=NUMBER"),
        ("=1", "'=1' is not NAME=NUMBER"),
        ("CPU=two", "'CPU=two' is not NAME=NUMBER"),
        ("CPU=-1", "'CPU=-1' is not NAME=NUMBER"),
        ("CPU=nan", "'CPU=nan' is not NAME=NUMBER"),
        ("CPU=inf", "'CPU=inf' is not NAME=NUMBER"),
        ("GPU=1.5", "1.5 is above 1 and no whole number"),
        ("CPU=1,CPU=2", "CPU is there twice"),
        ("gpu=1", "Ray writes GPU, not gpu"),
        ("CPU=0", "all are 0"),
    ],
)
def test_what_cannot_be_read(text: str, says: str) -> None:
    with pytest.raises(RunError, match="RUN-089") as raised:
        parse_resources(text)
    assert says in raised.value.why


def test_resources_of_all_workers_or_of_each() -> None:
    small, large = parse_resources("CPU=1"), parse_resources("CPU=2")
    assert resources_of(["CPU=2"], 3, [0]) == (large, large, large)
    assert resources_of(["CPU=1", "CPU=2"], 2, [0]) == (small, large)
    with pytest.raises(RunError, match="RUN-089") as raised:
        resources_of(["CPU=1", "CPU=2"], 3, [0])
    assert "given 2 times for 3 workers" in raised.value.why


def test_without_resources_the_gpus_of_the_devices_are_asked_for() -> None:
    assert resources_of([], 2, [0]) == (Resources(), Resources())
    assert [need.num_gpus for need in resources_of([], 2, [2, 1])] == [2, 1]
    assert [need.num_gpus for need in resources_of(["CPU=1"], 2, [2, 1])] == [0, 0]


def test_nothing_is_lacking_where_all_is_there() -> None:
    assert not lacking([Resources(num_cpus=2)] * 2, {"CPU": 4.0})
