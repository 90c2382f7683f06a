"""Models that evener trains are read by plain Keras, and the other way round."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest

from .candidates import OneDevice, Place, make_candidate
from .compare import assert_equal, state_of
from .harness import THREE, agree, compile_model, fit_again, sgd, start
from .models import classes, cnn, mlp, pictures, tabular
from .tolerances import LAW

# Runs in a process of its own in which `import evener` fails.
READER = """
    import sys
    sys.modules["evener"] = None
    import keras, numpy as np
    folder = sys.argv[1]
    x = np.load(f"{folder}/x.npy")
    for name in ("saved", "checkpoint"):
        model = keras.saving.load_model(f"{folder}/{name}.keras")
        slots = [v.numpy() for v in model.optimizer.variables]
        np.savez(
            f"{folder}/{name}.npz",
            *model.get_weights(), predicted=model.predict(x, verbose=0),
            steps=int(model.optimizer.iterations.numpy()), num_slots=len(slots),
        )
    model = keras.models.model_from_json(open(f"{folder}/model.json").read())
    model.load_weights(f"{folder}/weights.weights.h5")
    np.savez(f"{folder}/weights.npz", *model.get_weights(),
             predicted=model.predict(x, verbose=0), steps=0, num_slots=0)
    assert "evener" not in [n for n, m in sys.modules.items() if m is not None]
"""


def adam() -> dict[str, object]:
    return {**classes(), "optimizer": keras.optimizers.Adam(0.01, epsilon=1e-3)}


def read_back(folder: Path, name: str, num_weights: int) -> dict[str, object]:
    """Return the weights and predictions that the reader got from a file."""
    arrays = np.load(folder / f"{name}.npz")
    weights = [arrays[f"arr_{index}"] for index in range(num_weights)]
    return {"weights": weights, "predicted": arrays["predicted"]}


def test_files_are_plain_keras(tmp_path: Path) -> None:
    """A process that cannot import evener reads the same weights and predicts the same."""
    x, y = pictures(43)
    start()
    model = compile_model(make_candidate(3, (5, 3, 1)), cnn, adam)
    checkpoint = keras.callbacks.ModelCheckpoint(str(tmp_path / "checkpoint.keras"))
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=[checkpoint])
    model.save(tmp_path / "saved.keras")
    model.save_weights(tmp_path / "weights.weights.h5")
    (tmp_path / "model.json").write_text(model.to_json())
    np.save(tmp_path / "x.npy", x)
    command = [sys.executable, "-c", textwrap.dedent(READER), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]

    weights = model.get_weights()
    written = {"weights": weights, "predicted": model.predict(x, verbose=0)}
    for name in ("saved", "checkpoint", "weights"):
        read = read_back(tmp_path, name, len(weights))
        assert_equal(written, read, within=LAW, where=name)
        assert_equal({"weights": weights}, {"weights": read["weights"]}, within=0.0, where=name)
    for name in ("saved", "checkpoint"):
        arrays = np.load(tmp_path / f"{name}.npz")
        assert int(arrays["steps"]) == 6
        assert int(arrays["num_slots"]) == len(model.optimizer.variables)


@pytest.mark.long
def test_going_on_from_a_file(tmp_path: Path) -> None:
    """Saved in the middle, loaded under the scope, trained on: as if never saved."""
    counter = iter(range(100))

    def experiment(place: Place) -> dict[str, object]:
        path = tmp_path / f"{next(counter)}.keras"
        data = tabular(43)
        model = compile_model(place, mlp, adam)
        fit_again(place, model, data)
        model.save(path)
        with place.scope():
            loaded = keras.saving.load_model(path)
        return fit_again(place, loaded, data)

    agree(experiment, THREE)


def test_from_plain_keras_to_the_candidate(tmp_path: Path) -> None:
    """A model that one device saved goes on under the candidate, and back."""
    start()
    data = tabular(43)
    model = compile_model(OneDevice(), mlp, adam)
    fit_again(OneDevice(), model, data)
    path = tmp_path / "plain.keras"
    model.save(path)

    def experiment(place: Place) -> dict[str, object]:
        with place.scope():
            loaded = keras.saving.load_model(path)
        return fit_again(place, loaded, data)

    agree(experiment, THREE)


def test_weights_load_into_a_built_model(tmp_path: Path) -> None:
    start()
    source = mlp()
    source.save_weights(tmp_path / "source.weights.h5")

    def experiment(place: Place) -> dict[str, object]:
        keras.utils.set_random_seed(99)
        with place.scope():
            model = mlp()
        model.load_weights(tmp_path / "source.weights.h5")
        loaded = state_of(model)
        with place.scope():
            model.compile(sgd(), **classes())
        results = fit_again(place, model, tabular(43))
        model.set_weights(source.get_weights())
        return {"loaded": loaded, "fitted": results, "set": state_of(model)}

    agree(experiment)
