"""The earlier engine: plans with stages, micro-batches or recomputation, in several replicas.

The partitioner does not run such plans yet (docs/decisions/0015-strategy-of-one-replica.md).
"""
