"""Every command's outputs on small inputs, held to those in golden.json: a net for restructuring.

    pytest tests/test_golden.py -k vindr                    a test for each case
    python -m tests.test_golden --keep=DIR [--only=TEXT]    the same, and leaves the outputs in DIR
    diff -r OLD_DIR NEW_DIR                                 what a change changed, as text
    python -m tests.test_golden --write [--only=TEXT]       writes golden.json anew

Knows the package by its commands alone (the table MODULES), and calls them in this process, in a
folder where `data` and `configs` are links to the repository's, so that all paths are short and the
same everywhere. A case is a few lines of golden_cases.txt as one would type them; it writes into
the folder of its name, and may read the folders of other cases, which then run first. golden.json
has the values of files of metrics, plans and coordinates, and of each other file the hash of its
text without decimals and two sums of the decimals (of a picture, of its pixels). Last digits are a
processor's: numbers may differ by as much as `check` says. Files whose names differ by long numbers
alone are one entry.

Left out, because it is not the same twice: times, memory, versions, commits, command lines and
files' stamps (LEFT_OUT, TIMES), absolute paths (`plain`); where models have a part (MODEL_CASES),
hashes of other files; how often the reader errs; TFDS's shards (the order in an example is not
fixed), event files, processes/, and checkpoints, which `convert` turns into tensors that are
compared; pictures that matplotlib drew; the viewer that pages share (VIEWER);
standard error, but for its errors and warnings. Left out, because it takes a server, a browser,
another environment or minutes:
language models' answers (--dry_run is there), review --serve, demo_app, the runners openai and hf,
the Beam pipeline, GGUF, BERTScore, compiled plans, benchmarks (they print times), and meshes of
more than the data axis (on simulated devices, their collectives sometimes wait for ever). Not
there, for want of a sample: DICOM, VinDr's image labels and official test, REFLACX.
"""

import argparse
import collections
import contextlib
import csv
import gzip
import hashlib
import io
import itertools
import json
import math
import os
import re
import runpy
import shlex
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (bfloat16, by name)
import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = Path(__file__).with_name("golden.json")

# A command of golden_cases.txt -> the module that is run for it now.
MODULES = {
    "build": "cxrjax.build",
    "check_records": "cxrjax.check_records",
    "convert": "cxrjax.convert",
    "evaluate": "cxrjax.evaluate",
    "plan": "cxrjax.plan",
    "predict": "cxrjax.predict",
    "report": "cxrjax.report",
    "review": "cxrjax.review",
    "score": "cxrjax.score",
    "train": "cxrjax.train",
    "ceiling": "bench.codec_ceiling",
    "coordinates": "cxrjax.tools.coordinates",
    "draw_sentences": "bench.gemex_refiner",
    "judge_agreement": "bench.judge_agreement",
    "qba_validation": "bench.cxr_qba_validation",
    "refiner_accuracy": "bench.gemex_refiner",
    "simulation_samples": "cxrjax.simulation_samples",
    "tokenizer": "bench.tokenizer_training",
    "vix_ray_errors": "bench.vix_ray_errors",
}
MODEL_CASES = ("model_", "train_", "convert_")
# Runs of a quarter of a minute and more, whose parts train_lora and the tests of training have too.
HEAVY = (
    *("train_full", "train_mixture", "train_pmap", "train_shards"),
    "train_vix_ray",
)
CELL = ["value", "ci_low", "ci_high", "n"]
DECIMAL = re.compile(r"(?<![\w.])(-?\d+(?:\.\d+(?:e-?\d+)?|e-\d\d?))(?![\w.])")
PRINTED = "printed.txt"
LEFT_OUT = {"command", "goodput", "git_commit", "versions", "packages", "cxrjax_version", "stamp"}
TIMES = re.compile(r"(_seconds|_per_second|/seconds_left|_memory_gb)$")
NOT_READ = re.compile(r"(^|/)((checkpoints|params|processes)/|(card\.html|README\.md)$)")
TEXTS = {"json", "jsonl", "csv", "md", "html", "tex", "txt", "xml"}
PIXELS = {"png", "jpg", "jpeg"}
NO_PIXELS = ("figures/", "diagnoses", "body_parts")  # drawn by matplotlib
# What all pages share is theirs in its own tests: a line of it would change the hash of each.
VIEWER = [
    ROOT / "cxrjax/apps" / name
    for name in ("vendor/openseadragon.min.js", "viewer.js", "viewer.css")
]
SOURCE_MAP = "//# sourceMappingURL"
VALUES = re.compile(r"(^|[/.])(metrics|plan|coordinates|marks|readers|agreement)\.jsonl?$")
MODEL_VALUES = re.compile(r"metrics\.jsonl?$|predictions.*\.jsonl$|coordinates\.json$")


