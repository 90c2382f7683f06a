"""The step on several devices, made of functions that are called on every part."""

from evener.engine.partition.emit import PartitionedStep
from evener.engine.partition.step import partition_step

__all__ = ["PartitionedStep", "partition_step"]
