"""Questions about the first training step of a program, which runs in a subprocess.

    parent                                     subprocess
    script_plan.py        the best plan for a script, by its costs
    audit.py, costs.py    ask one question
    answer.py             start the process -> child.py          run the program up to its first
    request.py            the question, JSON                     training step
                                               audited_step.py   its audit; named.py reads
                                                                 MODULE:FUNCTION, eager_loops.py
                                                                 notices steps without a graph
                                               measured_step.py  its costs, or its bytes alone
    answer.py             read a file, JSON <- answer.py         write the file, and end

    child_process.py      a child process with a time limit
    output.py             the output of a process: its size and its end

Importing this package does not import TensorFlow.
"""
