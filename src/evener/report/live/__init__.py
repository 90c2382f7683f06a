"""The live view of a training: a table of all devices under the output, or plain lines.

::

    fit ──► FitProgress ─┐
    strategy ────────────┴─► gather ──► LiveState ──► LiveView, a thread ──► TerminalScreen
    workers ──► files ──► JobState ────────┘                                  LineScreen
                                                                              NotebookScreen
"""
