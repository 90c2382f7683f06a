"""Cluster descriptions that evener ships."""

from __future__ import annotations

from importlib import resources

from evener.clusters.description import ClusterDescription
from evener.clusters.reading import parse_cluster
from evener.errors import ProfileError, did_you_mean

_SUFFIX = ".yaml"


def cluster_names() -> tuple[str, ...]:
    """Return the names that `cluster_named` knows, sorted."""
    files = resources.files("evener.clusters").joinpath("described").iterdir()
    names = [file.name.removesuffix(_SUFFIX) for file in files if file.name.endswith(_SUFFIX)]
    return tuple(sorted(names))


def cluster_named(name: str) -> ClusterDescription:
    """Return a cluster description that evener ships.

    Args:
        name: Name of the cluster; see `cluster_names`.

    Raises:
        ProfileError: PROF-038 if the name is unknown.

    >>> cluster_named("rtx3090-rtx3060").cluster.devices[1].type
    'rtx3060'
    """
    names = cluster_names()
    if name not in names:
        raise ProfileError(
            "PROF-038",
            f"There is no cluster named {name!r}.{did_you_mean(name, names)}",
            why=f"Those described with evener are {', '.join(names)}.",
            fix="Use one of them, or read a file of your own with read_cluster.",
        )
    file = resources.files("evener.clusters").joinpath("described", name + _SUFFIX)
    return parse_cluster(file.read_text(encoding="utf-8"), file=name + _SUFFIX)
