"""Checkpoints: the whole state of a training, restored under any plan.

others         the other workers of a job
storage        folders of checkpoints with their locks, and the files of one checkpoint
variables      variables of a model and other objects by path; comparison with a checkpoint
random_state   states of random generators as JSON values
checkpoint     `Checkpoint`, which writes in a thread; SIGINT and SIGTERM
callback       `CheckpointCallback`, with the position in the data of Keras's ``fit``
"""

from evener.checkpoint.callback import CheckpointCallback
from evener.checkpoint.checkpoint import Checkpoint, Position

__all__ = ["Checkpoint", "CheckpointCallback", "Position"]
