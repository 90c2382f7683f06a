"""The traced step as plain data.

Nodes, tensors, symbolic sizes; what is known of each operation; tracing.
"""

from __future__ import annotations
