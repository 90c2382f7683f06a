"""Cluster files, the clusters that are described with evener, and docs/clusters.md."""

from __future__ import annotations

import doctest
import re
from collections import Counter
from pathlib import Path

import pytest

from evener import clusters
from evener.clusters import cluster_named, cluster_names, model_names, parse_cluster, read_cluster
from evener.errors import ProfileError
from evener.planner.published_models import bert_large
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


def test_types_of_devices_have_datasheets_or_curves_or_both() -> None:
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
    curves = "    curves: {head: {forward: [[1, 1 ms]], backward: [[1, 1 ms]]}}\n"
    both = parse_cluster(changed("    launch: 4 us\n", curves)).types["big"]
    assert both.datasheet is not None and both.datasheet.launch_seconds == 5e-6
    assert list(both.curves) == ["head"]


def test_devices_of_one_machine_are_named_without_a_worker() -> None:
    text = changed("    count: 2\n", "")
    text = text[: text.index("  - devices: {big: 1}")]
    described = parse_cluster(text, file="here/mine.yaml")
    assert [device.name for device in described.cluster.devices] == ["gpu:0", "gpu:1", "cpu:0"]
    assert described.cluster.network == Link()
    begin, end = GOOD.index("machines:\n"), GOOD.index("network:")
    with pytest.raises(ProfileError, match="A cluster needs a device"):
        parse_cluster(GOOD[:begin] + "machines: []\n" + GOOD[end:])


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    for content in (None, b"\xff\xfe"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ProfileError, match=r"ours\.yaml") as caught:
            read_cluster(path)
        assert caught.value.code == "PROF-037"
    # Without a name, a cluster has that of its file.
    path.write_text(changed("name: two machines\n", ""), encoding="utf-8")
    assert read_cluster(path).cluster.name == "ours"


NETWORK = "network: {bandwidth: 10 Gbit/s, latency: 50 us, source: Ethernet}\n"
LINK = "    link: {bandwidth: 16 GB/s, latency: 10 us}\n"
CURVES = GOOD[GOOD.index("    curves:") : GOOD.index("    source: measured here")]

# By mistake: a text and what is in its place, the code, the line, and words of the error.
MISTAKES = {
    "not YAML": ("device_types:\n", "device_types: [\n", "PROF-030", 5, "expected"),
    "a tab": ("    memory: 24 GiB\n", "\tmemory: 24 GiB\n", "PROF-030", 5, "cannot start"),
    "an alias of nothing": ("{big: 1}", "*nothing", "PROF-030", 27, "undefined alias"),
    "no mapping": (
        NETWORK,
        "network: 10 Gbit/s\n",
        "PROF-031",
        29,
        "network must be a mapping, an",
    ),
    "no value": (
        "memory: 24 GiB",
        "memory: {GiB: 24}",
        "PROF-031",
        5,
        "memory must be a single value",
    ),
    "no list": ("[[1, 0.004]]", "0.004", "PROF-031", 18, "backward must be a list"),
    "a wrong key": ("_bandwidth:", "_bandwith:", "PROF-032", 9, "Did you mean 'memory_bandwidth'?"),
    "a wrong key of a link": (
        "latency: 10",
        "latence: 10",
        "PROF-032",
        23,
        "link.latence is not a",
    ),
    "no memory": ("    memory: 24 GiB\n", "", "PROF-033", 5, "no 'memory'"),
    "no source": ("    source: its datasheet\n", "", "PROF-033", 5, "no 'source'"),
    "no peak": ("    peak: 71 TFLOP/s\n", "", "PROF-033", 5, "big has no 'peak'"),
    "neither datasheet nor curves": (CURVES, "", "PROF-033", 15, "measured has no 'peak'"),
    "no link between devices": (LINK, "", "PROF-033", 21, "machines[0] has no 'link'"),
    "no network between machines": (NETWORK, "", "PROF-033", 1, "no 'network'"),
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
    "an unknown type of device": ("{big: 1}", "{bigg: 1}", "PROF-035", 27, "Did you mean 'big'?"),
    "a key twice": (
        "launch: 4 us\n",
        "peak: 1 TFLOP/s\n",
        "PROF-036",
        12,
        "big.peak is there twice",
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


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "PROF-030"),
        ("# only a comment\n", "PROF-030"),
        ("---\n...\n", "PROF-031"),
        ("- a\n", "PROF-031.* must be a mapping, and is a list"),
        ("just text\n", "PROF-031.* must be a mapping, and is a single value"),
        # No crash, and no object of Python.
        ("[" * 100_000, "PROF-030"),
        (changed("about: one", 'about: !!python/object/apply:os.system ["exit 1"] #'), "PROF-031"),
    ],
)
def test_a_text_that_is_no_cluster_is_told(text: str, says: str) -> None:
    with pytest.raises(ProfileError, match=says):
        parse_cluster(text)


DEVICES = {
    "a100-8": ({"a100": 8}, 1),
    "h100-128x8": ({"h100": 1024}, 128),
    "rtx3090-3-1": ({"rtx3090": 4}, 2),
    "rtx3090-rtx3060": ({"rtx3090": 1, "rtx3060": 1}, 1),
    "v100-8-p100-8": ({"v100": 8, "p100": 8}, 2),
}


@pytest.mark.parametrize("name", DEVICES)
def test_a_cluster_has_its_devices_and_the_sources_of_its_figures(name: str) -> None:
    described = cluster_named(name)
    cluster = described.cluster
    counts, num_machines = DEVICES[name]
    assert Counter(device.type for device in cluster.devices) == counts
    assert len(cluster.machines) == num_machines
    assert cluster.name == name
    assert described.about
    for device in described.types.values():
        assert device.datasheet is not None
        assert len(device.source) > 20
        assert len(device.datasheet.efficiency_source) > 20
        assert 2**33 < device.memory_bytes < 2**37
    if name == "rtx3090-3-1":
        assert [device.machine for device in cluster.devices] == [0, 0, 0, 1]


@pytest.mark.parametrize("name", ["a100_8", "../shipped", "", "a100-8.yaml"])
def test_an_unknown_name_is_answered_and_is_no_path(name: str) -> None:
    with pytest.raises(ProfileError) as caught:
        cluster_named(name)
    assert caught.value.code == "PROF-038"
    assert name != "a100_8" or "Did you mean 'a100-8'" in str(caught.value)


def test_nothing_of_it_imports_tensorflow(run_python) -> None:
    done = run_python(
        "import sys, evener.clusters\n"
        "evener.clusters.cluster_named('a100-8')\n"
        "print(sorted({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))\n"
    )
    assert done.stdout.strip() == "[]"


DOCUMENT = Path(__file__).parents[3] / "docs" / "clusters.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")


def test_the_example_runs_as_it_stands() -> None:
    failed, tried = doctest.testfile(str(DOCUMENT), module_relative=False)
    assert tried > 5
    assert failed == 0


def test_the_cluster_file_is_read() -> None:
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    described = parse_cluster(example)
    assert len(described.cluster.devices) == 8
    assert described.types["old"].datasheet is None
    blocks = bert_large().costs.layers[1:2]
    assert described.types["old"].measured(blocks[0]) is not None


def test_all_names_are_in_the_page() -> None:
    assert cluster_names() == tuple(sorted(DEVICES))
    for name in (*cluster_names(), *model_names()):
        assert f"`{name}`" in TEXT
    functions = set(re.findall(r"`(\w+)\(", TEXT))
    assert len(functions) > 4
    assert functions <= {*clusters.__all__, "make_plan"}
