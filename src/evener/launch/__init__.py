"""Running an unchanged script on all devices.

    script       a file, run as `python FILE` would run it
    place        the script's own line behind whatever happens
    notes        what was replaced, told once
    strategies   tf.distribute's strategies give evener's
    models       Keras models and variables get owners
    gpu_names    CPU devices answer as GPUs where there are none
    stand_ins    those devices, and what the script has chosen among them
    settings     tf.config and environment variables that come too late
    loops        custom loops outside of strategy.run are noticed
    rewrite      the three lines that would distribute one     pure
    own_strategy what a script does with the one it makes      pure
    mistakes     what a script cannot have meant stops it
    shards       loops over the shards of a batch              pure
    replace      functions in the place of others
    failure      tracebacks that begin at the script's line
    session      all of these, around one run

For an audit, a program runs in a process of its own, up to its first training step:

    auditing     the order and the answer
    child        a process bounded in time, which leaves nothing
    output       what a process prints: counted, its end kept
    first_step   what runs there
    named        MODULE:FUNCTION

A session changes TensorFlow and Keras for the rest of the process, which is the script's.
Importing this package does not import TensorFlow.
"""
