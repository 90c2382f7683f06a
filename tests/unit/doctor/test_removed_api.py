"""DOC-004: names that are gone are found in each style, and only those."""

# ruff: noqa: E501 -- programs in a table, one a line
from __future__ import annotations

from pathlib import Path

import pytest

from evener.analysis import read_program
from evener.analysis.api import public
from evener.doctor import Finding, Severity
from unit.doctor.programs import findings_of

TF = "import tensorflow as tf\n"
KERAS = "import keras\n"
MODEL = "m = keras.Sequential([keras.layers.Dense(1)])\n"
STRATEGY = "s = tf.distribute.MirroredStrategy()\n"


def found_in(program: str, folder: Path) -> list[Finding]:
    path = folder / "train.py"
    path.write_text(program, encoding="utf-8")
    return [finding for finding in findings_of(path, num_gpus=1) if finding.code == "DOC-004"]


# The line, the name, a part of the fix.
FINDS = [
    (2, "tf.contrib.layers.flatten", "`keras.layers`", TF + "tf.contrib.layers.flatten(x)\n"),
    (2, "tf.nn.rnn_cell.GRUCell", "`keras.layers.GRUCell`", TF + "tf.nn.rnn_cell.GRUCell(3)\n"),
    (1, "tf.contrib.slim", "tf_slim", "from tensorflow.contrib import slim\n"),
    (1, "tf.contrib.layers", "keras", "import tensorflow.contrib.layers as layers\n"),
    (2, "tf.keras.utils.multi_gpu_model", "MirroredStrategy", TF + "p = tf.keras.utils.multi_gpu_model(m, 2)\n"),
    (1, "keras.utils.multi_gpu_model", "MirroredStrategy", "from keras.utils import multi_gpu_model\n"),
    (1, "keras.layers.core.Dense", "`keras.layers.Dense`", "from keras.layers.core import Dense\n"),
    (2, "tf.keras.layers.Dens", "`tf.keras.layers.Dense`", TF + "tf.keras.layers.Dens(1)\n"),
    (2, "tf.set_random_seed", "`tf.random.set_seed`", TF + "tf.set_random_seed(1)\n"),
    (3, "tf.app", "absl", TF + "keras = tf.keras\ntf.app.run()\n"),
    (3, "tf.keras.layers.experimental.preprocessing.Rescaling", "`keras.layers.Rescaling`",
     TF + "layers = tf.keras.layers\nlayers.experimental.preprocessing.Rescaling(1)\n"),
    (2, "keras.backend.mean", "`keras.ops.mean`", "from keras import backend as K\nK.mean(x)\n"),
    (2, "tf.keras.backend.set_session", "set_memory_growth", TF + "tf.keras.backend.set_session(x)\n"),
    (1, "keras.preprocessing.image.ImageDataGenerator", "tf.keras.preprocessing.image",
     "from keras.preprocessing.image import ImageDataGenerator\n"),
    (1, "tf.keras.wrappers.scikit_learn", "SKLearnClassifier",
     "from tensorflow.keras.wrappers.scikit_learn import KerasClassifier\n"),
    (2, "tf.estimator", "keras.Model", TF + "tf.estimator.RunConfig(train_distribute=s)\n"),
    (1, "tf.examples", "keras.datasets", "from tensorflow.examples.tutorials.mnist import input_data\n"),
    (2, "tf.compat.v1.layers.dense", "keras.layers", "import tensorflow.compat.v1 as tf\ntf.layers.dense(x, 1)\n"),
    (2, "keras.optimizers.legacy.Adam", "same name", KERAS + "keras.optimizers.legacy.Adam(0.1)\n"),
    (2, "tf.keras.losses.Reduction.AUTO", "sum_over_batch_size", TF + "r = tf.keras.losses.Reduction.AUTO\n"),
    (2, "tf.keras.mixed_precision.experimental.Policy", "`keras.mixed_precision.Policy`",
     TF + "tf.keras.mixed_precision.experimental.Policy('mixed_float16')\n"),
    (2, "tf.matrix_inverse", "`tf.compat.v1.matrix_inverse`", TF + "tf.matrix_inverse(x)\n"),
    (1, "tf.distribute.MirroredStrategy", "import tensorflow as tf", "from tensorflow.distribute import MirroredStrategy\n"),
    (1, "tf.optimizers.Adam", "`tf.optimizers.Adam`", "from tensorflow.optimizers import Adam\n"),
    # The same name, but of Keras itself
    (3, "tf.keras.losses.mean_squared_error", "Write `import keras`", TF + "from tensorflow import keras\nkeras.losses.mean_squared_error(x, y)\n"),
    # Packages that need Keras 2
    (1, "`tensorflow_addons` cannot be imported", "", "import tensorflow_addons as tfa\n"),
    (1, "`tensorflow_addons` cannot be imported", "`keras.metrics.F1Score`", "from tensorflow_addons.metrics import F1Score\n"),
    (1, "`tensorflow_addons` cannot be imported", "`keras.optimizers.AdamW` for", "import tensorflow_addons as tfa\ntfa.optimizers.AdamW(0.1)\n"),
    (2, "`hub.KerasLayer` is a layer of Keras 2", "hub.load", "import keras, tensorflow_hub as hub\nkeras.Sequential([hub.KerasLayer(handle), keras.layers.Dense(1)])\n"),
    (3, "`hub.KerasLayer` is a layer of Keras 2", "hub.load", "import keras, tensorflow_hub as hub\nm = keras.Sequential()\nh = hub.KerasLayer(handle)\nm.add(h)\n"),
    (2, "`hub.KerasLayer` is a layer of Keras 2", "hub.load", "import keras, tensorflow_hub as hub\nh = hub.KerasLayer(handle)\ny = h(keras.Input((4,)))\n"),
    (4, "`save` of Keras 3.15 writes no SavedModel", "model.export", KERAS + MODEL + "def save(m, path):\n    m.save(path, save_format='tf')\nsave(m, path)\n"),
    # Arguments that there never were
    (3, "`compile` has no argument `opt`", "`optimizer=`", KERAS + MODEL + "m.compile(opt='adam', loss='mse')\n"),
    (2, "`Dense` has no argument `unit`", "`units=`", KERAS + "keras.layers.Dense(unit=3)\n"),
    (2, "has no argument `batch_size`", "", "from keras.layers import LSTM\nLSTM(2, batch_size=3)\n"),
    (3, "`fit` has no argument `epoch`", "`epochs=`", KERAS + MODEL + "m.fit(x, y, epoch=3)\n"),
    (2, "has no argument `save_weight_only`", "`save_weights_only=`",
     KERAS + "c = keras.callbacks.ModelCheckpoint('a.keras', save_weight_only=True)\n"),
    (2, "has no argument `l`", "`l2=`", TF + "tf.keras.regularizers.l2(l=0.1)\n"),
    # Methods that subclasses override
    (3, "`_create_slots` of an optimizer", "`build(variables)`",
     KERAS + "class Own(keras.optimizers.Optimizer):\n    def _create_slots(self, var_list): pass\n"),
    (4, "`add_weight` is the shape", "add_weight(name=",
     KERAS + "class Own(keras.layers.Layer):\n    def build(self, shape):\n        self.add_weight('w', shape=(3,))\n"),
    (4, "self.model.optimizer.lr", "learning_rate",
     KERAS + "class Own(keras.callbacks.Callback):\n    def on_epoch_end(self, epoch, logs):\n        print(self.model.optimizer.lr)\n"),
    # Methods and attributes
    (3, "s.experimental_run_v2", "strategy.run", TF + STRATEGY + "s.experimental_run_v2(f, args=(x,))\n"),
    (2, "self.dist.experimental_run_v2", "strategy.run", TF + "self.dist.experimental_run_v2(f)\n"),
    (3, "s.experimental_make_numpy_dataset", "from_tensor_slices", TF + STRATEGY + "s.experimental_make_numpy_dataset(x)\n"),
    (3, "m.fit_generator", "model.fit", KERAS + MODEL + "m.fit_generator(g)\n"),
    (3, "m.reset_states", "reset_state", KERAS + MODEL + "m.reset_states()\n"),
    (3, "a.reset_states", "metric.reset_state", KERAS + "a = keras.metrics.Mean()\na.reset_states()\n"),
    (3, "o.get_scaled_loss", "scale_loss", KERAS + "o = keras.mixed_precision.LossScaleOptimizer('sgd')\no.get_scaled_loss(x)\n"),
    (3, "o.lr", "learning_rate", KERAS + "o = keras.optimizers.Adam()\nprint(o.lr)\n"),
    (3, "o.lr", "learning_rate", KERAS + "o = keras.optimizers.Adam()\no.lr = 0.1\n"),
    (4, "m.optimizer.lr", "learning_rate", KERAS + MODEL + "m.compile('adam', 'mse')\nprint(m.optimizer.lr)\n"),
    (3, "d.make_one_shot_iterator", "iter(dataset)", TF + "d = tf.data.Dataset.range(3)\nd.make_one_shot_iterator()\n"),
    # Arguments
    (3, "`workers`", "PyDataset", KERAS + MODEL + "m.fit(x, y, workers=2)\n"),
    (3, "`use_multiprocessing`", "PyDataset", KERAS + MODEL + "m.predict(x, use_multiprocessing=True)\n"),
    (2, "`lr`", "learning_rate=", KERAS + "keras.optimizers.SGD(lr=0.1)\n"),
    (2, "`decay`", "schedules", KERAS + "keras.optimizers.SGD(0.1, decay=0.1)\n"),
    (2, "`period`", "save_freq", TF + "tf.keras.callbacks.ModelCheckpoint('a.keras', period=2)\n"),
    (2, "`loss_scale`", "loss_scale_factor", KERAS + "keras.mixed_precision.LossScaleOptimizer(o, loss_scale='dynamic')\n"),
    (3, "`experimental_aggregate_gradients`", "Delete it", KERAS + "o = keras.optimizers.SGD()\no.apply_gradients(g, experimental_aggregate_gradients=False)\n"),
    (2, "`batch_input_shape`", "batch_shape", KERAS + "keras.layers.LSTM(3, batch_input_shape=(1, 2, 3))\n"),
    # Names of files
    (3, "'m'", ".keras", KERAS + MODEL + "m.save('out/m')\n"),
    (4, "'m'", ".keras", KERAS + MODEL + "out = input()\nm.save(out + '/m')\n"),
    (4, "'m.tf'", ".keras", "import os\n" + KERAS + MODEL + "m.save(os.path.join(x, 'm.tf'))\n"),
    (3, "'_final'", ".keras", KERAS + MODEL + "m.save('m-{}_final'.format(n))\n"),
    (3, "'w.h5'", ".weights.h5", KERAS + MODEL + "m.save_weights('w.h5')\n"),
    (3, "'-w.ckpt'", ".weights.h5", KERAS + MODEL + "m.save_weights(f'{n}-w.ckpt')\n"),
    (3, "'w-{}.h5'", ".weights.h5", KERAS + MODEL + "m.save_weights('w-{}.h5')\n"),
    (3, "'.h5'", ".weights.h5", KERAS + MODEL + "m.save_weights('w-%d.h5' % n)\n"),
    (2, "'a.hdf5'", ".keras", KERAS + "keras.callbacks.ModelCheckpoint('a.hdf5')\n"),
    (2, "'a.h5'", ".weights.h5", KERAS + "keras.callbacks.ModelCheckpoint('a.h5', save_weights_only=True)\n"),
    (2, "'saved'", "TFSMLayer", KERAS + "keras.models.load_model('saved')\n"),
]  # fmt: skip

