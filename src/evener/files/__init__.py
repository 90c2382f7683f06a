"""Files that a program of several workers writes once: models, checkpoints, logs, summaries.

    once       writes by one worker, for which the others wait; errors are theirs too
    failures   errors of that worker as JSON, and raised again by the others
    text       text files that callbacks append to
    summaries  event files of `tf.summary`

All workers run the same program, which is written for one device. `Once` is given to
`evener._tf_private.files`, which names the functions of Keras and TensorFlow that write.
"""

from evener.files.once import Workers
from evener.files.start import write_files_once

__all__ = ["Workers", "write_files_once"]
