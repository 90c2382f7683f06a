"""Rules on strategies: the styles in which each mistake is made, and what only looks like it."""

# ruff: noqa: E501 -- programs in a table, one a line
from __future__ import annotations

from pathlib import Path

import pytest

from evener.doctor import Severity, examine
from evener.doctor.watch import Line, Observation, Outcome, Steps
from unit.doctor.programs import findings_of, surroundings_of

TF = "import os\nimport numpy as np\nimport tensorflow as tf\nK = tf.keras\n"
DATA = "x = np.zeros((512, 8), 'float32')\nds = tf.data.Dataset.from_tensor_slices(x).batch(64)\n"
BUILD = "def build():\n    return K.Sequential([K.Input((8,)), K.layers.Dense(1)])\n"
# Lines 9 to 12.
SCOPE = (
    "s = tf.distribute.MirroredStrategy()\nwith s.scope():\n    m = build()\n"
    "    o = K.optimizers.SGD(0.1)\n"
)
# Lines 13 to 16.
STEP = (
    "def step(v):\n    with tf.GradientTape() as t:\n        loss = tf.reduce_sum(m(v)) / 64\n"
    "    o.apply_gradients(zip(t.gradient(loss, m.trainable_variables), m.trainable_variables))\n"
)
TOP = TF + DATA + BUILD
LOOP = TOP + SCOPE + STEP
DIST = "for b in s.experimental_distribute_dataset(ds):\n    s.run(step, args=(b,))\n"
FIT_ALONE = "m = build()\nm.compile('adam', 'mse')\nm.fit(x, x[:, :1], batch_size=64)\n"
CLASS = (
    "class Trainer:\n    def __init__(self, strategy):\n        self.strategy = strategy\n"
    "        {make}\n    def step(self, v):\n        with tf.GradientTape() as t:\n"
    "            loss = tf.reduce_sum(self.m(v)) / 64\n"
    "        w = self.m.trainable_variables\n"
    "        self.o.apply_gradients(zip(t.gradient(loss, w), w))\n"
    "    def train(self, ds):\n        for b in {data}:\n            self.strategy.run(self.step, "
    "args=(b,))\nTrainer(tf.distribute.MirroredStrategy()).train(ds)\n"
)
SCOPED = (
    "with strategy.scope():\n            self.m = build()\n"
    "            self.o = K.optimizers.Adam()\n"
)
BY_HELPER = TOP + (
    "s = tf.distribute.MirroredStrategy()\nclass M(K.Model):\n    def _apply(self, g):\n"
    "        self.optimizer.apply_gradients(zip(g, self.trainable_variables))\n        return True\n"
    "    def _skip(self):\n        return False\n    def _update(self, g):\n"
    "        tf.cond(tf.reduce_all(tf.math.is_finite(g[0])), lambda: self._apply(g), self._skip)\n"
    "    def train_step(self, data):\n        with tf.GradientTape() as t:\n"
    "            loss = tf.reduce_mean(self(data))\n"
    "        self._update(t.gradient(loss, self.trainable_variables))\n        return {'loss': loss}\n"
    "with s.scope():\n    i = K.Input((8,))\n    m = M(i, K.layers.Dense(1)(i))\n    m.compile('adam', 'mse')\n"
    "m.fit(x, x, batch_size=64)\n"
)
IN_RANGE = "for i in range(0, 512, 64):\n"

