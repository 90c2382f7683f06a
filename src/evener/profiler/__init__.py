"""Costs of the layers of a training step, measured on the devices that are here."""
