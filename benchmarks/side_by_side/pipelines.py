"""Those who train a model whose halves are on two devices: evener, and by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from side_by_side.chains import plan_of
from side_by_side.contenders import Fit, Loop, Ran, run_steps, stand_ins
from side_by_side.problems import CHAINS, PROBLEMS, make_dataset, make_loss, make_optimizer


class StagedFit(Fit):
    """Keras's ``fit`` under evener's strategy, with a stage on every device.

    Args:
        num_devices: Logical CPUs.
        **order: Given to `plan_of`.
    """

    def __init__(self, *, num_devices: int, **order: Any) -> None:
        super().__init__(num_devices=num_devices)
        self._num_devices, self._order = num_devices, order

    def prepare(self, name: str, optimizer: str) -> None:
        """Make the model of a problem; forget the one before."""
        self._make_strategy = lambda: _staged(name, self._num_devices, self._order)
        super().prepare(name, optimizer)


class StagedLoop(Loop):
    """A custom loop under the same strategy.

    Args:
        num_devices: Logical CPUs.
        **order: Given to `plan_of`.
    """

    def __init__(self, *, num_devices: int, **order: Any) -> None:
        super().__init__(num_devices=num_devices, make_strategy=self._staged)
        self._num_devices, self._order = num_devices, order

    def prepare(self, name: str, optimizer: str) -> None:
        """Make the model of a problem; forget the one before."""
        self._name = name
        super().prepare(name, optimizer)

    def _staged(self, devices: list[str]) -> Any:
        del devices
        return _staged(self._name, self._num_devices, self._order)


def _staged(name: str, num_devices: int, order: Mapping[str, Any]) -> Any:
    import evener

    names = [f"cpu:{k}" for k in range(num_devices)]
    return evener.Strategy(plan_of(CHAINS[name], names, **order))


class _ByHand:
    """A model in parts, each made under its device, and a step that a person would write."""

    def __init__(self, *, num_devices: int) -> None:
        self.devices = [f"/{name}" for name in stand_ins(num_devices)]

    def prepare(self, name: str, optimizer: str) -> None:
        """Make the model of a problem; forget the one before."""
        import keras
        import tensorflow as tf

        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        parts = []
        for number, device in enumerate(self.devices):
            with tf.device(device):
                parts.append(CHAINS[name].part(number, len(self.devices)))
        problem = PROBLEMS[name]
        num_targets = problem.batch_size * problem.targets_per_sample
        self._step = tf.function(self.make_step(parts, optimizer, num_targets))
        self._batches = iter(make_dataset(problem))

    def make_step(self, parts: Sequence[Any], optimizer: str, num_targets: int) -> Any:
        """Return what trains the parts on a batch and returns its loss."""
        raise NotImplementedError

    def run(self, num_steps: int) -> Ran:
        """Train for some steps; return what they took."""
        return run_steps(self._step, self._batches, num_steps)

    def notes(self) -> dict[str, Any]:
        """Return nothing: there is nothing else to know."""
        return {}


class NaiveDevices(_ByHand):
    """Parts called under ``tf.device``, one after the other, and one gradient of all."""

    def make_step(self, parts: Sequence[Any], optimizer: str, num_targets: int) -> Any:
        """Return what trains the parts on a batch and returns its loss."""
        import tensorflow as tf

        loss = make_loss(reduction="sum")
        weights = [v for part in parts for v in part.trainable_variables]
        opt = make_optimizer(optimizer)
        opt.build(weights)

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                for device, part in zip(self.devices, parts, strict=True):
                    with tf.device(device):
                        x = part(x, training=True)
                with tf.device(self.devices[-1]):
                    value = loss(y, x) / num_targets
            opt.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))
            return value

        return step


class PinnedGPipe(_ByHand):
    """GPipe by hand: gradients taken part by part, each under the device of its part.

        part 0   F0 F1 F2 F3             B3 B2 B1 B0
        part 1      F0 F1 F2 F3 B3 B2 B1 B0

    Args:
        num_devices: Logical CPUs.
        num_micro_batches: Into how many micro-batches a batch is split.
        in_order: Whether a device computes the passes one after the other, as drawn. TensorFlow
            inlines the functions of the parts, and a pass that waits for a call waits for nothing
            then; so a pass waits for a copy of the result. Otherwise, a device computes whatever
            has its inputs, on all threads, and all micro-batches may be in memory from the start.
    """

    def __init__(self, *, num_devices: int, num_micro_batches: int, in_order: bool = True) -> None:
        super().__init__(num_devices=num_devices)
        self._num_micro_batches = num_micro_batches
        self._in_order = in_order

    def make_step(self, parts: Sequence[Any], optimizer: str, num_targets: int) -> Any:
        """Return what trains the parts on a batch and returns its loss."""
        import tensorflow as tf

        optimizers = []
        for device, part in zip(self.devices, parts, strict=True):
            with tf.device(device):
                optimizers.append(make_optimizer(optimizer))
                optimizers[-1].build(part.trainable_variables)
        functions = _part_functions(parts, num_targets)

        def step(x: Any, y: Any) -> Any:
            work = _HandWork(self.devices, functions, parts, in_order=self._in_order)
            xs = tf.split(x, self._num_micro_batches)
            ys = tf.split(y, self._num_micro_batches)
            tapes = [work.forward(*batch) for batch in zip(xs, ys, strict=True)]
            for kept in reversed(tapes):
                work.backward(kept)
            for part, opt, device, sums in zip(
                parts, optimizers, self.devices, work.sums, strict=True
            ):
                with tf.device(device):
                    opt.apply_gradients(zip(sums, part.trainable_variables, strict=True))
            return tf.add_n(work.losses)

        return step


def _part_functions(parts: Sequence[Any], num_targets: int) -> list[Any]:
    """Return for each part a traced function of its weights, what comes in, and the targets."""
    import tensorflow as tf

    loss = make_loss(reduction="sum")

    def function_of(part: Any, *, is_last: bool) -> Any:
        def function(weights: Any, x: Any, y: Any) -> Any:
            result = part.stateless_call(weights, [], x, training=True)[0]
            return loss(y, result) / num_targets if is_last else result

        return tf.function(function)

    return [function_of(part, is_last=part is parts[-1]) for part in parts]


class _HandWork:
    """One step of `PinnedGPipe`."""

    def __init__(
        self,
        devices: Sequence[str],
        functions: Sequence[Any],
        parts: Sequence[Any],
        *,
        in_order: bool,
    ) -> None:
        import tensorflow as tf

        self._devices = devices
        self._in_order = in_order
        self._functions = functions
        self._weights = []
        for device, part in zip(devices, parts, strict=True):
            with tf.device(device):
                values = [tf.identity(v.value) for v in part.trainable_variables]
                self._weights.append(values)
        self._last: list[list[Any]] = [[] for _ in devices]
        self.sums: list[list[Any]] = [[] for _ in devices]
        self.losses: list[Any] = []

    def forward(self, x: Any, y: Any) -> list[tuple[Any, Any, Any]]:
        """Return for each part its tape, what came in and what went out."""
        import tensorflow as tf

        kept = []
        for k, device in enumerate(self._devices):
            with tf.device(device), tf.control_dependencies(self._last[k]):
                x = tf.identity(x)
                with tf.GradientTape() as tape:
                    tape.watch([*self._weights[k], *([x] if k else [])])
                    result = self._functions[k](self._weights[k], x, y)
                    if self._in_order:
                        result = tf.identity(result)
            self._last[k] = [result]
            kept.append((tape, x, result))
            x = result
        self.losses.append(x)
        return kept

    def backward(self, kept: list[tuple[Any, Any, Any]]) -> None:
        """Add the gradients of one micro-batch, from the last part to the first."""
        import tensorflow as tf

        gradient: Any = None
        for k in reversed(range(len(kept))):
            tape, x, result = kept[k]
            with tf.device(self._devices[k]), tf.control_dependencies(self._last[k]):
                arrived = None if gradient is None else tf.identity(gradient)
                of = [*self._weights[k], *([x] if k else [])]
                found = tape.gradient(result, of, output_gradients=arrived)
                gradient = found.pop() if k else None
                found = [tf.convert_to_tensor(gradient) for gradient in found]
                if self._in_order:
                    found = [tf.identity(gradient) for gradient in found]
                self.sums[k] = [
                    gradient if not self.sums[k] else self.sums[k][j] + gradient
                    for j, gradient in enumerate(found)
                ]
            self._last[k] = found if self._in_order else [found[0]]
