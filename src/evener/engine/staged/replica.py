"""What one replica computes: a pure function of borrowed weights, state and its samples.

It reads no variable and writes none. What it would have written comes back as values, and
the engine alone touches variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine.staged import loss as losses
from evener.engine.staged import metrics, split
from evener.engine.staged.loss import Denominator


class ReplicaInput(NamedTuple):
    """The samples of one replica.

    Attributes:
        batch: ``(x, y, sample_weight)`` nest. A replica without samples is given one sample
            that does not count, because many layers cannot be called on none.
        num_samples: Samples that count, int32 scalar.
        weight: ``num_samples`` over those of the whole batch, float32 scalar.
    """

    batch: Any
    num_samples: tf.Tensor
    weight: tf.Tensor


class ReplicaOutput(NamedTuple):
    """What a replica's forward pass gives back. Lists are empty where nothing is asked for.

    Attributes:
        numerators: One float scalar per compiled loss.
        denominators: The computed ones among the denominators, in order.
        added: One float scalar per ``add_loss``.
        state: New value of each state variable, None where it did not change.
        metric_changes: What the samples add to each metric variable.
        y_pred: The outputs, where the whole batch is needed.
        masks: Keras's masks of the outputs, None where there is none.
    """

    numerators: list[tf.Tensor]
    denominators: list[tf.Tensor]
    added: list[tf.Tensor]
    state: list[tf.Tensor | None]
    metric_changes: list[tf.Tensor]
    y_pred: Any
    masks: list[tf.Tensor | None]


class NeedsWholeBatch(Exception):
    """Tracing found that losses and metrics cannot be computed share by share."""


class RecordingScope(keras.StatelessScope):
    """A stateless scope that remembers which variables were written.

    Attributes:
        written: Every written variable, by identity, in the order of the first writes.
    """

    def __init__(self, state_mapping: Sequence[tuple[Any, Any]], *, collect_losses: bool) -> None:
        super().__init__(list(state_mapping), collect_losses=collect_losses)
        self.written: dict[int, Any] = {}

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Record one write; called by Keras."""
        self.written[id(update[0])] = update[0]
        super().add_update(update)


