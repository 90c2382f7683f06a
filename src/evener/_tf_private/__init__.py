"""Private modules of TensorFlow and Keras: no other package may import them.

    datasets         loops over datasets, their batches, pipelines in parts
    fits             Keras's ``fit``, and the batches that it takes
    functions        `tf.function`: conversion, calls, lines of the program, dry runs
    graphs           types of operations, graphs as protocol buffers, functions made of them
    models           Keras's layers, optimizers and trainer, under a strategy of evener
    patches          all replacements, each with its reason
    random_numbers   seeds, generators and determinism
    tapes            gradient tapes
    tensors          the device asked for, values, memory, variables in the making
    tracing          BatchNormalization and unknown dimensions while a step is traced
    watched          what the doctor looks at
    workers          files of several workers, calls made again after a death

The docstring of each function states why it is needed ("Why"), and what breaks if TensorFlow or
Keras changes ("If it changes"). ``tests/unit/_tf_private`` has a test for each.
"""
