"""Times from datasheets, and published models with their totals and speeds."""

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
    model_names,
    parse_cluster,
    reached_speeds,
    roofline,
)
from evener.errors import ProfileError
from evener.planner.datasheets import MEMORY_EFFICIENCY
from evener.planner.published_models import Kernel, PublishedModel, bert_large, gpt3, resnet50
from evener.profile import LayerCosts, ModelCosts

# Billions, as their papers say.
PARAMETERS = {
    "bert-large": (0.340, 0.02),
    "bert-large-128": (0.340, 0.02),
    "gpt3-1.3b": (1.3, 0.02),
    "gpt3-13b": (13.0, 0.02),
    "resnet-50": (0.0256, 0.005),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_those_of_the_paper(name: str) -> None:
    model = model_named(name)
    billions, tolerance = PARAMETERS[name]
    assert model.num_parameters / 1e9 == pytest.approx(billions, rel=tolerance)
    assert model.costs.weight_bytes == 4 * model.num_parameters
    layers = model.costs.layers
    assert sum(layer.optimizer_bytes for layer in layers) == 8 * model.num_parameters
    # All cuts but the one behind the last layer have bytes that cross them.
    assert all(layer.boundary_bytes > 0 for layer in layers[:-1])
    assert layers[-1].boundary_bytes == 0
    assert all(layer.kind in model.num_operations for layer in layers if layer.kind)


def test_bert_large_has_the_parameters_of_its_checkpoint() -> None:
    # 335,141,888 in the encoder with its pooler; the heads add 1,084,220.
    short, long = bert_large(sequence=128), bert_large()
    assert long.num_parameters == 335_141_888 + 1024**2 + 3 * 1024 + 30522 + 2 * 1024 + 2
    assert short.num_parameters == long.num_parameters
    assert short.forward_flops < long.forward_flops / 4
    assert short.costs.input_bytes == long.costs.input_bytes / 4


def test_resnet50_has_the_parameters_and_products_of_its_published_form() -> None:
    model = resnet50()
    assert model.num_parameters == 25_557_032
    # 4.09 billion multiplications and additions: torchvision's ResNet50_Weights, and He et al.
    # 3.8 billion for the version with the strides in the 1 x 1 convolutions.
    assert model.forward_flops / 2 == pytest.approx(4.09e9, rel=0.002)
    # Moving means and variances, as Keras counts them.
    assert sum(layer.state_bytes for layer in model.costs.layers) == 4 * 53_120


def test_gpt_follows_the_published_formulas() -> None:
    # Activations of a block: Korthikanti et al., 2022, equation 1.
    s, h, a = 2048, 5120, 40
    block = gpt3("13b").costs.layers[1]
    assert block.activation_bytes == s * h * (34 + 5 * a * s / h)
    assert block.boundary_bytes == 2 * s * h
    # Narayanan et al., 2021, equation 3, without recomputation: forward is a third of
    # 72 s l h^2 (1 + s / 6h + V / 12lh).
    s, h, num_blocks, v = 2048, 2048, 24, 50257
    wanted = 72 * s * num_blocks * h * h * (1 + s / (6 * h) + v / (12 * num_blocks * h)) / 3
    assert gpt3("1.3b").forward_flops == pytest.approx(wanted)


def test_an_unknown_name_is_answered_with_a_close_one() -> None:
    assert model_names() == tuple(sorted(PARAMETERS))
    with pytest.raises(ProfileError, match="Did you mean 'resnet-50'") as caught:
        model_named("resnet50")
    assert caught.value.code == "PROF-039"


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


@pytest.mark.parametrize(
    ("flops", "num_operations", "seconds"),
    [
        # Launches 4 x 0.25 s; memory 4 s + 1 s a sample; arithmetic 2 s a sample.
        (200.0, 4, {1: 1.0 + 5.0, 3: 1.0 + 7.0, 4: 1.0 + 8.0, 5: 1.0 + 10.0, 100: 1.0 + 200.0}),
        # Bound by arithmetic from the first sample on, or by memory alone.
        (1000.0, 4, {1: 11.0, 7: 71.0}),
        (0.0, 0, {1: 5.0, 50: 54.0}),
    ],
)
def test_a_layer_is_bound_by_memory_then_by_arithmetic(
    flops: float, num_operations: int, seconds: dict[int, float]
) -> None:
    times = roofline(with_flops(flops), SHEET, num_operations=num_operations)
    assert {count: times.forward(count) for count in seconds} == pytest.approx(seconds)
    # A backward pass is two forward passes.
    assert times.backward(9) == 2 * times.forward(9)


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
    num_known = 0
    for layer in model.costs.layers:
        kernels = model.kernels.get(layer.name, model.kernels.get(layer.kind))
        num_known += kernels is not None
        if kernels:
            assert sum(kernel.flops for kernel in kernels) == pytest.approx(layer.forward_flops)
            # Each byte that is kept was written, so it is in the traffic.
            assert sum(kernel.bytes for kernel in kernels) > layer.activation_bytes
    assert num_known >= len(model.costs.layers) - 2


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


def test_operations_are_counted_by_name_then_by_kind() -> None:
    model = ModelCosts(name="m", layers=(LayerCosts(name="a", kind="k"), LayerCosts(name="b")))
    cluster = cluster_named("a100-8")

    def seconds(**options: dict[str, int]) -> list[float]:
        times = datasheet_profile(model, cluster, **options).times["a100"]
        return [times_of_layer.forward(1) for times_of_layer in times]

    assert seconds(num_operations={"k": 3, "b": 7}) == pytest.approx([3 * 5e-6, 7 * 5e-6])
    assert seconds() == pytest.approx([5e-5, 5e-5])


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
    cluster = parse_cluster(MEASURED)
    layers = (LayerCosts(name="block_0"), LayerCosts(name="last", kind="head"))
    profile = datasheet_profile(ModelCosts(name="m", layers=layers), cluster)
    assert [times.forward(1) for times in profile.times["one"]] == [1e-3, 5e-3]
    unknown = ModelCosts(name="m", layers=(LayerCosts(name="heads"),))
    with pytest.raises(ProfileError, match=r"'heads'.*'one'") as caught:
        datasheet_profile(unknown, cluster)
    assert caught.value.code == "PROF-040"
    assert "Did you mean 'head'?" in caught.value.why
    # Of a cluster with datasheets, the times of every type in use.
    profile = datasheet_profile(model_named("resnet-50"), cluster_named("v100-8-p100-8"))
    assert {name: len(times) for name, times in profile.times.items()} == {"v100": 18, "p100": 18}


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
    assert 0.75 < batch / seconds / published < 1.35


def test_a_datasheet_gives_speeds_by_dtype() -> None:
    found = reached_speeds(cluster_named("rtx3090-rtx3060"))
    assert list(found) == ["rtx3090", "rtx3060"]
    speeds = dict(found["rtx3090"]["flops"])
    assert speeds["float16"] == speeds["bfloat16"] == 71e12 * 0.45
    assert speeds["float32"] == 35.6e12 * 0.45
    assert found["rtx3090"]["bytes_per_second"] == 936e9 * MEMORY_EFFICIENCY
    assert found["rtx3090"]["launch_seconds"] == 5e-6
    # A card without tensor cores is as fast in every dtype.
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
        reached_speeds(parse_cluster(MEASURED))
    assert caught.value.code == "PROF-041"
    assert "memory_bandwidth" in caught.value.fix
