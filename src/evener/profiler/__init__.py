"""Profiler: costs of the layers of a training step, measured on the devices of this machine."""
