"""Credentialed text and images: on no way into the repository, a log, or somebody's endpoint."""

import csv
import html
import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cxrjax.cli import run
from cxrjax.commands import build, predict, report, score
from cxrjax.errors import UserError
from cxrjax.paper import data_terms, load_papers
from cxrjax.records import Turn, strip_answers, write_records
from tests.evaluation import made
from tests.papers.cases import cases

_ROOT = Path(__file__).resolve().parents[1]
# In every text of the records here; what shows it has passed a record on.
_CANARY = "canary"
_CREDENTIALED = [paper.name for paper in load_papers() if paper.title and paper.credentialed]


def _record(dataset, number):
    answer = {"text": f"Yes, a {_CANARY} opacity.", "labels": ["Lung Opacity"]}
    own = {"image_hw": (40, 60), "split": "test", "patient_id": f"p{number}"}
    own |= {"question_id": f"q{number}", "question": f"Is there a {_CANARY} opacity?"}
    own |= {"answer_key": "Yes", "reason": f"The {_CANARY} base is white."}
    own["history"] = [Turn(question_id="q", question=f"{_CANARY}?", answer=f"{_CANARY}.")]
    image, kind = f"i{number}", "closed_ended"
    return made.record_of(image, asked=None, dataset=dataset, kind=kind, answer=answer, **own)


@pytest.fixture
def files(tmp_path):
    def write(dataset):
        records = [_record(dataset, number) for number in range(3)]
        for number, record in enumerate(records):
            pixels = np.full((40, 60), number, np.uint8)  # else all questions were one request
            Image.fromarray(pixels).save(tmp_path / record.image_path)
        write_records(tmp_path / "records.jsonl", records)
        asked = [record.model_copy(update={"history": []}) for record in records]
        write_records(tmp_path / "questions.jsonl", map(strip_answers, asked))
        return tmp_path

    return write


_AWAY = ["--base_url=https://models.example.org/v1", "--model=m"]
_NOT_PASSED_ON = ".*not to be passed on.*--allow_sending"


def _title(dataset):
    return data_terms([dataset])[dataset].title


@pytest.fixture
def sent(monkeypatch):
    """What connections are opened."""
    opened = []
    monkeypatch.setattr("socket.create_connection", lambda *a, **k: opened.append(a))
    monkeypatch.setattr("socket.socket.connect", lambda self, *a: opened.append(a))
    return opened


def test_every_data_set_has_its_terms_and_what_is_free_may_be_passed_on():
    assert all(paper.licence and paper.terms for paper in load_papers() if paper.title)
    # What PhysioNet gives on signature, and what nothing is known of.
    assert {"gemex", "cxr_qba", "ms_cxr", "vindr_cxr_vqa", "custom"} <= set(_CREDENTIALED)
    assert "synthetic" not in _CREDENTIALED
    free = {"grafts", "lungs", "simulated_reports", "synthetic", "vix_ray_synthetic"}
    assert {p.name for p in load_papers() if p.title and not p.credentialed} == free


@pytest.mark.parametrize("dataset", _CREDENTIALED)
def test_nothing_leaves_this_machine_unasked_nor_reaches_a_judge(files, dataset, sent):
    folder = files(dataset)
    where = [*_AWAY, "--system=gpt_4o_mini"]
    where += [f"--questions={folder / 'questions.jsonl'}", f"--out={folder / 'out.jsonl'}"]
    with pytest.raises(UserError, match=f"pixels of images .*{_title(dataset)} {_NOT_PASSED_ON}"):
        predict.main(["--runner=openai", f"--image_root={folder}", *where])
    assert not sent and not (folder / "out.jsonl").exists()
    (folder / "said.jsonl").write_text('{"question_id": "q0", "text": "Yes", "boxes": []}\n')
    flags = ["--benchmark=gemex", "--judge=language_model", *_AWAY, f"--out={folder / 'out'}"]
    flags += [f"--references={folder / 'records.jsonl'}", f"--predictions={folder / 'said.jsonl'}"]
    with pytest.raises(UserError, match=f", of {_title(dataset)} {_NOT_PASSED_ON}"):
        score.main(flags)
    assert not sent and not (folder / "out/metrics.json").exists()


@cases("dataset, source, flag")
def test_no_build_elsewhere_is_given_a_report(dataset, source, flag, sent, tmp_path):
    if source == "drawn":
        source = tmp_path / "drawn"
        drawn = ["--dataset=phantom_studies", "--studies=4", "--long_side=64", "--processes=1"]
        build.main([*drawn, f"--out={source}"])
    else:
        source = _ROOT / "data" / dataset / "sample" / source
    words = [f"--dataset={dataset}", f"--source={source}", f"--out={tmp_path / 'out'}", flag]
    with pytest.raises(UserError, match=f", of {_title(dataset)} {_NOT_PASSED_ON}"):
        build.main([*words, *_AWAY])
    assert not sent and not (tmp_path / "out/manifest.json").exists()


