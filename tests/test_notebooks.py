"""The notebooks run from beginning to end on tiny inputs, and are stored with what they print."""

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
_SHOWN = ("stream", "display_data", "execute_result")


def test_there_are_seven():
    assert [int(path.name[0]) for path in NOTEBOOKS] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_with_outputs(path):
    """Of a whole run, nothing of one machine in it; `python -m tests.test_notebooks` stores it."""
    assert path.stat().st_size < 500_000
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs and {one.output_type for one in outputs} <= {*_SHOWN}
    texts = [one.get("text", "") or str(one.get("data", {})) for one in outputs]
    assert not any(word in text for text in texts for word in (str(ROOT), "Traceback", "/tmp/"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("CXRJAX_NOTEBOOKS", str(tmp_path))
    one_device = re.sub(r"--\w+device_count=\d+", "", os.environ["XLA_FLAGS"])
    monkeypatch.setenv("XLA_FLAGS", one_device)
    notebook = _executed(path)
    printed = [
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])
    ]
    assert any(printed)


def _executed(path):
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:  # what is stored is no proof that it runs
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": path.parent}}).execute()
    return notebook


def _store(path):
    """Runs a notebook, and stores what it prints and shows; not what it waits for or warns of."""
    notebook = _executed(path)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type != "code":
            continue
        kept = []
        for output in cell.outputs:
            if output.get("name") == "stderr":
                continue
            if "image/png" in output.get("data", {}):
                output.data.pop("text/html", None)  # the same once more
            if kept and output.output_type == kept[-1].output_type == "stream":
                kept[-1].text += output.text
            else:
                kept.append(output)
        cell.outputs = kept
    text = nbformat.writes(notebook).replace(f"{ROOT}/", "")
    path.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    for one in NOTEBOOKS:
        if not sys.argv[1:] or one.name[0] in sys.argv[1:]:
            _store(one)
