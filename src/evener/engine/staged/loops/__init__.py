"""The door for custom loops: what `tf.distribute` programs find behind `evener.Strategy`.

run.py          one call of ``strategy.run``: its replicas, their samples and weights
data.py         distributed datasets: batches split by the shares
variables.py    what reading and writing an owned variable means in a replica
combine.py      reductions and gathering over the replicas
losses.py       losses in a replica, as parts of the loss of the whole batch
updates.py      optimizers in a replica: one update of each variable, on its owner
metrics.py      what a metric counts in a replica
scaled.py       whether a number is a part of the batch's or a mean of its own
stages.py       layers on the devices of their stages, under plans with stages
entered.py      of which micro-batch, stage and pass an operation is
order.py        micro-batches in the order of the plan's schedule
again.py        layers computed again in the backward pass
own_steps.py    models with a ``train_step`` of their own, under ``fit``
install.py      puts all of it where Keras and TensorFlow look
"""
