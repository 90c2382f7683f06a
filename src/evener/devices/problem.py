"""The problems that keep a device from being used: what happened, why, and the fix.

Each function returns one `Problem`, so that all texts are in one file. The command
line, the warning of `use_devices` and the report print the same object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evener.errors import house_form, listed
from evener.units import format_bytes

ENVIRONMENT_GUIDE = "https://www.tensorflow.org/install/pip"
# Not "evener[gpu]": evener may have been installed from a checkout or a wheel.
_INSTALL = "pip install 'tensorflow[and-cuda]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Problem that keeps one device, or all, from being used.

    Args:
        code: Stable code, such as ``"DEV-101"``.
        what: Sentence that says what happened.
        why: The reason, with the numbers.
        fix: Remedy for the user.
        by_choice: Whether a setting of the user causes it; then no warning is printed.
    """

    code: str
    what: str
    why: str
    fix: str
    by_choice: bool = False

    def __str__(self) -> str:
        """Return the problem in the form of all messages of evener."""
        return house_form(self.code, self.what, self.why, self.fix)


def hidden_by_cuda(value: str) -> Problem:
    """`CUDA_VISIBLE_DEVICES` leaves the GPU out."""
    return Problem(
        code="DEV-101",
        what="Hidden by CUDA_VISIBLE_DEVICES.",
        why=f"CUDA_VISIBLE_DEVICES={value!r} does not include it, so CUDA does not show it "
        "to any program started here.",
        fix="unset CUDA_VISIBLE_DEVICES, or add the GPU to it.",
        by_choice=True,
    )


def cpu_only_wheel(version: str) -> Problem:
    """TensorFlow itself was built without CUDA."""
    return Problem(
        code="DEV-102",
        what="The installed TensorFlow has no GPU support.",
        why=f"TensorFlow {version} was built without CUDA (tensorflow-cpu, or a wheel for a "
        "platform without CUDA).",
        fix=f"pip uninstall tensorflow-cpu, then {_INSTALL}.",
    )


def cuda_13_packages(packages: Sequence[str], cuda_version: str | None) -> Problem:
    """Libraries of CUDA 13 are installed beside a build for CUDA 12."""
    return Problem(
        code="DEV-103",
        what="CUDA 13 packages are installed, but TensorFlow is built for CUDA 12.",
        why=f"TensorFlow is built for CUDA {cuda_version or '12'} and cannot load CUDA 13 "
        f"libraries; these are installed: {listed(packages, 4)}.",
        fix=f"pip uninstall {' '.join(packages)}, then {_INSTALL}.",
    )


def driver_too_old(driver: str, minimum: str, cuda_version: str | None) -> Problem:
    """The NVIDIA driver is older than the CUDA that TensorFlow was built for."""
    return Problem(
        code="DEV-104",
        what="The NVIDIA driver is too old.",
        why=f"the driver is {driver}; CUDA {cuda_version or '12'}, for which TensorFlow was "
        f"built, needs {minimum} or newer.",
        fix=f"install an NVIDIA driver of version {minimum} or newer.",
    )


def too_few_multiprocessors(count: int, minimum: int) -> Problem:
    """TensorFlow ignores small GPUs beside larger ones."""
    return Problem(
        code="DEV-105",
        what="TensorFlow ignores it: too few multiprocessors.",
        why=f"it has {count}; TensorFlow ignores GPUs with fewer than {minimum}.",
        fix=f"set TF_MIN_GPU_MULTIPROCESSOR_COUNT={count} to use it anyway.",
    )


def not_enough_free_memory(free_bytes: int, minimum_bytes: int) -> Problem:
    """Other programs hold the GPU's memory."""
    return Problem(
        code="DEV-106",
        what=f"Not enough free memory: {format_bytes(free_bytes)}.",
        why=f"a GPU needs at least {format_bytes(minimum_bytes)} free to be used; other "
        "programs hold the rest.",
        fix="stop the programs that use it (nvidia-smi lists them), or wait for them to end.",
    )


