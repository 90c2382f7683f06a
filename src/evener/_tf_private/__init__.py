"""Private modules of TensorFlow and Keras: no other package may import them.

    autograph        conversion of functions
    batch_norm       BatchNormalization by device
    datasets         loops over datasets, and their batches
    devices          the device that the code around asks for
    distribution     values of several replicas
    downloads        downloads of Keras
    dry_run          the placed graph of a function that does not run
    files            functions that write files, where several workers run them
    fits             Keras's ``fit``, and the batches that it takes
    functions        `tf.function`, and the concrete functions that it calls
    graphs           graphs as protocol buffers, functions made of them, order of operations
    layers           layers inside of layers, and the layer of an operation
    models           the trainer of Keras's models
    operation_types  definitions and kernels of operations
    optimizers       Keras's optimizers
    random_numbers   seeds, generators and determinism
    shapes           reads of unknown dimensions
    source_lines     lines of the program
    strategies       Keras under a strategy of evener
    tapes            gradient tapes
    tensors          kinds of tensors, and reads of their values
    variables        variables in the making

The docstring of each function states why it is needed ("Why"), and what breaks if TensorFlow or
Keras changes ("If it changes"). ``tests/unit/_tf_private`` has a test for each.
"""
