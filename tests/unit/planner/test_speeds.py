"""Speeds that scripts are computed with on devices that are not here."""

from __future__ import annotations

import pytest

from evener.clusters import cluster_named, parse_cluster, reached_speeds
from evener.errors import ProfileError
from evener.planner.datasheets import MEMORY_EFFICIENCY

CURVES_ALONE = """
device_types:
  old:
    memory: 8 GiB
    source: measured
    curves: {"block_*": {forward: [[1, 4 ms]], backward: [[1, 9 ms]]}}
machines:
  - devices: {old: 1}
    host_link: {bandwidth: 12 GB/s}
"""


def test_a_datasheet_gives_speeds_by_dtype() -> None:
    found = reached_speeds(cluster_named("rtx3090-rtx3060"))
    assert list(found) == ["rtx3090", "rtx3060"]
    speeds = dict(found["rtx3090"]["flops"])
    assert speeds["float16"] == speeds["bfloat16"] == 71e12 * 0.45
    assert speeds["float32"] == 35.6e12 * 0.45
    assert found["rtx3090"]["bytes_per_second"] == 936e9 * MEMORY_EFFICIENCY
    assert found["rtx3090"]["launch_seconds"] == 5e-6


def test_a_card_without_tensor_cores_is_as_fast_in_every_dtype() -> None:
    speeds = dict(reached_speeds(cluster_named("v100-8-p100-8"))["p100"]["flops"])
    assert speeds["float32"] == speeds["float16"] == 10.6e12 * 0.56


def test_without_a_figure_for_float32_half_of_the_peak_is_assumed() -> None:
    text = """
device_types:
  new: {memory: 8 GiB, peak: 10 TFLOP/s, dtype: float16, memory_bandwidth: 300 GB/s,
        efficiency: 0.5, efficiency_source: assumed, source: its datasheet}
machines:
  - devices: {new: 1}
    host_link: {bandwidth: 12 GB/s}
"""
    speeds = dict(reached_speeds(parse_cluster(text))["new"]["flops"])
    assert speeds == {"float32": 2.5e12, "float16": 5e12, "bfloat16": 5e12}


def test_curves_of_other_layers_say_nothing_of_a_script() -> None:
    with pytest.raises(ProfileError) as caught:
        reached_speeds(parse_cluster(CURVES_ALONE))
    assert caught.value.code == "PROF-041"
    assert "memory_bandwidth" in caught.value.fix
