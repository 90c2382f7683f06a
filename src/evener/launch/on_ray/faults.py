"""Errors of jobs on Ray, and the reasons that Ray gives for the death of an actor."""

from __future__ import annotations

from evener.errors import RunError


def wrong_resources(text: str, why: str) -> RunError:
    """Return the error for resources that cannot be read; ``why`` is a clause."""
    return RunError(
        "RUN-089",
        f"--ray-resources {text}: no resources of a worker.",
        why=f"{why}.",
        fix="Write for example --ray-resources CPU=4,GPU=1, once, or once per worker.",
    )


def wrong_options(what: str, why: str, fix: str) -> RunError:
    """Return the error for options that do not fit to each other, from three sentences."""
    return RunError("RUN-084", what, why=why, fix=fix)


def not_installed() -> RunError:
    """Return the error for a Python without Ray."""
    return RunError(
        "RUN-085",
        "Ray is not installed.",
        why="--ray starts the workers on a Ray cluster, and this Python has no package ray.",
        fix="pip install evener[ray], on every node of the cluster too.",
    )


def not_reached(address: str, why: str) -> RunError:
    """Return the error for a cluster that does not answer; ``why`` is a clause of Ray."""
    cluster = "No Ray cluster" if address == "auto" else f"No Ray cluster at {address}"
    return RunError(
        "RUN-086",
        f"{cluster} can be joined.",
        why=f"{why}.",
        fix="Run the command on a node of the cluster, with the same versions of Ray and Python; "
        "`ray start --head` starts a cluster, and prints its address.",
    )


def no_place(needs: str, seconds: float, why: str) -> RunError:
    """Return the error for workers that the cluster has no place for; ``why`` is a clause."""
    return RunError(
        "RUN-087",
        f"Ray has found no place for the workers within {seconds:g} seconds: {needs}.",
        why=f"{why}.",
        fix="Add nodes, end other jobs, or ask for less by --workers and --ray-resources; "
        "EVENER_START_SECONDS sets the time.",
    )


def not_started(host: str, why: str) -> RunError:
    """Return the error for a node on which a worker cannot be started; ``why`` is a clause."""
    return RunError(
        "RUN-088",
        f"The worker cannot be started on the node {host}.",
        why=f"{why}.",
        fix="Every node needs the working directory of the command under the same path, and the "
        "same versions of Python, Ray and evener.",
    )


def reason(error: BaseException) -> str:
    r"""Return the last sentence of an error of Ray, which has many lines, without its end.

    >>> reason(ValueError("The actor died.\n\tpid: 7\nThe node has failed."))
    'The node has failed'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__
