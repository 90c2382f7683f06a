"""Current and former public names of TensorFlow and Keras.

public.py             public names of the versions that evener works with
public_names.json.gz  those names, written by tools/write_public_names.py
successors.py         removed names and arguments, with their successors
exact.py              those whose successor takes the same arguments and gives the same results
"""

from __future__ import annotations
