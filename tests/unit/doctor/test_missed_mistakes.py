"""Mistakes under strategies that programs of other people had, and what only looks like them."""

# ruff: noqa: E501 -- programs in a table, one a line
from __future__ import annotations

from pathlib import Path

import pytest

from evener.doctor import Finding, Severity
from unit.doctor.programs import findings_of

HEAD = "import keras\nimport tensorflow as tf\ns = tf.distribute.MirroredStrategy()\n"
MODEL = "with s.scope():\n    m = keras.Sequential([keras.layers.Dense(1)])\n    m.compile('sgd', 'mse')\n"
STEP = (
    "def step(b):\n    with tf.GradientTape() as tape:\n        loss = tf.reduce_sum(m(b)) / 64\n"
    "    m.optimizer.apply_gradients(zip(tape.gradient(loss, m.trainable_variables), m.trainable_variables))\n"
    "@tf.function\ndef all_steps(b):\n    return s.run(step, args=(b,))\n"
    "data = s.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(x).batch(64))\n"
)
GPUS = "import tensorflow as tf\ngpus = tf.config.list_physical_devices('GPU')\n"
TRAIN = "import keras\nm = keras.Sequential([keras.layers.Dense(1)])\nm.compile('sgd', 'mse')\nm.fit(x, y)\n"
TAPE = (
    "def step(x, y):\n    with tf.GradientTape() as tape:\n        p = m(x)\n        loss = {loss}\n"
    "    g = tape.gradient(loss, {sources}{more})\n    m.optimizer.apply_gradients(zip(g, m.trainable_variables))\n"
)
NONE = "f = keras.losses.MeanSquaredError(reduction='none')\n"


def tape(loss: str, sources: str = "m.trainable_variables", more: str = "") -> str:
    plain = (
        "import keras\nimport tensorflow as tf\nm = keras.Sequential()\nm.compile('sgd')\n" + NONE
    )
    return (
        plain
        + TAPE.format(loss=loss, sources=sources, more=more)
        + "for x, y in d:\n    step(x, y)\n"
    )


FINDS = [
    ("DOC-211", 8, Severity.WARNING, HEAD + MODEL + "for x, y in d:\n    m.train_on_batch(x, y)\n"),
    ("DOC-211", 10, Severity.WARNING, HEAD + "def make():\n    m = keras.Sequential()\n    m.compile('sgd', 'mse')\n    return m\nwith s.scope():\n    net = make()\nnet.train_on_batch(x, y)\n"),
    ("DOC-211", 8, Severity.ERROR, HEAD + MODEL + "def step(x):\n    m.train_on_batch(x, x)\ns.run(step, args=(x,))\n"),
    ("DOC-212", 16, Severity.ERROR, HEAD + MODEL + STEP + "for batch in data:\n    step(batch)\n"),
    ("DOC-212", 17, Severity.ERROR, HEAD + MODEL + STEP + "for epoch in range(3):\n    for batch in data:\n        loss = step(batch)\n"),
    ("DOC-213", 6, Severity.WARNING, HEAD + MODEL.replace("'mse')", "'mse', jit_compile=True)")),
    ("DOC-213", 6, Severity.WARNING, HEAD + "XLA = True\n" + MODEL.replace("'mse')", "'mse', jit_compile=XLA)").replace("with s.scope():\n    m =", "with s.scope(): m =").replace("\n    m.compile", "\nwith s.scope(): m.compile")),
    ("DOC-213", 11, Severity.ERROR, HEAD + MODEL + STEP.replace("@tf.function\n", "@tf.function(jit_compile=True)\n")),
    ("DOC-213", 14, Severity.ERROR, HEAD + MODEL + STEP.replace("@tf.function\n", "") + "fast = tf.function(all_steps, jit_compile=True)\n"),
    ("DOC-311", 10, Severity.WARNING, tape("f(y, p)")),
    ("DOC-311", 10, Severity.WARNING, tape("keras.losses.mean_squared_error(y, p)")),
    ("DOC-311", 10, Severity.WARNING, tape("tf.reduce_mean(tf.square(y - p), axis=1)", "m.trainable_weights")),
    ("DOC-205", 7, Severity.ERROR, HEAD + MODEL + "m.fit(x, y, batch_size=1)\n"),
    ("DOC-205", 14, Severity.ERROR, HEAD + MODEL + STEP.replace("batch(64)", "batch(1)") + "for batch in data:\n    all_steps(batch)\n"),
    ("DOC-101", 3, Severity.WARNING, GPUS + "tf.config.set_visible_devices(gpus[0], 'GPU')\n" + TRAIN),
    ("DOC-101", 3, Severity.WARNING, GPUS + "tf.config.experimental.set_visible_devices(devices=gpus[-1], device_type='GPU')\n" + TRAIN),
    ("DOC-101", 3, Severity.WARNING, GPUS + "tf.config.set_visible_devices(gpus[:1], 'GPU')\n" + TRAIN),
    ("DOC-101", 3, Severity.WARNING, GPUS + "tf.config.set_visible_devices([gpus[1]], 'GPU')\n" + TRAIN),
    ("DOC-101", 4, Severity.WARNING, GPUS + "chosen = gpus[1:]\ntf.config.set_visible_devices(chosen, 'GPU')\n" + TRAIN),
    ("DOC-101", 4, Severity.WARNING, GPUS + "if gpus:\n    tf.config.set_visible_devices(gpus[0], 'GPU')\n" + TRAIN),
    ("DOC-107", 5, Severity.WARNING, GPUS + "tf.config.set_visible_devices(gpus[0], 'GPU')\nx = 1\nwith tf.device('/GPU:1'): tf.zeros(2)\n"),
    ("DOC-107", 3, Severity.WARNING, "# machine: 1 GPU\n" + "import tensorflow as tf\nwith tf.device('/GPU:1'): tf.zeros(2)\n"),
]  # fmt: skip

