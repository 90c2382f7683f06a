"""Queries that several rules share, one noun per file.

strategies.py     strategies, how many replicas they have, and how they are used
training.py       calls of fit and compile, and updates of custom loops
steps.py          functions that run in every step, and loops over batches
gradients.py      the losses that gradients are taken of
losses.py         how the samples of a loss are reduced
compiled_losses.py  custom losses that models are compiled with
optimizers.py     optimizers with slots
layers.py         layers without weights
freezes.py        assignments to trainable
dtypes.py         dtypes of tensors
numbers.py        numbers, in terms of the number of replicas
batch_sizes.py    sizes of the batches that a program trains on
pipelines.py      input pipelines, from source to end
checkpoints.py    what is saved and loaded, by which names
pins.py           blocks under tf.device
device_names.py   names of devices
device_initialization.py  calls that start TensorFlow's devices
gpus.py           how many GPUs the program sees
environment.py    environment variables that the program sets
branches.py       conditions of a line
guards.py         uses behind try, hasattr, or a test of the version
imports.py        imports of TensorFlow and Keras
removed_names.py    names that TensorFlow and Keras do not have
removed_members.py  methods and arguments that they no longer have
exact_names.py    edits that replace names and imports that are gone
exact_members.py  edits that replace methods and arguments that are gone
scope_edits.py    edits that put a statement in a strategy's scope
step_edits.py     edits that put a step under tf.function
tensorflow1.py    programs for the graphs of TensorFlow 1
file_endings.py   how the names of files end
source_text.py    source code as findings show it
"""
