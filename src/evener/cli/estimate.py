"""``evener estimate``: the memory that training needs, without a device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evener.cli.options import DEFAULT_LIMIT_SECONDS, TimeLimitOption
from evener.cli.script_args import ArgsArgument, AsModuleOption, args_of_script

if TYPE_CHECKING:
    from evener.profile import ModelCosts
    from evener.run.script import Script

_MOST_SAMPLES = 2**20
_MOST_DEVICES = 256


def estimate(
    context: typer.Context,
    *,
    target: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT|MODEL",
            show_default=False,
            help="A Python file that trains, or a published model, such as bert-large.",
        ),
    ],
    args: ArgsArgument = None,
    as_module: AsModuleOption = False,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            metavar="N",
            min=1,
            max=_MOST_SAMPLES,
            help="Samples of the global batch. Default: the batch of the script.",
        ),
    ] = None,
    num_devices: Annotated[
        int,
        typer.Option(
            "--num-devices",
            metavar="N",
            min=1,
            max=_MOST_DEVICES,
            help="Number of devices to divide the batch, the weights and the optimizer state over.",
        ),
    ] = 1,
    time_limit: TimeLimitOption = DEFAULT_LIMIT_SECONDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; sizes are in bytes.")
    ] = False,
) -> None:
    """Estimate the memory that training needs, by kind, and the largest batch for each device.

    A script runs on the CPU up to its first training step, which is traced but not executed.
    """
    from evener.clusters import model_named, model_names
    from evener.report.estimated import Estimated, print_estimated

    if target in model_names() and not as_module:
        if args:
            raise typer.BadParameter(
                f"the model {target} takes no arguments; options go before it: {' '.join(args)}"
            )
        model, own_size = model_named(target).costs, None
    else:
        if not (as_module or target.endswith(".py") or Path(target).exists()):
            raise _no_target(target)
        from evener.run.script import read

        script = read(target, as_module=as_module)
        args = args_of_script(context, args, script)
        model, own_size = _of_script(script, args, time_limit)
    size = batch_size or own_size
    if size is None:
        raise _no_batch_size(target, is_model=target in model_names())
    found = Estimated(model=model, batch_size=size, num_devices=num_devices)
    if as_json:
        print(found.to_json())
    else:
        print_estimated(found)


def _of_script(script: Script, args: list[str], time_limit: float) -> tuple[ModelCosts, int | None]:
    """Return the layers of a script's training step, and the samples of its batch if known."""
    from evener.cli.status import status
    from evener.subprocess.costs import counted_memory

    with status(f"Tracing the first training step of {script.given}"):
        return counted_memory(script, args, time_limit=time_limit)


def _no_target(target: str) -> Exception:
    from evener.clusters import model_names
    from evener.errors import RunError, did_you_mean

    return RunError(
        "RUN-042",
        f"{target} is neither a script nor a published model.{did_you_mean(target, model_names())}",
        why=f"There is no such file; the models described with evener are "
        f"{', '.join(model_names())}.",
        fix="Pass the path of a Python file that trains, or one of these names.",
    )


def _no_batch_size(target: str, *, is_model: bool) -> Exception:
    from evener.errors import RunError

    return RunError(
        "RUN-041",
        f"The memory of {target} depends on a batch size that is not known.",
        why="A published model does not define a batch size."
        if is_model
        else "The script trains on batches whose size is not known before it runs.",
        fix=f"evener estimate --batch-size N {target}",
    )
