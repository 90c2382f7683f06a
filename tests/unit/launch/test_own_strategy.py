from __future__ import annotations

import pytest

from evener.launch.own_strategy import calls_run, distributes, name_of


@pytest.mark.parametrize(
    ("source", "calls"),
    [
        ("strategy.run(step)", True),
        ("self.strategy.run(step, args=(x,))", True),
        ("mirrored_strategy.experimental_run_v2(step)", True),
        ("dist = tf.distribute.MirroredStrategy()\ndist.run(step)", True),
        ("trainer.dist = make_strategy()\ntrainer.dist.run(step)", True),
        ("go = strategy.run", True),
        ("app.run(main)", False),
        ("session.run(loss)", False),
        ("strategy.reduce('SUM', loss)", False),
        ("not python (", False),
    ],
)
def test_whether_a_strategy_runs_anything(source: str, calls: bool) -> None:
    assert calls_run(source) == calls


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("mirrored = tf.distribute.MirroredStrategy()", "mirrored"),
        ("self.strategy = (\n    MirroredStrategy()\n)", "self.strategy"),
        ("train(MirroredStrategy())", "strategy"),
        ("a, b = MirroredStrategy(), 1", "strategy"),
        ("not python (", "strategy"),
    ],
)
def test_the_name_of_a_strategy(source: str, name: str) -> None:
    assert name_of(source, 1) == name


def test_whether_a_dataset_is_distributed() -> None:
    assert distributes("data = strategy.distribute_datasets_from_function(make)")
    assert not distributes("data = make()")