FINDS = [
    ("DOC-201", 10, TOP + "m = build()\nm.fit(x, x, batch_size=64)\n"),
    ("DOC-201", 14, TOP + "m = build(); o = K.optimizers.SGD()\n" + STEP + "for b in ds: step(b)\n"),
    ("DOC-201", 11, TOP + "with tf.device('/GPU:0'):\n    m = build()\nm.fit(x, x, batch_size=64)\n"),
    ("DOC-201", 13, TOP + "with tf.device('/GPU:1'):\n    z = tf.matmul(x, x.T)\n" + FIT_ALONE),
    ("DOC-201", 13, TOP + "def near(a, where):\n    with tf.device(where):\n        return a * 2\n"
     "m = build()\nm.fit(near(x, 'CPU:0'), x)\n"),
    ("DOC-201", 11, TOP + "with tf.device('/GPU:0'):\n    m = K.models.load_model('a.keras')\n    m.fit(x)\n"),
    ("DOC-201", 11, TOP + "with tf.device('/GPU:1'):\n    m = build()\n    m.fit(x)\n"),
    ("RUN-006", 17, BY_HELPER.replace("m.fit(x, x, batch_size=64)", "for b in ds: m._update(b)")),
    ("DOC-202", 9, TOP + "strategy = tf.distribute.MirroredStrategy()\nprint(strategy)\n" + FIT_ALONE),
    ("DOC-202", 14, TOP + "class T:\n    def __init__(self, strategy):\n        self.st = strategy\n"
     "        self.m = build()\n    def go(self): self.m.fit(x)\n"
     "T(tf.distribute.MirroredStrategy()).go()\n"),
    ("DOC-215", 9, TOP + "m = build()\ns = tf.distribute.MirroredStrategy()\nwith s.scope():\n"
     "    m.compile('adam', 'mse')\nm.fit(ds)\n"),
    ("DOC-215", 9, TOP + "m = K.models.load_model('a.keras')\nwith tf.distribute.MirroredStrategy()"
     ".scope():\n    m.fit(ds)\n"),
    ("DOC-215", 12, TOP + CLASS.format(data="strategy.experimental_distribute_dataset(ds)",
     make="self.m = build()\n        with strategy.scope(): self.o = K.optimizers.Adam()")),
    ("ENG-003", 12, TOP + "s = tf.distribute.MirroredStrategy()\nwith s.scope():\n    m = build()\n"
     "o = K.optimizers.Adam()\n" + STEP + DIST),
    ("ENG-003", 12, TOP + "s = tf.distribute.MirroredStrategy()\nwith s.scope():\n    m = build()\n"
     "m.compile(optimizer='rmsprop', loss='mse')\nm.fit(ds)\n"),
    ("RUN-006", 19, LOOP + "for e in range(2):\n    for b in ds:\n        step(b)\n"),
    ("RUN-006", 18, LOOP + "for b in s.experimental_distribute_dataset(ds):\n    step(b)\n"),
    ("DOC-203", 17, LOOP + "with s.scope():\n    for b in s.experimental_distribute_dataset(ds):\n"
     "        s.run(step, args=(b,))\n"),
    ("DOC-203", 20, LOOP + "def main():\n    for b in s.experimental_distribute_dataset(ds):\n"
     "        s.run(step, args=(b,))\nwith s.scope():\n    main()\n"),
    ("DOC-205", 14, TOP + SCOPE + "    m.compile('sgd', 'mse')\nm.fit(x, x, batch_size=33)\n"),
    ("DOC-205", 2, "import argparse\nBATCH = 6\n" + LOOP.replace("batch(64)", "batch(BATCH)") + DIST),
    ("DOC-205", 17, LOOP + "small = s.experimental_distribute_dataset(ds.unbatch().batch(3))\n"),
    ("DOC-207", 11, TOP + "ms = []\nfor d in tf.config.list_logical_devices('GPU'):\n"
     "    with tf.device(d.name): ms.append(build())\n"
     "for m in ms: m.compile('sgd', 'mse'); m.fit(x)\n"),
    ("DOC-207", 10, TOP + "with tf.device('/gpu:0'):\n    a = build()\nwith tf.device('/gpu:1'):\n"
     "    b = build()\na.fit(x); b.fit(x)\n"),
    ("DOC-208", 9, TOP + "s = tf.distribute.experimental.MultiWorkerMirroredStrategy()\n"),
    ("DOC-210", 9, TOP + "s = tf.distribute.experimental.CentralStorageStrategy()\n"),
    ("DOC-210", 9, TOP + "s = tf.distribute.ParameterServerStrategy(r)\nwith s.scope(): v = build()\n"),
]  # fmt: skip

