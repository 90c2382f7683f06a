"""Fixes that rules offer: nothing of the code is found then, and what is not certain is left."""

# ruff: noqa: E501 -- programs in a table
from __future__ import annotations

from pathlib import Path

import pytest

from evener.doctor.fix import Fixed, fix_for
from unit.doctor.programs import surroundings_of

TF = "import tensorflow as tf\n"
KERAS = "import keras\n"
MODEL = "m = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])\n"
MIRRORED = "import keras\nimport tensorflow as tf\ns = tf.distribute.MirroredStrategy()\n"
ADAM = KERAS + "o = keras.optimizers.Adam()\n"
FIT = MODEL + "m.compile('sgd', 'mse')\n"
STEP = """import keras
import tensorflow as tf
s = tf.distribute.MirroredStrategy()
with s.scope():
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    opt = keras.optimizers.SGD(0.1)
    opt.build(net.trainable_variables)
{before}
def step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(net(x) - y)) / 64
    {inside}
    grads = tape.gradient(loss, net.trainable_variables)
    opt.apply_gradients(zip(grads, net.trainable_variables))
    return loss

for x, y in s.experimental_distribute_dataset(data):
    s.run(step, args=({args}))
"""


def fixed(program: str | bytes, folder: Path, *, num_gpus: int = 1) -> Fixed:
    path = folder / "train.py"
    path.write_bytes(program.encode() if isinstance(program, str) else program)
    return fix_for(path, surroundings_of("", num_gpus=num_gpus))


def text_of(found: Fixed, program: str) -> str:
    contents = list(found.contents.values())
    return contents[0][1].decode() if contents else program


