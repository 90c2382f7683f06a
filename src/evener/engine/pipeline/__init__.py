"""Parts of a step in time: stages, micro-batches, their order, and recomputation."""
