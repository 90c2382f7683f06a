"""Other cuts of a pipeline, chosen by an estimate that is closer to its timeline.

The formula that the search for cuts minimizes, sum + (m - 1) times the longest stage, ignores the
position of the longest stage. The first stage can run further forward passes while it waits for its
first gradient; the last one cannot::

    stage 0   F0 F1 F2 .. B0 F3 B1 ...        a step takes, for each stage k, at least
    stage 1      F0 B0 F1 B1 ...                  m t(k)                       its own work
                                                + what the stages before take  until it begins
                                                + what the stages behind take, less the forward
                                                  passes that it has to do meanwhile

For short models all cuts are estimated, and the best are returned.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence

from evener.cost_model.assignment import ReplicaAssignment, Span
from evener.profile import CostProfile

_MOST_CUTS = 3000
_MOST_TRIED = 8


def recut(
    replica: ReplicaAssignment, recompute: Sequence[bool], profile: CostProfile
) -> list[ReplicaAssignment]:
    """Return a pipeline with other cuts, the best estimate first; none for long models.

    Args:
        replica: Pipeline; a replica of one stage has no cuts.
        recompute: Whether each layer is recomputed in the backward pass.
        profile: Costs of the layers.
    """
    spans, num_layers = replica.spans, len(recompute)
    if len(spans) < 2 or math.comb(num_layers - 1, len(spans) - 1) > _MOST_CUTS:
        return []
    passes = [_passes(span.device, replica.micro_batch, recompute, profile) for span in spans]
    links = [
        [_sent(source.device, target.device, cut, replica, profile) for cut in range(num_layers)]
        for source, target in itertools.pairwise(spans)
    ]
    found: list[tuple[float, tuple[int, ...]]] = []
    for inner in itertools.combinations(range(1, num_layers), len(spans) - 1):
        bounds = (0, *inner, num_layers)
        stages = [
            (forward[end] - forward[begin], backward[end] - backward[begin])
            for (forward, backward), (begin, end) in zip(
                passes, itertools.pairwise(bounds), strict=True
            )
        ]
        sent = [of_cut[cut] for of_cut, cut in zip(links, inner, strict=True)]
        found.append((_estimate(stages, sent, replica.num_micro_batches), bounds))
    return [
        dataclasses.replace(
            replica,
            spans=tuple(
                Span(span.device, *ends)
                for span, ends in zip(spans, itertools.pairwise(bounds), strict=True)
            ),
        )
        for _, bounds in heapq.nsmallest(_MOST_TRIED, found)
    ]


def _estimate(stages: Sequence[tuple[float, float]], sent: Sequence[float], count: int) -> float:
    """Return the estimated seconds of a step.

    Args:
        stages: Forward and backward seconds of a micro-batch in each stage.
        sent: Transfer seconds of a micro-batch from each stage but the last to the next.
        count: Number of micro-batches.

    >>> _estimate([(3.0, 6.0), (1.0, 2.0)], [0.0], 4), _estimate([(1.0, 2.0), (3.0, 6.0)], [0.0], 4)
    (36.0, 39.0)
    """
    whole = [forward + backward for forward, backward in stages]
    # Each tensor is sent, and its gradient comes back.
    behind = sum(whole) + 2 * sum(sent)
    before = longest = 0.0
    for k, (forward, _) in enumerate(stages):
        behind -= whole[k]
        hidden = min(count - 1, len(stages) - 1 - k) * forward
        longest = max(longest, before + count * whole[k] + max(0.0, behind - hidden))
        if k < len(sent):
            behind -= 2 * sent[k]
            before += whole[k] + 2 * sent[k]
    return longest


def _passes(
    device: int, samples: float, recompute: Sequence[bool], profile: CostProfile
) -> tuple[list[float], list[float]]:
    """Return the cumulative forward and backward seconds of the layers."""
    times = profile.times[profile.cluster.devices[device].type]
    forward = (layer.forward(samples) for layer in times)
    backward = (
        layer.backward_seconds(samples, recompute=is_recomputed, separate=True)
        for layer, is_recomputed in zip(times, recompute, strict=True)
    )
    return _added(forward), _added(backward)


def _added(seconds: Iterator[float]) -> list[float]:
    return list(itertools.accumulate(seconds, initial=0.0))


def _sent(
    source: int, target: int, cut: int, replica: ReplicaAssignment, profile: CostProfile
) -> float:
    """Return the transfer seconds of a micro-batch between two devices at a cut."""
    if not cut or source == target:
        return 0.0
    num_bytes = profile.model.layers[cut - 1].boundary_bytes * replica.micro_batch
    return profile.cluster.link(source, target).seconds(num_bytes)
