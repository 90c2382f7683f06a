"""The steps of one compiled model under one strategy: train, test and predict.

global batch (host)
│ split by shares
├──► replica 0 ──┐ borrowed weights in; gradients, state, counts out
├──► replica 1 ──┤
▼                ▼
loss of the batch  sums on owners ──► optimizer, once per variable
state merged, metrics counted, once
"""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

from evener.engine.staged import batch, probe, split, update
from evener.engine.staged.context import whole_batch
from evener.engine.staged.nonfinite import NonFiniteWatch
from evener.engine.staged.program import HOST, Program, StepInput, StepResult
from evener.engine.staged.replica import NeedsWholeBatch, ReplicaOutput
from evener.engine.staged.stages import driver
from evener.engine.staged.state import StateRule, merge, rules_for


class Steps:
    """Runs the steps of a model on the devices of its strategy.

    Args:
        program: How the model is computed.

    Attributes:
        functions: The traced functions of the stages of its replicas.
        watch: Looks at the loss of every training step.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.functions = driver.StagedFunctions(program)
        self.watch = NonFiniteWatch(program.model, program.piece_names)
        self._state_rules: list[StateRule] = []
        with tf.init_scope(), tf.device(HOST):
            self._updating = tf.Variable(
                tf.constant(False), trainable=False, name="evener_updating"
            )

    def needs_spec(self, *, training: bool) -> bool:
        """Whether `prepare` has to be called before the first step of this kind."""
        return training not in self.program.replica.num_added

    def needs_samples(self, *, training: bool) -> bool:
        """Whether `learn_added` has to be called before the first step of this kind."""
        num_added = self.program.replica.num_added.get(training, 0)
        return num_added > 0 and training not in self.program.added_kinds

    def prepare(self, spec: Any, *, training: bool) -> None:
        """Trace what has to be known before the first step can be built.

        Args:
            spec: Tensors or specs of a global batch.
            training: Whether that step trains.
        """
        with whole_batch():
            while not self._traces(spec, training=training):
                self.functions = driver.StagedFunctions(self.program)
        self._state_rules = rules_for(self.program.model, self.program.replica.state)

    def _traces(self, spec: Any, *, training: bool) -> bool:
        """Trace; return False if that told something that has to be traced with."""
        known = len(self.program.replica.state)
        try:
            self.functions.trace(spec, training=training)
        except NeedsWholeBatch:
            self.program.need_whole_batch()
            return False
        return len(self.program.replica.state) == known

    def learn_added(self, data: Any, *, training: bool) -> None:
        """Find out what the losses that layers add mean, from a few samples of a batch."""
        with whole_batch():
            self.program.added_kinds[training] = probe.kinds_of_added(
                self.program, data, training=training
            )

    def train(self, data: Any) -> dict[str, Any]:
        """Take one training step on a global batch; return the logs."""
        return self._train(data, careful=False)

    def train_carefully(self, data: Any) -> dict[str, Any]:
        """Take a training step that writes nothing before all gradients are there.

        Slower, because no update overlaps the backward pass; for a first step that may run
        out of memory.
        """
        return self._train(data, careful=True)

    def has_begun_to_update(self) -> bool:
        """Return whether a careful step came as far as its update, and did not end it."""
        return bool(self._updating)

    def end_update(self) -> None:
        """Note that a careful step has ended."""
        self._updating.assign(False)

    def _train(self, data: Any, *, careful: bool) -> dict[str, Any]:
        with whole_batch():
            step = self.program.split(data, training=True)
            scale = update.loss_scale(self.program.model.optimizer)
            result = driver.forward_backward(self.program, self.functions, step, scale)
            before = [self.watch.look(result.total, step.data, step.cuts)]
            if careful:
                gradients = tf.nest.flatten(result.gradients, expand_composites=True)
                with tf.control_dependencies([*before, *(g for g in gradients if g is not None)]):
                    before = [self._updating.assign(True)]
            with tf.control_dependencies(before):
                self._write_state(step, result.outputs)
                self._update(result, scale)
                return self._logs(step, result.outputs, result.values, result.total)

    def test(self, data: Any) -> dict[str, Any]:
        """Evaluate one global batch; return the logs."""
        with whole_batch():
            step = self.program.split(data)
            outputs = self._forward(step, "test")
            self._write_state(step, outputs)
            values, total = batch.loss_of(self.program, step, outputs, training=False)
            return self._logs(step, outputs, values, total)

    def predict(self, data: Any) -> Any:
        """Return the outputs of the whole batch, in its order."""
        with whole_batch():
            step = self.program.split((split.unpack(data)[0],))
            return split.join(self._forward(step, "predict"))

    def _forward(self, step: StepInput, kind: Literal["test", "predict"]) -> list[Any]:
        """Return what every piece gives in a forward pass."""
        return driver.forward(self.program, self.functions, step, kind)

    def _write_state(self, step: StepInput, outputs: list[ReplicaOutput]) -> None:
        replica = self.program.replica
        with tf.device(HOST):
            weights = tf.stack([given.weight for given in step.pieces])
        old = [tf.identity(v.value) for v in replica.state]
        merged = merge(self._state_rules, old, [out.state for out in outputs], weights)
        update.assign_state(replica.state, merged)
        if replica.metrics_here:
            changes = [out.metric_changes for out in outputs]
            update.count_metrics(replica.metric_variables, changes)

    def _update(self, result: StepResult, scale: tf.Tensor) -> None:
        trainable, optimizer = self.program.replica.trainable, self.program.model.optimizer
        if not trainable or optimizer is None:
            return
        gradients = list(result.gradients)
        if not self.program.own_compute_loss:
            gradients.append(update.penalties(trainable, scale)[1])
        whole_slices = self.program.replica.whole_slices
        update.apply_gradients(optimizer, trainable, gradients, whole_slices)

    def _logs(
        self,
        step: StepInput,
        outputs: list[ReplicaOutput],
        values: list[tf.Tensor],
        total: tf.Tensor,
    ) -> dict[str, Any]:
        model = self.program.model
        update.track_losses(model, total, values, step.num_samples)
        if self.program.replica.metrics_here:
            return model.get_metrics_result()
        x, y, sample_weight = step.data
        y_pred = batch.gather(self.program, outputs)
        return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