class ReplicaProgram:
    """How a replica of one compiled model computes.

    Args:
        model: Built and compiled.
        loss_here: Whether the compiled losses of a share can be computed on their own.
        metrics_here: Whether the compiled metrics can be counted share by share.
        alone: Whether this replica has every batch to itself.

    Attributes:
        trainable: The Keras variables that are trained.
        state: The Keras variables that the forward pass may update. It grows when a trace
            finds a write to another variable, such as the global seed generator.
        denominators: How each compiled loss is divided; known after the first trace.
        whole_slices: Positions of the weights whose gradient is a set of slices that does not
            grow with the batch, such as an embedding of positions: the slices of two shares are
            of the same rows, and add up row by row. Known after the first trace.
        num_added: Number of ``add_loss`` terms in training (True) and in testing (False);
            known after the first trace of each.
    """

    def __init__(
        self, model: keras.Model, *, loss_here: bool, metrics_here: bool, alone: bool
    ) -> None:
        self.model = model
        self._alone = alone
        self.loss_here = loss_here
        self.metrics_here = metrics_here
        self.trainable = list(model.trainable_variables)
        self.state = _unique([
            *model.non_trainable_variables,
            *(v for metric in metrics.layer_metrics(model) for v in metric.variables),
        ])  # fmt: skip
        self.metric_variables = metrics.compiled_metric_variables(model) if metrics_here else []
        self.denominators: list[Denominator] = []
        self.whole_slices: set[int] = set()
        self.num_added: dict[bool, int] = {}

    def forward(
        self,
        weights: Sequence[tf.Tensor],
        state: Sequence[tf.Tensor],
        given: ReplicaInput,
        *,
        training: bool,
    ) -> ReplicaOutput:
        """Compute the forward pass of one replica.

        Args:
            weights: Borrowed values of ``trainable``.
            state: Values of ``state``, with the seeds of this replica.
            given: Its samples.
            training: Passed to the model.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(given.batch)
        zeros = [tf.zeros(v.shape, v.dtype) for v in self.metric_variables]
        mapping = [
            *zip(self.trainable, weights, strict=True),
            *zip(self.state, state, strict=True),
            *zip(self.metric_variables, zeros, strict=True),
        ]
        with RecordingScope(mapping, collect_losses=True) as scope:
            y_pred = _tf_private.call_model(self.model, x, training=training)
            self._check_outputs(y_pred)
            added = [self.model._aggregate_additional_loss(loss) for loss in scope.losses]
            parts = self._loss_parts(given, y, y_pred, sample_weight)
            if self.metrics_here:
                compiled = _tf_private.compiled_metrics(self.model)
                if compiled is not None:
                    compiled.update_state(y, y_pred, sample_weight)
        self._learn(scope, parts, len(added), training=training)
        keep_outputs = not (self.loss_here and self.metrics_here)
        live = tf.cast(given.num_samples > 0, tf.float32)
        return ReplicaOutput(
            numerators=[part.numerator for part in parts],
            denominators=[part.computed for part in parts if part.computed is not None],
            added=added,
            state=self._new_state(scope),
            metric_changes=[
                scope.get_current_value(v) * tf.cast(live, v.dtype) for v in self.metric_variables
            ],
            y_pred=_counting(y_pred, given.num_samples) if keep_outputs else (),
            masks=_masks(y_pred, given.num_samples) if keep_outputs else [],
        )

    def _check_outputs(self, y_pred: Any) -> None:
        """Refuse outputs of rank 1: Keras takes means over their last axis, the batch."""
        if self._alone or not (self.loss_here or self.metrics_here):
            return
        if any(leaf.shape.rank is None or leaf.shape.rank < 2 for leaf in tf.nest.flatten(y_pred)):
            raise NeedsWholeBatch

    def _loss_parts(
        self, given: ReplicaInput, y: Any, y_pred: Any, sample_weight: Any
    ) -> list[losses.LossPart]:
        if not self.loss_here:
            return []
        num_samples = tf.cast(given.num_samples, tf.float32)
        return losses.compiled_parts(self.model, y, y_pred, sample_weight, num_samples=num_samples)

    def _new_state(self, scope: RecordingScope) -> list[tf.Tensor | None]:
        return [scope.get_current_value(v) if id(v) in scope.written else None for v in self.state]

    def _learn(
        self,
        scope: RecordingScope,
        parts: list[losses.LossPart],
        num_added: int,
        *,
        training: bool,
    ) -> None:
        """Keep what only tracing tells; the same at every trace of the same program."""
        self.denominators = [part.denominator for part in parts]
        self.num_added[training] = num_added
        known = {id(v) for v in (*self.trainable, *self.state, *self.metric_variables)}
        self.state.extend(v for key, v in scope.written.items() if key not in known)

    def learn_slices(self, gradients: Sequence[Any]) -> None:
        """Keep which slices do not grow with the batch: their number is known in a trace."""
        for position, gradient in enumerate(gradients):
            if isinstance(gradient, tf.IndexedSlices) and gradient.indices.shape[0] is not None:
                self.whole_slices.add(position)

    def predict(
        self,
        weights: Sequence[tf.Tensor],
        state: Sequence[tf.Tensor],
        given: ReplicaInput,
    ) -> Any:
        """Compute the outputs of one replica, for its samples that count."""
        x, _, _ = keras.utils.unpack_x_y_sample_weight(given.batch)
        mapping = [
            *zip(self.trainable, weights, strict=True),
            *zip(self.state, state, strict=True),
        ]
        with RecordingScope(mapping, collect_losses=False):
            y_pred = _tf_private.call_model(self.model, x, training=False)
        return _counting(y_pred, given.num_samples)


def _counting(y_pred: Any, num_samples: tf.Tensor) -> Any:
    """Return the outputs of the samples that count."""
    return split.take(y_pred, 0, num_samples)


def _masks(y_pred: Any, num_samples: tf.Tensor) -> list[tf.Tensor | None]:
    masks = [_tf_private.keras_mask(leaf) for leaf in keras.tree.flatten(y_pred)]
    return [None if mask is None else mask[:num_samples] for mask in masks]


def _unique(variables: Sequence[Any]) -> list[Any]:
    return list({id(v): v for v in variables}.values())