def read_cases() -> dict[str, list[str]]:
    """Case -> its lines, with the lines that end in a backslash joined."""
    cases: dict[str, list[str]] = {}
    text = Path(__file__).with_name("golden_cases.txt").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            cases[line[:-1]] = []
        elif line.strip() and not line.startswith("#"):
            cases[list(cases)[-1]].append(line.strip())
    return cases


CASES = read_cases()


# Helpers that cases call like commands.


def _lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def _write_lines(path: str | Path, lines: list[dict[str, Any]]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _rows(path: str) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _write_rows(path: str | Path, rows: list[dict[str, Any]]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def make_predictions(*words: str) -> None:
    """`[--text_only] RECORDS OUT`: the references, in every way a little wrong.

    Of seven questions one is not answered, one gets another one's answer, one a text that says
    nothing, one is cut in half; boxes are shifted, a third of them by much.
    """
    *flags, records, out = words
    asked = _lines(records)
    lines = []
    for number, record in enumerate(asked):
        other = asked[(number + 3) % len(asked)] if number % 7 == 1 else record
        answer = other["answers"][0]
        text = answer["text"]
        text = {2: "I cannot tell.", 3: text[: len(text) // 2]}.get(number % 7, text)
        height, width = record["image_hw"]
        shift = 0.3 if number % 3 == 0 else 0.02
        size = np.array([width, height, width, height])
        shown = answer.get("boxes_by_image", {}).get(other["image_id"], [])
        boxes = [np.clip(np.array(box) / size + shift, 0, 1).tolist() for box in shown]
        line = {"question_id": record["question_id"], "text": text}
        if "--text_only" not in flags:
            line |= {
                "boxes": boxes,
                "labels": answer.get("labels", [])[: len(boxes)] if number % 2 else [],
                "box_scores": [((number + n) * 37 % 100) / 100 for n in range(len(boxes))],
                "answer_logprob": -(number % 11) / 4,
                "parse": "ok",
            }
            if not boxes or len(line["labels"]) != len(boxes):
                del line["labels"]
        if number % 7 != 5:
            lines.append(line)
    _write_lines(out, lines)


def make_vindr_source(phantom: str, out: str) -> None:
    """Phantoms in VinDr's layout, the table without sizes, the sizes, and a split."""
    rows = _rows(f"{phantom}/boxes.csv")
    shutil.copytree(f"{phantom}/images", f"{out}/images")
    shutil.copy(f"{phantom}/boxes.csv", f"{out}/train.csv")
    sizes = {row["image_id"]: (row["height"], row["width"]) for row in rows}
    _write_rows(f"{out}/plain.csv", [dict(itertools.islice(row.items(), 8)) for row in rows])
    table = [{"image_id": name, "dim0": h, "dim1": w} for name, (h, w) in sizes.items()]
    _write_rows(f"{out}/sizes.csv", table)
    names = sorted(sizes)
    split = {"train": names[:12], "validation": names[12:20]}
    Path(f"{out}/split.json").write_text(json.dumps(split))


def make_faulty_table(phantom: str, out: str) -> None:
    """Phantoms' table with a fault of many kinds."""
    rows = _rows(f"{phantom}/boxes.csv")
    boxes = [row for row in rows if row["x_min"]]
    boxes[3]["class_name"] = "Mystery"
    boxes[20]["x_max"] = boxes[20]["x_min"]
    boxes[40]["x_max"] = "4000"
    boxes[60]["y_min"] = "high"
    _write_rows(out, [*rows, rows[0], {**rows[5], "class_name": "No finding"}])


def make_split(records: str, out: str) -> None:
    """A split manifest of the first images."""
    names = sorted({record["image_id"] for record in _lines(records)})
    Path(out).write_text(json.dumps({"train": names[:2], "test": names[2:3]}))


def make_own_records(phantom: str, out: str) -> None:
    """Records without sizes and splits, some with faults."""
    shutil.copytree(f"{phantom}/images", f"{out}/images")
    records = _lines(f"{phantom}/records/train.jsonl")[:120]
    for number, record in enumerate(records):
        record["dataset"] = "custom"
        record["patient_id"] = f"patient {record['image_id'][-2:]}"
        del record["split"], record["image_hw"]
        if number % 30 == 11:
            record["image_path"] = "images/missing.png"
        if number % 30 == 12:
            record["colour"] = "red"
        if number % 30 == 13:
            del record["question"]
    _write_lines(f"{out}/records.jsonl", records)


def make_radiographs(each: str, out: str) -> None:
    """The first radiographs of each split and finding, with their outlines."""
    taken: collections.Counter[tuple[str, str]] = collections.Counter()
    Path(out, "images").mkdir(parents=True)
    rows = []
    for row in _rows("data/radiographs/lungs.csv"):
        taken[row["split"], row["finding"]] += 1
        if taken[row["split"], row["finding"]] <= int(each):
            shutil.copy(f"data/radiographs/images/{row['file']}", f"{out}/images")
            rows.append(row)
    _write_rows(f"{out}/lungs.csv", rows)
    shutil.copytree("data/radiographs/masks", f"{out}/masks")


def make_own_boxes(phantom: str, out: str) -> None:
    """Phantoms and one table of their boxes, as an annotation tool exports it."""
    shutil.copytree(f"{phantom}/images", f"{out}/images")
    rows = []
    for row in _rows(f"{phantom}/boxes.csv"):
        if row["rad_id"] == "P1":
            box = {name: row[name] for name in ("x_min", "y_min", "x_max", "y_max")}
            rows.append({"image": f"{row['image_id']}.png", "label": row["class_name"], **box})
    _write_rows(f"{out}/boxes.csv", rows)


def make_openi(out: str) -> None:
    """Three reports as OpenI's XML, in a folder, and the same as its archive."""
    findings = (
        "The heart is enlarged. There is a small left pleural effusion. No pneumothorax.",
        "The lungs are clear. Heart size is normal. There is no pleural effusion.",
        "Patchy opacity in the right lower lobe may be pneumonia. Mild pulmonary edema.",
    )
    Path(out).mkdir(parents=True)
    with tarfile.open(f"{out}/NLMCXR_reports.tgz", "w:gz") as archive:
        for number, text in enumerate(findings, start=1):
            path = Path(out) / f"{number}.xml"
            path.write_text(
                f'<?xml version="1.0" encoding="utf-8"?><eCitation><uId id="CXR{number}"/>'
                '<Abstract><AbstractText Label="INDICATION">Cough &amp; fever</AbstractText>'
                f'<AbstractText Label="FINDINGS">{text}</AbstractText>'
                '<AbstractText Label="IMPRESSION">As above.</AbstractText></Abstract>'
                f'<parentImage id="CXR{number}_IM-1"/></eCitation>'
            )
            archive.add(path, f"ecgen-radiology/{path.name}")


def make_ms_cxr(truth: str, out: str) -> None:
    """The lesions of phantom studies as MS-CXR's table."""
    rows = []
    for study in _lines(truth):
        for image in study["images"]:
            for lesion in image["lesions"]:
                x0, y0, x1, y1 = lesion["box"]
                row = {"category_name": lesion["finding"].replace("effusion", "Effusion")}
                row |= {"label_text": "", "path": "", "dicom_id": image["dicom_id"]}
                row |= {"x": x0, "y": y0, "w": x1 - x0, "h": y1 - y0}
                rows.append(row | {"image_width": 96, "image_height": 96, "split": "test"})
    _write_rows(out, rows)


def make_filled_sheets(sheet: str, *out: str) -> None:
    """The sheet as two readers may fill it in."""
    levels = ("acceptable", "minor", "major")
    for reader, path in enumerate(out):
        rows = _rows(sheet)
        for number, row in enumerate(rows):
            which = number % 3 if number % (4 + reader) == 0 else 0
            row |= {"reasoning_accuracy": levels[which], "spatial_reference": levels[which // 2]}
            row["answer_appropriateness"] = levels[(number + reader) % 9 == 0]
        _write_rows(path, rows)


def make_filled_consensus(consensus: str, out: str) -> None:
    """The consensus file with every disagreement settled."""
    rows = _rows(consensus)
    for number, row in enumerate(rows):
        row |= {
            "outcome": row["outcome"] or "minor",
            "accepted": "no" if number % 5 == 0 else "yes",
        }
    _write_rows(out, rows)


def make_marks(judgements: str, out: str) -> None:
    """People's marks of the answers that a judge has marked."""
    rows = [
        {"question_id": line["question_id"], "system": line["system"], "mark": 1 + n * 7 % 10}
        for n, line in enumerate(_lines(judgements))
        if line["task"] == "relative_score"
    ]
    _write_rows(out, rows)


def make_first(count: str, path: str, out: str) -> None:
    """The first so many lines of a file."""
    _write_lines(out, _lines(path)[: int(count)])


def make_hf(out: str) -> None:
    """A small PaliGemma with random weights as Hugging Face has it, with the demo's tokenizer."""
    made = json.loads(Path(__file__).with_name("golden_hf.json").read_text())
    rng = np.random.default_rng(0)
    tensors = {
        n: rng.normal(0, 0.1, shape).astype(np.float32) for n, shape in made["shapes"].items()
    }
    Path(out).mkdir(parents=True)
    save_file(tensors, f"{out}/model.safetensors")
    Path(f"{out}/config.json").write_text(json.dumps(made["config"]))
    Path(f"{out}/tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizer"}')
    shutil.copy("data/demo_base/tokenizer.model", out)


# Running a case.


def run_line(line: str) -> str:
    """Runs a line of a case and returns it with what it printed and its exit code."""
    line, _, into = line.partition(" > ")
    name, *words = shlex.split(line)
    if name not in MODULES:
        globals()[name](*words)
        return ""
    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    code: object = 0
    sys.argv = [name, *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            runpy.run_module(MODULES[name], run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = argv
    told = [
        one for one in err.getvalue().splitlines() if re.search(r"(^|: )(error|warning): ", one)
    ]
    printed = out.getvalue()
    if into:
        Path(into).write_text(printed)
        printed = ""
    return "\n".join([f"$ {' '.join([name, *words])}", printed.rstrip(), *told, f"exit {code}", ""])


def run_case(work: Path, name: str) -> Path:
    """The case's folder, after it and the cases that it reads have run; each runs once."""
    folder = work / name
    if (folder / PRINTED).exists():
        return folder
    words = re.findall(r"(?:^|[=\s])(\w+)", "\n".join(CASES[name]))
    for other in dict.fromkeys(words):
        if other in CASES and other != name:
            run_case(work, other)
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    with contextlib.chdir(work):
        printed = [run_line(line) for line in CASES[name]]
    (folder / PRINTED).write_text("\n".join(filter(None, printed)), encoding="utf-8")
    return folder


@contextlib.contextmanager
def links(work: Path) -> Iterator[Path]:
    """Makes the links that paths in the cases start from."""
    work.mkdir(parents=True, exist_ok=True)
    for name in ("data", "configs"):
        if not (work / name).exists():
            (work / name).symlink_to(ROOT / name)
    yield work


# What a case wrote, as it stands in golden.json.


def plain(text: str, work: Path, of_model: bool) -> str:
    """The text without what is another at every run."""
    for path, name in ((work, "WORK"), (work.resolve(), "WORK"), (ROOT, "REPO")):
        text = text.replace(str(path), name)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?", "TIME", text)
    for part in VIEWER:
        text = text.replace(part.read_text(encoding="utf-8").partition(SOURCE_MAP)[0], part.name)
    text = re.sub(r"(?<=are read by rules; )[^<\n]*", "", text)  # measured anew with the reader
    made = r"git_commit|versions\.[\w-]+" + (r"|[\w.]*sha256[\w.]*" if of_model else "")
    text = re.sub(rf"({made})</dt><dd>[^<]*", r"\1", text)  # of the pages that `report` writes
    text = re.sub(r"<dt>goodput\.[^<]*</dt><dd>[^<]*</dd>", "", text)
    if of_model:
        times = r"  [\d.,]+ questions/s.*|(?<=steps) in \d+ s.*|\ngoodput \d+% since .*"
        text = re.sub(times, "", text)
    return text


def pruned(value: Any, of_model: bool) -> Any:
    """The value without the keys of LEFT_OUT, and without hashes where a model had a part."""
    if isinstance(value, dict):
        return {
            key: pruned(item, of_model)
            for key, item in value.items()
            if key not in LEFT_OUT and not (of_model and ("sha256" in key or TIMES.search(key)))
        }
    return [pruned(item, of_model) for item in value] if isinstance(value, list) else value


def rounded(value: Any) -> Any:
    """The value with short floats; metrics as lists, their breakdowns (by_...) condensed."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        if list(value) == CELL:
            return [rounded(item) for item in value.values()]
        parts = {key: cell for key, cell in value.items() if key.startswith("by_")}
        kept = {key: rounded(cell) for key, cell in value.items() if key not in parts}
        return kept | ({f"{len(parts)} x by_*": condensed(parts)} if parts else {})
    return [rounded(item) for item in value] if isinstance(value, list) else value


def condensed(value: Any) -> str | list[Any]:
    """A hash of the value, and, where it has floats, of the rest of it, with two sums of them."""
    floats: list[float] = []

    def without(part: Any) -> Any:
        if isinstance(part, float):
            floats.append(part)
            return "#"
        if isinstance(part, dict):
            return {key: without(item) for key, item in part.items()}
        return [without(item) for item in part] if isinstance(part, list | tuple) else part

    rest = sha(repr(without(value)).encode())
    return [rest, *sums(np.array(floats))] if floats else rest


def of_text(text: str) -> str | list[Any]:
    """A text, condensed; its decimals are floats."""
    parts = DECIMAL.split(text)  # of every two, one is a decimal
    return condensed([float(part) if n % 2 else part for n, part in enumerate(parts)])


def describe(path: Path, name: str, work: Path, of_model: bool) -> Any:
    """A file's values or hash; None of one that is left out."""
    content = path.read_bytes()
    suffix = path.suffix.lstrip(".")
    if suffix == "gz" and path.stem.endswith(".csv"):
        content, suffix = gzip.decompress(content), "csv"
    if suffix in PIXELS and not any(part in name for part in NO_PIXELS):
        with Image.open(path) as picture:
            return [f"{picture.mode}{picture.size}", *sums(np.asarray(picture))]
    if suffix == "parquet":
        content, suffix = repr(pyarrow.parquet.read_table(path).to_pylist()).encode(), "txt"
    if suffix == "safetensors":
        tensors = sorted(load_file(path).items())
        if "hf" in name.split("/")[0]:
            return {n: [str(t.dtype), *t.shape, sha(t.tobytes())] for n, t in tensors}
        return {n: [str(t.dtype), *t.shape, *sums(t)] for n, t in tensors}
    if suffix == "array_record" or path.name == "tokenizer.model":
        return sha(content)
    if suffix not in TEXTS:
        return None
    text = content.decode("utf-8")
    if suffix in ("json", "jsonl") and text.strip():
        parts = text.splitlines() if suffix == "jsonl" else [text]
        values = [pruned(json.loads(part), of_model) for part in parts]
        if VALUES.search(name) or (of_model and MODEL_VALUES.search(name)):
            return rounded(values if suffix == "jsonl" else values[0])
        text = "\n".join(json.dumps(value, ensure_ascii=False, indent=1) for value in values)
    return of_text(plain(text, work, of_model))


def sums(array: np.ndarray) -> list[float]:
    """Two sums that distinguish arrays, of which the second depends on order and signs."""
    values = array.astype(np.float64).ravel()
    weights = 1 + np.cos(np.arange(values.size)) / 2
    return rounded([float(np.abs(values).sum()), float(np.maximum(values, 0) @ weights)])


def sha(content: bytes) -> str:
    """A short hash."""
    return hashlib.sha256(content).hexdigest()[:16]


def digest(folder: Path) -> dict[str, Any]:
    """File -> what golden.json says of it; `2 x name` stands for files that differ by numbers."""
    of_model = folder.name.startswith(MODEL_CASES)
    groups: dict[str, list[Any]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not NOT_READ.search(name):
            found = describe(path, name, folder.parent, of_model)
            if found is not None:
                key = re.sub(r"[0-9a-f-]*\d{4,}[0-9a-f-]*", "#", name)
                groups.setdefault(key, []).append((name, found))
    several = {key: each for key, each in groups.items() if "#" in key}
    return {
        **{key: each[0][1] for key, each in groups.items() if key not in several},
        **{f"{len(each)} x {key}": condensed(each) for key, each in several.items()},
    }


def differences(found: Any, expected: Any, close: dict[str, float], where: str) -> list[str]:
    """Lines that say what differs."""
    if isinstance(found, dict) and isinstance(expected, dict):
        names = dict.fromkeys([*expected, *found])
        told = []
        for name in names:
            place = f"{where} | {name}" if where else name
            if name not in found or name not in expected:
                told.append(f"{place}: {'gone' if name in expected else 'new'}")
            else:
                told += differences(found[name], expected[name], close, place)
        return told
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return [d for n, pair in pairs for d in differences(*pair, close, f"{where} | {n}")]
    numbers = all(type(value) in (int, float) for value in (found, expected))
    if found == expected or (numbers and math.isclose(found, expected, **close)):
        return []
    return [f"{where}: {expected!r} became {found!r}"]


def check(work: Path, name: str, golden: dict[str, Any]) -> list[str]:
    """Runs the case and says what differs from golden.json."""
    found = json.loads(json.dumps(digest(run_case(work, name))))
    of_model = name.startswith(MODEL_CASES)
    close = {"rel_tol": 1e-4, "abs_tol": 1e-3} if of_model else {"rel_tol": 1e-6, "abs_tol": 1e-9}
    told = differences(found, golden.get(name, {}), close, "")
    return [*told[:40], f"and {len(told) - 40} more"] if len(told) > 40 else told


def missing(name: str) -> str:
    """The file outside of the repository that the case reads and that is not here, or ""."""
    named = re.findall(r"=(data/downloads/\S+)", "\n".join(CASES[name]))
    return next((path for path in named if not (ROOT / path).exists()), "")


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    with links(tmp_path_factory.mktemp("golden")) as folder:
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.heavy) if n in HEAVY else n for n in CASES]
)
def test_outputs_are_as_before(name, work):
    if path := missing(name):
        pytest.skip(f"{path} is not here")
    told = check(work, name, json.loads(GOLDEN.read_text(encoding="utf-8")))
    assert not told, f"{name} differs (python -m tests.test_golden --keep=DIR):\n" + "\n".join(told)


def in_lines(value: Any, depth: int = 0) -> str:
    """JSON, with what fits into a line in one."""
    short = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or (depth > 1 and len(short) < 100):
        return short
    indent, ends = " " * (depth + 1), "{}" if isinstance(value, dict) else "[]"
    items = (
        [f"{json.dumps(k)}: {in_lines(v, depth + 1)}" for k, v in value.items()]
        if isinstance(value, dict)
        else [in_lines(item, depth + 1) for item in value]
    )
    return f"{ends[0]}\n{indent}" + f",\n{indent}".join(items) + f"\n{' ' * depth}{ends[1]}"


def main() -> int:
    """Writes golden.json, or compares with it; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.test_golden")
    parser.add_argument("--write", action="store_true", help="write golden.json")
    parser.add_argument("--keep", type=Path, help="folder to leave the outputs in")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    flags = parser.parse_args()
    golden = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    golden = {name: golden[name] for name in CASES if name in golden}
    with (
        tempfile.TemporaryDirectory() as temporary,
        links((flags.keep or Path(temporary)).absolute()) as work,
    ):
        failed = 0
        for name in CASES:
            shutil.rmtree(work / name, ignore_errors=True)  # of the time before
        for name in CASES:
            if flags.only not in name:
                continue
            start = time.monotonic()
            if path := missing(name):
                print(f"{name}: skipped, {path} is not here")
                continue
            told = check(work, name, golden)
            seconds = f"{time.monotonic() - start:.1f} s"
            print(f"{name}: {f'{len(told)} differ' if told else 'same'}, {seconds}")
            if flags.write:
                golden[name] = digest(work / name)
                codes = re.findall(
                    r"^exit [^0].*|^error:.*", (work / name / PRINTED).read_text(), re.M
                )
                print("".join(f"  {code}\n" for code in codes), end="")
            else:
                print("".join(f"  {line}\n" for line in told), end="")
                failed += bool(told)
        if flags.write:
            golden = {name: golden[name] for name in CASES if name in golden}
            GOLDEN.write_text(in_lines(golden) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    # Before JAX is imported.
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0"
    import tests.conftest  # noqa: F401  (its environment)

    sys.exit(main())