def test_a_server_on_this_machine_is_asked(files, chat):
    folder = files("gemex")
    with chat.Server(lambda body, number: chat.Text("No.")) as server:
        where = [f"--base_url={server.url}", "--model=m", "--system=gpt_4o_mini"]
        where += [f"--questions={folder / 'questions.jsonl'}", f"--out={folder / 'out.jsonl'}"]
        predict.main(["--runner=openai", f"--image_root={folder}", *where])
    assert len(server.bodies) == 3


@pytest.mark.parametrize("broken", [None, "reason", "question"])
def test_no_log_quotes_a_record(files, capsys, broken):
    """Standard output and error, and the records of a run: hashes and counts alone."""
    folder = files("gemex")
    lines = (folder / "records.jsonl").read_text().splitlines()
    if broken:
        fields = json.loads(lines[1])
        fields[broken] = [fields[broken]]
        lines[1] = json.dumps(fields)
        (folder / "records.jsonl").write_text("\n".join(lines))
    scored = "--references=records.jsonl --predictions=said.jsonl --out=out --resamples=10"
    for arguments, command in (
        ("--runner=random --questions=questions.jsonl --out=said.jsonl", predict),
        (f"--benchmark=gemex {scored}", score),
    ):
        words = re.sub(r"=(\w+\.jsonl|out)\b", rf"={folder}/\1", arguments).split()
        with pytest.raises(SystemExit) as ended:
            run(lambda command=command, words=words: command.main(words))
        assert ended.value.code == (2 if broken and command is score else 0)
    told = capsys.readouterr()
    assert _CANARY not in told.out + told.err
    written = [*folder.glob("*.run.json"), *(folder / "out").glob("*")]
    assert broken or len(written) > 4
    for path in written:
        assert _CANARY not in path.read_text()


def test_the_terms_stand_with_every_result(files, capsys):
    folder = files("gemex")
    (folder / "said.jsonl").write_text('{"question_id": "q0", "text": "Yes", "boxes": []}\n')
    files = [f"--references={folder}/records.jsonl", f"--predictions={folder}/said.jsonl"]
    score.main(["--benchmark=gemex", *files, "--resamples=0", f"--out={folder / 'out'}"])
    line = f"Data: {data_terms(['gemex'])['gemex']}."
    assert line in capsys.readouterr().out
    assert line in (folder / "out/tables.md").read_text()
    settings = json.loads((folder / "out/score.json").read_text())
    assert settings["data_terms"]["gemex"]["credentialed"] is True
    report.main([f"--workdir={folder / 'out'}", *files, f"--out={folder / 'page'}"])
    # Told at the top, whatever becomes of the tables.
    head, _, _ = html.unescape((folder / "page/index.html").read_text()).partition("</header>")
    assert line in head


# Studies and patients of MIMIC-CXR have eight digits. These are made up, but for the path that
# PhysioNet's own page shows as an example.
_NUMBER = re.compile(rb"\b[ps](1[0-9]{7}|5[0-9]{7})\b")
_MADE_UP = re.compile(r"[15]999[0-9]{4}|[15]0000001|10000032|50414267")
_PICTURES = (".dcm", ".dicom", ".jpg", ".jpeg", ".png", ".nii", ".npz", ".npy", ".tfrecord")


def _tracked():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=_ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("no checkout")
    return [_ROOT / name for name in listed.stdout.decode().split("\0") if name]


def test_the_repository_has_no_patients():
    """No study or patient of MIMIC-CXR by number, and no picture that is not one of ours."""
    found, pictures = {}, []
    for path in _tracked():
        if path.suffix.lower() in _PICTURES:
            pictures.append(str(path.relative_to(_ROOT)))
        elif path.is_file():
            for number in _NUMBER.findall(path.read_bytes()):
                found.setdefault(number.decode(), str(path.relative_to(_ROOT)))
    assert not {number: path for number, path in found.items() if not _MADE_UP.fullmatch(number)}
    free = _ROOT / "data/radiographs"  # CC BY 4.0, as its card says, and nothing beside its table
    with open(free / "lungs.csv", newline="", encoding="utf-8") as file:
        named = {Path(row["file"]).stem for row in csv.DictReader(file) if row["v7_mask"]}
    folders = ("data/radiographs/images/", "data/radiographs/masks/")
    shipped = [name for name in pictures if name.startswith(folders)]
    assert {Path(name).stem for name in shipped} == named and len(shipped) == 2 * len(named)
    drawn = ("docs/", "tests/", "bench/fuzz/", "data/grounded_reports/sample/")
    assert all(name.startswith((*drawn, *folders)) for name in pictures)
