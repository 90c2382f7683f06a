"""GPUs that a script sees where there are none; stand-in devices, which are CPUs, compute for them.

physical    GPU:0        GPU:1                      as tf.config.list_physical_devices
logical     GPU:0  GPU:1                            GPU:0 split into two, GPU:1 hidden
stand-in    cpu:0  cpu:0
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from evener.devices.tensorflow_view import lowest_capability, runtime_initialised
from evener.run.user_line import UserLine, user_line

Report = Callable[[str, UserLine | None], None]
"""Reports something about a line of the script."""


class EmulatedGpus:
    """The emulated GPUs of a run, and those of them that the script has hidden or split.

    Args:
        names: The devices on which evener has started the runtime; None for the logical CPUs of a
            runtime that the script starts.
        report: Reports their first use.
    """

    def __init__(self, names: Sequence[str] | None, report: Report) -> None:
        self._started_with = names
        self._report = report
        self._is_reported = False
        # TensorFlow's own functions, before they are replaced.
        self._list_physical_devices = tf.config.list_physical_devices
        self._logical_configuration = tf.config.get_logical_device_configuration
        self._hidden = frozenset[int]()
        self._splits: dict[int, list[Any]] = {}

    @functools.cached_property
    def are_not_needed(self) -> bool:
        """Whether there is a GPU, or the run uses other devices than CPUs."""
        is_cpu = [name.startswith("cpu:") for name in self._started_with or ()]
        return bool(self._list_physical_devices("GPU")) or not all(is_cpu)

    @property
    def all(self) -> Sequence[str]:
        """The name of the stand-in for each physical GPU."""
        if self._started_with is not None:
            return self._started_with
        logical = self._logical_configuration(self._list_physical_devices("CPU")[0]) or (None,)
        return [f"cpu:{index}" for index in range(len(logical))]

    @property
    def names(self) -> list[str]:
        """The name of the stand-in for each logical GPU."""
        return [
            name
            for index, name in enumerate(self.all)
            if index not in self._hidden
            for _ in self._splits.get(index) or (None,)
        ]

    @property
    def physical(self) -> list[Any]:
        """The physical GPUs that they represent."""
        count = range(len(self.all))
        return [tf.config.PhysicalDevice(f"/physical_device:GPU:{k}", "GPU") for k in count]

    @property
    def visible(self) -> list[Any]:
        """The visible physical GPUs."""
        return [gpu for k, gpu in enumerate(self.physical) if k not in self._hidden]

    @property
    def logical(self) -> list[Any]:
        """The logical GPUs that they represent."""
        count = range(len(self.names))
        return [tf.config.LogicalDevice(f"/device:GPU:{k}", "GPU") for k in count]

    def index_of(self, device: Any) -> int:
        """Return the number of a physical GPU, or raise the error of TensorFlow."""
        physical = self.physical
        if device not in physical:
            raise ValueError(f"Unrecognized device: {device!r}")
        return physical.index(device)

    def show(self, gpus: Sequence[Any]) -> list[str]:
        """Make only some physical GPUs visible, and return their names."""
        shown = {self.index_of(gpu) for gpu in gpus}
        hidden = frozenset(range(len(self.all))) - shown
        if hidden != self._hidden:
            self.check_not_started("Visible devices")
        self._hidden = hidden
        return [f"GPU:{index}" for index in sorted(shown)]

    def split(self, index: int, configuration: Sequence[Any]) -> None:
        """Split a physical GPU into logical ones, each of which is the whole stand-in."""
        self.check_not_started("Virtual devices")
        self._splits[index] = list(configuration)

    def configuration_of(self, index: int) -> list[Any] | None:
        """Return the logical device configuration of a physical GPU, or None."""
        return self._splits.get(index)

    def check_not_started(self, what: str) -> None:
        """Raise as TensorFlow does once it has started, unless evener has started it."""
        if self._started_with is None and runtime_initialised(tf):
            raise RuntimeError(f"{what} cannot be modified after being initialized")

    def substitute(self, asked: Any) -> Any:
        """Return a device, a list or a device function with GPUs replaced by their stand-ins.

        Any other value is returned unchanged, for TensorFlow to handle.
        """
        name = asked.name if isinstance(asked, tf.config.LogicalDevice) else asked
        if isinstance(name, list | tuple):
            # Two names of the same stand-in are one device.
            return list(dict.fromkeys(map(self.substitute, name)))
        if callable(name):
            return lambda operation: self.substitute(name(operation))
        number = self._number_asked(name)
        if number is None:
            return asked
        self.report_once()
        spec: Any = tf.DeviceSpec.from_string(str(_text(name)))
        cpu = int(self.names[number].partition(":")[2])
        return spec.replace(device_type="CPU", device_index=cpu).to_string()

    def asked(self, device: Any) -> str | None:
        """Return the GPU that a device names if it has a stand-in, such as ``"gpu:1"``, or None."""
        name = device.name if isinstance(device, tf.config.LogicalDevice) else device
        number = self._number_asked(name)
        return None if number is None else f"gpu:{number}"

    def _number_asked(self, name: Any) -> int | None:
        number = _number_of_gpu(name)
        if number is None or self.are_not_needed or number >= len(self.names):
            return None
        return number

    @property
    def capability(self) -> tuple[int, int] | None:
        """The lowest compute capability of GPUs that this TensorFlow is built for."""
        build = tf.sysconfig.get_build_info()
        return lowest_capability(build.get("cuda_compute_capabilities", ()))

    def report_once(self) -> None:
        """Report the stand-ins when the script uses them for the first time."""
        if self._is_reported:
            return
        self._is_reported = True
        gpus = [f"GPU:{index}" for index in range(len(self.all))]
        appear = "appear" if len(gpus) > 1 else "appears"
        self._report(
            f"no GPU was found: {joined(self.all)} {appear} as {joined(gpus)}; "
            "--no-gpu-names turns this off",
            user_line(),
        )


def _number_of_gpu(name: Any) -> int | None:
    """Return the number of the local GPU that a device name means, or None."""
    text = _text(name)
    # Most names are those of CPUs, and parsing them is slower than this check.
    if text is None or "GPU" not in text.upper():
        return None
    try:
        spec = tf.DeviceSpec.from_string(text)
    except ValueError:
        return None
    if spec.device_type != "GPU" or spec.job not in (None, "localhost"):
        return None
    return spec.device_index or 0


def _text(name: Any) -> str | None:
    """Return a device name or `tf.DeviceSpec` as text, or None for any other value."""
    text = name.to_string() if hasattr(name, "to_string") else name
    return text if isinstance(text, str) else None


def joined(names: Sequence[str]) -> str:
    """Return names joined by commas and "and".

    >>> joined(["a", "b", "c"]), joined(["a"]), joined([])
    ('a, b and c', 'a', '')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
