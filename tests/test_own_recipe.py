"""docs/recipes/own_records.md as it stands: from a CVAT zip to a model that is trained again."""

import json
import re
import shlex
import signal
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax import cli
from cxrjax.__main__ import main
from cxrjax.records import read_records
from tests.apps.servers import ROOT, Server

# All that is added to the page's commands: how long, and any free port.
SHORT = {"train": ["--config.training.steps=2"], "review --serve": ["--port=0"]}


def _commands() -> list[list[str]]:
    page = (ROOT / "docs" / "recipes" / "own_records.md").read_text().partition("\n## ")[0]
    blocks = re.findall(r"```bash\n(.*?)```", page, re.S)
    return [shlex.split(line) for line in "".join(blocks).splitlines()]


def _write_zip(path: Path) -> None:
    """Eight radiographs with a box each, as CVAT exports them."""
    files = sorted((ROOT / "data" / "radiographs" / "images").glob("*.jpeg"))[:8]
    boxes = np.random.default_rng(0).integers(20, 60, (len(files), 2))
    images = ""
    with zipfile.ZipFile(path, "w") as archive:
        for file, (x, y) in zip(files, boxes.tolist(), strict=True):
            with Image.open(file) as image:
                width, height = image.size
            archive.write(file, f"images/{file.name}")
            images += (
                f'<image name="{file.name}" width="{width}" height="{height}"><box label="opacity" '
                f'xtl="{x}" ytl="{y}" xbr="{x + 90}" ybr="{y + 100}"/></image>'
            )
        archive.writestr("annotations.xml", f"<annotations>{images}</annotations>")


def _run(monkeypatch, words: list[str]) -> None:
    monkeypatch.setattr("sys.argv", words)
    try:
        main()
    except SystemExit as end:
        assert not end.code, words


def _review(tmp_path: Path, words: list[str]) -> None:
    """Moves the first question's box and accepts the second, as the page does."""
    server = Server(tmp_path, "-m", "cxrjax", *words[1:], cwd=tmp_path)
    link = re.search(r"anna: http://[^/]+/(\S+)/", server.printed)[1]
    _, _, html = server.ask("GET", f"/{link}/")
    data = json.loads(re.search(r'<script id="data".*?>(.*?)</script>', html.decode(), re.S)[1])
    boxes = [{"box": [30, 40, 130, 150], "label": "opacity", "kind": "answer", "origin": None}]
    told = {"boxes": boxes, "answer": "The opacity is at [box 1]."}
    name = data["rows"][0]["question_id"]
    body = {"question_id": name, "field": "correction", "value": json.dumps(told)}
    assert server.ask("POST", f"/{link}/ratings", json.dumps(body))[0] == 204
    assert server.stop(signal.SIGINT) == 0
    (tmp_path / "corrected_question").write_text(name)


@pytest.mark.slow
def test_the_loop_of_the_page_is_eight_commands(tmp_path, monkeypatch, capsys):
    commands = _commands()
    assert len(commands) == 8 and all(words[0] == "cxrjax" for words in commands)
    _write_zip(tmp_path / "annotations.zip")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "keep_compiled_programs", lambda: None)
    for words in commands:
        if "--serve" in words:
            _review(tmp_path, words + SHORT["review --serve"])
        else:
            _run(monkeypatch, words + SHORT.get(words[1], []))
    told = capsys.readouterr().out
    assert "validation: 1 question about 1 image\n" in told
    assert "1 corrected" in told and "next: python -m cxrjax.train --config=configs/rec" in told
    name = (tmp_path / "corrected_question").read_text()
    before = list(read_records("runs/own/data/records/train.jsonl"))
    after = {one.question_id: one for one in read_records("runs/own/corrected/records.jsonl")}
    assert [*after] == [one.question_id for one in before], "the whole set"
    assert after[name].boxes == [[30, 40, 130, 150]]
    # The command that the export prints is the page's next one, but for where it writes.
    printed = re.findall(r"next: python -m cxrjax\.(train .*)", told)[-1].split()
    assert set(printed[:-1]) == set(commands[6][1:-1])
    figures = json.loads(Path("runs/own/again/evaluation/metrics.json").read_text())
    assert figures
