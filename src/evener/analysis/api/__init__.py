"""What TensorFlow and Keras call their things now, and what they called them before.

public.py             which names the versions have that evener works with
public_names.json.gz  those names, written by tools/write_public_names.py
successors.py         names and arguments that are gone, with what to write instead
"""

from __future__ import annotations
