"""Published models by their shapes: costs of their layers, without making the models."""

from __future__ import annotations

from evener.clusters.published.model import Kernel, PublishedModel
from evener.clusters.published.named import model_named, model_names
from evener.clusters.published.resnet import resnet50
from evener.clusters.published.transformers import bert_large, gpt3

__all__ = [
    "Kernel",
    "PublishedModel",
    "bert_large",
    "gpt3",
    "model_named",
    "model_names",
    "resnet50",
]
