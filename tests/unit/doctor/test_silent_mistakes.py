"""Mistakes of which TensorFlow says nothing, in the styles that rules must tell apart."""

# ruff: noqa: E501 -- programs in a table, one a line
from __future__ import annotations

from pathlib import Path

import pytest

from evener.doctor import Severity
from unit.doctor.programs import findings_of

TF = "import keras\nimport numpy as np\nimport tensorflow as tf\n"
MODEL = (
    "m = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\nm.compile('adam', 'mse')\n"
)
FIT = "m.fit(x, y, batch_size=64)\n"
GPUS = "gpus = tf.config.list_logical_devices('GPU')\n"
SHARDS = "n = len(x) // len(gpus)\nfor i, d in enumerate(gpus):\n    with tf.device(d.name): m(x[i * n : (i + 1) * n])\n"
MIRRORED = "s = tf.distribute.MirroredStrategy()\nwith s.scope():\n    m = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\n    o = keras.optimizers.SGD()\n"
STEP = (
    "def step(b):\n    with tf.GradientTape() as tape:\n        loss = tf.reduce_sum(m(b)) / 64\n"
    "    o.apply_gradients(zip(tape.gradient(loss, m.trainable_variables), m.trainable_variables))\n"
)
DATA = "ds = tf.data.Dataset.from_tensor_slices(x).batch(64)\ndist = s.experimental_distribute_dataset(ds)\n"
PHYSICAL = "gpus = tf.config.list_physical_devices('GPU')\n"
LIMIT = "tf.config.set_logical_device_configuration(gpus[0], [tf.config.LogicalDeviceConfiguration(memory_limit=4096)])\n"
OFF = "tf.compat.v1.disable_eager_execution()\n"
MULTI = "tf.distribute.MultiWorkerMirroredStrategy()\n"
TRIAL = "def trial():\n    m = keras.Sequential()\n    m.fit(x, y)\n"
ROUND = "row = {}\n    a = m.predict(row)\n    "
STEPPED = "s = env.step(a)\n    m.fit(x, y)\n"
ACCUMULATE = "m.compile(keras.optimizers.Adam(gradient_accumulation_steps=2), 'mse')\n"

FINDS = [
    ("DOC-201", 9, TF + "for i in range(2):\n    with tf.device(f'/GPU:{i}'):\n        print(tf.matmul(a, a))\n" + MODEL + FIT),
    ("DOC-216", 16, TF + MIRRORED + STEP + DATA + "@tf.function\ndef go(b):\n    s.run(step, args=(b,))\nfor b in ds: go(b)\n"),
    ("DOC-216", 14, TF + MIRRORED + STEP + DATA + "for b in ds: s.run(step, (b,))\n"),
    ("DOC-217", 7, TF + GPUS + MODEL + SHARDS),
    ("DOC-005", 4, TF + OFF + MODEL + FIT),
    ("DOC-005", 7, TF + MODEL + "with tf.compat.v1.Session():\n    m.fit(x, y)\n"),
    ("DOC-005", 8, TF + MODEL + "g = tf.Graph()\nwith g.as_default():\n    m.fit(x, y)\n"),
    ("DOC-407", 14, TF + MIRRORED + STEP + DATA + "for b in dist: s.run(step, args=(b,))\n"),
    ("DOC-106", 6, TF + PHYSICAL + LIMIT + "tf.config.experimental.set_memory_growth(gpus[0], True)\n"),
    ("DOC-106", 7, TF + PHYSICAL + LIMIT + "for gpu in gpus:\n    tf.config.experimental.set_memory_growth(gpu, True)\n"),
    ("DOC-407", 4, TF + "tf.config.run_functions_eagerly(True)\n" + MODEL + FIT),
    ("DOC-407", 4, TF + "tf.config.run_functions_eagerly(True)\n" + MODEL + "o = keras.optimizers.SGD()\n" + STEP + "for b in ds: step(b)\n"),
    ("DOC-407", 12, TF + MODEL + FIT + "o = keras.optimizers.SGD()\n" + STEP + "for b in ds: step(b)\n"),
    ("DOC-408", 7, TF + MODEL + "for row in rows:\n    m.predict(row[None])\n"),
    ("DOC-408", 6, TF + MODEL + "def score(row): return m.predict(row[None])\nfor row in rows:\n    score(row)\n"),
    ("DOC-408", 6, TF + MODEL + "def act(s): return m.predict(s)\ndef play(s):\n    while True:\n        s = env.step(act(s))\nplay(x)\n"),
    ("DOC-408", 8, TF + MODEL + "import psutil\nfor _ in range(99):\n    m.predict(x)\n    print(psutil.Process().memory_info())\n"),
    ("DOC-408", 8, TF + MODEL + "for row, goal in rows:\n    m.fit(row, goal, epochs=1)\n    print(m.predict(row))\n"),
    *(
        ("DOC-408", 9, TF + MODEL + "s = env.reset()\nwhile True:\n    " + ROUND.format(given) + STEPPED)
        for given in ("s[None]", "s[np.newaxis, :]", "np.expand_dims(s, axis=0)", "s.reshape(1, -1)", "np.reshape(s, [1, 4])", "np.array([s])")
    ),
    ("DOC-005", 4, TF + OFF + MODEL + "m.predict(x)\n"),
    ("DOC-005", 4, TF + OFF + MODEL + "m.train_on_batch(x, y)\n"),
    ("DOC-005", 5, TF + "if tf.__version__ >= '2':\n    " + OFF + MODEL + FIT),
    ("DOC-005", 8, TF + "major = int(tf.__version__.split('.')[0])\nif major < 2:\n    pass\nelse:\n    " + OFF + MODEL + FIT),
    ("DOC-219", 7, TF + "s = " + MULTI + "with s.scope():\n    m = keras.Sequential()\nm.fit(x, y)\n"),
    ("DOC-219", 7, TF + "s = " + MULTI + "with s.scope():\n    m = keras.Sequential()\nm.evaluate(x, y)\n"),
    ("DOC-601", 5, TF + TRIAL + "for i in range(99):\n    trial()\n"),
    ("DOC-601", 5, TF + TRIAL + "def search():\n    trial()\nwhile True:\n    search()\n"),
]  # fmt: skip

