"""Running an unchanged script on all devices.

    script       a file, run as `python FILE` runs it
    user_line    the script's line of a call
    notes        notes about the script on standard error, each printed once
    strategies   evener's strategy replaces those of tf.distribute
    models       Keras models and variables belong to the strategy
    gpu_names    CPU devices appear as GPUs to the script, where there are none
    stand_ins    these stand-in devices, and which of them the script uses
    settings     tf.config calls and environment variables that come too late
    loops        custom loops outside of strategy.run are noticed
    idle_devices at the end: that one device did nearly all the training
    mistakes     what a script cannot have meant stops it
    replace      replacement functions for those of TensorFlow and Keras
    failure      tracebacks that begin at the script's line
    session      one run of a script, with all of these

Audits, plans and estimates run a program in a subprocess, up to its first training step:

    request            what the subprocess is asked
    answer             asks it, and reads or writes what it answers
    child_process      a child process with a time limit
    output             the output of a process: its size and its end
    audit_subprocess   audits: the program's side is first_step, its request audit_request, and
                       named reads MODULE:FUNCTION
    planning           what a step costs, for plans: plan_subprocess asks, step_costs answers
    step_memory        what a step needs in memory: both sides

A session changes TensorFlow and Keras for the rest of the process.
Importing this package does not import TensorFlow.
"""