FINDS_NOT = [
    "try:\n    import tensorflow_addons as tfa\nexcept ImportError:\n    tfa = None\n",
    "import tf_keras as keras\nimport tensorflow_hub as hub\nkeras.Sequential([hub.KerasLayer(handle)])\n",
    KERAS + "import tensorflow_hub as hub\nh = hub.KerasLayer(handle)\ntexts = texts.map(lambda x: h(x))\n" + MODEL + "m.fit(texts)\n",
    KERAS + MODEL + "m.save('m.keras', save_format='tf')\n",
    KERAS + "class Dense(keras.layers.Dense):\n    def __init__(self, units, own=1):\n        super().__init__(units)\nDense(1, own=2)\n",
    KERAS + "class Own(keras.Model):\n    def compile(self, own=1): pass\nOwn().compile(own=2)\n",
    KERAS + "keras.layers.Dense(1, **options)\nkeras.layers.Dense(1, input_shape=(3,), name='a', dtype='float16')\n",
    KERAS + "try:\n    keras.layers.Dense(1, own=2)\nexcept TypeError:\n    pass\n",
    TF + "tf.compat.v1.train.AdamOptimizer(0.1, beta1=0.9)\n",
    "from tensorflow.python.keras.layers import LSTM\nLSTM(2, time_major=True)\n",
    "import tf_keras as keras\nkeras.layers.LSTM(2, time_major=True)\n",
    "from sklearn.svm import SVC\nm = SVC()\nm.fit(x, y, own=1)\n",
    KERAS + "class Own(keras.layers.Layer):\n    def build(self, shape):\n        self.add_weight(shape, name='w')\n",
    KERAS + "class Own:\n    def _create_slots(self, var_list): pass\n",
    TF + "try:\n    tf.contrib.slim\nexcept AttributeError:\n    tf.layers.dense\n",
    "try:\n    from tensorflow.contrib import slim\nexcept (ImportError, OSError):\n    import tf_slim as slim\n",
    TF + "if hasattr(tf, 'set_random_seed'):\n    tf.set_random_seed(1)\n",
    TF + "x = hasattr(tf, 'log') and tf.log(1.0)\n",
    TF + "TF2 = tf.__version__ >= '2'\nif not TF2:\n    tf.enable_eager_execution()\n",
    TF + "is_new = tf.__version__ >= '2'\nif is_new:\n    pass\nelse:\n    tf.enable_eager_execution()\n",
    TF + "def seed():\n    if tf.__version__ >= '2':\n        return tf.random.set_seed(1)\n    return tf.set_random_seed(1)\nseed()\n",
    TF + "def old():\n    tf.set_random_seed(1)\ntry:\n    old()\nexcept AttributeError:\n    pass\n",
    TF + "tf.Session = tf.compat.v1.Session\ntf.Session()\n",
    "import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\nx = tf.placeholder(tf.float32)\ntf.Session()\n",
    TF + "tf = tf.compat.v1\ntf.Session()\ntf.set_random_seed(1)\n",
    "try:\n    import tensorflow.compat.v1 as tf\nexcept ImportError:\n    import tensorflow as tf\ntf.Session()\n",
    "from tensorflow import distribute\nimport tensorflow.lite.experimental\nfrom tensorflow.data import Dataset\n",
    "try:\n    from tensorflow.distribute import MirroredStrategy\nexcept ImportError:\n    pass\n",
    "from tensorflow.python.keras.layers.nothing import Anything\n",
    TF + "tf.data.experimental.AUTOTUNE\ntf.distribute.experimental.MultiWorkerMirroredStrategy\n",
    "from tensorflow.keras.layers import *\nlayer.Nothing()\n",
    TF + "def f(tf):\n    return tf.contrib\n",
    "import tensorflow_probability as tfp\ntfp.contrib.nothing()\n",
    "import tf_keras as keras\nkeras.layers.experimental.preprocessing.Rescaling(1)\nm = keras.Sequential()\nm.fit(x, workers=2)\nm.save('a')\nkeras.optimizers.SGD(lr=1)\n",
    "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n" + TF + "tf.keras.optimizers.legacy.Adam(1e-3)\ntf.keras.backend.learning_phase()\ntf.metrics.nothing\n",
    "# environment: TF_USE_LEGACY_KERAS=true\n" + TF + "tf.keras.backend.learning_phase()\n",
    "# package: tensorflow 2.15.0\n" + TF + "tf.estimator.RunConfig()\n",
    KERAS + "class M(keras.Model):\n    def reset_states(self):\n        pass\nm = M()\nm.reset_states()\n",
    KERAS + "class T:\n    def fit_generator(self, g):\n        pass\n    def go(self):\n        self.fit_generator(1)\nT().go()\n",
    KERAS + "def f(trainer):\n    trainer.reset_states()\n    trainer.lr = 3\n",
    KERAS + "def f(optimizer):\n    return optimizer.lr\n",
    "import tensorflow.compat.v1 as tf\ndef f(d):\n    return d.make_one_shot_iterator()\n",
    TF + "tf.compat.v1.disable_v2_behavior()\ndef f(d):\n    return d.make_one_shot_iterator()\n",
    TF + STRATEGY + "s.extended.experimental_make_numpy_dataset(x)\n",
    KERAS + MODEL + "m.save_weights('w.weights.json', max_shard_size=1)\n",
    "import torch\no = torch.optim.SGD(p, lr=0.1)\nprint(o.lr)\nm.reset_states()\n",
    KERAS + "class C(keras.layers.Dense):\n    pass\nC(1, batch_input_shape=(1, 2))\n",
    KERAS + "keras.layers.InputLayer(batch_input_shape=(1, 2))\nkeras.optimizers.schedules.ExponentialDecay(decay=1)\n",
    KERAS + MODEL + "m.save('m.keras')\nm.save('m.h5')\nm.save('m.hdf5')\nm.save(path)\nm.save(f'{a}.{b}')\nm.save_weights('a.weights.h5')\n",
    KERAS + MODEL + "m.save('m-{}'.format(name))\nm.save('model_%s' % name)\n",
    KERAS + "keras.callbacks.ModelCheckpoint('a.keras')\nkeras.callbacks.ModelCheckpoint('a.h5', save_weights_only=flag)\n",
    KERAS + "keras.models.load_model('hf://user/model')\n",
]  # fmt: skip


