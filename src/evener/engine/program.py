"""How one compiled model is computed under one strategy: what is borrowed, split and asked.

Replicas run *apart* (the default): one pure function, traced once, with the gradient inside.
They run *together*, in one graph, where they must talk in the middle of the step: layers
that synchronise, and losses that need the outputs of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine import split
from evener.engine.added import AddedKind
from evener.engine.loss import is_separable
from evener.engine.metrics import compiled_metrics_are_additive
from evener.engine.ownership import tf_device
from evener.engine.reduction import Gradient
from evener.engine.replica import ReplicaInput, ReplicaOutput, ReplicaProgram
from evener.engine.state import is_seed, seed_for_replica

if TYPE_CHECKING:
    from evener.engine.strategy import Strategy

HOST = "/device:CPU:0"


class StepInput(NamedTuple):
    """A global batch, whole and split.

    Attributes:
        data: ``(x, y, sample_weight)``.
        num_samples: Samples of the batch, int32 scalar.
        cuts: Where it was cut, int32 vector with one entry more than there are replicas.
        replicas: The samples of each replica.
    """

    data: tuple[Any, Any, Any]
    num_samples: tf.Tensor
    cuts: tf.Tensor
    replicas: list[ReplicaInput]


class StepResult(NamedTuple):
    """What the replicas have computed in one training step.

    Attributes:
        outputs: One per replica.
        gradients: For each contributor (replicas, and a loss that reads weights), one
            gradient per trainable variable.
        values: The value of each compiled loss over the batch.
        total: The loss over the batch.
    """

    outputs: list[ReplicaOutput]
    gradients: list[list[Gradient]]
    values: list[tf.Tensor]
    total: tf.Tensor


class Program:
    """What is decided about a model before its first step.

    Args:
        strategy: In whose scope the model was made.
        model: Built and compiled.
        jit_compile: Whether each replica's part is compiled by XLA.

    Attributes:
        devices: TensorFlow's name of each replica's device.
        own_compute_loss: Whether a person wrote ``compute_loss``.
        lockstep: Whether layers synchronise, so that replicas must advance in lockstep.
        together: Whether training runs the replicas together.
        added_kinds: What each ``add_loss`` means, in training (True) and in testing (False);
            a first batch has to tell.
        before_replica: For tests: called with the replica's number and its samples, on its
            device; what it returns is computed before the replica.
    """

    def __init__(self, strategy: Strategy, model: keras.Model, *, jit_compile: bool) -> None:
        self.strategy = strategy
        self.model = model
        self.jit_compile = jit_compile
        self.devices = [tf_device(name) for name in strategy.replica_devices]
        self.before_replica: Callable[[int, tf.Tensor], tf.Tensor] | None = None
        self.added_kinds: dict[bool, list[AddedKind]] = {}
        alone = len(self.devices) == 1
        self.own_compute_loss = type(model).compute_loss is not keras.Model.compute_loss
        self.lockstep = not alone and _synchronises(model)
        separable = all(is_separable(one.loss) for one in _losses(model))
        self._decide(
            loss_here=not self.own_compute_loss and (alone or separable),
            metrics_here=compiled_metrics_are_additive(model),
        )

    def _decide(self, *, loss_here: bool, metrics_here: bool) -> None:
        self.replica = ReplicaProgram(
            self.model,
            loss_here=loss_here,
            metrics_here=metrics_here,
            alone=len(self.devices) == 1,
        )
        self.together = self.lockstep or not loss_here

    def need_whole_batch(self) -> None:
        """Compute losses and metrics on the outputs of the whole batch from now on."""
        self._decide(loss_here=False, metrics_here=False)

    @property
    def loss_weights(self) -> list[float | None]:
        """The weight of every compiled loss; None counts as 1."""
        return [one.loss_weights for one in _losses(self.model)]

    def kinds_of_added(self, *, training: bool) -> list[AddedKind]:
        """Return the kind of every ``add_loss``; means until a first batch has told."""
        unknown: list[AddedKind] = ["mean"] * self.replica.num_added.get(training, 0)
        return self.added_kinds.get(training, unknown)

    def split(self, data: Any) -> StepInput:
        """Split a global batch by the shares of this moment."""
        x, y, sample_weight = split.unpack(data)
        data = (x, y, sample_weight)
        with tf.device(HOST):
            num_samples = split.batch_size(data)
            if len(self.devices) == 1:
                relaxed = split.forget_batch_size(data)
                alone = ReplicaInput(batch=relaxed, num_samples=num_samples, weight=tf.ones([]))
                return StepInput(data, num_samples, tf.stack([0, num_samples]), [alone])
            cuts = split.cut_points(num_samples, self.strategy.sharing.variable)
            replicas = [_share(data, cuts, num_samples, k) for k in range(len(self.devices))]
        return StepInput(data, num_samples, cuts, replicas)

    def borrow(self, replica: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return the weights and the state that a replica computes with, on its device."""
        with tf.device(self.devices[replica]):
            weights = [tf.identity(v.value) for v in self.replica.trainable]
        state = []
        for variable in self.replica.state:
            value = variable.value
            if is_seed(variable):
                with tf.device(HOST):
                    value = seed_for_replica(tf.identity(value), replica)
            with tf.device(self.devices[replica]):
                state.append(tf.identity(value))
        return weights, state


def _share(data: Any, cuts: tf.Tensor, num_samples: tf.Tensor, replica: int) -> ReplicaInput:
    begin, end = cuts[replica], cuts[replica + 1]
    count = end - begin
    # A sample that does not count, for a replica that would have none.
    begin = tf.minimum(begin, num_samples - 1)
    end = tf.maximum(end, begin + 1)
    return ReplicaInput(
        batch=split.take(data, begin, end),
        num_samples=count,
        weight=tf.cast(count / num_samples, tf.float32),
    )


def _losses(model: keras.Model) -> list[Any]:
    return [] if _tf_private.compiled_loss(model) is None else _tf_private.flat_losses(model)


def _synchronises(model: keras.Model) -> bool:
    return any(getattr(layer, "synchronized", False) for layer in _tf_private.all_layers(model))
