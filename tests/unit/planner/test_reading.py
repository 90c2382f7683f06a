"""Cluster files: what is read, and what every mistake is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from evener.clusters import parse_cluster, read_cluster
from evener.errors import ProfileError
from evener.profile import Curve, Link

GOOD = """\
name: two machines
about: one for each kind
device_types:
  big:
    memory: 24 GiB
    reserved: 1 GiB
    peak: 71 TFLOP/s
    dtype: float16
    memory_bandwidth: 936 GB/s
    efficiency: 0.45
    efficiency_source: assumed
    launch: 4 us
    source: its datasheet
  measured:
    kind: cpu
    memory: 64 GiB
    curves:
      "block_*": {forward: [[1, 2 ms], [8, 0.01]], backward: [[1, 0.004]], update: 1 ms}
    source: measured here
machines:
  - devices: {big: 2, measured: 1}
    count: 2
    link: {bandwidth: 16 GB/s, latency: 10 us}
    host_link: {bandwidth: 12 GB/s}
    host_memory: 128 GiB
    shares_link: true
  - devices: {big: 1}
    host_link: {bandwidth: 25 GB/s}
network: {bandwidth: 10 Gbit/s, latency: 50 us, source: Ethernet}
"""


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, f"{old!r} must be there once"
    return GOOD.replace(old, new)


def test_a_cluster_file_is_read_as_it_is_written() -> None:
    described = parse_cluster(GOOD)
    cluster = described.cluster
    assert (cluster.name, described.about) == ("two machines", "one for each kind")
    assert [(device.name, device.type, device.machine) for device in cluster.devices] == [
        ("worker:0/gpu:0", "big", 0),
        ("worker:0/gpu:1", "big", 0),
        ("worker:0/cpu:0", "measured", 0),
        ("worker:1/gpu:0", "big", 1),
        ("worker:1/gpu:1", "big", 1),
        ("worker:1/cpu:0", "measured", 1),
        ("worker:2/gpu:0", "big", 2),
    ]
    assert cluster.devices[0].memory_bytes == 23 * 2**30
    assert cluster.machines[0].link == Link(bytes_per_second=16e9, latency_seconds=1e-5)
    assert cluster.machines[1].host_memory_bytes == 128 * 2**30
    assert [machine.shares_link for machine in cluster.machines] == [True, True, False]
    assert cluster.network == Link(bytes_per_second=1.25e9, latency_seconds=5e-5)


def test_types_of_devices_have_datasheets_or_curves() -> None:
    types = parse_cluster(GOOD).types
    sheet = types["big"].datasheet
    assert sheet is not None
    assert (sheet.peak_flops, sheet.memory_bytes_per_second) == (71e12, 936e9)
    assert (sheet.efficiency, sheet.launch_seconds, sheet.dtype) == (0.45, 4e-6, "float16")
    measured = types["measured"]
    assert measured.datasheet is None
    times = measured.curves["block_*"]
    assert times.forward == Curve(((1, 0.002), (8, 0.01)))
    assert times.backward == Curve(((1, 0.004),))
    assert times.update_seconds == 1e-3


def test_a_type_may_have_both_datasheet_and_curves() -> None:
    curves = "    curves: {head: {forward: [[1, 1 ms]], backward: [[1, 1 ms]]}}\n"
    types = parse_cluster(changed("    launch: 4 us\n", curves)).types
    sheet = types["big"].datasheet
    assert sheet is not None and sheet.launch_seconds == 5e-6
    assert list(types["big"].curves) == ["head"]


def test_devices_of_one_machine_are_named_without_a_worker() -> None:
    text = changed("    count: 2\n", "")
    text = text[: text.index("  - devices: {big: 1}")]
    described = parse_cluster(text, file="here/mine.yaml")
    assert [device.name for device in described.cluster.devices] == ["gpu:0", "gpu:1", "cpu:0"]
    assert described.cluster.network == Link()


def test_a_cluster_without_a_name_has_that_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text(changed("name: two machines\n", ""), encoding="utf-8")
    assert read_cluster(path).cluster.name == "ours"


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "gone.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ProfileError, match=r"gone\.yaml") as caught:
        read_cluster(path)
    assert caught.value.code == "PROF-037"


MISTAKES = {
    "not YAML": ("device_types:\n", "device_types: [\n", "PROF-030", 5, "expected"),
    "a tab": ("    memory: 24 GiB\n", "\tmemory: 24 GiB\n", "PROF-030", 5, "cannot start"),
    "an alias of nothing": ("{big: 1}", "*nothing", "PROF-030", 27, "undefined alias"),
    "machines are no list": (
        "network: {bandwidth: 10 Gbit/s, latency: 50 us, source: Ethernet}\n",
        "network: 10 Gbit/s\n",
        "PROF-031",
        29,
        "network must be a mapping, and is a single value",
    ),
    "a mapping where a value belongs": (
        "memory: 24 GiB",
        "memory: {GiB: 24}",
        "PROF-031",
        5,
        "device_types.big.memory must be a single value, and is a mapping",
    ),
    "a curve that is no list": (
        "backward: [[1, 0.004]]",
        "backward: 0.004",
        "PROF-031",
        18,
        "backward must be a list",
    ),
    "a wrong key": (
        "    memory_bandwidth: 936 GB/s\n",
        "    memory_bandwith: 936 GB/s\n",
        "PROF-032",
        9,
        "Did you mean 'memory_bandwidth'?",
    ),
    "a wrong key of a link": (
        "latency: 10 us",
        "latence: 10 us",
        "PROF-032",
        23,
        "machines[0].link.latence is not a known key. Did you mean 'latency'?",
    ),
    "no memory": ("    memory: 24 GiB\n", "", "PROF-033", 5, "no 'memory'"),
    "no source": ("    source: its datasheet\n", "", "PROF-033", 5, "no 'source'"),
    "no peak": ("    peak: 71 TFLOP/s\n", "", "PROF-033", 5, "big has no 'peak'"),
    "neither datasheet nor curves": (
        '    curves:\n      "block_*": {forward: [[1, 2 ms], [8, 0.01]], '
        "backward: [[1, 0.004]], update: 1 ms}\n",
        "",
        "PROF-033",
        15,
        "measured has no 'peak'",
    ),
    "no link between devices": (
        "    link: {bandwidth: 16 GB/s, latency: 10 us}\n",
        "",
        "PROF-033",
        21,
        "machines[0] has no 'link'",
    ),
    "no network between machines": (
        "network: {bandwidth: 10 Gbit/s, latency: 50 us, source: Ethernet}\n",
        "",
        "PROF-033",
        1,
        "no 'network'",
    ),
    "zero bandwidth": ("16 GB/s", "0 GB/s", "PROF-034", 23, "It must be above 0"),
    "negative bandwidth": ("16 GB/s", "-16 GB/s", "PROF-034", 23, "cannot be '-16 GB/s'"),
    "an endless bandwidth": ("16 GB/s", "1e999 GB/s", "PROF-034", 23, "more than can be counted"),
    "bandwidth without unit": ("16 GB/s", "16", "PROF-034", 23, "such as 16 GB/s"),
    "bandwidth in another unit": ("16 GB/s", "16 Gb/s", "PROF-034", 23, "'Gb/s' is not one of"),
    "negative latency": ("latency: 10 us", "latency: -1 us", "PROF-034", 23, "cannot be '-1 us'"),
    "no memory at all": ("24 GiB", "0 GiB", "PROF-034", 5, "above 0"),
    "memory without a unit": ("24 GiB", "24", "PROF-034", 5, "write for example 24 GiB"),
    "reserved without a unit": ("reserved: 1 GiB", "reserved: 1.5", "PROF-034", 6, "1.5 GiB"),
    "negative memory": ("24 GiB", "-24 GiB", "PROF-034", 5, "cannot be '-24 GiB'"),
    "all memory reserved": ("reserved: 1 GiB", "reserved: 24 GiB", "PROF-034", 6, "is left"),
    "zero peak": ("71 TFLOP/s", "0 TFLOP/s", "PROF-034", 7, "above 0"),
    "efficiency in percent": ("efficiency: 0.45", "efficiency: 45", "PROF-034", 10, "at most 1"),
    "no efficiency": ("efficiency: 0.45", "efficiency: 0", "PROF-034", 10, "above 0"),
    "efficiency nan": ("efficiency: 0.45", "efficiency: nan", "PROF-034", 10, "0 or more"),
    "no device": ("{big: 2, measured: 1}", "{big: 0}", "PROF-034", 21, "from 1 to"),
    "half a device": ("{big: 2, measured: 1}", "{big: 1.5}", "PROF-034", 21, "whole number"),
    "no machine": ("count: 2", "count: 0", "PROF-034", 22, "from 1 to"),
    "too many machines": ("count: 2", "count: 99999", "PROF-034", 21, "100,000 devices"),
    "a kind": ("kind: cpu", "kind: tpu", "PROF-034", 15, "gpu or cpu"),
    "yes or no": ("shares_link: true", "shares_link: 1", "PROF-034", 26, "true or false"),
    "a point of three": ("[[1, 0.004]]", "[[1, 2, 3]]", "PROF-034", 18, "[samples, time]"),
    "falling samples": ("[8, 0.01]", "[1, 0.01]", "PROF-034", 18, "by rising samples"),
    "negative time": ("[8, 0.01]", "[8, -0.01]", "PROF-034", 18, "cannot be '-0.01'"),
    "an unknown type of device": (
        "{big: 1}",
        "{bigg: 1}",
        "PROF-035",
        27,
        "machines[1].devices.bigg is not a known type of device. Did you mean 'big'?",
    ),
    "a key twice": (
        "    launch: 4 us\n",
        "    launch: 4 us\n    peak: 1 TFLOP/s\n",
        "PROF-036",
        13,
        "device_types.big.peak is there twice",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_line(mistake: str) -> None:
    old, new, code, line, words = MISTAKES[mistake]
    with pytest.raises(ProfileError) as caught:
        parse_cluster(changed(old, new), file="mine.yaml")
    error = caught.value
    assert error.code == code
    assert f"mine.yaml:{line}:" in error.what
    assert words in str(error)


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n...\n"])
def test_an_empty_file_is_told(text: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_cluster(text)
    assert caught.value.code in ("PROF-030", "PROF-031")


@pytest.mark.parametrize(("text", "kind"), [("- a\n", "a list"), ("just text\n", "a single value")])
def test_what_is_no_mapping_is_told(text: str, kind: str) -> None:
    with pytest.raises(ProfileError, match=f"must be a mapping, and is {kind}") as caught:
        parse_cluster(text)
    assert caught.value.code == "PROF-031"


def test_no_machines_are_no_cluster() -> None:
    begin, end = GOOD.index("machines:\n"), GOOD.index("network:")
    with pytest.raises(ProfileError, match="A cluster needs a device"):
        parse_cluster(GOOD[:begin] + "machines: []\n" + GOOD[end:])


def test_deeply_nested_text_is_an_error_and_no_crash() -> None:
    with pytest.raises(ProfileError) as caught:
        parse_cluster("[" * 100_000)
    assert caught.value.code == "PROF-030"


def test_tags_make_no_objects() -> None:
    text = changed("about: one for each kind", 'about: !!python/object/apply:os.system ["exit 1"]')
    with pytest.raises(ProfileError) as caught:
        parse_cluster(text)
    assert caught.value.code == "PROF-031"
