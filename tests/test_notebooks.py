"""The notebooks run from beginning to end on tiny inputs, and are stored without outputs."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def test_there_are_six():
    assert [int(path.name[0]) for path in NOTEBOOKS] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_without_outputs(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None, cell.id


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("CXRJAX_NOTEBOOKS", str(tmp_path))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": path.parent}}).execute()
    printed = [
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])
    ]
    assert any(printed)