FINDS_NOT = [
    ("DOC-216", TF + MIRRORED + STEP + DATA + "@tf.function\ndef go(b):\n    s.run(step, args=(b,))\nfor b in dist: go(b)\n"),
    ("DOC-216", TF + MIRRORED + STEP + DATA + "it = iter(dist)\n@tf.function\ndef go():\n    s.run(step, args=(next(it),))\nfor _ in range(9): go()\n"),
    ("DOC-216", TF + MIRRORED.replace("MirroredStrategy()", "OneDeviceStrategy('GPU:0')") + STEP + DATA + "for b in ds: s.run(step, (b,))\n"),
    ("DOC-216", TF + MIRRORED + STEP + DATA + "for b in dist: s.run(step, args=(b, np.float32(0.1), tf.constant(1)))\n"),
    ("DOC-217", TF + GPUS + MODEL + SHARDS + "rest = len(x) % len(gpus)\nm(x[-rest:])\n"),
    ("DOC-217", TF + GPUS + MODEL + SHARDS + "m(x[len(gpus) * n :])\n"),
    ("DOC-217", TF + GPUS + MODEL + "per_replica = 64 // len(gpus)\nm.fit(x[0:100], y[0:100], batch_size=per_replica)\n"),
    ("DOC-005", TF + "if tf.__version__ < '2':\n    " + OFF + MODEL + FIT),
    ("DOC-005", TF + OFF + "print(1)\n"),
    ("DOC-106", TF + PHYSICAL + LIMIT + "tf.config.experimental.set_memory_growth(gpus[1], True)\n"),
    ("DOC-106", TF + PHYSICAL + LIMIT + "try:\n    tf.config.experimental.set_memory_growth(gpus[0], True)\nexcept ValueError:\n    pass\n"),
    ("DOC-005", TF + MODEL + "with tf.Graph().as_default(), tf.compat.v1.Session() as s:\n    print(s.run(tf.constant(1)))\nm.predict(x)\nm.fit(x, y)\n"),
    ("DOC-005", TF + MODEL + "with tf.summary.create_file_writer('logs').as_default():\n    m.fit(x, y)\n"),
    ("DOC-407", TF + MIRRORED + "    m.compile('sgd', 'mse')\ndef step(b): m.train_on_batch(b, b)\n" + DATA + "for b in dist: s.run(step, args=(b,))\n"),
    ("DOC-407", TF + MIRRORED + STEP.replace("def step", "@tf.function\ndef step") + DATA + "for b in dist: s.run(step, args=(b,))\n"),
    ("DOC-407", TF + "if debug:\n    tf.config.run_functions_eagerly(True)\n" + MODEL + FIT),
    ("DOC-407", TF + MODEL + "o = keras.optimizers.SGD()\n" + STEP.replace("def step", "@tf.function\ndef step") + "for b in ds: step(b)\n"),
    ("DOC-407", TF + MODEL + "o = keras.optimizers.SGD()\n" + STEP + "for b in ds: step(b)\n"),
    ("DOC-407", TF.replace("import keras", "import evener, keras") + MODEL + FIT + "o = keras.optimizers.SGD()\n" + STEP + "for b in ds: step(b)\n"),
    ("DOC-408", TF + MODEL + "for _ in range(99):\n    m.predict(x)\n"),
    ("DOC-408", TF + MODEL + "def score(row): return m.predict(row[None])\nfor epoch in range(9):\n    score(x)\n"),
    ("DOC-408", TF + MODEL + "for row, goal in rows:\n    m.fit(row, goal, epochs=5)\n    print(m.predict(row))\n"),
    ("DOC-408", TF + MODEL + "for m, part in zip([m, keras.models.clone_model(m)], parts):\n    m.predict(part)\n"),
    ("DOC-408", TF + MODEL + "for fold in folds:\n    m.fit(fold, fold)\n    m.predict(fold)\n"),
    ("DOC-218", TF.replace("import keras", "import evener, keras") + MIRRORED.replace("tf.distribute.MirroredStrategy", "evener.Strategy") + "    " + ACCUMULATE + FIT),
    ("DOC-218", TF + MODEL + ACCUMULATE + FIT),
    ("DOC-408", TF + MODEL + "while True:\n    row = x[:9]\n    m.predict(row)\n    m.fit(x, y)\n"),
    ("DOC-005", TF + "if tf.__version__ >= '2.99':\n    " + OFF + MODEL + FIT),
    ("DOC-208", "import tensorflow as tf\nos.environ['TF_CONFIG'] = config\n" + MULTI),
    ("DOC-208", "import tensorflow as tf\nconfig = os.environ.get('TF_CONFIG')\n" + MULTI),
    ("DOC-219", TF + "s = " + MULTI + "with s.scope():\n    m = keras.Sequential()\nm.predict(x)\n"),
    ("DOC-219", TF + "s = " + MULTI + "m = keras.Sequential()\nm.fit(x, y)\n"),
    ("DOC-219", TF.replace("import keras", "import tf_keras as keras") + "s = " + MULTI + "with s.scope():\n    m = keras.Sequential()\nm.fit(x, y)\n"),
    ("DOC-601", TF + TRIAL + "trial()\n"),
    ("DOC-601", TF + TRIAL + "for is_mirrored in (False, True):\n    trial()\n"),
    ("DOC-601", TF + MODEL + "def trial():\n    m.fit(x, y)\nfor i in range(99):\n    trial()\n"),
    ("DOC-004", "from tensorflow.python.keras import models\nm = models.load_model('folder/model')\n"),
]  # fmt: skip


