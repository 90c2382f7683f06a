"""Unchanged scripts on all devices.

    script         a file, run as `python FILE` runs it
    user_line      the script's line of a call
    notes          notes about the script on standard error, each printed once
    session        one run of a script, with all of the following
    strategies     evener's strategy replaces those of tf.distribute
    models         Keras models and variables belong to the strategy
    gpu_names      CPU devices appear as GPUs to the script, where there are none
    emulated_gpus  these CPU devices, and which of them the script uses
    settings       tf.config calls and environment variables that come too late
    loops          custom loops outside of strategy.run: traced functions, and notes on eager steps
    hoisting       eager steps become functions
    idle_devices   at the end: that one device did nearly all the training
    mistakes       errors at the line of calls that no script can mean
    replace        replacement functions for those of TensorFlow and Keras
    failure        tracebacks that begin at the script's line

A session changes TensorFlow and Keras for the rest of the process.
Importing this package does not import TensorFlow.
"""
