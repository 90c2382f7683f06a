"""Published models, held against published totals."""

from __future__ import annotations

import pytest

from evener.clusters import model_named, model_names
from evener.errors import ProfileError
from evener.planner.published_models import bert_large, gpt3, resnet50

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
    assert sum(layer.optimizer_bytes for layer in model.costs.layers) == 8 * model.num_parameters


def test_bert_large_has_the_parameters_of_its_checkpoint() -> None:
    # 335,141,888 in the encoder with its pooler; the heads add 1,084,220.
    assert bert_large().num_parameters == 335_141_888 + 1024**2 + 3 * 1024 + 30522 + 2 * 1024 + 2


def test_resnet50_has_the_parameters_and_products_of_its_published_form() -> None:
    model = resnet50()
    assert model.num_parameters == 25_557_032
    # 4.09 billion multiplications and additions: torchvision's ResNet50_Weights, and He et al.
    # 3.8 billion for the version with the strides in the 1 x 1 convolutions.
    assert model.forward_flops / 2 == pytest.approx(4.09e9, rel=0.002)
    # Moving means and variances, as Keras counts them.
    assert sum(layer.state_bytes for layer in model.costs.layers) == 4 * 53_120


def test_activations_of_a_block_follow_the_published_formula() -> None:
    # Korthikanti et al., 2022, equation 1.
    s, h, a = 2048, 5120, 40
    block = gpt3("13b").costs.layers[1]
    assert block.activation_bytes == s * h * (34 + 5 * a * s / h)
    assert block.boundary_bytes == 2 * s * h


def test_flops_of_gpt_follow_the_published_formula() -> None:
    # Narayanan et al., 2021, equation 3, without recomputation: forward is a third of
    # 72 s l h^2 (1 + s / 6h + V / 12lh).
    s, h, num_blocks, v = 2048, 2048, 24, 50257
    wanted = 72 * s * num_blocks * h * h * (1 + s / (6 * h) + v / (12 * num_blocks * h)) / 3
    assert gpt3("1.3b").forward_flops == pytest.approx(wanted)


def test_shorter_sequences_cost_less() -> None:
    short, long = bert_large(sequence=128), bert_large()
    assert short.num_parameters == long.num_parameters
    assert short.forward_flops < long.forward_flops / 4
    assert short.costs.input_bytes == long.costs.input_bytes / 4


@pytest.mark.parametrize("name", PARAMETERS)
def test_what_is_cut_crosses_every_cut_but_the_last(name: str) -> None:
    layers = model_named(name).costs.layers
    assert all(layer.boundary_bytes > 0 for layer in layers[:-1])
    assert layers[-1].boundary_bytes == 0
    assert all(layer.kind in model_named(name).num_operations for layer in layers if layer.kind)


def test_all_names_are_known() -> None:
    assert model_names() == tuple(sorted(PARAMETERS))


def test_an_unknown_name_is_answered_with_a_close_one() -> None:
    with pytest.raises(ProfileError, match="Did you mean 'resnet-50'") as caught:
        model_named("resnet50")
    assert caught.value.code == "PROF-039"
