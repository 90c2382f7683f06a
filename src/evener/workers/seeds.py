"""One seed for the random sources of all workers, where the program has set none.

Sources without a seed begin differently in each process, and so in each worker: sources with equal
states have been seeded by the program.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from evener._tf_private.seeds import global_seed, seed_new_generators
from evener.checkpoint import random_state
from evener.workers.group import Group

_SEEDS = 2**31
_SEEDING: dict[str, Callable[[int], None]] = {
    "python": random.seed,
    "numpy": np.random.seed,
    "tensorflow": tf.random.set_seed,
}


def agree_on_seeds(group: Group, tell: Callable[[str], object]) -> None:
    """Seed Python's, NumPy's and TensorFlow's random sources, as far as the program has not.

    Seeds that the program sets later win by themselves. Before the first step, the chief reports
    the seed if it counts.
    """
    seed = group.agree("seed", lambda: random.SystemRandom().randrange(_SEEDS))
    told = group.exchange("states of random sources", _states())
    unseeded = [source for source in _SEEDING if _is_unseeded([own[source] for own in told])]
    if len(unseeded) == len(_SEEDING):
        # So that a program that sets the seed which is told draws the same numbers.
        keras.utils.set_random_seed(seed)
    else:
        for source in unseeded:
            _SEEDING[source](seed)
    sequence = np.random.SeedSequence(seed)
    seed_new_generators(lambda: sequence.spawn(1)[0])

    def tell_of_seed() -> None:
        is_replaced = "tensorflow" in unseeded and global_seed() != seed
        if unseeded and group.is_chief and not is_replaced:
            tell(
                f"the {group.count} workers use seed {seed}; keras.utils.set_random_seed sets "
                "another"
            )

    group.before_steps(tell_of_seed)


def _is_unseeded(states: list[Any]) -> bool:
    """Return whether the workers have different states, or none."""
    return states[0] is None or any(state != states[0] for state in states)


def _states() -> dict[str, Any]:
    """Return digests that distinguish states, and the seed of TensorFlow."""
    states = random_state.read()
    return {
        "python": _digest(states["python"]),
        "numpy": _digest(states["numpy"]),
        "tensorflow": global_seed(),
    }


def _digest(state: Any) -> str:
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()
