"""CPU devices that stand in for GPUs, and what a script has chosen among them.

physical    GPU:0        GPU:1                      as tf.config.list_physical_devices
logical     GPU:0  GPU:1                            GPU:0 cut in two, GPU:1 hidden
run on      cpu:0  cpu:0
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from evener.devices.tensorflow_view import lowest_capability, runtime_initialised
from evener.launch.place import Place, own_place

Tell = Callable[[str, Place | None], None]
"""Says something about a line of the script."""


class StandIns:
    """The stand-ins of a run.

    Args:
        names: The devices on which the runtime was started for the script; None for the logical
            CPUs of a runtime that is the script's.
        tell: Where it is told that they are used.
    """

    def __init__(self, names: Sequence[str] | None, tell: Tell) -> None:
        self._given = names
        self._tell = tell
        self._was_told = False
        # As TensorFlow has them.
        self._list_physical_devices = tf.config.list_physical_devices
        self._cuts_of = tf.config.get_logical_device_configuration
        self._hidden = frozenset[int]()
        self._cuts: dict[int, list[Any]] = {}

    @functools.cached_property
    def are_not_needed(self) -> bool:
        """Whether there is a GPU, or something else than CPU devices is used."""
        is_cpu = [name.startswith("cpu:") for name in self._given or ()]
        return bool(self._list_physical_devices("GPU")) or not all(is_cpu)

    @property
    def all(self) -> Sequence[str]:
        """The name of the stand-in for each physical GPU."""
        if self._given is not None:
            return self._given
        cuts = self._cuts_of(self._list_physical_devices("CPU")[0]) or (None,)
        return [f"cpu:{index}" for index in range(len(cuts))]

    @property
    def names(self) -> list[str]:
        """The name of the stand-in for each logical GPU."""
        return [
            name
            for index, name in enumerate(self.all)
            if index not in self._hidden
            for _ in self._cuts.get(index) or (None,)
        ]

    @property
    def physical(self) -> list[Any]:
        """The physical GPUs that they answer as."""
        count = range(len(self.all))
        return [tf.config.PhysicalDevice(f"/physical_device:GPU:{k}", "GPU") for k in count]

    @property
    def visible(self) -> list[Any]:
        """The physical GPUs that the script has not hidden."""
        return [gpu for k, gpu in enumerate(self.physical) if k not in self._hidden]

    @property
    def logical(self) -> list[Any]:
        """The logical GPUs that they answer as."""
        count = range(len(self.names))
        return [tf.config.LogicalDevice(f"/device:GPU:{k}", "GPU") for k in count]

    def index_of(self, device: Any) -> int:
        """Return the number of a physical GPU, or raise what TensorFlow raises."""
        physical = self.physical
        if device not in physical:
            raise ValueError(f"Unrecognized device: {device!r}")
        return physical.index(device)

    def show(self, gpus: Sequence[Any]) -> list[str]:
        """Hide all but some physical GPUs, and return the names of those."""
        shown = {self.index_of(gpu) for gpu in gpus}
        hidden = frozenset(range(len(self.all))) - shown
        if hidden != self._hidden:
            self.check_not_started("Visible devices")
        self._hidden = hidden
        return [f"GPU:{index}" for index in sorted(shown)]

    def cut(self, index: int, configuration: Sequence[Any]) -> None:
        """Let a physical GPU be several logical ones, each of which is all of the stand-in."""
        self.check_not_started("Virtual devices")
        self._cuts[index] = list(configuration)

    def cuts_of(self, index: int) -> list[Any] | None:
        """Return what a physical GPU was cut into, or None."""
        return self._cuts.get(index)

    def check_not_started(self, what: str) -> None:
        """Refuse what TensorFlow would refuse of GPUs, unless evener has started it so early."""
        if self._given is None and runtime_initialised(tf):
            raise RuntimeError(f"{what} cannot be modified after being initialized")

    def behind(self, asked: Any) -> Any:
        """Return a device, a list of them or a function, with stand-ins for the GPUs it names.

        What names no GPU that they answer as is returned as it is: TensorFlow's answer is its own.
        """
        name = asked.name if isinstance(asked, tf.config.LogicalDevice) else asked
        if isinstance(name, list | tuple):
            # Two names of one stand-in are one device.
            return list(dict.fromkeys(map(self.behind, name)))
        if callable(name):
            return lambda operation: self.behind(name(operation))
        number = self._number_asked(name)
        if number is None:
            return asked
        self.tell_once()
        spec: Any = tf.DeviceSpec.from_string(str(_text(name)))
        cpu = int(self.names[number].partition(":")[2])
        return spec.replace(device_type="CPU", device_index=cpu).to_string()

    def asked(self, device: Any) -> str | None:
        """Return the GPU that a device means if a stand-in answers for it, such as ``"gpu:1"``."""
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

    def tell_once(self) -> None:
        """Say that they answer as GPUs, when the script asks for the first time."""
        if self._was_told:
            return
        self._was_told = True
        gpus = [f"GPU:{index}" for index in range(len(self.all))]
        answer = "answer" if len(gpus) > 1 else "answers"
        self._tell(
            f"no GPU is here: {in_words(self.all)} {answer} as {in_words(gpus)}; "
            "--no-gpu-names turns this off",
            own_place(),
        )


def _number_of_gpu(name: Any) -> int | None:
    """Return the number of the GPU of this machine that a name means, or None."""
    text = _text(name)
    # Most names are CPUs', and reading them takes longer than this.
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
    """Return the text of a device's name, which may be a `tf.DeviceSpec`; None if it is none."""
    text = name.to_string() if hasattr(name, "to_string") else name
    return text if isinstance(text, str) else None


def in_words(names: Sequence[str]) -> str:
    """Return names as a sentence has them.

    >>> in_words(["a", "b", "c"]), in_words(["a"]), in_words([])
    ('a, b and c', 'a', '')
    """
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
