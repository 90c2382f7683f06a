"""Checkpoints: the whole state of a training, restored under any plan.

position       step, epoch and position in the data
others         the other workers of a job
folders        folders of checkpoints: names, temporary folders, removal
variables      variables of a model and other objects by path; comparison with a checkpoint
object_graph   names of the variables as `tf.train.Checkpoint` reads them
random_state   states of random generators as JSON values
state_file     ``state.json``, with its checksum
contents       files of one checkpoint, written and verified
writer         thread that writes while training goes on
checkpoint     `Checkpoint`
fit_position   position in the data of Keras's ``fit``
fit_state      plain attributes of callbacks, and the history
termination    SIGTERM
callback       `CheckpointCallback`
"""

from evener.checkpoint.callback import CheckpointCallback
from evener.checkpoint.checkpoint import Checkpoint
from evener.checkpoint.position import Position

__all__ = ["Checkpoint", "CheckpointCallback", "Position"]
