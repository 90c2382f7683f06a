"""Largest differences from one device: one table, with a reason for every wider row.

The error of a tensor is ``max|a - b| / max(max|a|, SCALE_FLOOR)``, `a` from one device and
`b` from the candidate: relative to the scale of the tensor, so that an entry that happens to
be near zero is not asked for more digits than its neighbours carry. A history (one log over
the epochs), an evaluation and an array of predictions count as one tensor each.

`rounding.py` measures what rounding alone does: one device trains on the same batches with
the samples of each batch in reverse order, which changes nothing but the order of sums. In
float32 the largest error of weights after ten steps is 1.2e-6 (the CNN under Adam), so that
the law's 1e-5 leaves room for other orders of sums and for nothing else. Models and
optimizers are chosen for that: smooth activations, no bias whose gradient is zero but for
rounding, Adam's epsilon at 1e-3 (models.py says more).
"""

from __future__ import annotations

SCALE_FLOOR = 1e-2

LAW = 1e-5

# What is measured in half precision, on one device alone, by rounding.py: the gradient of
# each part of a batch is rounded to 11 bits (float16) or 8 bits (bfloat16) of mantissa before
# the parts are added, and so is the sum on one device.
WIDER: dict[str, tuple[float, str]] = {
    "mixed_float16": (4e-3, "the MLP trained in two parts on one device differs by 7.5e-4"),
    "cnn_mixed_float16": (4e-3, "the CNN with reversed batches differs by 1.3e-3"),
    "mixed_bfloat16": (5e-2, "the MLP trained in two parts on one device differs by 1.2e-2"),
    # BatchNormalization maps two samples to -1 and 1, whatever they are: the gradients before it
    # are zero but for rounding, and Adam divides them by their own size. In float64 the drawn
    # model that differs by 1.1e-5 differs by 2.5e-15.
    "drawn_two_normalized": (1e-4, "two samples of a normalized unit differ by 1.1e-5 under Adam"),
    # The mean of numbers near 10,000 is rounded to 0.004, so one device differs from float64 by
    # this too; a mean of squares would differ by 10.
    "statistics_of_large_means": (1e-4, "the variance on one device differs by 1.1e-5"),
}


def tolerance(*names: str) -> float:
    """Return the widest tolerance that the table gives to any of the names, or the law's."""
    return max([LAW, *(WIDER[name][0] for name in names if name in WIDER)])
