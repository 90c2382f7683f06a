"""Several processes, on one machine or many, that compute one step together."""

from evener.workers.join import join_workers

__all__ = ["join_workers"]
