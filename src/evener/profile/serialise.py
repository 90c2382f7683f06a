"""Profiles as JSON."""

from __future__ import annotations

from evener.plan.profile_files import profile_from_json, profile_to_json, read_profile

__all__ = ["profile_from_json", "profile_to_json", "read_profile"]
