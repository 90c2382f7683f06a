"""Questions that several rules ask of a program, one noun a file.

strategies.py    which strategies it makes, over how many devices, and how they are used
trainings.py     where it trains: fit, and updates of its own
makings.py       where its models and optimizers are made
numbers.py       what a number is, in terms of the number of replicas
gpus.py          how many GPUs it will see
environment.py   which environment variables it sets
starts.py        what starts TensorFlow's devices
branches.py      what is done only under a condition
raised.py        what ended a watched run
steps.py         which functions run in every step, and which loops take steps
gradients.py     of which losses gradients are taken
losses.py        what a loss is made of, and how it is scaled
scalars.py       losses of one number
compiled.py      the losses that models are compiled with
batch_sizes.py   how large the batches are that it trains on
dtypes.py        what dtypes tensors have
variables.py     lists of a model's variables
layers.py        which layers hold weights
optimizers.py    which optimizers keep slots
freezes.py       what is set trainable, or not
reductions.py    how the samples of a loss become one number
traced.py        which functions are traced by tf.function
shapes.py        what is of another shape in every round
changing.py      which Python numbers change from round to round
device_names.py  which devices are named
run_arguments.py what strategy.run gives to the replicas
imports.py       where TensorFlow is imported
pins.py          the blocks under tf.device
pipelines.py     input pipelines, from source to end
guards.py        what is only used where it is there
missing_names.py    names that TensorFlow and Keras do not have
missing_members.py  methods and arguments that they no longer have
graph_programs.py   whether it is written for TensorFlow 1
file_endings.py  how the names of files end
savings.py       what is saved and loaded, by which names
texts.py         how pieces of a program are shown
"""
