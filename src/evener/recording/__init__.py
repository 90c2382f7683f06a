"""Records of runs: a folder of JSON that a run writes while it trains, and `evener report` reads.

    record      a strategy while it trains -> files, bounded and flushed
    measured    what a strategy has counted -> lines of metrics and steps
    reading     files -> RunRecord -> activities of devices, Summary      pure Python

Importing it does not import TensorFlow.
"""
