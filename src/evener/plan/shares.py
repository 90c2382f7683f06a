"""Shares: the part of every batch that each replica computes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from evener.errors import PlanError
from evener.plan.typed_values import as_double, as_whole, items_at, number_at, whole_number_at

# Up to these limits num_samples * share is finite, and the sizes add up exactly in doubles.
_LARGEST_SUM = 1e100
_MOST_SAMPLES = 2**50


def split_batch(num_samples: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Split a batch by shares, by rounding the cumulative shares.

    ::

        shares       320        192            cut_k = floor(n * cumulative_k / total + 0.5)
                 |----------|-------|
        cuts     0         cut_1   cut_2 = n   size_k = cut_k - cut_(k-1)

    The sizes add up to ``num_samples``, each is within 1 of its ideal part, and a share of
    0 gets no sample. The cuts never go back when ``num_samples`` grows; a single size may
    (of three even shares the middle one gets the only sample of a batch of 1, and none of
    a batch of 2).

    Args:
        num_samples: Samples in the batch, from 0 to 2**50.
        shares: Relative parts, finite and 0 or more, with a sum above 0.

    Returns:
        The number of samples for each share.

    Raises:
        PlanError: PLAN-030 for a wrong number of samples, PLAN-007 to PLAN-009 for wrong
            shares.

    >>> split_batch(512, [320, 192]), split_batch(10, [1, 1, 1])
    ((320, 192), (3, 4, 3))
    """
    checked = check_shares(shares)
    count = whole_number_at("num_samples", as_whole(num_samples))
    if not 0 <= count <= _MOST_SAMPLES:
        raise PlanError(
            "PLAN-030",
            f"A batch of {count} samples cannot be split.",
            why=f"the number of samples must be from 0 to {_MOST_SAMPLES}.",
            fix=f"give the size of the global batch, for example split_batch(512, {checked}).",
        )
    cumulative = tuple(itertools.accumulate(checked))
    cuts = [0, *(math.floor(count * part / cumulative[-1] + 0.5) for part in cumulative)]
    return tuple(after - before for before, after in itertools.pairwise(cuts))


def check_shares(
    shares: Sequence[float],
    *,
    num_expected: int | None = None,
    expected: str = "devices",
    path: str = "shares[{}]",
) -> tuple[float, ...]:
    """Return shares as doubles, or raise an error.

    Args:
        shares: Relative parts, finite and 0 or more, with a sum above 0.
        num_expected: Required number of shares; None for any number.
        expected: Noun that ``num_expected`` counts, ``"devices"`` or ``"replicas"``.
        path: Path of a share in the plan, with ``{}`` for its number.

    Raises:
        PlanError: PLAN-010 for more shares than devices, PLAN-011 for fewer, PLAN-020 for
            a value that is not a number, PLAN-007 for a negative share, PLAN-008 for one that is
            not finite, PLAN-009 if they add up to 0.
    """
    doubles = [as_double(share) for share in items_at("shares", shares)]
    if num_expected is not None and len(doubles) != num_expected:
        raise _wrong_count(doubles, num_expected, expected)
    checked = tuple(number_at(path.format(index), share) for index, share in enumerate(doubles))
    for index, share in enumerate(checked):
        _check_share(path.format(index), share)
    if not sum(checked) > 0:
        raise PlanError(
            "PLAN-009",
            f"The shares add up to 0: {list(checked)}.",
            why="at least one share must be greater than 0.",
            fix=f"write for example {[1.0] * max(1, len(checked))}.",
        )
    return checked


def _check_share(path: str, share: float) -> None:
    if share < 0 and not math.isinf(share):
        raise PlanError(
            "PLAN-007",
            f"{path} is {share:g}, which is negative.",
            why="a share is a relative part of each batch, so it must be 0 or more.",
            fix=f"write {path} = {-share:g}, or 0 to leave the device idle.",
        )
    if not abs(share) <= _LARGEST_SUM:
        raise PlanError(
            "PLAN-008",
            f"{path} is {share:g}, which is not a usable number.",
            why=f"a share must be a finite number from 0 to {_LARGEST_SUM:g}; if it is computed "
            "from a measured speed, the time may have been 0.",
            fix=f"write a number relative to the other shares, for example {path} = 1.",
        )


def _wrong_count(shares: Sequence[object], num_expected: int, expected: str) -> PlanError:
    num_more = len(shares) - num_expected
    right = [*shares[:num_expected], *[0] * -num_more]
    note = "" if num_more > 0 else "; a share of 0 means no samples"
    return PlanError(
        "PLAN-010" if num_more > 0 else "PLAN-011",
        f"There are {'more' if num_more > 0 else 'fewer'} shares than {expected}: "
        f"{len(shares)} and {num_expected}.",
        why=f"each of the {expected} needs exactly one share, in order.",
        fix=f"give as many shares as {expected}, for example {right}{note}.",
    )
