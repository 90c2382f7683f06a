"""Those who are compared. Each prepares a problem, then runs steps when it is its turn.

All train the same model with the same optimizer from the same dataset, in the same process
layout: logical CPUs with one thread each. What differs is who splits the batch, and how.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from side_by_side.problems import PROBLEMS, Problem, make_dataset, make_loss, make_optimizer
from side_by_side.step_profile import StreamProfile, profiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """Steps and seconds of a turn.

    Attributes:
        num_steps: Steps that were timed.
        seconds: Wall-clock seconds.
        core_seconds: Processor seconds, all threads of the process added up. Other programs
            lengthen them far less, so they tell work from waiting.
        call_seconds: Median time until a call of the step returned, which may be before its end on
            a GPU; None if it was not measured.
    """

    num_steps: int
    seconds: float
    core_seconds: float
    call_seconds: float | None = None


# Steps at the beginning of every turn that do not count: the input pipeline starts.
_UNTIMED = 2


def stand_ins(num_devices: int, *, num_threads: int | None = None) -> list[str]:
    """Cut the CPU into logical devices; return TensorFlow's names.

    Args:
        num_devices: Number of logical devices.
        num_threads: Number of threads that they share; one for each if it is not given.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads or num_devices)
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(num_devices)]
    )
    return [f"CPU:{index}" for index in range(num_devices)]


def logical_gpus(limits_mib: Sequence[int]) -> list[str]:
    """Cut the first GPU into logical devices of so much memory; return TensorFlow's names."""
    import tensorflow as tf

    gpu = tf.config.list_physical_devices("GPU")[0]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.set_logical_device_configuration(
        gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in limits_mib]
    )
    return [f"GPU:{index}" for index in range(len(limits_mib))]


class Fit:
    """Keras's ``fit`` under a strategy, or under none.

    Args:
        num_devices: Logical CPUs.
        gpu_limits_mib: Memory of logical GPUs, which are used instead where it is given.
        make_strategy: Makes the strategy from the devices' names; None for no strategy.
        jit_compile: Argument of ``compile``.
    """

    def __init__(
        self,
        *,
        num_devices: int = 1,
        gpu_limits_mib: Sequence[int] = (),
        make_strategy: Callable[[list[str]], Any] | None = None,
        jit_compile: bool | str = "auto",
    ) -> None:
        self._devices = logical_gpus(gpu_limits_mib) if gpu_limits_mib else stand_ins(num_devices)
        self._make_strategy = make_strategy and (lambda: make_strategy(self._devices))
        self._jit_compile = jit_compile
        self._batch_size = 0
        self.strategy: Any = None

    def prepare(self, name: str, optimizer: str) -> None:
        """Make the model of a problem; forget the one before."""
        import keras

        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        problem = PROBLEMS[name]
        self.strategy = self._make_strategy() if self._make_strategy else None
        with self.strategy.scope() if self.strategy else contextlib.nullcontext():
            self.model = problem.build()
            self.model.compile(
                make_optimizer(optimizer), make_loss(), jit_compile=self._jit_compile
            )
        self._batch_size = problem.batch_size
        self.dataset = make_dataset(problem)

    def run(self, num_steps: int) -> Ran:
        """Train for some steps; return what they took."""
        clock = step_clock(waits_at=(_UNTIMED, num_steps + _UNTIMED))
        self.model.fit(
            self.dataset, steps_per_epoch=num_steps + _UNTIMED, verbose=0, callbacks=[clock]
        )
        first, last = clock.ends[_UNTIMED - 1], clock.ends[-1]
        return Ran(
            num_steps=num_steps,
            seconds=last.wall - first.wall,
            core_seconds=last.processor - first.processor,
            call_seconds=statistics.median(clock.calls[_UNTIMED:]),
        )

    def profile(self) -> list[StreamProfile]:
        """Return the work of each stream of the devices in a step."""
        return profiled(self.run)

    def notes(self) -> dict[str, Any]:
        """Return what else is worth knowing after the last turn."""
        if not hasattr(self.strategy, "share_controller"):
            return {}
        return {
            "shares": [round(share, 4) for share in self.strategy.shares],
            "events": [str(event) for event in self.strategy.share_controller.events],
        }

    def peak_bytes(self) -> dict[str, int]:
        """Return the most that a step had allocated on every GPU."""
        import tensorflow as tf

        for device in self._devices:
            tf.config.experimental.reset_memory_stats(device)
        self.run(2)
        info = tf.config.experimental.get_memory_info
        return {device.lower(): info(device)["peak"] for device in self._devices}

    def predicted_bytes(self) -> dict[str, int]:
        """Return what evener says that the steps need on every device."""
        if not getattr(self.strategy, "is_partitioned", False):
            return {}
        needs = self.strategy.memory_estimate(self._batch_size)
        return {device.lower(): needs[device.lower()].total for device in self._devices}


class Instant(NamedTuple):
    """A moment by two clocks, in seconds."""

    wall: float
    processor: float


def now() -> Instant:
    """Read both clocks."""
    return Instant(time.perf_counter(), time.process_time())


