"""What evener does otherwise than MirroredStrategy, on purpose.

docs/distribute.md says the same at more length; a test holds the two together.
"""

from __future__ import annotations

DIFFERENCES = {
    "one copy": "a variable lives once, on its owner, instead of once on each device",
    "kept": "what replicas write to a variable without aggregation is merged; MirroredStrategy "
    "keeps a copy on each device, and shows that of the first",
    "kept in places": "a variable that every replica keeps for itself is not overwritten in "
    "places (ENG-062)",
    "sum begins at nothing": "a sum that is read between steps is the variable's value; "
    "MirroredStrategy begins with a whole value in each replica and adds them up",
    "sum outside": "a sum can be added to outside of replicas",
    "read without aggregation": "an ON_READ variable without aggregation can be read outside of "
    "replicas",
    "scatter on read": "ON_READ variables have scatter_add and scatter_sub in replicas, and all "
    "of them outside",
    "places outside": "outside of replicas scatter_min, scatter_max and scatter_update work "
    "whatever the aggregation",
    "plain numbers": "a Python number or list is written as a tensor would be",
}
