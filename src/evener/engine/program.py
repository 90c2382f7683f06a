"""The steps of one compiled model under one strategy: train, test and predict.

      global batch (host)
        │ split by shares
        ├──► replica 0 ──┐ borrowed weights in; gradients, state, counts out
        ├──► replica 1 ──┤
        ▼                ▼
      loss of the batch  sums on owners ──► optimizer, once per variable
                         state merged, metrics counted, once

Replicas run *apart* (the default): one pure function, traced once, with the gradient inside.
They run *together*, in one graph, where they must talk in the middle of the step: layers
that synchronise, and losses that need the outputs of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from evener import _tf_private
from evener.engine import added, apart, split, together, totals, update
from evener.engine.context import whole_batch
from evener.engine.loss import is_separable
from evener.engine.metrics import compiled_metrics_are_additive
from evener.engine.nonfinite import NonFiniteWatch
from evener.engine.ownership import tf_device
from evener.engine.replica import NeedsWholeBatch, ReplicaInput, ReplicaOutput, ReplicaProgram
from evener.engine.state import StateRule, is_seed, merge, rules_for, seed_for_replica

if TYPE_CHECKING:
    from evener.engine.strategy import Strategy

HOST = "/device:CPU:0"


class StepProgram:
    """Runs the steps of a model on the devices of its strategy.

    Args:
        strategy: In whose scope the model was made.
        model: Built and compiled.
        jit_compile: Whether each replica's part is compiled by XLA.

    Attributes:
        before_replica: For tests: called with the replica's number and its samples, on its
            device; what it returns is computed before the replica.
    """

    def __init__(self, strategy: Strategy, model: keras.Model, *, jit_compile: bool) -> None:
        self.strategy = strategy
        self.model = model
        self.jit_compile = jit_compile
        self.devices = [tf_device(name) for name in strategy.replica_devices]
        self.before_replica: Callable[[int, tf.Tensor], tf.Tensor] | None = None
        self.added_kinds: list[added.AddedKind] | None = None
        self.state_rules: list[StateRule] | None = None
        self.watch = NonFiniteWatch(model, strategy.replica_devices)
        alone = len(self.devices) == 1
        self.own_compute_loss = type(model).compute_loss is not keras.Model.compute_loss
        self.lockstep = not alone and _synchronises(model)
        separable = all(is_separable(one.loss) for one in _losses(model))
        self._use(
            loss_here=not self.own_compute_loss and (alone or separable),
            metrics_here=compiled_metrics_are_additive(model),
        )

    def _use(self, *, loss_here: bool, metrics_here: bool) -> None:
        self.replica = ReplicaProgram(
            self.model,
            loss_here=loss_here,
            metrics_here=metrics_here,
            alone=len(self.devices) == 1,
        )
        self.together = self.lockstep or not loss_here
        self.functions = apart.traced_functions(self)

    @property
    def loss_weights(self) -> list[float | None]:
        """The weight of every compiled loss; None counts as 1."""
        return [one.loss_weights for one in _losses(self.model)]

    @property
    def is_prepared(self) -> bool:
        """Whether `prepare` has run."""
        return self.state_rules is not None

    @property
    def needs_samples(self) -> bool:
        """Whether layers add losses of which it is not known yet what they mean."""
        return self.replica.num_added > 0 and self.added_kinds is None

    def prepare(self, spec: Any) -> None:
        """Trace what has to be known before the first step can be built.

        Args:
            spec: Tensors or specs of a global batch.
        """
        with whole_batch():
            while True:
                known = len(self.replica.state)
                try:
                    apart.trace(self, spec)
                except NeedsWholeBatch:
                    self._use(loss_here=False, metrics_here=False)
                    continue
                if len(self.replica.state) == known:
                    break
                self.functions = apart.traced_functions(self)
        self.state_rules = rules_for(self.model, self.replica.state)

    def learn_added(self, data: Any) -> None:
        """Find out what the losses that layers add mean, from a few samples of a batch."""
        with whole_batch():
            values = apart.probe_added(self, data)
        self.added_kinds = added.kinds_from_probe(*values, num_replicas=len(self.devices))
        self.functions = apart.traced_functions(self)

    def train(self, data: Any) -> dict[str, Any]:
        """Take one training step on a global batch; return the logs."""
        with whole_batch():
            data = split.unpack(data)
            num_samples, cuts, inputs = self.split(data)
            scale = update.loss_scale(self.model.optimizer)
            driver = together if self.together else apart
            result = driver.forward_backward(
                self, data, inputs, scale=scale, num_samples=num_samples, cuts=cuts
            )
            looked = self.watch.look(result.total, data, cuts)
            with tf.control_dependencies([looked]):
                self._finish(result.outputs, inputs)
                self._update(result, scale)
            update.track_losses(self.model, result.total, result.values, num_samples)
            return self._logs(data, result.outputs)

    def test(self, data: Any) -> dict[str, Any]:
        """Evaluate one global batch; return the logs."""
        with whole_batch():
            data = split.unpack(data)
            num_samples, _, inputs = self.split(data)
            outputs = []
            for k, given in enumerate(inputs):
                weights, state = self.borrow(k)
                with tf.device(self.devices[k]):
                    outputs.append(self.functions.test(weights, state, given))
            self._finish(outputs, inputs)
            values, total = self.batch_loss(data, outputs, inputs, num_samples, training=False)
            update.track_losses(self.model, total, values, num_samples)
            return self._logs(data, outputs)

    def predict(self, data: Any) -> Any:
        """Return the outputs of the whole batch, in its order."""
        with whole_batch():
            data = split.unpack(data)
            _, _, inputs = self.split((data[0], None, None))
            parts = []
            for k, given in enumerate(inputs):
                weights, state = self.borrow(k)
                with tf.device(self.devices[k]):
                    parts.append(self.functions.predict(weights, state, given))
            return split.join(parts)

    def split(self, data: Any) -> tuple[tf.Tensor, tf.Tensor, list[ReplicaInput]]:
        """Split a global batch by the shares of this moment.

        Returns:
            The number of samples, the cuts (int32, one more than replicas), and the input
            of each replica.
        """
        with tf.device(HOST):
            num_samples = split.batch_size(data)
            if len(self.devices) == 1:
                relaxed = split.forget_batch_size(data)
                given = ReplicaInput(batch=relaxed, num_samples=num_samples, weight=tf.ones([]))
                return num_samples, tf.stack([0, num_samples]), [given]
            cuts = split.cut_points(num_samples, self.strategy.sharing.variable)
            return num_samples, cuts, [
                self._input(data, cuts, num_samples, k) for k in range(len(self.devices))
            ]  # fmt: skip

    def _input(
        self, data: Any, cuts: tf.Tensor, num_samples: tf.Tensor, replica: int
    ) -> ReplicaInput:
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

    def batch_loss(
        self,
        data: Any,
        outputs: list[ReplicaOutput],
        inputs: list[ReplicaInput],
        num_samples: tf.Tensor,
        *,
        training: bool,
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Return the value of every compiled loss, and the loss, over the whole batch."""
        if not self.replica.loss_here:
            gathered = together.gather(self, outputs)
            return together.gathered_loss(
                self, data, gathered, self.added_values(outputs, inputs), num_samples,
                training=training,
            )  # fmt: skip
        divisors = totals.denominators(
            self.replica.denominators, [out.denominators for out in outputs], num_samples
        )
        values = totals.values([out.numerators for out in outputs], divisors)
        terms = totals.weighted_sum(values, self.loss_weights)
        penalty, _ = update.penalties(self.replica.trainable, tf.ones([]))
        return values, sum_terms([*terms, *self.added_values(outputs, inputs), *penalty])

    def added_values(
        self, outputs: list[ReplicaOutput], inputs: list[ReplicaInput]
    ) -> list[tf.Tensor]:
        """Return the value of every ``add_loss`` over the whole batch."""
        return added.batch_value(
            [out.added for out in outputs],
            self.kinds_of_added(),
            [given.weight for given in inputs],
        )

    def kinds_of_added(self) -> list[added.AddedKind]:
        """Return the kind of every ``add_loss``; means until the first batch has told."""
        return self.added_kinds or ["mean"] * self.replica.num_added

    def _finish(self, outputs: list[ReplicaOutput], inputs: list[ReplicaInput]) -> None:
        with tf.device(HOST):
            weights = tf.stack([given.weight for given in inputs])
        old = [tf.identity(v.value) for v in self.replica.state]
        assert self.state_rules is not None
        merged = merge(self.state_rules, old, [out.state for out in outputs], weights)
        update.assign_state(self.replica.state, merged)
        if self.replica.metrics_here:
            update.count_metrics(
                self.replica.metric_variables, [out.metric_changes for out in outputs]
            )

    def _update(self, result: together.StepResult, scale: tf.Tensor) -> None:
        trainable = self.replica.trainable
        if not trainable or self.model.optimizer is None:
            return
        gradients = list(result.gradients)
        if not self.own_compute_loss:
            gradients.append(update.penalties(trainable, scale)[1])
        update.apply_gradients(self.model.optimizer, trainable, gradients)

    def _logs(self, data: Any, outputs: list[ReplicaOutput]) -> dict[str, Any]:
        if self.replica.metrics_here:
            return self.model.get_metrics_result()
        x, y, sample_weight = data
        y_pred = together.gather(self, outputs)
        return self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def sum_terms(terms: list[tf.Tensor]) -> tf.Tensor:
    """Return the sum of scalar loss terms; 0 of none."""
    if not terms:
        return tf.zeros([])
    return tf.add_n([tf.cast(term, terms[0].dtype) for term in terms])


def _losses(model: keras.Model) -> list[Any]:
    return [] if _tf_private.compiled_loss(model) is None else _tf_private.flat_losses(model)


def _synchronises(model: keras.Model) -> bool:
    return any(getattr(layer, "synchronized", False) for layer in _tf_private.all_layers(model))
