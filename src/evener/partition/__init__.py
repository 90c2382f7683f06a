"""The step on several devices: from a traced step to functions that are called on every part.

traced ──► shard ──► stage ──► tasks ──► build ──► emit
"""

from __future__ import annotations
