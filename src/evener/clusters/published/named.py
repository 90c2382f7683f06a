"""Published models by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from evener.clusters.published.model import PublishedModel
from evener.clusters.published.resnet import resnet50
from evener.clusters.published.transformers import bert_large, gpt3
from evener.errors import ProfileError, did_you_mean

_MODELS: dict[str, Callable[[], PublishedModel]] = {
    "bert-large": bert_large,
    "bert-large-128": partial(bert_large, sequence=128),
    "gpt3-1.3b": partial(gpt3, "1.3b"),
    "gpt3-13b": partial(gpt3, "13b"),
    "resnet-50": resnet50,
}


def model_names() -> tuple[str, ...]:
    """Return the names that `model_named` knows, sorted."""
    return tuple(sorted(_MODELS))


def model_named(name: str) -> PublishedModel:
    """Return a published model.

    Args:
        name: Name of the model; see `model_names`.

    Raises:
        ProfileError: PROF-039 if the name is unknown.

    >>> len(model_named("resnet-50").costs.layers)
    18
    """
    if name not in _MODELS:
        raise ProfileError(
            "PROF-039",
            f"There is no published model named {name!r}.{did_you_mean(name, _MODELS)}",
            why=f"Those described with evener are {', '.join(model_names())}.",
            fix="Use one of them, or profile a model of your own.",
        )
    return _MODELS[name]()
