"""Probes, which run in the watched process around the program.

    loading    TensorFlow and Keras are imported, by the program
    events     the events, in a file that survives a kill
    ending     exceptions, exits, and their lines
    entries    the outermost calls of a loop that trains
    fitting    steps of Keras's fit
    looping    steps of loops inside of a graph
    progress   steps, and when enough were seen
    waiting    time spent waiting for batches
    reading    tensors brought to the host
    functions  what was traced, how often
    run        all of it around one run of the script

Only plain values leave the process.
"""