@pytest.mark.parametrize(("line", "name", "fix", "program"), FINDS)
def test_it_is_found(line: int, name: str, fix: str, program: str, tmp_path: Path) -> None:
    (found,) = found_in(program, tmp_path)
    assert found.line == line
    assert name in found.what
    assert fix in found.fix
    ignored = Severity.WARNING if "`decay`" in found.what else Severity.ERROR
    assert found.severity is ignored


@pytest.mark.parametrize("program", FINDS_NOT)
def test_it_is_not_told(program: str, tmp_path: Path) -> None:
    assert found_in(program, tmp_path) == []


def test_names_that_tf_keras_does_not_have_are_told_of_it_too(tmp_path: Path) -> None:
    program = "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n" + TF
    (found,) = found_in(program + "tf.keras.utils.multi_gpu_model(m, 2)\n", tmp_path)
    assert found.line == 4
    program += STRATEGY + "s.experimental_run_v2(f)\n"
    assert [finding.line for finding in found_in(program, tmp_path)] == [5]


def test_a_name_is_told_once_and_its_further_lines_are_counted(tmp_path: Path) -> None:
    program = TF + "tf.set_random_seed(1)\nx = 1\n" + "tf.set_random_seed(2)\n" * 3
    (found,) = found_in(program, tmp_path)
    assert (found.line, found.evidence) == (
        2,
        ("tf.set_random_seed(1)", *(f"also line {n}: tf.set_random_seed(2)" for n in (4, 5, 6))),
    )


