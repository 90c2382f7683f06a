"""Train a small convolutional network on handwritten digits, on all devices.

    python examples/digits.py
    python examples/digits.py --devices gpu:0,gpu:1 --shares 2,1
    EVENER_DEVICES=cpu:3 python examples/digits.py --epochs 2

The same network is trained a second time on one device, from the same weights on the same
batches. At the end it prints the accuracy on the test digits, the work of each device, and
the difference of the two trainings: rounding errors only, whatever the devices and shares.

The digits are those of scikit-learn: 1,797 pictures of 8 x 8, which 43 people wrote.
Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine
Learning Repository (1998).

Exit codes: 0 fine, 1 if the accuracy or the agreement is not reached, 2 wrong usage, 130
after Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

import evener
from evener.cli.conventions import quiet_tensorflow
from evener.devices.spec import SpecError, spec_from

if TYPE_CHECKING:
    # These take seconds: they are imported when the arguments are known to be right.
    import keras
    import numpy as np

    from evener.report import Comparison, Progress

SEED = 1
NUM_TEST = 360
LEAST_ACCURACY = 0.97
# Rounding is 6e-8 for one operation in float32; some hundred steps build on each other.
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Digits:
    """Pictures, float32 of shape (count, 8, 8, 1) from 0 to 1, and the digits they show."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def load_digits() -> Digits:
    """Return the digits: 360 to test on, and the others, each also moved by a pixel each way.

    The order is drawn once from a seed, so that both trainings see the same batches.
    """
    import numpy as np

    try:
        from sklearn.datasets import load_digits as load
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError:
        raise SystemExit(
            "This example needs scikit-learn: pip install '.[examples]', or make demo"
        ) from None

    pictures, digits = load(return_X_y=True)
    pictures = (pictures / 16).astype("float32").reshape(-1, 8, 8, 1)
    train_x, test_x, train_y, test_y = train_test_split(
        pictures, digits.astype("int32"), test_size=NUM_TEST, stratify=digits, random_state=SEED
    )
    padded = np.pad(train_x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    moves = [(1, 1), (0, 1), (2, 1), (1, 0), (1, 2)]
    train_x = np.concatenate(
        [padded[:, down : down + 8, right : right + 8] for down, right in moves]
    )
    train_y = np.tile(train_y, len(moves))
    order = np.random.default_rng(SEED).permutation(len(train_x))
    return Digits(train_x=train_x[order], train_y=train_y[order], test_x=test_x, test_y=test_y)


def make_model(num_steps: int) -> keras.Model:
    """Return the network, compiled, with the same weights each time.

    Args:
        num_steps: Number of training steps, for the learning rate schedule.
    """
    import keras
    from keras import layers

    keras.utils.set_random_seed(SEED)
    model = keras.Sequential([keras.Input((8, 8, 1))], name="digits")
    for index, filters in enumerate((16, 32, 64), start=1):
        model.add(layers.Conv2D(filters, 3, padding="same", use_bias=False, name=f"conv_{index}"))
        model.add(layers.BatchNormalization(momentum=0.9, synchronized=True, name=f"norm_{index}"))
        # Smooth: at the kink of a ReLU, a rounding error can switch the gradient on or off.
        model.add(layers.Activation("gelu"))
        if filters < 64:
            model.add(layers.AveragePooling2D(2))
    model.add(layers.Flatten())
    model.add(layers.Dense(10, name="digits"))
    learning_rate = keras.optimizers.schedules.CosineDecay(0.01, num_steps)
    model.compile(
        # A large epsilon: with the usual one, Adam divides rounding by rounding wherever a
        # gradient is near zero.
        optimizer=keras.optimizers.Adam(learning_rate, epsilon=1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,
    )
    return model


def train(
    model: keras.Model, digits: Digits, progress: Progress, *, epochs: int, batch_size: int
) -> dict[str, list[float]]:
    """Train a model and test it; return its losses and metrics, of training by epoch."""
    with progress:
        history = model.fit(
            digits.train_x,
            digits.train_y,
            batch_size=batch_size,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=[progress],
        )
    tested = model.evaluate(
        digits.test_x, digits.test_y, batch_size=batch_size, return_dict=True, verbose=0
    )
    return {**history.history, **{f"test {name}": [value] for name, value in tested.items()}}


def choose_devices(spec: str | None, console: Console) -> str | None:
    """Return the spec to use: the one given, or all GPUs, or two stand-ins without any."""
    if spec is not None or os.environ.get("EVENER_DEVICES", "").strip():
        return spec
    found = evener.inventory("all")
    if any(device.kind == "gpu" for device in found.used):
        return "all"
    why = found.fallback.why if found.fallback is not None else "there is no GPU."
    console.print(Text(f"No GPU: {why}"), soft_wrap=True)
    console.print("Two stand-ins take the place of GPUs: they show everything but speed, since")
    console.print("they share the CPU that one device has to itself.\n")
    return "cpu:2"


def import_tensorflow() -> Any:
    """Import TensorFlow and Keras, quietly, and so that from then on Ctrl-C ends the program."""

    def stop(*_: object) -> None:
        # Not by an error: inside an import, a KeyboardInterrupt comes out as any kind of error,
        # and where TensorFlow 2.21 makes a tensor of a number, it is a segmentation fault.
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), b"\x1b[?25h\n")  # A display has hidden the cursor.
        os.write(sys.stderr.fileno(), b"Stopped by Ctrl-C.\n")
        os._exit(130)

    signal.signal(signal.SIGINT, stop)
    with quiet_tensorflow(os.environ):
        import tensorflow
    return tensorflow


