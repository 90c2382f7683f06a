"""Rules on devices: the styles in which each mistake is made, and what only looks like it."""

# ruff: noqa: E501 -- programs in a table, one a line
from __future__ import annotations

from pathlib import Path

import pytest

from evener.doctor import Severity
from unit.doctor.programs import findings_of

FIT = (
    "\nm = tf.keras.Sequential([tf.keras.layers.Dense(1)])\nm.compile('sgd', 'mse')\nm.fit(x, y)\n"
)
TF = "import os\nimport tensorflow as tf\n"
SPREAD = (
    "s = tf.distribute.MirroredStrategy()\nwith s.scope():\n"
    "    m = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n    m.compile('sgd', 'mse')\n"
    "m.fit(x, y, batch_size=64)\n"
)

FINDS = [
    ("DOC-101", 1, "import os; os.environ.setdefault('CUDA_VISIBLE_DEVICES', str(-1))\n" + TF + FIT),
    ("DOC-101", 3, TF + "tf.config.experimental.set_visible_devices([], device_type='GPU')\n" + FIT),
    ("DOC-101", 3, TF + "os.environ['CUDA_VISIBLE_DEVICES'] = 'gpu:0'\n" + SPREAD),
    ("DOC-102", 3, "# package: intel-tensorflow 2.14.0\n" + TF + FIT),
    ("DOC-103", 4, "# package: nvidia-cuda-runtime 13.0.48\n# machine: 1 GPU\n" + TF + FIT),
    ("DOC-103", 3, "# package: nvidia-cublas-cu11 11.10.3\n" + TF + FIT),
    ("DOC-104", 2, "import tensorflow.keras as K\nimport os; os.environ['TF_ENABLE_ONEDNN_OPTS']='0'"),
    ("DOC-104", 4, TF + "o = tf.keras.optimizers.Adam()\nos.environ['TF_GPU_ALLOCATOR'] = 'x'\n"),
    ("DOC-104", 5, TF + "def setup():\n    import sys\n    os.environ['TF_CPP_MIN_LOG_LEVEL']='2'\n"
     "setup()\n"),
    ("DOC-105", 5, TF + "def main():\n    x = tf.zeros([2])\n"
     "    tf.config.set_visible_devices(tf.config.list_physical_devices('GPU')[0], 'GPU')\nmain()\n"),
    ("DOC-105", 4, "from tensorflow import config as c, data\nd = data.Dataset.range(3)\n"
     "g = c.list_physical_devices('GPU')\nc.experimental.set_virtual_device_configuration(g[0], [])\n"),
    ("DOC-106", 3, TF + "tf.config.experimental.set_memory_growth("
     "tf.config.list_physical_devices('GPU')[0], True)\n"),
    ("DOC-107", 3, TF + "s = tf.distribute.MirroredStrategy(['gpu:0', 'gpu:1', 'gpu:2'])\n"),
    ("DOC-107", 4, TF + "for i in range(4):\n    with tf.device('/gpu:%d' % i): tf.zeros(2)\n"),
    ("DOC-107", 3, TF + "with tf.device('gpu0'): tf.zeros(2)\n"),
    ("DOC-107", 6, TF + "i = 0\nwhile i < 9:\n    if i + 1 < 4:\n        with tf.device('/gpu:7'): tf.zeros(2)\n"
     "    i = i + 1\n"),
    ("DOC-107", 3, TF + "with tf.device('/cpu:1'): tf.zeros(2)\n"),
    ("DOC-107", 4, "import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n" + TF
     + "with tf.device('/device:GPU:1'): tf.zeros(2)\n"),
]  # fmt: skip

