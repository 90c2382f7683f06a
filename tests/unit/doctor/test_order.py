"""The order of findings: what the author of a program would ask comes first."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from evener.doctor import Severity, all_rules
from evener.doctor.rule import Author
from unit.doctor.programs import findings_of

HEAD = "import keras\nimport tensorflow as tf\n"
OLD = "print(tf.contrib.slim)\n"
GPUS = "print(tf.config.list_physical_devices('GPU'))\n"
MODEL = "m = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\n"
FIT = "m.compile('adam', 'mse')\nm.fit(x, y, batch_size=16)\n"
SLOW = "m.compile('adam', 'mse', run_eagerly=True)\nm.fit(x, y, batch_size=16)\n"


def codes(program: str, folder: Path) -> list[str]:
    path = folder / "train.py"
    path.write_text(program, encoding="utf-8")
    return [finding.code for finding in findings_of(path, num_gpus=2)]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        # An idle device, before a name that is gone, before what is slow, before hints.
        (HEAD + GPUS + OLD + MODEL + FIT, ["DOC-201", "DOC-004", "DOC-404"]),
        (HEAD + GPUS + OLD + MODEL + SLOW, ["DOC-201", "DOC-004", "DOC-407"]),
        # Who says nothing of devices asks first why the program fails.
        (HEAD + OLD + MODEL + FIT, ["DOC-004", "DOC-201", "DOC-404"]),
        (HEAD + OLD + MODEL + SLOW, ["DOC-004", "DOC-201", "DOC-407"]),
        # An error of memory or distribution is behind the reason for which a device is idle.
        (
            HEAD
            + GPUS
            + "for i in range(99):\n    m = keras.Sequential()\n    m.fit(x, y)\n"
            + OLD,
            ["DOC-201", "DOC-601", "DOC-004"],
        ),
        ("import tensorflow as tf\nm.fit(x\n", ["DOC-001"]),
    ],
)
def test_what_the_author_would_ask_is_first(
    program: str, expected: list[str], tmp_path: Path
) -> None:
    assert codes(program, tmp_path) == expected


def test_hints_are_last(tmp_path: Path) -> None:
    program = (
        HEAD + "with tf.device('/GPU:1'):\n    m = keras.Sequential()\n    m.fit(x, y)\n" + OLD
    )
    path = tmp_path / "train.py"
    path.write_text(program, encoding="utf-8")
    found = [(finding.code, finding.severity) for finding in findings_of(path, num_gpus=2)]
    assert found == [("DOC-004", Severity.ERROR), ("DOC-201", Severity.HINT)]


def test_every_family_has_a_question() -> None:
    for watches, names in itertools.product((False, True), repeat=2):
        author = Author(watches_memory=watches, names_devices=names)
        assert all(rule.question(author) >= 0 for rule in all_rules())


MODELS = "for i in range(99):\n    m = keras.Sequential()\n    m.fit(x, y)\n"
WATCHED = [
    "    gc.collect()\n",
    "    print(psutil.Process().memory_info().rss)\n",
    "    print(tracemalloc.get_traced_memory())\n",
    "    keras.backend.clear_session()\n",
]


def test_predict_in_a_loop_answers_who_watches_memory(tmp_path: Path) -> None:
    loop = "for row in rows:\n    m.predict(row[None])\n"
    assert codes(HEAD + GPUS + MODEL + FIT + loop, tmp_path)[:2] == ["DOC-201", "DOC-408"]
    found = codes("import gc\n" + HEAD + GPUS + MODEL + FIT + loop + "gc.collect()\n", tmp_path)
    assert found[:2] == ["DOC-408", "DOC-201"]


@pytest.mark.parametrize("watched", WATCHED)
def test_who_watches_memory_asks_for_it_first(watched: str, tmp_path: Path) -> None:
    imports = "import gc, psutil, tracemalloc\n"
    assert codes(imports + HEAD + GPUS + MODELS + OLD, tmp_path)[0] == "DOC-201"
    found = codes(imports + HEAD + GPUS + MODELS + watched + OLD, tmp_path)
    assert found == ["DOC-601", "DOC-201", "DOC-004"]