def run(spec: str | None, shares: list[float] | None, epochs: int, batch_size: int) -> bool:
    """Train on all devices and on one, print the report; return whether all is well."""
    console = Console()
    began = time.perf_counter()
    # First what costs nothing: a wrong spec need not wait for TensorFlow.
    spec_from(spec, os.environ)
    tf = import_tensorflow()
    from evener.report import Progress, compare

    strategy = evener.Strategy(devices=choose_devices(spec, console), shares=shares)
    # TF32 keeps 10 bits of 23, which is much coarser than what is compared here.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    digits = load_digits()
    num_steps = epochs * -(-len(digits.train_x) // batch_size)
    with strategy.scope():
        model = make_model(num_steps)
    progress = Progress(f"On {', '.join(strategy.replica_devices)}", console=console)
    results = train(model, digits, progress, epochs=epochs, batch_size=batch_size)
    lone = make_model(num_steps)
    beside = Progress("The same on one device, to compare", console=console)
    expected = train(lone, digits, beside, epochs=epochs, batch_size=batch_size)

    report_devices(console, strategy, progress)
    comparison = compare(
        weights=(lone.get_weights(), model.get_weights()),
        histories=(expected, results),
        names=[weight.path for weight in lone.weights],
    )
    is_fine = report_results(console, comparison, results["test accuracy"][0])
    console.print(f"{time.perf_counter() - began:.0f} seconds in all.")
    return is_fine


def report_devices(console: Console, strategy: evener.Strategy, progress: Progress) -> None:
    """Print what each device did, and every change of shares."""
    from evener.report.script_run import device_table

    console.print("\nWhat each device did", style="bold")
    console.print(device_table(progress.work))
    events = strategy.share_controller.events
    console.print("Changes of shares" if events else "The shares did not change.", style="bold")
    for event in events:
        console.print(Text(f"  {event}"), soft_wrap=True)


def report_results(console: Console, comparison: Comparison, accuracy: float) -> bool:
    """Print the differences and the accuracy; return whether both are as they should be."""
    console.print("\nHow far from one device", style="bold")
    console.print(comparison.table())
    agrees = comparison.within(TOLERANCE)
    learned = accuracy >= LEAST_ACCURACY
    console.print(
        f"Largest difference to one device {comparison.largest:.1e}, "
        f"{'within' if agrees else 'NOT within'} the tolerance of {TOLERANCE:.0e}."
    )
    console.print(
        f"Test accuracy {accuracy:.4f} on {NUM_TEST} digits not trained on, "
        f"{'at least' if learned else 'NOT at least'} {LEAST_ACCURACY}."
    )
    return agrees and learned


def parse_shares(text: str | None) -> list[float] | None:
    """Return the shares of ``"2,1"``, or None to have them measured."""
    if text is None:
        return None
    try:
        return [float(share) for share in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 2,1") from None


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    *,
    epochs: Annotated[int, typer.Option(min=1, help="How often to see every picture.")] = 5,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures in the whole batch.")] = 128,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="all, gpu:0,gpu:1, gpu:0@10GiB, or cpu:2 for two stand-ins. Without it: the "
            "environment's EVENER_DEVICES, else all GPUs, else cpu:2.",
        ),
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBERS",
            help="The part of each device, such as 2,1. Without it: measured while training.",
        ),
    ] = None,
) -> None:
    """Train on handwritten digits on all devices, and hold the result against one device."""
    parsed = parse_shares(shares)
    # Python's form of a warning would quote a line of source.
    warnings.formatwarning = lambda message, *_, **__: f"Warning: {message}\n"
    try:
        is_fine = run(devices, parsed, epochs, batch_size)
    except evener.EvenerError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, SpecError | evener.PlanError) else 1) from None
    except KeyboardInterrupt:
        print("Stopped by Ctrl-C.", file=sys.stderr)
        raise typer.Exit(130) from None
    raise typer.Exit(0 if is_fine else 1)


if __name__ == "__main__":
    app()