def step_clock(waits_at: Collection[int] = ()) -> Any:
    """Return a callback that notes when training began and when each step ended.

    Args:
        waits_at: After how many steps it waits for what GPUs still compute.
    """
    import keras
    import tensorflow as tf

    class StepClock(keras.callbacks.Callback):
        """Notes times."""

        def __init__(self) -> None:
            super().__init__()
            self.begin = self._called = now()
            self.ends: list[Instant] = []
            self.calls: list[float] = []

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self._called = now()
            if batch == 0:
                self.begin = self._called

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.calls.append(now().wall - self._called.wall)
            if len(self.ends) + 1 in waits_at:
                tf.test.experimental.sync_devices()
            self.ends.append(now())

    return StepClock()


class Loop:
    """A custom loop under a strategy, as TensorFlow's guide writes it.

    Args:
        num_devices: Logical CPUs.
        make_strategy: Makes the strategy from the devices' names.
    """

    def __init__(self, *, num_devices: int, make_strategy: Callable[[list[str]], Any]) -> None:
        self._devices = stand_ins(num_devices)
        self._make_strategy = make_strategy

    def prepare(self, name: str, optimizer: str) -> None:
        """Make the model of a problem; forget the one before."""
        import keras
        import tensorflow as tf

        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        problem = PROBLEMS[name]
        strategy = self._make_strategy(self._devices)
        with strategy.scope():
            model = problem.build()
            opt = make_optimizer(optimizer)
            # Slots made inside `strategy.run` fail under MirroredStrategy.
            opt.build(model.trainable_variables)
        one_step = _gradient_step(problem, model, opt, problem.batch_size)

        @tf.function
        def step(x: Any, y: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(one_step, args=(x, y)), axis=None)

        self._step = step
        self._batches = iter(strategy.experimental_distribute_dataset(make_dataset(problem)))

    def run(self, num_steps: int) -> Ran:
        """Train for some steps; return what they took."""
        return run_steps(self._step, self._batches, num_steps)

    def notes(self) -> dict[str, Any]:
        """Return nothing: there is nothing else to know."""
        return {}


class PlainLoop:
    """A plain ``tf.function`` loop on one device: the least that a step costs.

    Args:
        part: Part of each global batch to train on, 0 to 1.
        start: A barrier to wait at before each turn, where several such loops add up.
        gpu_limits_mib: Memory of a logical GPU, which is used instead of a CPU where it is given.
    """

    def __init__(
        self, *, part: float = 1.0, start: Any = None, gpu_limits_mib: Sequence[int] = ()
    ) -> None:
        _ = logical_gpus(gpu_limits_mib) if gpu_limits_mib else stand_ins(1)
        self._part = part
        self._start = start

    def prepare(self, name: str, optimizer: str) -> None:
        """Make the model of a problem; forget the one before."""
        import keras
        import tensorflow as tf

        keras.utils.clear_session()
        keras.utils.set_random_seed(1)
        problem = PROBLEMS[name]
        batch_size = round(problem.batch_size * self._part)
        model = problem.build()
        opt = make_optimizer(optimizer)
        opt.build(model.trainable_variables)
        self._step = tf.function(_gradient_step(problem, model, opt, batch_size))
        self._batches = iter(make_dataset(problem, batch_size=batch_size))

    def run(self, num_steps: int) -> Ran:
        """Train for some steps; return what they took."""
        if self._start is not None:
            self._start.wait()
        return run_steps(self._step, self._batches, num_steps)

    def profile(self) -> list[StreamProfile]:
        """Return the work of each stream of the devices in a step."""
        return profiled(self.run)

    def notes(self) -> dict[str, Any]:
        """Return nothing: there is nothing else to know."""
        return {}


def _gradient_step(problem: Problem, model: Any, optimizer: Any, batch_size: int) -> Callable:
    import tensorflow as tf

    loss = make_loss(reduction="sum")
    num_targets = batch_size * problem.targets_per_sample

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True)) / num_targets
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
        return value

    return step


def run_steps(step: Callable[..., Any], batches: Any, num_steps: int) -> Ran:
    """Take some steps, the first of which do not count; return what the others took."""
    value: Any = 0.0
    for _ in range(_UNTIMED):
        value = step(*next(batches))
    float(value)
    begin = now()
    for _ in range(num_steps):
        value = step(*next(batches))
    float(value)
    end = now()
    return Ran(
        num_steps=num_steps,
        seconds=end.wall - begin.wall,
        core_seconds=end.processor - begin.processor,
    )


def evener_even(devices: list[str]) -> Any:
    """Return evener's strategy with even shares."""
    import evener

    return evener.Strategy(devices=[name.lower() for name in devices], shares="even")


def evener_per_device(devices: list[str]) -> Any:
    """Return evener's strategy with even shares, and BatchNormalization by device."""
    import evener

    names = [name.lower() for name in devices]
    return evener.Strategy(devices=names, shares="even", batch_norm="per_device")


def evener_measured(devices: list[str]) -> Any:
    """Return evener's strategy as it is by default."""
    import evener

    return evener.Strategy(devices=[name.lower() for name in devices])


def mirrored(devices: list[str]) -> Any:
    """Return TensorFlow's strategy for several devices of one machine."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(devices)
