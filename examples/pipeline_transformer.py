"""Train a transformer that does not fit one device, split into stages on several devices.

    python examples/pipeline_transformer.py
    python examples/pipeline_transformer.py --blocks 3 --width 128 --batch-size 8 --devices cpu:3
    python examples/pipeline_transformer.py --devices gpu:0@2GiB,gpu:1@2GiB

A decoder reads Python's language reference and learns to continue it, character by
character. The program shows three things, each in a subprocess:

1. One device with a memory cap of ``--cap`` runs out of memory.
2. Several devices with that cap train the same model on the same batches: each owns the weights
   and the optimizer state of its stage, and micro-batches pass through the stages (1F1B).
3. One device without a cap begins the same training: its weights equal those of the stages, up
   to rounding.

Without ``--devices``, the devices are four stand-ins: logical CPU devices with one thread each.
TensorFlow caps the memory of a GPU, but not that of a logical CPU device. It can only cap the
tensor memory of all CPU devices of a process together: hence a subprocess for each cap, and a cap
of four times ``--cap`` for four stand-ins. The variables of each stand-in are checked against
``--cap``; its activations are not, because they are not counted by device. With ``--devices
gpu:0@2GiB,...`` each GPU has its own cap; ``--cap`` is for GPUs without one, and without any cap
the first of the three is left out.

The text is `pydoc_data.topics`, which comes with Python: the topics of The Python Language
Reference, (c) Python Software Foundation, licence PSF-2.0.

Exit codes: 0 fine, 1 if one device is enough, the stages do not fit, the loss does not fall or
the agreement is not reached, 2 wrong usage, 130 after Ctrl-C.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import typer
from child import ChildEnded, run_in_child
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import evener
from evener.base.text import format_bytes, parse_bytes
from evener.cli.conventions import quiet_tensorflow
from evener.devices.spec import DeviceSpec, SpecError, parse_spec, spec_from
from evener.plan import (
    PlanDevice,
    Replica,
    Stage,
)

if TYPE_CHECKING:
    # These take seconds to import: only the subprocesses import them.
    import keras
    import numpy as np

SEED = 1
CONTEXT = 32
HEADS = 4
STEPS_PER_ROUND = 8
NUM_TESTED = 64
TEMPERATURE = 0.5
SAMPLE_CHARACTERS = 80
# Rounding is 6e-8 for one operation in float32; some steps build on each other.
TOLERANCE = 1e-4
# Floats saved for the backward pass, per character, block and unit of width; measured.
NUMBERS_HELD = 28
# Memory of all devices together, relative to the estimated need of the stages.
MARGIN = 1.8
MEBIBYTE = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Model and training of the example.

    Attributes:
        steps: Number of training steps, a multiple of `STEPS_PER_ROUND`.
        blocks: Number of transformer blocks.
        width: Size of a character's vector; a multiple of `HEADS`.
        batch_size: Text samples in the global batch.
        micro_batches: Number of micro-batches of a batch.
    """

    steps: int
    blocks: int
    width: int
    batch_size: int
    micro_batches: int

    def num_weights(self) -> int:
        """Return the number of trainable parameters."""
        num_characters = len(set(load_text()))
        in_block = 12 * self.width + 9
        outside = 2 * num_characters + CONTEXT + 2
        return (in_block * self.blocks + outside) * self.width + num_characters

    def variable_bytes(self) -> int:
        """Return the bytes of the weights and of the two slots of Adam for each."""
        return 3 * 4 * self.num_weights()

    def cap_bytes(self, num_devices: int) -> int:
        """Return a memory cap per device that suffices for the stages, but not for one device.

        A stage holds as many micro-batches as there are stages from it to the last.
        """
        held = sum(min(1 + k, self.micro_batches) for k in range(num_devices)) / num_devices
        tokens = self.batch_size / self.micro_batches * CONTEXT
        activations = 4 * NUMBERS_HELD * tokens * self.width * self.blocks * held
        # Gradients, and their sum over the micro-batches so far, are as large as the weights.
        total = 5 / 3 * self.variable_bytes() + activations
        return math.ceil(MARGIN * total / num_devices / MEBIBYTE) * MEBIBYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work of a subprocess.

    Attributes:
        settings: Model and training.
        spec: Devices to use.
        rounds: Number of rounds to train.
        in_stages: Whether to train in stages, or by Keras alone on the first device.
        environment: Environment variables to set before TensorFlow is imported.
        shown: Whether to show the progress.
    """

    settings: Settings
    spec: DeviceSpec
    rounds: int
    in_stages: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    shown: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Result of a subprocess; the attributes with defaults are those of a training in stages.

    Attributes:
        losses: Loss of every round.
        weights: Weights after the first round, by path.
        peak_bytes: Peak memory in use, of each GPU, or of all CPU devices together.
        samples_per_second: Throughput after the first round, which includes tracing; None if there
            was only one round.
        stages: Device of each stage, its layers, and the bytes of the variables there.
        tested: Loss on the test text, before and after.
        sample: Prompt, and its continuation by the model.
    """

    losses: list[float]
    weights: Mapping[str, np.ndarray]
    peak_bytes: tuple[int, ...]
    samples_per_second: float | None
    stages: tuple[tuple[str, tuple[str, ...], int], ...] = ()
    tested: tuple[float, float] = (math.nan, math.nan)
    sample: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """Result of a job that ran out of memory: TensorFlow's message."""

    says: str


