"""Times from datasheets: the three bounds of a layer, and published speeds."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.clusters import (
    Datasheet,
    cluster_named,
    datasheet_profile,
    model_named,
    parse_cluster,
    roofline,
)
from evener.errors import ProfileError
from evener.planner.datasheets import MEMORY_EFFICIENCY
from evener.planner.published_models import Kernel, PublishedModel, bert_large, gpt3, resnet50
from evener.profile import LayerCosts, ModelCosts

SHEET = Datasheet(
    peak_flops=200.0,
    dtype="float32",
    memory_bytes_per_second=10.0 / MEMORY_EFFICIENCY,
    efficiency=0.5,
    efficiency_source="",
    launch_seconds=0.25,
)
LAYER = LayerCosts(name="a", weight_bytes=40, optimizer_bytes=80, activation_bytes=5.0)


def with_flops(flops: float) -> LayerCosts:
    return dataclasses.replace(LAYER, forward_flops=flops)


def test_a_layer_is_bound_by_memory_then_by_arithmetic() -> None:
    # Launches 4 x 0.25 s; memory 4 s + 1 s a sample; arithmetic 2 s a sample.
    forward = roofline(with_flops(200.0), SHEET, num_operations=4).forward
    assert forward(1) == 1.0 + 5.0
    assert forward(3) == 1.0 + 7.0
    assert forward(4) == 1.0 + 8.0
    assert forward(5) == 1.0 + 10.0
    assert forward(100) == pytest.approx(1.0 + 200.0)


def test_a_layer_of_much_arithmetic_is_bound_by_it_from_the_first_sample_on() -> None:
    forward = roofline(with_flops(1000.0), SHEET, num_operations=4).forward
    assert (forward(1), forward(7)) == (11.0, 71.0)


def test_a_layer_of_little_arithmetic_is_bound_by_memory() -> None:
    forward = roofline(with_flops(0.0), SHEET, num_operations=0).forward
    assert (forward(1), forward(50)) == (5.0, pytest.approx(54.0))


def test_a_pass_is_the_sum_of_its_kernels() -> None:
    # Arithmetic 2 s a sample or memory 1 s a sample and 3 s; memory 4 s a sample, backward 6 s.
    product = Kernel(flops=200.0, bytes=10.0, fixed_bytes=30.0)
    elementwise = Kernel(bytes=40.0, backward_bytes=60.0)
    times = roofline(LAYER, SHEET, num_operations=4, kernels=(product, elementwise))
    assert [times.forward(n) for n in (1, 2, 3, 10)] == pytest.approx(
        [1 + 4 + 4, 1 + 5 + 8, 1 + 6 + 12, 1 + 20 + 40]
    )
    assert [times.backward(n) for n in (1, 2, 3, 10)] == pytest.approx(
        [2 + 8 + 6, 2 + 10 + 12, 2 + 12 + 18, 2 + 40 + 60]
    )


@pytest.mark.parametrize("model", [bert_large(), gpt3("13b"), resnet50()])
def test_the_kernels_do_the_arithmetic_of_their_layers(model: PublishedModel) -> None:
    for layer in model.costs.layers:
        kernels = model.kernels.get(layer.name, model.kernels.get(layer.kind, ()))
        if kernels:
            assert sum(kernel.flops for kernel in kernels) == pytest.approx(layer.forward_flops)
            # Each byte that is kept was written, so it is in the traffic.
            assert sum(kernel.bytes for kernel in kernels) > layer.activation_bytes
    assert (
        sum(
            layer.name in model.kernels or layer.kind in model.kernels
            for layer in model.costs.layers
        )
        >= len(model.costs.layers) - 2
    )


def test_a_backward_pass_is_two_forward_passes() -> None:
    times = roofline(with_flops(200.0), SHEET, num_operations=4)
    assert times.backward(9) == 2 * times.forward(9)


def test_an_update_reads_and_writes_weights_and_state() -> None:
    times = roofline(LAYER, SHEET, num_operations=4)
    assert times.update_seconds == pytest.approx((3 * 40 + 2 * 80) / 10.0 + 0.25)
    empty = roofline(LayerCosts(name="b", forward_flops=1.0), SHEET, num_operations=1)
    assert empty.update_seconds == 0.0


@given(st.floats(0.01, 1e4), st.floats(0, 1e5), st.integers(0, 40))
def test_no_batch_is_faster_than_its_launches(samples: float, flops: float, count: int) -> None:
    times = roofline(with_flops(flops), SHEET, num_operations=count)
    assert times.forward(samples) >= count * SHEET.launch_seconds
    # Twice the samples never take more than twice the time.
    assert times.forward(2 * samples) <= 2 * times.forward(samples) * (1 + 1e-12)


def test_the_profile_has_the_times_of_every_type_in_use() -> None:
    profile = datasheet_profile(model_named("resnet-50"), cluster_named("v100-8-p100-8"))
    assert set(profile.times) == {"v100", "p100"}
    assert profile.cluster is not None and len(profile.times["v100"]) == 18


def test_operations_are_counted_by_name_then_by_kind() -> None:
    model = ModelCosts(name="m", layers=(LayerCosts(name="a", kind="k"), LayerCosts(name="b")))
    cluster = cluster_named("a100-8")
    counts = {"k": 3, "b": 7}
    times = datasheet_profile(model, cluster, num_operations=counts).times["a100"]
    assert [times_of_layer.forward(1) for times_of_layer in times] == pytest.approx(
        [3 * 5e-6, 7 * 5e-6]
    )
    by_default = datasheet_profile(model, cluster).times["a100"]
    assert [times_of_layer.forward(1) for times_of_layer in by_default] == pytest.approx(
        [5e-5, 5e-5]
    )


MEASURED = """
device_types:
  one:
    memory: 8 GiB
    source: measured
    curves:
      head: {forward: [[1, 5 ms]], backward: [[1, 6 ms]]}
      "block_*": {forward: [[1, 1 ms]], backward: [[1, 2 ms]]}
