"""How one compiled model is computed under one strategy: what is borrowed, split and asked.

For plans with stages, micro-batches or layers computed again (`evener.engine.staged.stages`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine.ownership import tf_device
from evener.engine.staged import split
from evener.engine.staged.added import AddedKind
from evener.engine.staged.loss import is_separable
from evener.engine.staged.metrics import compiled_metrics_are_additive
from evener.engine.staged.pieces import pieces_of
from evener.engine.staged.reduction import Gradient
from evener.engine.staged.replica import ReplicaInput, ReplicaOutput, ReplicaProgram
from evener.engine.staged.state import is_seed, seed_for_replica
from evener.errors import DataError

if TYPE_CHECKING:
    from evener.engine.staged.strategy import StagedStrategy

HOST = "/device:CPU:0"


class StepInput(NamedTuple):
    """A global batch, whole and split.

    Attributes:
        data: ``(x, y, sample_weight)``.
        num_samples: Samples of the batch, int32 scalar.
        cuts: Where it was cut, int32 vector with one entry more than there are pieces.
        pieces: The samples of each piece.
    """

    data: tuple[Any, Any, Any]
    num_samples: tf.Tensor
    cuts: tf.Tensor
    pieces: list[ReplicaInput]


class StepResult(NamedTuple):
    """What the replicas have computed in one training step.

    Attributes:
        outputs: One per piece.
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
        plan: The strategy's plan when the program was made.
        devices: TensorFlow's name of each replica's device, the first of several.
        pieces: The pieces of every batch, in the order of its samples.
        num_micro_batches: Of each replica.
        own_compute_loss: Whether a person wrote ``compute_loss``.
        added_kinds: What each ``add_loss`` means, in training (True) and in testing (False);
            a first batch has to tell.
    """

    def __init__(self, strategy: StagedStrategy, model: keras.Model, *, jit_compile: bool) -> None:
        self.strategy = strategy
        self.plan = strategy.plan
        self.model = model
        self.jit_compile = jit_compile
        self.devices = [tf_device(name) for name in strategy.replica_devices]
        self.num_micro_batches = [r.num_micro_batches for r in self.plan.replicas]
        self.pieces = pieces_of(self.plan)
        with tf.init_scope(), tf.device(HOST):
            self._largest_batch = tf.Variable(
                tf.constant(0), trainable=False, name="evener_largest_batch"
            )
        self.added_kinds: dict[bool, list[AddedKind]] = {}
        alone = len(self.pieces) == 1
        self.own_compute_loss = type(model).compute_loss is not keras.Model.compute_loss
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
            alone=len(self.pieces) == 1,
        )

    def need_whole_batch(self) -> None:
        """Compute losses and metrics on the outputs of the whole batch from now on."""
        self._decide(loss_here=False, metrics_here=False)

    @property
    def piece_names(self) -> list[str]:
        """What each piece is called in messages."""
        names = []
        for piece in self.pieces:
            device = self.plan.replicas[piece.replica].stages[0].device
            part = f", micro-batch {piece.micro_batch}" if piece.num_micro_batches > 1 else ""
            names.append(f"replica {piece.replica}{part} ({device})")
        return names

    @property
    def num_replicas(self) -> int:
        """How many replicas there are."""
        return len(self.devices)

    @property
    def gathering_device(self) -> str:
        """Where the outputs of the whole batch are gathered: where they are made first."""
        return tf_device(self.plan.replicas[0].stages[-1].device)

    @property
    def loss_weights(self) -> list[float | None]:
        """The weight of every compiled loss; None counts as 1."""
        return [one.loss_weights for one in _losses(self.model)]

    def kinds_of_added(self, *, training: bool) -> list[AddedKind]:
        """Return the kind of every ``add_loss``; means until a first batch has told."""
        unknown: list[AddedKind] = ["mean"] * self.replica.num_added.get(training, 0)
        return self.added_kinds.get(training, unknown)

    def split(self, data: Any, *, training: bool = False) -> StepInput:
        """Split a global batch by the shares of this moment.

        Args:
            data: Nested tensors.
            training: Whether to refuse a first batch with fewer samples than micro-batches.
        """
        x, y, sample_weight = split.unpack(data)
        data = (x, y, sample_weight)
        with tf.device(HOST):
            num_samples = split.batch_size(data)
            if training and max(self.num_micro_batches) > 1:
                num_samples = self._enough(num_samples)
            if len(self.pieces) == 1:
                relaxed = split.forget_batch_size(data)
                alone = ReplicaInput(batch=relaxed, num_samples=num_samples, weight=tf.ones([]))
                return StepInput(data, num_samples, tf.stack([0, num_samples]), [alone])
            cuts = split.cut_points(num_samples, self.strategy.sharing.variable)
            cuts = split.cut_again(cuts, [r.num_micro_batches for r in self.strategy.plan.replicas])
            pieces = [_piece(data, cuts, num_samples, k) for k in range(len(self.pieces))]
        return StepInput(data, num_samples, cuts, pieces)

    def _enough(self, num_samples: tf.Tensor) -> tf.Tensor:
        """Return the number of samples, if there are enough or were in an earlier batch.

        A last batch may be smaller: micro-batches without samples then do not count.
        """
        largest = tf.maximum(self._largest_batch.read_value(), num_samples)
        check = tf.debugging.Assert(
            largest >= max(self.num_micro_batches), [str(too_few_samples()), num_samples]
        )
        with tf.control_dependencies([] if check is None else [check]):
            seen = self._largest_batch.assign(largest)
        with tf.control_dependencies([seen]):
            return tf.identity(num_samples)

    def borrow(self, replica: int) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return the weights and the state that a replica computes with, on its device."""
        device = self.devices[replica]
        with tf.device(device):
            weights = [tf.identity(v.value) for v in self.replica.trainable]
        return weights, self.borrow_state(replica, device)

    def borrow_state(self, piece: int, device: str) -> list[tf.Tensor]:
        """Return the state that a piece computes with: random layers draw differently in each."""
        state = []
        for variable in self.replica.state:
            value = variable.value
            if is_seed(variable):
                with tf.device(HOST):
                    value = seed_for_replica(tf.identity(value), piece)
            with tf.device(device):
                state.append(tf.identity(value))
        return state


def too_few_samples() -> DataError:
    """Return the error for a batch with fewer samples than micro-batches."""
    return DataError(
        "DATA-005",
        "The first batch has fewer samples than the plan has micro-batches.",
        why="A micro-batch without samples computes nothing; only a last, smaller batch may "
        "have some.",
        fix="Use larger batches, or a smaller num_micro_batches in the plan's replicas.",
    )


def _piece(data: Any, cuts: tf.Tensor, num_samples: tf.Tensor, number: int) -> ReplicaInput:
    begin, end = cuts[number], cuts[number + 1]
    count = end - begin
    # A sample that does not count, for a piece that would have none.
    begin = tf.minimum(begin, num_samples - 1)
    end = tf.maximum(end, begin + 1)
    return ReplicaInput(
        batch=split.take(data, begin, end),
        num_samples=count,
        weight=tf.cast(count / num_samples, tf.float32),
    )


def _losses(model: keras.Model) -> list[Any]:
    return [] if _tf_private.compiled_loss(model) is None else _tf_private.flat_losses(model)
