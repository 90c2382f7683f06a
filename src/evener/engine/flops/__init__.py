"""Floating-point operations and bytes of the nodes of a step, by number of samples."""