FINDS_NOT = [
    ("DOC-211", "import keras\nm = keras.Sequential()\nm.compile('sgd', 'mse')\nm.train_on_batch(x, y)\n"),
    ("DOC-211", HEAD + "m = keras.Sequential()\nm.compile('sgd', 'mse')\nm.train_on_batch(x, y)\n"),
    ("DOC-211", HEAD.replace("MirroredStrategy()", "OneDeviceStrategy('GPU:0')") + MODEL + "m.train_on_batch(x, y)\n"),
    ("DOC-211", "import evener\nimport keras\ns = evener.Strategy()\n" + MODEL + "m.train_on_batch(x, y)\n"),
    ("DOC-212", HEAD + MODEL + STEP + "for batch in data:\n    all_steps(batch)\n"),
    ("DOC-212", HEAD + MODEL + STEP + "for batch in data:\n    if s.num_replicas_in_sync > 1:\n        all_steps(batch)\n    else:\n        step(batch)\n"),
    ("DOC-212", HEAD + MODEL + STEP + "def two(b):\n    for part in b:\n        step(part)\nfor batch in data:\n    s.run(two, args=(batch,))\n"),
    ("DOC-212", HEAD + MODEL + "def norm(b):\n    return b / 2\nfor batch in data:\n    s.run(norm, args=(batch,))\n    norm(batch)\n"),
    ("DOC-212", HEAD + MODEL + STEP.replace("m(b)", "forward(b)") + "def forward(b):\n    return m(b)\nfor batch in data:\n    all_steps(batch)\n    s.run(forward, args=(batch,))\n    forward(batch)\n"),
    ("DOC-213", HEAD + MODEL.replace("'mse')", "'mse', jit_compile='auto')")),
    ("DOC-213", HEAD + MODEL.replace("'mse')", "'mse', jit_compile=False)")),
    ("DOC-213", HEAD + "m = keras.Sequential()\nm.compile('sgd', 'mse', jit_compile=True)\n"),
    ("DOC-213", HEAD + MODEL + STEP.replace("def step", "@tf.function(jit_compile=True)\ndef step")),
    ("DOC-213", HEAD + MODEL + STEP + "fast = tf.function(norm, jit_compile=True)\n"),
    ("DOC-311", tape("tf.reduce_mean(f(y, p))")),
    ("DOC-311", tape("tf.nn.compute_average_loss(f(y, p), global_batch_size=64)")),
    ("DOC-311", tape("f(y, p) / 64")),
    ("DOC-311", tape("tf.reduce_sum(f(y, p))")),
    ("DOC-311", tape("keras.losses.MeanSquaredError()(y, p)")),
    ("DOC-311", tape("f(y, p)", "x")),
    ("DOC-311", tape("f(y, p)", more=", output_gradients=weights")),
    ("DOC-205", HEAD + MODEL + "m.fit(x, y, batch_size=64)\n"),
    ("DOC-101", GPUS + "tf.config.set_visible_devices(gpus, 'GPU')\n" + TRAIN),
    ("DOC-101", GPUS + "tf.config.set_visible_devices(gpus[:2], 'GPU')\n" + TRAIN),
    ("DOC-101", GPUS + "tf.config.set_visible_devices(gpus[rank], 'GPU')\n" + TRAIN),
    ("DOC-101", GPUS + "if args.debug:\n    tf.config.set_visible_devices(gpus[0], 'GPU')\n" + TRAIN),
    ("DOC-101", GPUS + "tf.config.set_visible_devices(tf.config.list_physical_devices('CPU')[0], 'CPU')\n" + TRAIN),
    ("DOC-101", "# machine: 1 GPU\n" + GPUS + "tf.config.set_visible_devices(gpus[0], 'GPU')\n" + TRAIN),
    ("DOC-107", GPUS + "tf.config.set_visible_devices(gpus[rank:], 'GPU')\nwith tf.device('/GPU:1'): tf.zeros(2)\n"),
    ("DOC-201", GPUS + "tf.config.set_visible_devices(gpus[0], 'GPU')\n" + TRAIN),
    ("DOC-201", "import keras\nimport tensorflow as tf\ns = tf.contrib.distribute.MirroredStrategy()\n" + MODEL + "m.fit(x, y)\n"),
    ("DOC-201", "from tensorflow.contrib.distribute import CollectiveAllReduceStrategy\nimport keras\ns = CollectiveAllReduceStrategy()\n" + MODEL + "m.fit(x, y)\n"),
    ("DOC-201", "import tensorflow as tf\n" + TRAIN.replace("m.fit", "t = tf.contrib.tpu.keras_to_tpu_model(m)\nm.fit")),
    ("DOC-201", "def main(strategy, d):\n    strategy.experimental_distribute_dataset(d)\n" + TRAIN),
]  # fmt: skip