machines:
  - devices: {one: 1}
    host_link: {bandwidth: 12 GB/s}
"""


def test_measured_curves_are_used_by_name_and_by_kind() -> None:
    layers = (LayerCosts(name="block_0"), LayerCosts(name="last", kind="head"))
    model = ModelCosts(name="m", layers=layers)
    profile = datasheet_profile(model, parse_cluster(MEASURED))
    assert [times.forward(1) for times in profile.times["one"]] == [1e-3, 5e-3]


def test_a_layer_without_curves_and_datasheet_is_an_error() -> None:
    model = ModelCosts(name="m", layers=(LayerCosts(name="heads"),))
    with pytest.raises(ProfileError, match=r"'heads'.*'one'") as caught:
        datasheet_profile(model, parse_cluster(MEASURED))
    assert caught.value.code == "PROF-040"
    assert "Did you mean 'head'?" in caught.value.why


# Samples per second of one GPU in mixed precision with XLA. NVIDIA, DeepLearningExamples, README of
# ResNet-50 v1.5 and of BERT for TensorFlow, 2020: A100-40GB with 1,555 GB/s, and V100 of a DGX-1
# (16 GB for ResNet, 32 GB for BERT). RTX 3090: cloud.tencent.com/developer/article/1729954, 2020.
# P100, in float32: tensorflow.org/performance/benchmarks, 2017; its efficiency was chosen by it.
PUBLISHED = [
    ("resnet-50", "a100", 1555e9, 256, 2375),
    ("resnet-50", "v100", 900e9, 256, 1270),
    ("resnet-50", "rtx3090", 936e9, 256, 1163),
    ("resnet-50", "p100", 732e9, 64, 219),
    ("bert-large-128", "a100", 1555e9, 64, 356.8),
    ("bert-large", "a100", 1555e9, 16, 70.9),
    ("bert-large-128", "v100", 900e9, 64, 168.6),
    ("bert-large", "v100", 900e9, 8, 31.2),
]
CLUSTERS = {
    "a100": "a100-8",
    "v100": "v100-8-p100-8",
    "p100": "v100-8-p100-8",
    "rtx3090": "rtx3090-rtx3060",
}


@pytest.mark.parametrize(("model", "card", "bandwidth", "batch", "published"), PUBLISHED)
def test_published_models_are_about_as_fast_as_published(
    model: str, card: str, bandwidth: float, batch: int, published: float
) -> None:
    described = cluster_named(CLUSTERS[card])
    device = described.types[card]
    assert device.datasheet is not None
    sheet = dataclasses.replace(device.datasheet, memory_bytes_per_second=bandwidth)
    types = {**described.types, card: dataclasses.replace(device, datasheet=sheet)}
    described = dataclasses.replace(described, types=types)
    times = datasheet_profile(model_named(model), described).times[card]
    seconds = sum(
        layer.forward(batch) + layer.backward(batch) + layer.update_seconds for layer in times
    )
    predicted = batch / seconds
    print(f"{model} {card}: {predicted:.0f}/s, published {published}, {predicted / published:.2f}")
    assert 0.75 < predicted / published < 1.35