# The old and the new text, behind what is imported.
FIXES = {
    "dotted name": (
        TF,
        "tf.keras.layers.experimental.preprocessing.Rescaling(2)",
        "tf.keras.layers.Rescaling(2)",
    ),
    "name of a module": (TF + "L = tf.keras.layers\n", "L.core.Dense(2)", "L.Dense(2)"),
    "function": (TF, "tf.set_random_seed(1)", "tf.random.set_seed(1)"),
    "function of another name": (TF, "tf.mul(x, tf.log(y))", "tf.multiply(x, tf.math.log(y))"),
    "file": (TF, "tf.gfile.Open('x')", "tf.io.gfile.GFile('x')"),
    "policy": (
        TF,
        "tf.keras.mixed_precision.experimental.set_policy('mixed_float16')",
        "tf.keras.mixed_precision.set_global_policy('mixed_float16')",
    ),
    "attribute of a class": (
        KERAS,
        "keras.layers.core.Dense.from_config(c)",
        "keras.layers.Dense.from_config(c)",
    ),
    "legacy optimizer": (KERAS, "keras.optimizers.legacy.Adam(0.1)", "keras.optimizers.Adam(0.1)"),
    "import of a class": (
        "",
        "from keras.layers.core import Dense, Dropout as D  # two",
        "from keras.layers import Dense, Dropout as D  # two",
    ),
    "import over lines": (
        "",
        "from tensorflow.keras.layers.pooling import (\n    MaxPooling2D,  # a\n    AveragePooling2D,\n)",
        "from tensorflow.keras.layers import (\n    MaxPooling2D,  # a\n    AveragePooling2D,\n)",
    ),
    "import of convolutions": (
        "",
        "from keras.layers.convolutional import Conv2D, MaxPooling2D\nConv2D(32, (3, 3))",
        "from keras.layers import Conv2D, MaxPooling2D\nConv2D(32, (3, 3))",
    ),
    "import of a function": (
        "",
        "from tensorflow import set_random_seed",
        "from tensorflow.random import set_seed as set_random_seed",
    ),
    "import of a module": (
        "",
        "from keras.utils import np_utils\ny = np_utils.to_categorical(y)",
        "from keras import utils as np_utils\ny = np_utils.to_categorical(y)",
    ),
    "run_v2": (MIRRORED, "s.experimental_run_v2(f, args=(x,))", "s.run(f, args=(x,))"),
    "reset_states": (KERAS + "a = keras.metrics.Mean()\n", "a.reset_states()", "a.reset_state()"),
    "predict_proba": (KERAS + MODEL, "m.predict_proba(x)", "m.predict(x)"),
    "lr read": (ADAM, "print(o.lr)", "print(o.learning_rate)"),
    "lr set": (ADAM, "o.lr = 0.1", "o.learning_rate = 0.1"),
    "generator": (
        KERAS + FIT,
        "m.fit_generator(g, steps_per_epoch=3, epochs=2)",
        "m.fit(g, steps_per_epoch=3, epochs=2)",
    ),
    "generator by name": (
        KERAS + FIT,
        "m.evaluate_generator(generator=g, steps=3)",
        "m.evaluate(x=g, steps=3)",
    ),
    "argument renamed": (
        KERAS,
        "keras.optimizers.SGD(lr=0.1, momentum=0.9)",
        "keras.optimizers.SGD(learning_rate=0.1, momentum=0.9)",
    ),
    "arguments renamed": (
        KERAS,
        "keras.Model(input=a, output=b)",
        "keras.Model(inputs=a, outputs=b)",
    ),
    "epochs": (KERAS + FIT, "m.fit(x, y, nb_epoch=3)", "m.fit(x, y, epochs=3)"),
    "last argument": (
        KERAS,
        "keras.callbacks.ModelCheckpoint('a.keras', period=1)",
        "keras.callbacks.ModelCheckpoint('a.keras')",
    ),
    "only argument": (
        KERAS,
        "keras.layers.BatchNormalization(fused=True,)",
        "keras.layers.BatchNormalization()",
    ),
    "arguments over lines": (
        KERAS + FIT,
        "m.fit(\n    x,\n    workers=1,\n    max_queue_size=10,\n    epochs=2,  # two\n)",
        "m.fit(\n    x,\n    epochs=2,  # two\n)",
    ),
    "weight": (
        "import keras\nclass L(keras.layers.Layer):\n    def build(self, shape):\n",
        "        self.add_weight('w', (3,), trainable=True)",
        "        self.add_weight(name='w', shape=(3,), trainable=True)",
    ),
    "text of other scripts": (
        ADAM,
        "été = 'ü'; o.lr = 0.1  # ö",
        "été = 'ü'; o.learning_rate = 0.1  # ö",
    ),
}


@pytest.mark.parametrize("name", FIXES)
def test_a_removed_api_is_replaced(name: str, tmp_path: Path) -> None:
    before, old, new = FIXES[name]
    found = fixed(f"{before}{old}\n", tmp_path)
    assert text_of(found, "") == f"{before}{new}\n"
    assert not found.left_out
    assert "DOC-004" in found.before.num_violations
    assert "DOC-004" not in found.after.num_violations