def test_of_one_line_all_names_are_told_together(tmp_path: Path) -> None:
    (found,) = found_in(KERAS + "keras.optimizers.SGD(lr=0.1, decay=1)\n", tmp_path)
    assert "`lr`" in found.what and "`decay`" in found.what
    assert found.severity is Severity.ERROR
    assert "learning_rate=" in found.fix and "schedules" in found.fix


GRAPH = (
    TF + "import keras\nx = tf.placeholder(tf.float32)\nwith tf.device('gpu0'):\n"
    "    y = tf.get_variable('y', [])\nkeras.optimizers.Adam(lr=1)\n"
    "with tf.Session() as s:\n    s.run(y)\n"
)


def test_a_program_of_sessions_gets_one_finding(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(GRAPH, encoding="utf-8")
    (found,) = findings_of(path, num_gpus=2)
    assert (found.code, found.line) == ("DOC-004", 3)
    assert "TensorFlow 1" in found.what and "compat.v1" in found.fix
    assert [line[:11] for line in found.evidence[1:]] == ["also line 5", "also line 7"]


def test_options_of_a_session_make_no_such_program_of_one_of_keras(tmp_path: Path) -> None:
    program = TF + KERAS + "tf.Session(config=tf.ConfigProto())\n" + MODEL + "m.fit(x, y)\n"
    (found,) = found_in(program, tmp_path)
    assert "`tf.Session`" in found.what and "set_memory_growth" in found.fix


def test_an_old_optimizer_makes_no_such_program_of_one_of_keras(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    program = TF + KERAS + STRATEGY + MODEL + "m.compile(tf.train.AdamOptimizer(1e-3), 'mse')\n"
    path.write_text(program + "m.fit(x, y)\n", encoding="utf-8")
    found = {finding.code: finding for finding in findings_of(path, num_gpus=2)}
    assert "`tf.train.AdamOptimizer`" in found["DOC-004"].what
    assert "`keras.optimizers.Adam`" in found["DOC-004"].fix
    assert "DOC-202" in found


def test_other_rules_see_through_old_names(tmp_path: Path) -> None:
    program = TF + STRATEGY + "loss = s.{}(f, args=(x,))\nprint(loss.numpy())\n"
    path = tmp_path / "train.py"
    for method in ("run", "experimental_run_v2"):
        path.write_text(program.format(method), encoding="utf-8")
        assert "RUN-010" in {finding.code for finding in findings_of(path, num_gpus=2)}


def test_written_names_are_as_the_imports_say(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "from tensorflow import keras as k\nlayers = k.layers\nlayers.Dense\n", encoding="utf-8"
    )
    program = read_program(path)
    (module,) = program.modules
    last = module.tree.body[-1].value  # type: ignore[attr-defined]
    assert program.written_names(module, last) == {"tensorflow.keras.layers.Dense"}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("tensorflow.data.Dataset.anything", ""),
        ("tensorflow.compat.v2.contrib", "tensorflow.contrib"),
        ("tensorflow._private.anything", ""),
        ("tensorflow.keras.nothing.at.all", "tensorflow.keras.nothing"),
        ("tf_keras.optimizers.legacy.Adam", ""),
        ("torch.nothing", ""),
    ],
)
def test_the_first_part_that_is_missing_is_known(name: str, part: str) -> None:
    assert public.missing(name) == part


def test_a_name_that_is_gone_keeps_its_own_arguments(tmp_path: Path) -> None:
    adam = "tf.train.AdamOptimizer(0.1, beta1=0.9)"
    program = TF + KERAS + MODEL + f"m.compile({adam}, 'mse')\nm.fit(x, y)\n"
    (found,) = found_in(program, tmp_path)
    assert "`tf.train.AdamOptimizer` does not exist" in found.what
    assert "beta1" not in found.what