# The text ----------------------------------------------------------------------------------


def load_text() -> str:
    """Return the topics of Python's language reference, one after the other."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def cut_text(settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Return the character indices of all batches, and those of the test.

    Returns:
        int32 of shape (steps, batch size, CONTEXT + 1), drawn from the first nine tenths of
        the text, and of shape (NUM_TESTED, CONTEXT + 1), from the last.
    """
    import numpy as np

    text = load_text()
    number = {character: k for k, character in enumerate(sorted(set(text)))}
    numbers = np.array([number[character] for character in text], "int32")
    bound = len(numbers) * 9 // 10
    rng = np.random.default_rng(SEED)
    tests = rng.integers(bound, len(numbers) - CONTEXT, size=NUM_TESTED)
    begins = rng.integers(bound - CONTEXT, size=(settings.steps, settings.batch_size))
    window = np.arange(CONTEXT + 1)
    return numbers[begins[..., None] + window], numbers[tests[:, None] + window]


# The stages --------------------------------------------------------------------------------


def make_plan(settings: Settings, devices: Sequence[str]) -> evener.Plan:
    """Return the plan: one replica, whose stages are even runs of blocks."""
    num_stages = len(devices)
    bounds = [k * settings.blocks // num_stages for k in range(num_stages + 1)]
    layers = [[f"block_{number}" for number in range(*run)] for run in itertools.pairwise(bounds)]
    layers[0].insert(0, "embedding")
    layers[-1] += ["norm", "head"]
    replica = Replica(
        share=1,
        stages=tuple(
            Stage(device=device, layers=tuple(names))
            for device, names in zip(devices, layers, strict=True)
        ),
        num_micro_batches=settings.micro_batches,
        in_flight=min(num_stages, settings.micro_batches),
        schedule="1f1b",
    )
    return evener.Plan(devices=tuple(map(PlanDevice.named, devices)), replicas=(replica,))


# The subprocess -----------------------------------------------------------------------


def work(job: Job) -> Trained | OutOfMemory:
    """Train as a job says, in a subprocess."""
    warnings.formatwarning = short_warning
    # TensorFlow reads these when it is imported.
    os.environ.update(job.environment)
    with quiet_tensorflow(os.environ):
        import tensorflow as tf
    devices = [device.name for device in evener.use_devices(str(job.spec))]
    # TF32 keeps 10 of 23 mantissa bits, too few for the comparison.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        if job.in_stages:
            return train_in_stages(job, devices)
        with tf.device(devices[0].upper()):
            return fit(make_model(job.settings), job, devices[:1])
    except tf.errors.ResourceExhaustedError as error:
        lines = error.message.splitlines()
        return OutOfMemory(says=next((line for line in lines if "OOM" in line), lines[0]).strip())


def train_in_stages(job: Job, devices: list[str]) -> Trained:
    """Train on all devices, and test the model."""
    plan = make_plan(job.settings, devices)
    strategy = evener.Strategy(plan)
    with strategy.scope():
        model = make_model(job.settings)
    tests = cut_text(job.settings)[1]
    before = tested_loss(model, tests, job.settings)
    trained = fit(model, job, devices)
    num_bytes = strategy.owner_registry.owned_bytes()
    return replace(
        trained,
        stages=tuple(
            (stage.device, stage.layers, num_bytes[stage.device])
            for stage in plan.replicas[0].stages
        ),
        tested=(before, tested_loss(model, tests, job.settings)),
        sample=continue_text(model, tests[0, :CONTEXT]),
        peak_bytes=peak_bytes(devices),
    )


def fit(model: keras.Model, job: Job, devices: list[str]) -> Trained:
    """Train for the rounds of a job, and keep the weights of the first."""
    import keras

    from evener.report import Progress

    settings = job.settings
    batches = cut_text(settings)[0]
    times: list[float] = []
    weights: dict[str, np.ndarray] = {}

    def look(epoch: int, logs: object) -> None:
        times.append(time.perf_counter())
        if epoch == 0:
            weights.update({weight.path: weight.numpy() for weight in model.weights})

    with Progress(console=Console(quiet=not job.shown)) as progress:
        history = model.fit(
            # A generator: one array of all batches would count as memory in use.
            ((batch[:, :-1], batch[:, 1:]) for batch in batches),
            epochs=job.rounds,
            steps_per_epoch=STEPS_PER_ROUND,
            shuffle=False,
            verbose=0,
            callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=look), progress],
        )
    samples = (job.rounds - 1) * STEPS_PER_ROUND * settings.batch_size
    return Trained(
        losses=history.history["loss"],
        weights=weights,
        peak_bytes=peak_bytes(devices),
        samples_per_second=samples / (times[-1] - times[0]) if samples else None,
    )


