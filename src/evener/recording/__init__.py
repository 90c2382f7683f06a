"""Records of runs: a folder of JSON that a run writes while it trains, and `evener report` reads.

    record      a strategy while it trains -> Recording
    measured    what a strategy has counted -> lines of metrics
    watch       changes of shares, notes, warnings, checks -> lines of events
    losses      Keras's fit -> lines of losses
    folder      lines -> files, bounded and flushed
    reading     files -> RunRecord            pure Python
    gaps        spans of a step -> activities pure Python

Importing it does not import TensorFlow.
"""
