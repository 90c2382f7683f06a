"""Workers on the nodes of a Ray cluster.

    cluster        the connection to Ray; places for all workers, reserved together; starts workers
    ray_worker     the driver's side of a worker: follows its actor to the end
    node           the actor: the process of a worker, on the node where Ray has placed it
    node_environ   the environment of that process: the node's, with what the command adds
    resources      what each worker asks Ray for
    faults         errors, and the reasons of Ray

The supervisor, its policy and the coordinator are those of every other job, in the process of the
command, which is the driver of Ray. Ray itself is imported when a job asks for it.
"""
