from __future__ import annotations

import textwrap

import pytest

from evener.launch.rewrite import is_plain, rewrite_of

STEP = """\
import tensorflow as tf

def train_step(x, y, training):
    with tf.GradientTape() as tape:
        loss = loss_fn(y, model(x, training=training))
    optimizer.apply_gradients(zip(tape.gradient(loss, w), w))
    return loss

for epoch in range(3):
    for step, (x, y) in enumerate(train_ds):
        loss = train_step(x, y, training=True)
    print(loss)
"""

INLINE = """\
import tensorflow

for batch in ds.batch(4):
    x, y = batch
    with tensorflow.GradientTape() as tape:
        loss = loss_fn(y, model(x))
    optimizer.apply(tape.gradient(loss, w), w)
"""

IN_CLASSES = """\
import tensorflow as tf
class Trainer:
    def step(self, batch):
        with tf.GradientTape() as tape:
            loss = self.loss(batch)
        self.optimizer.apply(tape.gradient(loss, self.w), self.w)

    def fit(self):
        for batch in tqdm(self.data):
            self.step(batch)

def other(batch):
    with tf.GradientTape() as tape:
        loss = f(batch)
    optimizer.apply(tape.gradient(loss, w), w)

for one in others:
    other(one)
"""


OWN_STEP = """\
class Mine(keras.Model):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(data)
"""


def code_of(source: str, line: int) -> list[str]:
    return [text.partition("  #")[0] for text in rewrite_of(source, line).lines]


def places_of(source: str, line: int) -> list[str]:
    return [text.partition("  # ")[2] for text in rewrite_of(source, line).lines]


@pytest.mark.parametrize("line", [4, 6, 11], ids=["tape", "apply", "call"])
def test_a_step_function_in_the_names_of_the_script(line: int) -> None:
    assert [text.rstrip() for text in code_of(STEP, line)] == [
        "strategy = tf.distribute.get_strategy()",
        "train_ds = strategy.experimental_distribute_dataset(train_ds)",
        "loss = strategy.run(train_step, args=(x, y), kwargs={'training': True})",
    ]
    assert places_of(STEP, line) == ["at the beginning", "before the loop", "instead of line 11"]
    assert rewrite_of(STEP, line).result == "loss"
    assert rewrite_of(STEP, line).body is None


def test_a_tape_in_the_loop_has_to_become_a_function() -> None:
    assert [text.rstrip() for text in code_of(INLINE, 7)] == [
        "strategy = tensorflow.distribute.get_strategy()",
        "for batch in strategy.experimental_distribute_dataset(ds.batch(4)):",
        "strategy.run(step, args=(batch,))",
    ]
    assert places_of(INLINE, 7)[1:] == ["instead of line 3", "instead of lines 4 to 7"]
    assert rewrite_of(INLINE, 7).body == (4, 7)
    assert rewrite_of(INLINE, 7).result is None


@pytest.mark.parametrize(
    ("line", "step", "dataset"),
    [(6, "self.step, args=(batch,)", "self.data"), (15, "other, args=(one,)", "others")],
)
def test_of_several_loops_the_one_at_the_line(line: int, step: str, dataset: str) -> None:
    _, second, third = code_of(IN_CLASSES, line)
    assert second.rstrip() == f"{dataset} = strategy.experimental_distribute_dataset({dataset})"
    assert third.rstrip() == f"strategy.run({step})"


@pytest.mark.parametrize(
    ("head", "second"),
    [
        (
            "for i, x in enumerate(ds.take(2)):",
            "for (i, x) in enumerate(strategy.experimental_distribute_dataset(ds.take(2))):",
        ),
        # No dataset can be seen: the names are ours.
        ("for i in range(9):", "dataset = strategy.experimental_distribute_dataset(dataset)"),
    ],
)
def test_heads_of_loops(head: str, second: str) -> None:
    source = f"{head}\n    with tf.GradientTape() as tape:\n        pass\n"
    assert code_of(source, 2)[1].rstrip() == second


@pytest.mark.parametrize("source", ["", "x = 1", "not python (", "with tf.GradientTape(): pass"])
def test_where_no_loop_is_seen_the_names_are_ours(source: str) -> None:
    assert [text.rstrip() for text in code_of(source, 1)] == [
        "strategy = tf.distribute.get_strategy()",
        "dataset = strategy.experimental_distribute_dataset(dataset)",
        "strategy.run(step, args=(batch,))",
    ]


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        (STEP, True),
        ("model.fit(x, y)", False),
        (OWN_STEP, False),
        (OWN_STEP + STEP, True),
        (STEP + "tf.distribute.MirroredStrategy()", False),
        (STEP + "from tensorflow.distribute import OneDeviceStrategy", False),
        (STEP + "strategy = tf.distribute.get_strategy()", False),
        ("not python (", False),
    ],
)
def test_plain_is_a_tape_without_a_strategy(source: str, plain: bool) -> None:
    assert is_plain(textwrap.dedent(source)) == plain


def test_a_strategy_of_the_script_keeps_its_name() -> None:
    lines = [text.partition("  #")[0].rstrip() for text in rewrite_of(STEP, 6, "mirrored").lines]
    assert lines[1:] == [
        "train_ds = mirrored.experimental_distribute_dataset(train_ds)",
        "loss = mirrored.run(train_step, args=(x, y), kwargs={'training': True})",
    ]


def test_a_loop_over_devices_is_none_over_batches() -> None:
    source = (
        "for batch in ds:\n"
        "    for gpu in tf.config.list_logical_devices('GPU'):\n"
        "        with tf.GradientTape() as tape:\n"
        "            pass\n"
    )
    assert code_of(source, 4)[1].rstrip() == "ds = strategy.experimental_distribute_dataset(ds)"
