"""Where tensors and operations live, and work that goes there: gradients, sums, updates.

homes.py      the device of an operation, a tensor, a gradient
beside.py     operations beside their largest input, as optimizers need it
record.py     forward operations remember the device they were asked to run on
backward.py   their gradients run there
later.py      what the tape makes before it is known where it belongs
marks.py      layers remember the device they are pinned to
around.py     a function of ours around one of theirs
install.py    puts all that where TensorFlow looks, once
"""

from evener.locality.beside import beside_inputs
from evener.locality.install import install, records_devices

__all__ = ["beside_inputs", "install", "records_devices"]
