"""The options of ``evener launch`` for Ray."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

if TYPE_CHECKING:
    from evener.launch.on_ray.resources import Resources

THIS_MACHINES = "auto"
"""Address that stands for the cluster of this machine, or that of RAY_ADDRESS."""
_ADDRESS = re.compile(r"auto|local|\S+:\d+")


class LaunchCommand(TyperCommand):
    """A command whose option ``--ray`` may be given with an address or without one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give ``--ray`` its default address, and parse.

        Args:
            ctx: Context of the command.
            args: Words of the command line.
        """
        params = [each for each in self.params if getattr(each, "is_flag", False)]
        flags = {name for each in params for name in (*each.opts, *each.secondary_opts)}
        return super().parse_args(ctx, with_ray_address(args, flags))


def with_ray_address(words: Sequence[str], flags: Collection[str]) -> list[str]:
    """Return a command line in which the option ``--ray`` has an address.

    Args:
        words: Words of the command line.
        flags: Options that take no value.

    >>> with_ray_address(["--ray", "--workers", "3", "train.py", "--ray"], [])
    ['--ray=auto', '--workers', '3', 'train.py', '--ray']
    >>> with_ray_address(["--ray", "n1:6379", "train.py"], [])
    ['--ray', 'n1:6379', 'train.py']
    """
    found = list(words)
    position = 0
    # The first word that is neither an option nor its value is the script.
    while position < len(found) and found[position].startswith("-") and found[position] != "--":
        word = found[position]
        has_value = "=" not in word and word not in (*flags, "-h", "--help")
        following = "".join(found[position + 1 : position + 2])
        if word == "--ray" and not _ADDRESS.fullmatch(following):
            found[position] = f"--ray={THIS_MACHINES}"
            has_value = False
        position += 2 if has_value else 1
    return found


def ray_address(given: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the address of the Ray cluster, or None if the job does not run on Ray.

    Args:
        given: Address that was given, or None.
        environ: Environment of this process. Ray's own ``RAY_ADDRESS`` is the default.

    Raises:
        RunError: RUN-084 if it is an address of Ray's client, RUN-054 if it is not ``host:port``.
    """
    from evener.launch.on_ray import faults
    from evener.workers.addresses import split_address

    source = "--ray"
    if given == THIS_MACHINES and environ.get("RAY_ADDRESS"):
        source, given = "RAY_ADDRESS", environ["RAY_ADDRESS"]
    if given is None or given == THIS_MACHINES:
        return given
    if "://" in given:
        raise faults.wrong_options(
            f"{source} is {given}, an address of Ray's client.",
            "The command hosts the coordinator, which the workers have to reach.",
            "Run the command on a node of the cluster, with --ray alone; from elsewhere: "
            "ray job submit --working-dir . -- evener launch --ray ...",
        )
    split_address(given, source)
    return given


def ray_needs(
    address: str | None,
    *,
    num_workers: int | None,
    resources: Sequence[str],
    devices: Sequence[str],
    port: int | None,
    environ: Mapping[str, str],
) -> tuple[Resources, ...]:
    """Return what every worker asks Ray for; nothing if the job does not run on Ray.

    Args:
        address: Address of the cluster, or None if the job does not run on Ray.
        num_workers: Number of workers, or None if it was not given.
        resources: Resources of the workers, as they were given.
        devices: Device specs of the workers, as they were given; they are correct.
        port: Port that was given for Slurm.
        environ: Environment of this process.

    Raises:
        RunError: RUN-084 if the options do not fit to each other, RUN-089 if the resources cannot
            be read.
    """
    from evener.devices.spec import spec_from
    from evener.launch.on_ray import faults
    from evener.launch.on_ray.resources import resources_of

    if address is None:
        if resources:
            what = "--ray-resources was given without --ray."
            raise faults.wrong_options(what, "Only Ray reads them.", "Add --ray, or leave it out.")
        return ()
    if num_workers is None:
        raise faults.wrong_options(
            "--ray was given without --workers.",
            "Ray places as many workers as the job has.",
            "Add --workers N.",
        )
    if port is not None:
        raise faults.wrong_options(
            "--port was given with --ray.", "It is for jobs of Slurm.", "Leave --port out."
        )
    num_gpus = [
        1 + max((gpu.index for gpu in spec_from(spec, environ).gpus), default=-1)
        for spec in devices or [None]
    ]
    return resources_of(resources, num_workers, num_gpus)
