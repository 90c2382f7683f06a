"""A fuzzer for the law: random programs over the batch, against one device.

::

    draw      a program, operation by operation; each is tried eagerly at once
    check     the program on several stand-ins, and on one device
    reduce    instructions are left out while the fault stays

`python -m exactness.fuzz` (`make fuzz`) runs it for as long as it is told to.
"""
