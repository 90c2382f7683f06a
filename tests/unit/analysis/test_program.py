"""Facts that the doctor reads from the source of a program."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from evener.analysis import Call, Kind, Program, read_program

Read = Callable[..., Program]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read a program of texts: ``read(main, models=..., **further modules)``."""

    def read(main: str, **modules: str) -> Program:
        for name, source in {"main": main, **modules}.items():
            path = tmp_path / (name.replace(".", "/") + ".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(source), encoding="utf-8")
        return read_program(tmp_path / "main.py")

    return read


def names_in(program: Program) -> list[str]:
    return [call.name for call in program.all_calls]


def kinds_of(program: Program, name: str) -> set[Kind]:
    """The kinds of what the last ``show(name)`` shows."""
    shown = [
        call.node.args[0]
        for call in program.all_calls
        if isinstance(call.node.func, ast.Name)
        and call.node.func.id == "show"
        and ast.unparse(call.node.args[0]) == name
    ]
    module = next(m for m in program.modules if shown[-1] in m.parents)
    return set(program.kinds(module, shown[-1]))


def the(program: Program, name: str) -> Call:
    (call,) = [call for call in program.all_calls if call.name == name]
    return call


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf\ntf.distribute.MirroredStrategy()",
        "import tensorflow\ntensorflow.distribute.MirroredStrategy()",
        "import tensorflow as T\nT.compat.v2.distribute.MirroredStrategy()",
        "import tensorflow.distribute as d\nd.MirroredStrategy()",
        "import tensorflow.distribute\ntensorflow.distribute.MirroredStrategy()",
        "from tensorflow import distribute as d\nd.MirroredStrategy()",
        "from tensorflow.distribute import MirroredStrategy as M\nM()",
        "from tensorflow.distribute import *\nMirroredStrategy()",
        "import tensorflow as tf\nd = tf.distribute\nM = d.MirroredStrategy\nM()",
        "def f():\n    import tensorflow as tf\n    tf.distribute.MirroredStrategy()",
        "if True:\n    import tensorflow as tf\nelse:\n    tf = None\n"
        "tf.distribute.MirroredStrategy()",
    ],
)
def test_one_name_however_it_is_imported(source: str, read: Read) -> None:
    assert names_in(read(source)) == ["tf.distribute.MirroredStrategy"]


def test_names_come_through_modules_of_the_project(read: Read) -> None:
    program = read(
        "from lib.common import tf, strategy_of\nimport lib.nets as nets\nfrom lib import more\n"
        "tf.constant(1)\nstrategy_of()\nnets.L.Dense(1)\nmore.Net()",
        **{
            "lib.__init__": "",
            "lib.common": "import tensorflow as tf\n"
            "def strategy_of():\n    return tf.distribute.MirroredStrategy()",
            "lib.nets": "from tensorflow.keras import layers as L",
            "lib.more": "from .nets import *\nimport keras\nclass Net(keras.Model):\n    pass",
        },
    )
    assert {"tf.constant", "keras.layers.Dense"} <= set(names_in(program))
    kinds = [program.kinds(call.module, call.node) for call in program.all_calls]
    assert frozenset({Kind.STRATEGY}) in kinds and frozenset({Kind.MODEL}) in kinds
    assert Path(program.modules[0].path).stem == "main"
    assert len(program.modules) == 5


@pytest.mark.parametrize("line", ["tf = 5", "def tf(): pass", "class tf: pass"])
def test_a_name_bound_to_something_else_is_not_the_library(line: str, read: Read) -> None:
    program = read(f"import tensorflow as tf\n{line}\ntf.constant(1)")
    assert "tf.constant" not in names_in(program)