def codes(program: str, folder: Path) -> list[tuple[str, int]]:
    path = folder / "train.py"
    path.write_text(program, encoding="utf-8")
    return [(finding.code, finding.line) for finding in findings_of(path, num_gpus=2)]


@pytest.mark.parametrize(("code", "line", "program"), FINDS)
def test_it_is_found(code: str, line: int, program: str, tmp_path: Path) -> None:
    assert (code, line) in codes(program, tmp_path)


@pytest.mark.parametrize(("code", "program"), FINDS_NOT)
def test_what_only_looks_like_it_is_not(code: str, program: str, tmp_path: Path) -> None:
    assert code not in [found for found, _ in codes(program, tmp_path)]


@pytest.mark.parametrize(
    ("before", "severity"),
    [
        ("", Severity.WARNING),
        ("os.environ['TF_CONFIG'] = config\n", Severity.ERROR),
        ("config = os.environ['TF_CONFIG']\n", Severity.ERROR),
    ],
)
def test_fit_across_workers_is_an_error_where_there_is_a_cluster(
    before: str, severity: Severity, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    scope = "with s.scope():\n    m = keras.Sequential()\nm.fit(x, y)\n"
    path.write_text("import os\n" + TF + before + "s = " + MULTI + scope, encoding="utf-8")
    found = findings_of(path, num_gpus=2)
    assert [each.severity for each in found if each.code == "DOC-219"] == [severity]
