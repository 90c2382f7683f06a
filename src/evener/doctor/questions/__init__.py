"""Questions that several rules ask of a program, one noun a file.

strategies.py    which strategies it makes, and how they are used
trainings.py     where it trains
makings.py       where its models and optimizers are made
numbers.py       what a number is, in terms of the number of replicas
gpus.py          how many GPUs it will see
environment.py   which environment variables it sets
starts.py        what starts TensorFlow's devices
branches.py      what is done only under a condition
raised.py        what ended a watched run
"""
