"""Worker processes, on this machine or on the nodes of Ray: their start, output, deaths and end.

    policy         decides what the end of a worker means: a replacement, or the end of the job
    supervisor     starts the workers, waits for events, and acts on them
    control        the coordinator of the workers, in the supervisor's process
    placement      what starts workers and ends them, for the supervisor
    process        a worker's process on this machine, its process group, its end
    on_ray         workers on the nodes of a Ray cluster
    output         a worker's lines: to its log file, and to the console
    console        standard output and error of the job: those of the chief, and messages
    handover       where the output of a new chief continues that of the one before
    guard          kills the workers if the supervisor is killed; a program of its own
    shim           asks the kernel to kill a worker with its supervisor; a program of its own
    events         events that the supervisor waits for
    settings       settings of a job
    tasks          jobs of one process per task: TF_CONFIG, Slurm
    slurm          TF_CONFIG from the environment of Slurm

Importing this package does not import TensorFlow.
"""