def tested_loss(model: keras.Model, tests: np.ndarray, settings: Settings) -> float:
    """Return the loss on the test text."""
    return model.evaluate(tests[:, :-1], tests[:, 1:], batch_size=settings.batch_size, verbose=0)


def make_model(settings: Settings) -> keras.Model:
    """Return the model, with the same weights each time."""
    import keras
    from decoder import make_decoder

    keras.utils.set_random_seed(SEED)
    return make_decoder(
        len(set(load_text())),
        context=CONTEXT,
        width=settings.width,
        blocks=settings.blocks,
        heads=HEADS,
        warm_steps=STEPS_PER_ROUND,
    )


def peak_bytes(devices: list[str]) -> tuple[int, ...]:
    """Return the peak memory in use, of each GPU, or of all CPU devices together."""
    import tensorflow as tf

    counted = devices if devices[0].startswith("gpu:") else ["cpu:0"]
    return tuple(tf.config.experimental.get_memory_info(d.upper())["peak"] for d in counted)


def continue_text(model: keras.Model, prompt: np.ndarray) -> tuple[str, str]:
    """Return the prompt as text, and its continuation by the model."""
    import numpy as np

    characters = sorted(set(load_text()))
    rng = np.random.default_rng(SEED)
    numbers = list(prompt)
    for _ in range(SAMPLE_CHARACTERS):
        logits = model.predict_on_batch(np.array([numbers[-CONTEXT:]], "int32"))[0, -1]
        weights = np.exp((logits - logits.max()).astype("float64") / TEMPERATURE)
        numbers.append(rng.choice(len(characters), p=weights / weights.sum()))
    text = "".join(characters[number] for number in numbers)
    return text[:CONTEXT], text[CONTEXT:]


# The demonstration -------------------------------------------------------------------------


def run(settings: Settings, spec: DeviceSpec, caps: Sequence[int | None], check: bool) -> bool:
    """Show that one device has too little memory and the stages do not; return the success.

    Args:
        settings: Model and training.
        spec: Devices of the stages.
        caps: Memory cap of each of them, in bytes; None for no cap.
        check: Whether to compare the stages with one device without a cap.
    """
    console = Console()
    began = time.perf_counter()
    introduce(console, settings)
    stand_ins = spec.kind == "cpu"
    first = parse_spec("cpu:1") if stand_ins else replace(spec, gpus=spec.gpus[:1])
    if caps[0] is not None:
        job = Job(
            settings=settings, spec=first, rounds=1, shown=False, environment=counting(caps[:1])
        )
        if not report_one_device(console, settings, run_in_child(work, job), caps[0]):
            return False
    console.print(f"\n2. In stages, on {spec}", style="bold")
    job = Job(
        settings=settings,
        spec=spec,
        rounds=settings.steps // STEPS_PER_ROUND,
        in_stages=True,
        environment=counting(caps) if stand_ins else {},
    )
    trained = run_in_child(work, job)
    if isinstance(trained, OutOfMemory):
        console.print(Text(f"They do NOT fit: {trained.says}"), soft_wrap=True)
        console.print("Give them more with --cap, or cut a batch into more --micro-batches.")
        return False
    is_fine = report_stages(console, settings, trained, caps)
    if check:
        free = (
            first if stand_ins else replace(first, gpus=(replace(first.gpus[0], cap_bytes=None),))
        )
        console.print("\n3. The first round again, on one device without a cap", style="bold")
        job = Job(settings=settings, spec=free, rounds=1, environment=counting())
        is_fine &= report_agreement(console, run_in_child(work, job), trained)
    console.print(f"{time.perf_counter() - began:.0f} seconds in all.")
    return is_fine


