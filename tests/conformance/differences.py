"""What evener does otherwise than MirroredStrategy, on purpose.

docs/distribute.md says the same at more length, under the same names; a test holds the two
together. The second group are the differences of single writes to variables.
"""

from __future__ import annotations

OF_LOOPS = {
    "one copy": "a variable lives once, on its owner, not once on each device",
    "one update": "an optimizer clips, averages and counts once, on the sum of the gradients",
    "means count samples": "a mean of what replicas computed weighs them by their samples",
    "parts of the loss": "losses in a replica are parts of the batch's, whatever its share is",
    "moving statistics": "BatchNormalization's become those of the whole batch",
    "streams": "replicas draw different random numbers from one Keras seed",
    "shares": "batches are cut by the shares, which may be uneven",
    "stages": "a plan with stages or micro-batches refuses run",
}
OF_WRITES = {
    "kept": "what replicas write without aggregation is merged",
    "kept in places": "what every replica keeps for itself is not overwritten in places",
    "products of all": "scatter_mul and scatter_div of sums and means are refused in replicas",
    "sums begin at nothing": "a sum that is read between steps is the variable's value",
    "sums outside": "a sum can be added to outside of replicas",
    "read without aggregation": "an ON_READ variable without aggregation can be read outside",
    "scatter on read": "ON_READ variables have scatter_add and scatter_sub, and all outside",
    "places outside": "scatter_min, scatter_max and scatter_update work outside of replicas",
    "plain numbers": "a Python number or list is written as a tensor would be",
}
DIFFERENCES = {**OF_LOOPS, **OF_WRITES}
