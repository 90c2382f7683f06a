"""Tests for real GPUs; what they check can also be run on stand-ins."""