def found_in(program: str, folder: Path) -> tuple[Finding, ...]:
    path = folder / "train.py"
    path.write_text(program, encoding="utf-8")
    return findings_of(path, num_gpus=2)


@pytest.mark.parametrize(("code", "line", "severity", "program"), FINDS)
def test_it_is_found(
    code: str, line: int, severity: Severity, program: str, tmp_path: Path
) -> None:
    found = [
        (finding.line, finding.severity)
        for finding in found_in(program, tmp_path)
        if finding.code == code
    ]
    assert found == [(line, severity)]


@pytest.mark.parametrize(("code", "program"), FINDS_NOT)
def test_it_only_looks_like_it(code: str, program: str, tmp_path: Path) -> None:
    assert code not in {finding.code for finding in found_in(program, tmp_path)}


def test_one_cause_at_several_lines_is_one_finding(tmp_path: Path) -> None:
    line = "with tf.device('/GPU:7'): tf.zeros({})\n"
    program = "import tensorflow as tf\n" + "".join(line.format(i) for i in range(8))
    (found,) = (finding for finding in found_in(program, tmp_path) if finding.code == "DOC-107")
    assert found.line == 2
    assert f"also line 3: {line.format(1).strip()}" in found.evidence
    assert found.evidence[-1] == "and 2 more"


def test_a_comment_takes_back_its_own_line_only(tmp_path: Path) -> None:
    line = "with tf.device('/GPU:7'): tf.zeros(1)"
    program = f"import tensorflow as tf\n{line}  # evener: ignore[DOC-107]\n{line}\n"
    (found,) = (finding for finding in found_in(program, tmp_path) if finding.code == "DOC-107")
    assert found.line == 3


def test_a_cause_in_another_file_is_told_with_the_file(tmp_path: Path) -> None:
    line = "import tensorflow as tf\nwith tf.device('/GPU:7'): tf.zeros(1)\n"
    (tmp_path / "helper.py").write_text(line, encoding="utf-8")
    (found,) = (
        finding
        for finding in found_in(f"import helper\n{line}", tmp_path)
        if finding.code == "DOC-107"
    )
    assert any(line.startswith("also ") and "train.py:3" in line for line in found.evidence)
