"""Several processes, on one machine or many, that compute one step together.

    job            this process's part in a job, from its environment: EVENER_JOB or TF_CONFIG
    coordinator    decides who is a member: heartbeats, deaths, newcomers; `membership` is its state
    member         a worker's side of it
    process        joins the job of this process
    group          the workers, seen by one of them: exchanges, and calls that are made again
    mesh           bytes, and sums and joins of arrays, over connections
    late           a replacement, which catches up with the others
    state          variables of the steps, and checksums that show workers that differ

Importing this package does not import TensorFlow.
"""
