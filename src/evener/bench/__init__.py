"""Benchmark of a program on its own machine: the same script under several layouts, in turns.

    contenders   devices -> layouts to compare           pure
    request      what a process is to run, and its answer
    turns        starts the processes in turns -> Measured
    child        one process: runs the script and times its steps
    steps        times of steps, by a callback of Keras or the counters of a strategy
    limits       what limits the fastest layout          pure
    table        result -> text and JSON

Importing it does not import TensorFlow.
"""
