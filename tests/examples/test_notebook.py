from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

from .running import ROOT

NOTEBOOK = ROOT / "examples" / "first_steps.ipynb"


@pytest.fixture
def notebook() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def shown(cell: nbformat.NotebookNode) -> str:
    """Return what a person sees: the HTML of a value without its tags, or its text."""
    texts = [
        re.sub(r"<[^>]+>", "", o["data"].get("text/html", o["data"].get("text/plain", "")))
        if "data" in o
        else o["text"]
        for o in cell.outputs
    ]
    return "".join(texts)


def test_it_is_stored_without_outputs(notebook: nbformat.NotebookNode) -> None:
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) > 5
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


@pytest.mark.long
def test_it_runs_from_top_to_bottom(
    notebook: nbformat.NotebookNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    resources = {"metadata": {"path": str(tmp_path)}}
    # An error of a cell is raised.
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources=resources
    ).execute()
    text = "\n".join(shown(cell) for cell in notebook.cells if cell.cell_type == "code")
    found = re.search(r"weights +(\S+)", text)
    assert found is not None, text
    assert 0 <= float(found.group(1)) < 1e-5
    assert "DOC-407" in text
    page = (tmp_path / "runs" / "notebook" / "report.html").read_text(encoding="utf-8")
    assert "A typical step" in page
