"""Behaviour that only several devices in one process can show."""
