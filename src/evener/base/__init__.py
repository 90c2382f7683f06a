"""Shared by all rooms: text and units, output of rich, user code, the installed libraries."""