def not_seen(num_seen: int, *, has_cuda_packages: bool) -> Problem:
    """The driver lists the GPU and TensorFlow does not, for no other known reason."""
    if num_seen:
        why = f"the CUDA libraries work: TensorFlow sees {num_seen} other GPU(s)."
    elif has_cuda_packages:
        why = "CUDA 12 packages are installed, but TensorFlow could not load all of them."
    else:
        why = "the CUDA libraries that TensorFlow loads are not installed as packages."
    return Problem(
        code="DEV-107",
        what="The driver lists it, but TensorFlow does not see it.",
        why=why,
        fix=f"{_INSTALL}; with TF_CPP_MIN_LOG_LEVEL=0 TensorFlow logs which library is "
        f"missing (guide: {ENVIRONMENT_GUIDE}).",
    )


def lost(message: str) -> Problem:
    """The GPU stopped answering."""
    return Problem(
        code="DEV-108",
        what="The GPU does not answer.",
        why=f"the driver says: {message}",
        fix="check `nvidia-smi` and the kernel log (dmesg), then reset the GPU or restart the "
        "machine.",
    )


def initialising_failed(names: str, message: str) -> Problem:
    """TensorFlow refused to start on these devices."""
    return Problem(
        code="DEV-109",
        what=f"TensorFlow could not be started on {names}.",
        # TensorFlow's message may have many lines; print one.
        why=f"TensorFlow says: {' '.join(message.split())[:400]}",
        fix="check `nvidia-smi` for a GPU that hangs or has no free memory, or choose other "
        "devices, for example EVENER_DEVICES=gpu:0.",
    )


def driver_mismatch(message: str) -> Problem:
    """Kernel module and user library of the driver are of different versions."""
    return Problem(
        code="DEV-110",
        what="The NVIDIA driver and its library are of different versions.",
        why=f"the driver was updated while the old kernel module is still loaded ({message}).",
        fix="restart the machine, or reload the nvidia kernel modules.",
    )


def capability_too_low(capability: tuple[int, int], lowest: tuple[int, int]) -> Problem:
    """The GPU is older than everything that TensorFlow was built for."""
    has, needs = (f"{major}.{minor}" for major, minor in (capability, lowest))
    return Problem(
        code="DEV-111",
        what=f"TensorFlow ignores it: compute capability {has} is too low.",
        why=f"the installed TensorFlow was built for {needs} and higher.",
        fix="use another GPU, or build TensorFlow for this one.",
    )


def no_driver(message: str) -> Problem:
    """There is no NVIDIA driver, usually because there is no GPU."""
    return Problem(
        code="DEV-112",
        what="No NVIDIA driver was found.",
        why=f"NVML says: {message}",
        fix="without an NVIDIA GPU, nothing (cpu:2 makes two stand-ins to try things); with one, "
        "install the NVIDIA driver, and start containers with --gpus all.",
    )


def not_in_spec(spec: str) -> Problem:
    """The device spec leaves the device out."""
    return Problem(
        code="DEV-113",
        what="Not in the device spec.",
        why=f"the device spec {spec!r} does not include it.",
        fix="add it to the spec, or use all.",
        by_choice=True,
    )


def unreadable(message: str) -> Problem:
    """NVML fails with another error."""
    return Problem(
        code="DEV-114",
        what="The NVIDIA driver could not be queried.",
        why=f"NVML says: {message}",
        fix="run `nvidia-smi` as the same user; it uses the same library.",
    )


def hidden_in_tensorflow() -> Problem:
    """The program itself hid the GPU."""
    return Problem(
        code="DEV-115",
        what="Hidden by tf.config.set_visible_devices.",
        why="this program removed it from the devices that TensorFlow may use.",
        fix="remove that call, or name the GPU in the device spec.",
        by_choice=True,
    )


def no_gpu() -> Problem:
    """The driver works and lists no GPU."""
    return Problem(
        code="DEV-116",
        what="No NVIDIA GPU was found.",
        why="the NVIDIA driver lists none, and TensorFlow sees none.",
        fix="give the container or virtual machine a GPU (--gpus all), or use cpu:2 for two "
        "stand-ins on the CPU.",
    )