@pytest.mark.parametrize(
    ("source", "name", "kind"),
    [
        ("m = keras.Sequential()", "m", Kind.MODEL),
        ("def build():\n    m = keras.Model()\n    return m\nm = build()", "m", Kind.MODEL),
        ("def build(n):\n    return keras.Model() if n else None\nm = build(1)", "m", Kind.MODEL),
        ("class Net(keras.Model):\n    pass\nm = Net()", "m", Kind.MODEL),
        ("class A(keras.layers.Layer):\n    pass\nclass B(A):\n    pass\nm = B()", "m", Kind.LAYER),
        ("m = keras.layers.Dense(1)(keras.Input((2,)))", "m", Kind.TENSOR),
        ("m = keras.optimizers.legacy.Adam()", "m", Kind.OPTIMIZER),
        ("m, o = keras.Model(), keras.optimizers.Adam()", "o", Kind.OPTIMIZER),
        ("def make():\n    return keras.Model(), keras.optimizers.SGD()\nm, o = make()", "o",
         Kind.OPTIMIZER),
        ("d = tf.data.Dataset.range(3).batch(2).prefetch(1)", "d", Kind.DATASET),
        ("d = tf.data.Dataset.range(3)\nd = d.batch(2)", "d", Kind.DATASET),
        ("for b in tf.data.Dataset.range(3):\n    show(b)", "b", Kind.BATCH),
        ("for i, (x, y) in enumerate(tf.data.Dataset.range(3)):\n    show(x)", "x", Kind.BATCH),
        ("s = tf.distribute.MirroredStrategy()\n"
         "d = s.experimental_distribute_dataset(tf.data.Dataset.range(3))\n"
         "for b in d:\n    show(b)", "b", Kind.PER_REPLICA),
        ("s = tf.distribute.get_strategy()\nr = s.run(lambda: 1)", "r", Kind.PER_REPLICA),
        ("s = tf.distribute.get_strategy()\nr = s.reduce('SUM', s.run(len), axis=None)", "r",
         Kind.TENSOR),
        ("with tf.GradientTape() as t:\n    pass", "t", Kind.TAPE),
        ("class T:\n    def __init__(self, m):\n        self.m = m\n    def f(self):\n"
         "        show(self.m)\nT(keras.Model()).f()", "self.m", Kind.MODEL),
        ("def f(*, m=None):\n    show(m)\nf(m=keras.Model())", "m", Kind.MODEL),
        ("def f(m: keras.Model):\n    show(m)", "m", Kind.MODEL),
        ("ms = [keras.Model() for _ in range(2)]\nm = ms[0]", "m", Kind.MODEL),
        ("ms = {'a': keras.Model(), 'b': 1}\nm = ms['a']", "m", Kind.MODEL),
        ("ms = []\nfor _ in range(2):\n    ms.append(keras.Model())\nm = ms[1]", "m", Kind.MODEL),
        ("ms = []\nms.append((keras.Model(), 1))\nfor m, n in ms:\n    show(m)", "m", Kind.MODEL),
        ("f = lambda: keras.Model()\nm = f()", "m", Kind.MODEL),
        ("a = np.zeros(3)\na = a.reshape(3, 1) / 2", "a", Kind.ARRAY),
        ("x = tf.constant(1.0) * 2 + 1", "x", Kind.TENSOR),
    ],
)  # fmt: skip
def test_what_kind_of_thing_it_is(source: str, name: str, kind: Kind, read: Read) -> None:
    head = "import keras\nimport numpy as np\nimport tensorflow as tf\ndef show(x): pass\n"
    tail = "" if "show" in source else f"\nshow({name})"
    assert kinds_of(read(head + source + tail), name) == {kind}


def test_a_name_bound_anew_is_only_the_new_thing(read: Read) -> None:
    program = read(
        """
        import tensorflow as tf
        def show(x): pass
        d = tf.data.Dataset.range(3)
        show(d)
        s = tf.distribute.get_strategy()
        d = s.experimental_distribute_dataset(d)
        def later():
            show(d)
        """
    )
    first, second = [call for call in program.all_calls if call.name == ""]
    of = [program.kinds(call.module, call.node.args[0]) for call in (first, second)]
    assert of == [{Kind.DATASET}, {Kind.DISTRIBUTED}]


def test_a_name_bound_in_a_branch_is_both(read: Read) -> None:
    program = read(
        """
        import keras, sys
        def show(x): pass
        m = keras.Model()
        if len(sys.argv) > 1:
            m = keras.layers.Dense(1)
        show(m)
        """
    )
    assert kinds_of(program, "m") == {Kind.MODEL, Kind.LAYER}


SCOPES = """
    import keras
    import tensorflow as tf
    s = tf.distribute.MirroredStrategy()
    def inside(): return keras.layers.Dense(1)
    def both(): return keras.layers.Conv2D(1, 1)
    def outside(): return keras.layers.LSTM(1)
    class Trainer:
        def __init__(self):
            self.layer = keras.layers.GRU(1)
    with s.scope():
        inside()
        both()
        Trainer()
        keras.layers.Embedding(1, 1)
    both()
    outside()
"""


