from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

from evener import Strategy
from evener.errors import EvenerWarning
from evener.run.legacy_keras import warn_of_legacy_keras

# What evener asks of the package, which is not installed beside Keras 3.
PACKAGE = """
class Model:
    def __init__(self, distribute_strategy=None):
        self.distribute_strategy = distribute_strategy

    def fit(self, x):
        return x + 1
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tf_keras.py").write_text(PACKAGE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    yield
    sys.modules.pop("tf_keras", None)


def test_a_model_outside_of_the_strategy_is_warned_of_once(package: None) -> None:
    strategy = Strategy(devices=["cpu:0", "cpu:1"])
    warn_of_legacy_keras(strategy)
    import tf_keras

    with pytest.warns(EvenerWarning, match=r"RUN-023.*on cpu:0 alone; cpu:1 has nothing"):
        assert tf_keras.Model().fit(1) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tf_keras.Model().fit(2) == 3


def test_a_model_of_the_strategy_is_not(package: None) -> None:
    strategy = Strategy(devices=["cpu:0", "cpu:1"])
    warn_of_legacy_keras(strategy)
    import tf_keras

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tf_keras.Model(strategy).fit(1) == 2