GOOD_LOOP = LOOP + DIST
GOOD_FIT = TOP + SCOPE + "    m.compile(o, 'mse')\nm.fit(x, x, batch_size=64)\n"
GOOD_CLASS = TOP + CLASS.format(
    make=SCOPED.rstrip(), data="self.strategy.experimental_distribute_dataset(ds)"
)
FINDS_NOT = [
    # An optimizer that wraps another one takes no step by itself.
    ("RUN-006", TOP + SCOPE + "class Own(K.optimizers.Optimizer):\n    def go(self, g):\n        for one in g:\n            self.inner.apply_gradients(one)\n"),
    ("RUN-006", BY_HELPER),
    ("RUN-006", BY_HELPER.replace("lambda: self._apply(g)", "self._apply")
     .replace("def _apply(self, g)", "def _apply(self)").replace("zip(g, ", "zip(self.g, ")),
    ("DOC-201", TOP + "for d in devices:\n    with tf.device(d):\n        m = build()\n" + FIT_ALONE),
    ("DOC-201", TOP + "with tf.device('/gpu:1'):\n    m = build()\n" + FIT_ALONE),
    ("any", GOOD_LOOP),
    ("any", GOOD_FIT),
    ("any", GOOD_CLASS),
    ("any", "# machine: 1 GPU\n" + TOP + FIT_ALONE),
    ("DOC-201", "# environment: CUDA_VISIBLE_DEVICES=0\n" + TOP + FIT_ALONE),
    ("DOC-201", "import horovod.tensorflow as hvd\n" + TOP + FIT_ALONE),
    ("DOC-201", TOP + "print(x.mean())\n"),
    ("DOC-202", TOP + "def make():\n    return tf.distribute.MirroredStrategy()\ndef get():\n"
     "    return make()\nother.run(get)\n" + FIT_ALONE),
    ("DOC-305", TOP + SCOPE.replace("SGD(0.1)", "Adam()") + "    o.build(m.trainable_variables)\n"
     "def make(optimizer):\n    @tf.function\n" + STEP.replace("o.apply", "optimizer.apply")
     .replace("def ", "    def ", 1).replace("\n    ", "\n        ") + "    return step\n"
     "step = make(o)\n" + DIST),
    ("DOC-201", TOP + "with tf.device('/GPU:0'):\n    a = build()\nwith tf.device('/GPU:1'):\n"
     "    b = build()\na.fit(x)\nb.fit(x)\n"),
    ("DOC-201", TOP + "class Two(K.Model):\n    def call(self, v):\n        with tf.device('/GPU:0'):\n"
     "            v = self.a(v)\n        with tf.device('/GPU:1'):\n            return self.b(v)\n"
     "    def __init__(self):\n        super().__init__()\n        self.a = K.layers.Dense(2)\n"
     "        self.b = K.layers.Dense(2)\nm = Two()\nm.fit(x)\n"),
    ("RUN-006", "import evener\n" + TOP + "s = evener.Strategy()\nwith s.scope():\n    m = build()\n"
     "    o = K.optimizers.SGD()\n@evener.distribute\n" + STEP + "for b in ds: step(b)\n"),
    ("DOC-202", TOP + "import lib\nlib.train(strategy=tf.distribute.MirroredStrategy())\n" + FIT_ALONE),
    ("DOC-202", TOP + "def get():\n    return tf.distribute.MirroredStrategy()\nwith get().scope():\n"
     "    m = build()\n    m.compile('sgd', 'mse')\nm.fit(ds)\n"),
    ("DOC-215", TOP + "def make():\n    m = build()\n    m.compile('adam', 'mse')\n    return m\n"
     "with tf.distribute.MirroredStrategy().scope():\n    m = make()\nlone = make()\nm.fit(ds)\nlone.fit(ds)\n"),
    ("DOC-215", TOP + "scope = tf.distribute.MirroredStrategy().scope() if many else nullcontext()\n"
     "with scope:\n    m = build()\n    m.compile('adam', 'mse')\nm.fit(ds)\n"),
    ("DOC-215", TOP + "s = tf.distribute.MirroredStrategy()\naug = K.Sequential([K.layers.RandomFlip()])\n"
     "ds = ds.map(lambda v: aug(v))\nwith s.scope():\n    m = build()\n    m.compile('sgd', 'mse')\nm.fit(ds)\n"),
    ("DOC-215", "import nets\n" + TOP + "with tf.distribute.MirroredStrategy().scope():\n    model = nets.make()\n"
     "model.fit(ds)\nlone = build()\nlone.fit(ds)\n"),
    ("DOC-215", (GOOD_LOOP + "m = build()\nm.compile('sgd', 'mse')\nm.fit(ds)\n").replace(
        "m = build()", "m = K.Sequential([K.Input((8,)), K.layers.Dense(1)])")),
    ("ENG-003", TOP + "def make(model):\n    return K.optimizers.Adam()\n" + SCOPE.replace(
        "K.optimizers.SGD(0.1)", "make(m)") + STEP + DIST),
    ("RUN-006", GOOD_LOOP),
    ("RUN-006", TOP + "class M(K.Model):\n    def train_step(self, data):\n        self.optimizer."
     "apply_gradients(zip(g, w))\ns = tf.distribute.MirroredStrategy()\nwith s.scope():\n    m = M()\n"
     "    m.compile('sgd')\nm.fit(ds)\n"),
    ("DOC-203", LOOP + DIST + "with s.scope():\n    for v in m.weights: print(v)\n"),
    ("DOC-205", GOOD_FIT.replace("64", "64 * s.num_replicas_in_sync")),
    ("DOC-205", TF + "import evener\n" + DATA + BUILD + "s = evener.Strategy()\nwith s.scope():\n"
     "    m = build()\n    m.compile('sgd', 'mse')\nm.fit(x, x, batch_size=33)\n"),
    ("DOC-205", GOOD_FIT + "m.evaluate(x, x, batch_size=33)\n"),
    ("DOC-207", TOP + "for i, width in enumerate((8, 16)):\n    with tf.device(f'/gpu:{i}'):\n"
     "        m = make(width)\n        m.fit(x)\n"),
    ("DOC-208", "import os\nif 'TF_CONFIG' not in os.environ: raise SystemExit\n" + TOP
     + "s = tf.distribute.MultiWorkerMirroredStrategy()\n"),
    ("DOC-208", TOP + "s = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=slurm)\n"),
    ("DOC-210", TOP + "s = tf.distribute.ParameterServerStrategy(r)\nc = tf.distribute.coordinator."
     "ClusterCoordinator(s)\nc.schedule(f)\n"),
]  # fmt: skip


