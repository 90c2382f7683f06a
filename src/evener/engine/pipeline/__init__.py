"""The parts of a step in time: stages, micro-batches, their order, and what is computed again."""
