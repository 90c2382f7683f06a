"""The environment of a worker's process on a node of Ray."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evener.launch.settings import OF_OTHER_JOBS

_ALWAYS_SENT = ("EVENER_", "KERAS_", "PYTHON", "TF_", "XLA_")
_OF_MACHINE = ("CUDA_", "GPU_DEVICE_ORDINAL", "HIP_", "NVIDIA_", "RAY_", "ROCR_")


def node_environ(
    node: Mapping[str, str], sent: Mapping[str, str], gpus: Sequence[str]
) -> dict[str, str]:
    """Return the environment of a worker, whose GPUs are those that Ray has given it.

    A node has paths of its own, so its variables stay. Variables that it does not have, and those
    that evener, Keras, Python, TensorFlow and XLA read, are those of the command.

    >>> node_environ({"A": "node", "TF_A": "node"}, {"A": "sent", "B": "sent", "TF_A": "sent"}, "0")
    {'A': 'node', 'TF_A': 'sent', 'B': 'sent', 'CUDA_VISIBLE_DEVICES': '0'}
    """
    own = {name: text for name, text in node.items() if name not in OF_OTHER_JOBS}
    if own.get("PYTHONBREAKPOINT", "").startswith("ray."):
        # It is for Ray's own process.
        del own["PYTHONBREAKPOINT"]
    added = {
        name: text
        for name, text in sent.items()
        if name.startswith(_ALWAYS_SENT) or (name not in own and not name.startswith(_OF_MACHINE))
    }
    # Ray leaves it alone where a worker has no GPU: it would see those of all others.
    return {**own, **added, "CUDA_VISIBLE_DEVICES": ",".join(gpus) or "-1"}
