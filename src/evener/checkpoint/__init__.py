"""Checkpoints: the whole state of a training, restored under any plan.

others         the other workers of a job
folders        folders of checkpoints: names, locks, temporary folders, removal
variables      variables of a model and other objects by path; comparison with a checkpoint
random_state   states of random generators as JSON values
contents       files of one checkpoint, written and verified
checkpoint     `Checkpoint`, which writes in a thread
fit_position   position in the data of Keras's ``fit``
fit_state      state of callbacks, their log files, and the history
termination    SIGINT and SIGTERM
callback       `CheckpointCallback`
"""

from evener.checkpoint.callback import CheckpointCallback
from evener.checkpoint.checkpoint import Checkpoint, Position

__all__ = ["Checkpoint", "CheckpointCallback", "Position"]