def write(program: str, folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(program, encoding="utf-8")
    return path


@pytest.mark.parametrize(("code", "line", "program"), FINDS)
def test_it_is_found_in_this_style(code: str, line: int, program: str, tmp_path: Path) -> None:
    found = findings_of(write(program, tmp_path), num_gpus=2)
    assert (code, line) in [(finding.code, finding.line) for finding in found]


ONE_REPLICA = ("DOC-215", "ENG-003", "ENG-064")
UNDER_EVENER = [
    (code, line, program.replace("import os\n", "import os, evener\n", 1))
    for code, line, program in FINDS
    if code in ONE_REPLICA and "MirroredStrategy()" in program
]


@pytest.mark.parametrize(("code", "line", "program"), UNDER_EVENER)
def test_one_replica_makes_it_right(code: str, line: int, program: str, tmp_path: Path) -> None:
    """Mistakes of several replicas are none under `evener.Strategy`, with a plan too."""
    found = findings_of(write(program, tmp_path), num_gpus=2)
    assert (code, line) in [(finding.code, finding.line) for finding in found]
    for made in ("evener.Strategy()", "evener.Strategy(plan)"):
        ours = program.replace("tf.distribute.MirroredStrategy()", made)
        found = findings_of(write(ours, tmp_path), num_gpus=2)
        assert code not in [finding.code for finding in found]


@pytest.mark.parametrize(("code", "program"), FINDS_NOT)
def test_it_only_looks_like_it(code: str, program: str, tmp_path: Path) -> None:
    ours = ("DOC-1", "DOC-2", "ENG-003", "RUN-006")
    found = [
        (finding.code, finding.line)
        for finding in findings_of(write(program, tmp_path), num_gpus=2)
        if finding.severity is not Severity.HINT
        and (finding.code == code or (code == "any" and finding.code.startswith(ours)))
    ]
    assert found == []


def test_a_batch_is_measured(tmp_path: Path) -> None:
    path = write("import helper\nhelper.train()\n", tmp_path)
    where = Line(file=str(path), line=2)
    steps = Steps(
        num_steps=20,
        step_seconds=0.1,
        input_seconds=0.0,
        where=where,
        batch_size=33,
        num_replicas=2,
    )
    seen = Observation(outcome=Outcome.ENOUGH, seconds=3.0, steps=steps)
    found = {
        finding.code: finding
        for finding in examine(path, surroundings_of("", num_gpus=2), seen).findings
    }
    assert found["DOC-205"].line == 2
    assert "33 samples, 2 replicas" in found["DOC-205"].evidence[0]
