"""Write the table of GPU kernels that evener ships, from the installed TensorFlow.

Run it with the full wheel after every change of TensorFlow's version:
``.venv/bin/python tools/write_gpu_kernels.py``. A test holds the table to the wheel.
"""

from __future__ import annotations

import sys
from pathlib import Path

from evener.strategy import kernels


def main() -> None:
    """Write the table beside the module that reads it."""
    if kernels.kernel_source() != "TensorFlow":
        sys.exit("this TensorFlow has no GPU kernels: install the full wheel, `tensorflow`")
    packed = kernels.packed_table()
    target = Path(kernels.__file__).with_name(kernels.TABLE)
    target.write_bytes(packed)
    print(f"{target}: {len(packed)} bytes")


if __name__ == "__main__":
    main()