# What looks like it, and might then compute something else.
LEFT_ALONE = {
    "other arguments": TF + "tf.select(a, b, c)\n",
    "integers divided": TF + "tf.div(a, b)\n",
    "other numbers": TF + "tf.image.resize_images(a, (2, 2))\n",
    "kernel or strides": "from keras.layers.convolutional import Conv2D\nConv2D(32, 3, 3)\n",
    "one of two names": "from keras.layers.core import Dense, Highway\n",
    "a module used otherwise": "from keras.utils import np_utils\nuse(np_utils)\n",
    "a name of the module that is gone": "from keras.utils import np_utils\nnp_utils.probas_to_classes(y)\n",
    "a module bound twice": "from keras.utils import np_utils\ndef f(np_utils):\n    np_utils.to_categorical(y)\n",
    "a name over lines": TF + "(tf.keras.layers  # those\n .core.Dense(1))\n",
    "epsilon": KERAS + "keras.optimizers.legacy.RMSprop(0.1)\n",
    "positions": KERAS + FIT + "m.fit_generator(g, 3)\n",
    "loading": KERAS + FIT + "m.fit(x, workers=4)\n",
    "more arguments": KERAS + "keras.optimizers.SGD(lr=0.1, **more)\n",
    "both names": KERAS + "keras.optimizers.SGD(0.1, lr=0.1)\n",
    "decay": KERAS + "keras.optimizers.SGD(0.1, decay=1e-6)\n",
    "a call for an argument": KERAS + "keras.layers.BatchNormalization(fused=ask())\n",
    "a comment of the argument": KERAS
    + "keras.callbacks.TensorBoard(write_grads=True,  # why\n    log_dir='x')\n",
    "period": KERAS + "keras.callbacks.ModelCheckpoint('a.keras', period=2)\n",
    "method of the rate": ADAM + "o.lr.read_value()\n",
    "ignored": ADAM + "o.lr = 1  # evener: ignore[DOC-004]\n",
    "guarded": TF
    + "try:\n    tf.set_random_seed(1)\nexcept AttributeError:\n    tf.random.set_seed(1)\n",
    "graph of TensorFlow 1": TF + "x = tf.placeholder(tf.float32)\ns = tf.Session()\ntf.log(x)\n",
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_not_certain_is_not_offered(name: str, tmp_path: Path) -> None:
    found = fixed(LEFT_ALONE[name], tmp_path)
    assert not found.made and not found.left_out and not found.contents


COMPILE = "with s.scope():\n    m.compile('adam', 'mse')\nm.fit(x, y)\n"
BUILD = "def build(n):\n    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(n)])\n"
SCOPES = {
    "model": (
        "DOC-215",
        MIRRORED + MODEL + COMPILE,
        MIRRORED + "with s.scope():\n    " + MODEL + COMPILE,
    ),
    "model of a function": (
        "DOC-215",
        BUILD + MIRRORED + "m = build(\n    1,\n\n)\n" + COMPILE,
        BUILD + MIRRORED + "with s.scope():\n    m = build(\n        1,\n\n    )\n" + COMPILE,
    ),
    "compile": (
        "ENG-003",
        MIRRORED + "with s.scope():\n    " + MODEL + "m.compile('adam', 'mse')\nm.fit(x, y)\n",
        MIRRORED
        + "with s.scope():\n    "
        + MODEL
        + "with s.scope():\n    m.compile('adam', 'mse')\nm.fit(x, y)\n",
    ),
    "optimizer": (
        "ENG-003",
        MIRRORED
        + "o = keras.optimizers.Adam()\nwith s.scope():\n    "
        + MODEL
        + "    m.compile(o, 'mse')\nm.fit(x, y)\n",
        MIRRORED
        + "with s.scope():\n    o = keras.optimizers.Adam()\nwith s.scope():\n    "
        + MODEL
        + "    m.compile(o, 'mse')\nm.fit(x, y)\n",
    ),
    "tabs": (
        "DOC-215",
        BUILD.replace("    ", "\t")
        + "import tensorflow as tf\nimport keras\ndef main():\n\ts = tf.distribute.MirroredStrategy()\n\tm = build(1)\n\twith s.scope():\n\t\tm.compile('adam', 'mse')\n\tm.fit(x, y)\nmain()\n",
        BUILD.replace("    ", "\t")
        + "import tensorflow as tf\nimport keras\ndef main():\n\ts = tf.distribute.MirroredStrategy()\n\twith s.scope():\n\t\tm = build(1)\n\twith s.scope():\n\t\tm.compile('adam', 'mse')\n\tm.fit(x, y)\nmain()\n",
    ),
}


@pytest.mark.parametrize("name", SCOPES)
def test_what_is_created_outside_is_put_in_the_scope(name: str, tmp_path: Path) -> None:
    code, program, wanted = SCOPES[name]
    found = fixed(program, tmp_path, num_gpus=2)
    assert text_of(found, "") == wanted
    assert [fix.code for fix in found.made] == [code]
    assert code in found.before.num_violations and code not in found.after.num_violations


NOT_IN_SCOPE = {
    "the strategy comes later": MODEL.join(
        (KERAS, "import tensorflow as tf\ns = tf.distribute.MirroredStrategy()\n")
    )
    + COMPILE,
    "layers from outside": MIRRORED
    + "i = keras.Input((3,))\nm = keras.Model(i, keras.layers.Dense(1)(i))\n"
    + COMPILE,
    "a layer by its name": MIRRORED
    + "d = keras.layers.Dense(1)\nm = keras.Sequential([keras.Input((3,)), d])\n"
    + COMPILE,
    "variables come later": MIRRORED
    + "m = keras.Sequential([keras.layers.Dense(1)])\nm.build((None, 3))\n"
    + COMPILE,
    "layers come later": MIRRORED + MODEL + "m.add(keras.layers.Dense(1))\n" + COMPILE,
    "two statements": MIRRORED + MODEL.rstrip() + "; print(m)\n" + COMPILE,
    "text over lines": MIRRORED
    + 'm = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)], name="""a\nb""")\n'
    + COMPILE,
    "two strategies": MIRRORED + "t = tf.distribute.MirroredStrategy()\n" + MODEL + COMPILE,
    "another strategy by then": MIRRORED + MODEL + COMPILE + "s = None\n",
    "a metric from outside": MIRRORED
    + "a = keras.metrics.Mean()\nwith s.scope():\n    "
    + MODEL
    + "m.compile('adam', 'mse', metrics=[a])\nm.fit(x, y)\n",
}


@pytest.mark.parametrize("name", NOT_IN_SCOPE)
def test_a_scope_that_is_not_all_there_is_to_do_is_not_offered(name: str, tmp_path: Path) -> None:
    found = fixed(NOT_IN_SCOPE[name], tmp_path, num_gpus=2)
    assert {"DOC-215", "ENG-003"} & set(found.before.num_violations)
    assert not found.made and not found.contents


def step(before: str = "", inside: str = "pass", args: str = "x, y") -> str:
    return STEP.format(before=before, inside=inside, args=args)


def test_a_step_that_only_computes_is_decorated(tmp_path: Path) -> None:
    found = fixed(step(), tmp_path, num_gpus=2)
    assert text_of(found, "") == step().replace("def step", "@tf.function\ndef step")
    assert [fix.code for fix in found.made] == ["DOC-407"]
    assert "DOC-407" not in found.after.num_violations


@pytest.mark.parametrize(
    ("before", "inside", "args"),
    [
        ("", "print(loss)", "x, y"),
        ("", "loss.numpy()", "x, y"),
        ("losses = []", "losses.append(loss)", "x, y"),
        ("", "loss = float(loss)", "x, y"),
        ("import numpy as np", "loss = np.sqrt(loss)", "x, y"),
        ("", "loss = loss + tf.random.normal(())", "x, y"),
        ("", "loss = tf.nn.dropout(loss, 0.1)", "x, y"),
        ("scale = 1\nscale = 2", "loss = loss * scale", "x, y"),
        ("scale = 1\ndef up():\n    global scale\n    scale += 1", "loss = loss * scale", "x, y"),
        ("table = {'a': 1}\ntable['a'] = 2", "loss = loss * table['a']", "x, y"),
        ("", "loss = loss if loss > 1 else loss * 2", "x, y"),
        ("def show(v):\n    print(v)", "show(loss)", "x, y"),
        ("import other", "other.show(loss)", "x, y"),
        ("", "v = tf.Variable(1.0)", "x, y"),
        ("", "pass", "x, 1"),
    ],
)
def test_a_step_that_does_more_is_left_alone(
    before: str, inside: str, args: str, tmp_path: Path
) -> None:
    found = fixed(step(before, inside, args), tmp_path, num_gpus=2)
    assert "DOC-407" in found.before.num_violations
    assert "DOC-407" not in {fix.code for fix in found.made}


def test_slots_that_a_graph_would_create_are_not_offered(tmp_path: Path) -> None:
    found = fixed(
        step().replace("    opt.build(net.trainable_variables)\n", ""), tmp_path, num_gpus=2
    )
    assert not found.contents