FINDS_NOT = [
    ("DOC-101", TF + "if not flag:\n    os.environ['CUDA_VISIBLE_DEVICES'] = '-1'\n" + FIT),
    ("DOC-101", "# machine: 0 GPUs\n" + TF + "os.environ['CUDA_VISIBLE_DEVICES'] = '-1'\n" + FIT),
    ("DOC-101", TF + "os.environ['CUDA_VISIBLE_DEVICES'] = '-1'\nprint(x.mean())\n"),
    ("DOC-101", TF + "def off():\n    tf.config.set_visible_devices(g[:1], 'GPU')\n" + FIT),
    ("DOC-102", "# package: tensorflow-cpu 2.21.0\nimport numpy as np\nprint(np.zeros(2))\n"),
    ("DOC-103", "# package: nvidia-cudnn-cu12 9.3.0\n# driver: 525.60.13\n" + TF + FIT),
    ("DOC-103", "# machine: 0 GPUs\n# package: nvidia-cudnn-cu13 9.3.0\n" + TF + FIT),
    ("DOC-104", "import os\nos.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\nimport tensorflow as tf\n"),
    ("DOC-104", TF + "os.environ['CUDA_VISIBLE_DEVICES'] = '1'\nprint(tf.zeros(2))\n"),
    ("DOC-104", TF + "def worker():\n    os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\n"),
    ("DOC-104", TF + "os.environ['WANDB_MODE'] = 'offline'\n"),
    ("DOC-105", TF + "tf.random.set_seed(1)\ntf.keras.mixed_precision.set_global_policy('float32')\n"
     "for g in tf.config.list_physical_devices('GPU'):\n"
     "    tf.config.experimental.set_memory_growth(g, True)\nprint(tf.zeros(1))\n"),
    ("DOC-105", TF + "def step():\n    return tf.zeros(2)\n"
     "tf.config.set_visible_devices([], 'TPU')\nstep()\n"),
    ("DOC-106", "# machine: 1 GPU\n" + TF + "g = tf.config.list_physical_devices('GPU')\n"
     "tf.config.experimental.set_memory_growth(g[0], True)\n"),
    ("DOC-106", TF + "g = tf.config.list_physical_devices('GPU')\n"
     "[tf.config.experimental.set_memory_growth(one, True) for one in g]\n"),
    ("DOC-106", "# environment: CUDA_VISIBLE_DEVICES=1\n" + TF
     + "g = tf.config.list_physical_devices('GPU')\ntf.config.experimental.set_memory_growth(g[0], True)\n"),
    ("DOC-107", TF + "with tf.device('/job:localhost/replica:0/task:0/device:GPU:1'): tf.zeros(2)\n"),
    ("DOC-107", TF + "with tf.device('GPU'): tf.zeros(2)\n"),
    ("DOC-107", "# machine: 0 GPUs\n" + TF + "with tf.device('/gpu:3'): tf.zeros(2)\n"),
    ("DOC-107", TF + "tf.config.set_logical_device_configuration(tf.config.list_physical_devices("
     "'CPU')[0], [tf.config.LogicalDeviceConfiguration()] * 2)\nwith tf.device('/cpu:1'): tf.zeros(2)\n"),
    ("DOC-107", TF + "with tf.device('/job:worker/replica:0/task:1/device:GPU:5'): tf.zeros(2)\n"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "line", "program"), FINDS)
def test_it_is_found_in_this_style(code: str, line: int, program: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(program, encoding="utf-8")
    found = [(finding.code, finding.line) for finding in findings_of(path, num_gpus=2)]
    assert (code, line) in found


@pytest.mark.parametrize(("code", "program"), FINDS_NOT)
def test_it_only_looks_like_it(code: str, program: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(program, encoding="utf-8")
    found = [finding for finding in findings_of(path, num_gpus=2) if finding.code == code]
    assert [finding for finding in found if finding.severity is not Severity.HINT] == []


def test_a_wheel_that_is_required_is_found_in_the_file_that_requires_it(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\ntensorflow-cpu==2.21.0\n", encoding="utf-8")
    script = tmp_path / "train.py"
    script.write_text(TF + FIT, encoding="utf-8")
    found = {finding.code: finding for finding in findings_of(script, num_gpus=2)}
    assert (found["DOC-102"].file, found["DOC-102"].line) == (str(tmp_path / "requirements.txt"), 2)
