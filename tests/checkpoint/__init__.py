"""Trainings that are ended, and resumed from their checkpoints."""
