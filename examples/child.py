"""A function called in a subprocess, which always ends with the program.

The subprocess is a new Python process, so it can configure TensorFlow's devices itself. It ends
when the function returns, when the program that started it is stopped by Ctrl-C or an error, and
when that program is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from rich.console import Console

import evener

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class ChildEnded(Exception):
    """The subprocess has ended without a result."""


def run_in_child(function: Callable[[Argument], Result], argument: Argument) -> Result:
    """Call a function in a subprocess and return its result.

    Args:
        function: Function of a module, which the subprocess can import.
        argument: Argument of the function; it and the result are pickled.

    Raises:
        EvenerError: What the function raised.
        ChildEnded: If the subprocess ended without a result, or the function raised another error.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(function, argument, sender), daemon=True)
    try:
        # A terminal sends Ctrl-C to every process, but only this one must handle it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        sender.close()
        result: Any = receiver.recv()
        process.join()
    except EOFError:
        process.join()
        raise ChildEnded(f"A process ended by itself, with {process.exitcode}.") from None
    finally:
        _close(process)
    if isinstance(result, evener.EvenerError):
        raise result
    return result


def _close(process: BaseProcess) -> None:
    """End a process, kindly at first."""
    if process.pid is None or process.exitcode is not None:
        return
    process.terminate()
    process.join(5)
    if process.exitcode is None:
        process.kill()
        process.join()
        # A live display had no time to give the terminal back.
        Console().show_cursor()


def _serve(function: Callable[[Any], Any], argument: Any, sender: Connection) -> None:
    # An error on the way out, so that displays are closed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        result = function(argument)
    except evener.EvenerError as error:
        result = error
    sender.send(result)


def _end_with_parent() -> None:
    """Wait until the process that started this one is gone, however it went, and go too."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