@pytest.mark.parametrize(
    ("layer", "expected"),
    [("Dense", True), ("Conv2D", None), ("LSTM", False), ("GRU", True), ("Embedding", True)],
)
def test_whether_it_runs_in_a_scope(layer: str, expected: bool | None, read: Read) -> None:
    program = read(SCOPES)
    call = the(program, f"keras.layers.{layer}")
    assert program.context.in_scope(call.module, call.node) is expected


LOOP = """
    import keras
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy()

    def loss_of(x):
        return tf.reduce_mean(x)

    def train_step(x):
        loss = loss_of(x)
        return loss

    @tf.function
    def distributed(batch):
        return strategy.run(train_step, args=(batch,))

    def main():
        data = strategy.experimental_distribute_dataset(tf.data.Dataset.range(8).batch(2))
        for epoch in range(3):
            tf.print("epoch")
            for step, batch in enumerate(data):
                loss = distributed(batch)
                tf.summary.scalar("loss", loss)

    if __name__ == "__main__":
        main()
"""


def test_what_is_around_a_step(read: Read) -> None:
    program = read(LOOP)
    around = program.context
    mean, note = the(program, "tf.reduce_mean"), the(program, "tf.summary.scalar")
    epoch = the(program, "tf.print")
    assert around.in_replica(mean.module, mean.node) is True
    assert around.is_traced(mean.module, mean.node) is True
    assert around.in_loop_over_batches(mean.module, mean.node) is True
    assert around.in_replica(note.module, note.node) is False
    assert around.in_loop_over_batches(note.module, note.node) is True
    assert around.in_loop_over_batches(epoch.module, epoch.node) is False
    assert program.kinds(mean.module, mean.node.args[0]) == {Kind.PER_REPLICA}


def test_what_runs_first(read: Read) -> None:
    program = read(
        """
        import settings
        import tensorflow as tf

        def late():
            tf.zeros(1)

        def never():
            tf.ones(1)

        class Trainer:
            def __init__(self):
                tf.range(1)

        tf.eye(1)
        Trainer()
        late()
        """,
        settings="import tensorflow as tf\ntf.constant(1)\n",
    )
    names = ["tf.constant", "tf.eye", "tf.range", "tf.zeros"]
    numbers = [program.order.of(the(program, name).node) for name in names]
    assert None not in numbers and numbers == sorted(numbers)  # type: ignore[type-var]
    assert program.order.of(the(program, "tf.ones").node) is None


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n    return f(x)\nf(f(1))",
        "a = b\nb = a\na.c()",
        "class A(A):\n    pass\nA().x()",
        "class A(B): pass\nclass B(A): pass\nA().f().g()",
        "x = x()\nx.y = x\nx.y.y.y()",
        "def f(*a, **k):\n    return a[0](*a, **k)\nf(f, f)",
        "lambda: (yield)",
        "import main\nmain.f()",
        "from . import main\nfrom .. import other\nfrom .main import f\nf()",
        "match x:\n    case [a, *b]:\n        a(b)",
        "async def f():\n    async with g() as h:\n        async for i in h(): await i()",
        "[y := f(x), y**2][0]()\nprint([z for x in y for z in x if (w := z)])",
        "def f():\n    global g\n    g = f\n    def h():\n        g()",
        "@decorator\nclass A: pass\nA()()",
        "x[1:2](x[-1], x['k'], x[i])\n(a, (b, *c)), d = e\nc()",
        "",
    ],
)
def test_nothing_confuses_it(source: str, read: Read) -> None:
    program = read(source)
    for call in program.all_calls:
        program.kinds(call.module, call.node)
        program.context.in_scope(call.module, call.node)
        program.context.in_replica(call.module, call.node)
        program.order.of(call.node)


def test_what_is_not_python_does_not_stop_the_rest(read: Read) -> None:
    program = read("import broken\nimport fine\nfine.f()", broken="def f(:", fine="def f(): pass")
    assert [Path(module.path).stem for module in program.modules] == ["main", "fine"]
    (unread,) = program.unread
    assert (Path(unread.path).stem, unread.line) == ("broken", 1)
    assert unread.importer is not None and unread.importer[1] == 1
