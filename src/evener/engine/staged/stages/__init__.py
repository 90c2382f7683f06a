"""Replicas of several stages, micro-batches, and activations that are computed again.

The forward pass of a replica is traced once, as one graph. Every operation belongs to the
stage of the layer that made it, and the graph is cut where stages meet:

    trace.py       the forward pass as one graph, and which layer made which operation
    assignment.py  which stage every operation belongs to
    gradients.py   the gradient of every stage, in the same graph
    sizes.py       sizes of tensors, as far as they can be told before a step runs
    same.py        which tensors are the same, so that one stands for all
    cut.py         a part of the graph as a function of its own
    functions.py   the functions of every stage: forward, backward, weight gradients
    loans.py       weights on loan: when they are fetched, and when they are given back
    pipeline.py    runs the functions in the order of a schedule
    driver.py      one step of a program whose plan has stages or micro-batches
    lifetimes.py   what is in memory in a step, where, and from when to when
    footprint.py   what a step needs on every device
"""
