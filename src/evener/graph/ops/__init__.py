"""Operations of TensorFlow: one file per family, with all that is known of each operation."""

# They, and the families that they import, fill the table of operations.
from evener.graph.ops import arithmetic, filling, layers, random

__all__ = ["arithmetic", "filling", "layers", "random"]
