"""Partitioner: from a step that was traced on one device to one that runs on several."""