def counting(caps: Sequence[int | None] = ()) -> dict[str, str]:
    """Return the environment in which TensorFlow counts the memory of the CPU.

    Args:
        caps: Memory caps of the stand-ins, in bytes; their sum is the limit of the process.
    """
    environment = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}
    if caps:
        total = sum(cap or 0 for cap in caps)
        environment["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(total // MEBIBYTE)
    return environment


def introduce(console: Console, settings: Settings) -> None:
    """Print the model and the data."""
    text = load_text()
    console.print(
        f"A transformer of {settings.blocks} blocks and width {settings.width} learns to continue "
        "The Python Language Reference: pydoc_data.topics of Python "
        f"{sys.version_info.major}.{sys.version_info.minor}, (c) Python Software Foundation, "
        f"licence PSF-2.0; {len(text):,} characters, {len(set(text))} different ones."
    )
    console.print(
        f"Its {settings.num_weights():,} weights and Adam's two numbers for each of them take "
        f"{format_bytes(settings.variable_bytes())}."
    )


def report_one_device(
    console: Console, settings: Settings, result: Trained | OutOfMemory, cap: int
) -> bool:
    """Print the result of training on one device; return whether it ran out of memory."""
    console.print(f"\n1. One device of {format_bytes(cap)}", style="bold")
    if settings.variable_bytes() > cap:
        console.print("The weights and Adam's numbers alone are more than that.")
    if isinstance(result, OutOfMemory):
        console.print(Text(f"It does not fit, as expected: {result.says}"), soft_wrap=True)
        return True
    console.print(
        f"It does NOT need stages: with {format_bytes(result.peak_bytes[0])} at most it fits on "
        "one device. Give each less with --cap, or make the model larger."
    )
    return False


def report_stages(
    console: Console, settings: Settings, trained: Trained, caps: Sequence[int | None]
) -> bool:
    """Print the result of the stages; return whether the caps were kept and the loss fell."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("device", "layers", "weights and Adam", "cap"):
        table.add_column(heading, justify="left" if heading in ("device", "layers") else "right")
    for (device, layers, num_bytes), cap in zip(trained.stages, caps, strict=True):
        allowed = "-" if cap is None else format_bytes(cap)
        table.add_row(device, ", ".join(layers), format_bytes(num_bytes), allowed)
    console.print(table)
    keeps = all(
        cap is None or num_bytes < cap
        for (_, _, num_bytes), cap in zip(trained.stages, caps, strict=True)
    )
    console.print(f"Every device owns {'less' if keeps else 'NOT less'} than its cap.")
    report_peaks(console, trained, caps)
    if trained.samples_per_second is not None:
        rate = trained.samples_per_second
        console.print(f"{rate:,.1f} samples/s, or {rate * CONTEXT:,.0f} characters/s.")
    before, after = trained.tested
    learned = after < before
    console.print(
        f"Loss on text not trained on: {before:.3f} before, {after:.3f} after {settings.steps} "
        f"steps: it {'falls' if learned else 'does NOT fall'}."
    )
    given, written = trained.sample
    console.print(Text(f"Given {given!r} it writes\n  {written!r}"), soft_wrap=True)
    return keeps and learned


def report_peaks(console: Console, trained: Trained, caps: Sequence[int | None]) -> None:
    """Print the peak memory in use."""
    if len(trained.peak_bytes) == len(trained.stages):
        peaks = ", ".join(map(format_bytes, trained.peak_bytes))
        console.print(f"At most in use, by device: {peaks}.")
    else:
        allowed = format_bytes(sum(cap or 0 for cap in caps))
        peak = format_bytes(trained.peak_bytes[0])
        console.print(f"At most in use, by all of them together: {peak} of {allowed}.")


def report_agreement(console: Console, lone: Trained | OutOfMemory, trained: Trained) -> bool:
    """Print the difference of the stages to one device; return whether it is within tolerance."""
    from evener.report import compare

    if isinstance(lone, OutOfMemory):
        console.print(Text(f"There is NOT enough memory to compare: {lone.says}"), soft_wrap=True)
        return False
    comparison = compare(
        weights=(list(lone.weights.values()), [trained.weights[path] for path in lone.weights]),
        histories=({"loss": lone.losses}, {"loss": trained.losses[:1]}),
        names=list(lone.weights),
    )
    agrees = comparison.within(TOLERANCE)
    console.print(comparison.table())
    console.print(
        f"Largest difference to one device {comparison.largest:.1e}, "
        f"{'within' if agrees else 'NOT within'} the tolerance of {TOLERANCE:.0e}."
    )
    console.print(f"One device used up to {format_bytes(lone.peak_bytes[0])}.")
    return agrees


# The command line --------------------------------------------------------------------------


def choose_devices(
    text: str | None, cap: int | None, settings: Settings
) -> tuple[DeviceSpec, list[int | None]]:
    """Return the devices, and the memory cap of each.

    Raises:
        SpecError: If the text is not a device spec.
        typer.BadParameter: If there are too few devices, or their number is unknown.
    """
    spec = spec_from(text, os.environ)
    if spec.source == "default":
        spec = parse_spec("cpu:4")
    if spec.kind == "gpu":
        requests = [replace(gpu, cap_bytes=gpu.cap_bytes or cap) for gpu in spec.gpus]
        spec, number = replace(spec, gpus=tuple(requests)), len(requests)
        caps = [gpu.cap_bytes for gpu in requests]
    else:
        number = spec.num_stand_ins
        caps = [cap or settings.cap_bytes(max(number, 1))] * number
    if not 2 <= number <= settings.blocks:
        raise typer.BadParameter(
            f"{str(spec)!r}: name at least two devices, such as cpu:4 or gpu:0,gpu:1, and no more "
            f"than there are blocks, which is {settings.blocks}"
        )
    return spec, caps


def parse_cap(text: str | None) -> int | None:
    """Return the bytes of ``"64MiB"``."""
    if text is None:
        return None
    try:
        cap = parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if cap < MEBIBYTE:
        raise typer.BadParameter(f"{text!r} is less than 1 MiB")
    return cap


def short_warning(message: Warning | str, *_: object, **__: object) -> str:
    """Return a warning without the line of source that Python would quote."""
    return f"Warning: {message}\n"


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    *,
    steps: Annotated[
        int, typer.Option(min=1, help="Training steps, rounded up to a multiple of 8.")
    ] = 48,
    blocks: Annotated[int, typer.Option(min=2, help="Blocks of the transformer.")] = 4,
    width: Annotated[
        int, typer.Option(min=HEADS, help="Size of a character's vector; a multiple of 4.")
    ] = 320,
    batch_size: Annotated[int, typer.Option(min=1, help="Text samples in the global batch.")] = 16,
    micro_batches: Annotated[int, typer.Option(min=1, help="Micro-batches of a batch.")] = 8,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="One device for each stage: cpu:4 for four stand-ins, gpu:0,gpu:1, or "
            "gpu:0@2GiB,gpu:0@2GiB. Default: the environment variable EVENER_DEVICES, else cpu:4.",
        ),
    ] = None,
    cap: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory cap of each device, such as 64MiB. Default: computed from the size of the "
            "model for stand-ins; the caps of --devices for GPUs.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Whether to compare with one device.")
    ] = True,
) -> None:
    """Train a transformer in stages, on devices of which none has enough memory for it."""
    if width % HEADS:
        raise typer.BadParameter(f"--width {width} is not a multiple of {HEADS}")
    if micro_batches > batch_size:
        raise typer.BadParameter(f"--micro-batches {micro_batches} are more than --batch-size")
    settings = Settings(
        steps=-(-steps // STEPS_PER_ROUND) * STEPS_PER_ROUND,
        blocks=blocks,
        width=width,
        batch_size=batch_size,
        micro_batches=micro_batches,
    )
    try:
        spec, caps = choose_devices(devices, parse_cap(cap), settings)
        is_fine = run(settings, spec, caps, check)
    except (evener.EvenerError, ChildEnded) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, SpecError | evener.PlanError) else 1) from None
    except KeyboardInterrupt:
        print("Stopped by Ctrl-C.", file=sys.stderr)
        raise typer.Exit(130) from None
    raise typer.Exit(0 if is_fine else 1)


if __name__ == "__main__":
    app()
