"""A check of every partitioned step on a few samples of a real batch, beside the training."""
