"""Task orders with a closed form: one stage per device, and interleaved stages.

In the drawings a letter and a digit are a task and its micro-batch, a dot is idle time, and
all tasks take the same time.
"""

from __future__ import annotations

from collections.abc import Iterator

from evener.schedule.task import Task


def gpipe_order(*, stage: int, num_micro_batches: int, in_flight: int) -> Iterator[Task]:
    """Yield the tasks of a stage by GPipe, in waves of ``in_flight`` micro-batches.

    All forwards of a wave, then all its backwards, the last micro-batch first::

        stage 0    F0 F1 F2 F3 .  .  .  .  B3 B2 B1 B0
        stage 1    .  F0 F1 F2 F3 .  .  B3 B2 B1 B0 .
        stage 2    .  .  F0 F1 F2 F3 B3 B2 B1 B0 .  .

    Source: Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline
    Parallelism, 2019, figure 2c. There all micro-batches are one wave.
    """
    for begin in range(0, num_micro_batches, in_flight):
        wave = range(begin, min(begin + in_flight, num_micro_batches))
        yield from (Task("forward", stage, k) for k in wave)
        yield from (Task("backward", stage, k) for k in reversed(wave))


def one_f_one_b_order(*, stage: int, num_micro_batches: int, in_flight: int) -> Iterator[Task]:
    """Yield the tasks of a stage by 1F1B: forwards up to the limit, then B and F alternate.

    ::

        stage 0    F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3
        stage 1    .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .
        stage 2    .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .

    Source: Narayanan et al., PipeDream: Generalized Pipeline Parallelism for DNN Training,
    2019, section 3.2; with the flush after every step of Narayanan et al., Memory-Efficient
    Pipeline-Parallel DNN Training, 2021, section 3.2 (PipeDream-Flush).
    """
    num_ahead = min(live_limit(stage, in_flight), num_micro_batches)
    yield from (Task("forward", stage, k) for k in range(num_ahead))
    for k in range(num_micro_batches):
        yield Task("backward", stage, k)
        if num_ahead + k < num_micro_batches:
            yield Task("forward", stage, num_ahead + k)


def zero_bubble_order(*, stage: int, num_micro_batches: int, in_flight: int) -> Iterator[Task]:
    """Yield the tasks of a stage by ZB-H1: 1F1B with deferred weight gradients.

    Stage s is s backwards ahead of its weight gradients; the remaining ones fill the idle time of
    1F1B at the end::

        stage 0    F0 F1 F2 .  .  B0 W0 F3 B1 W1 B2 W2 B3 W3
        stage 1    .  F0 F1 .  B0 F2 B1 W0 F3 B2 W1 B3 W2 W3
        stage 2    .  .  F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3

    A micro-batch stays alive until its weight gradient is computed, so a stage holds up to
    ``in_flight`` micro-batches, as stage 0 does in 1F1B. With p stages and p in flight, a device
    is idle for (p - 1)(F + B - W), where F, B and W are the task times, if W is at most F and B.

    Source: Qi, Wan, Huang, Lin: Zero Bubble Pipeline Parallelism, 2023, section 3.1.
    """
    num_deferred = min(stage, in_flight - 1)
    for task in one_f_one_b_order(
        stage=stage, num_micro_batches=num_micro_batches, in_flight=in_flight
    ):
        yield task
        if task.kind == "backward" and task.micro_batch >= num_deferred:
            yield Task("weights", stage, task.micro_batch - num_deferred)
    for k in range(max(0, num_micro_batches - num_deferred), num_micro_batches):
        yield Task("weights", stage, k)


def interleaved_order(
    *, rank: int, num_devices: int, num_rounds: int, num_micro_batches: int
) -> Iterator[Task]:
    """Yield the tasks of a device that has every ``num_devices``-th stage.

    The stages of a device are its chunks. A group of ``num_devices`` micro-batches goes through
    chunk 0, then through chunk 1, and so on; then the next group. With 2 devices and
    2 rounds (stages 0 and 2 on device 0, stages 1 and 3 on device 1; micro-batch.stage)::

        device 0   F0.0 F1.0 F0.2 F1.2  .   F2.0 B0.2 F3.0 B1.2 F2.2 B0.0 ...
        device 1    .   F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 F2.1 B0.1 F3.1 B1.1 ...

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters
    Using Megatron-LM, 2021, section 2.2.
    """
    num_tasks = num_micro_batches * num_rounds
    num_ahead = min(2 * (num_devices - rank - 1) + (num_rounds - 1) * num_devices, num_tasks)

    def chunk_and_micro_batch(index: int) -> tuple[int, int]:
        group, within = divmod(index, num_devices * num_rounds)
        chunk, member = divmod(within, num_devices)
        return chunk, group * num_devices + member

    def forward(index: int) -> Task:
        chunk, micro_batch = chunk_and_micro_batch(index)
        return Task("forward", rank + chunk * num_devices, micro_batch)

    def backward(index: int) -> Task:
        chunk, micro_batch = chunk_and_micro_batch(index)
        return Task("backward", rank + (num_rounds - 1 - chunk) * num_devices, micro_batch)

    yield from (forward(index) for index in range(num_ahead))
    for index in range(num_tasks):
        if num_ahead + index < num_tasks:
            yield forward(num_ahead + index)
        yield backward(index)


def live_limit(stage: int, in_flight: int) -> int:
    """Return the most live micro-batches of a 1F1B stage.

    >>> [live_limit(stage, 3) for stage in range(5)]
    [3, 2, 1, 1, 1]
    """
    return max(1, in_flight - stage)
