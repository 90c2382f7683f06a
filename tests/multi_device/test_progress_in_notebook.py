"""`evener.report.Progress` in a notebook that is run."""

from __future__ import annotations

from pathlib import Path

import nbclient
import nbformat
import pytest

import evener

CELL = """
import keras
import numpy as np
import evener
from evener.report import Progress

strategy = evener.Strategy(devices="cpu:2")
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.ones((64, 4)), np.ones((64, 1)), epochs=2, callbacks=[Progress("In a notebook")])
print("below")
"""


@pytest.mark.long
def test_the_view_is_updated_in_place_in_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(evener.__file__).parents[1]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    outputs = notebook.cells[0].outputs
    views = [output["data"]["text/html"] for output in outputs if "data" in output]
    views = [view for view in views if "In a notebook" in view]
    assert len(views) == 1
    assert "epoch 2/2" in views[0] and "cpu:1" in views[0] and "loss" in views[0]
    text = "".join(output["text"] for output in outputs if output["output_type"] == "stream")
    assert "below" in text
    # Keras's own bar.
    assert "Epoch 1/2" not in text
