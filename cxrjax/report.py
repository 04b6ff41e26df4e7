"""The results page: tables, loss curves and radiographs with boxes, in one HTML file.

    python -m cxrjax.report --workdir=runs/demo --out=runs/demo

Reads what `score`, `predict` and `train` left in the work directory (below, DIR); an option names
another place for any of it:

    DIR/metrics.json                    --metrics       required
    DIR/predictions/*.jsonl             --predictions   required; a system is called by the stem
    DIR/data/records/validation.jsonl   --references    required
    the folder above records/           --image_root    what image_path in the records starts from
    DIR/train/metrics.jsonl             --training_log  else DIR/metrics.jsonl
    DIR/train/run.json                  --run           else DIR/run.json
    DIR/notes.json                      --notes         keys: classes_seen_by_base, remarks

    DIR/score.json                      --score         beside metrics.json: how score worked

Of the last four, what is not there is said on the page. With --compare the systems of a second
work directory, scored on the same references, stand beside the first's as `<its name>/<system>`.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cxrjax.benchmarks.page import write_page
from cxrjax.cli import run
from cxrjax.codecs import CODECS
from cxrjax.errors import UserError
from cxrjax.json_file import read_json_object


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m cxrjax.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--workdir", type=Path, required=True, metavar="DIR")
    parser.add_argument("--compare", type=Path, metavar="DIR2", help="a second work directory")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for index.html")
    parser.add_argument("--title", help="default: the work directory's name")
    parser.add_argument("--metrics", type=Path, metavar="FILE")
    parser.add_argument(
        "--predictions", type=Path, action="append", metavar="FILE", help="may be repeated"
    )
    parser.add_argument("--references", type=Path, metavar="FILE")
    parser.add_argument("--image_root", type=Path, metavar="DIR")
    parser.add_argument("--training_log", type=Path, metavar="FILE")
    parser.add_argument("--run", type=Path, metavar="FILE")
    parser.add_argument("--score", type=Path, metavar="FILE")
    parser.add_argument("--notes", type=Path, metavar="FILE")
    parser.add_argument(
        "--codec", choices=sorted(CODECS), help="reads boxes of predictions that are text alone"
    )
    parser.add_argument("--max_images", type=int, default=48, help="radiographs shown (48)")
    flags = parser.parse_args(arguments)
    if flags.max_images < 1:
        parser.error(f"--max_images={flags.max_images}: expected at least 1")

    workdir: Path = flags.workdir
    metrics_file: Path = flags.metrics or workdir / "metrics.json"
    metrics = _metrics(metrics_file)
    predictions = _predictions(workdir, flags.predictions)
    if flags.compare is not None:
        name = flags.compare.resolve().name
        metrics |= {f"{name}/{k}": v for k, v in _metrics(flags.compare / "metrics.json").items()}
        predictions |= {f"{name}/{k}": v for k, v in _predictions(flags.compare, None).items()}
    references = flags.references or workdir / "data" / "records" / "validation.jsonl"
    if not references.is_file():
        raise UserError(f"{references}: no such file: give the records with --references=FILE")

    missing: list[str] = []
    folders = (workdir / "train", workdir)
    log = _optional(flags.training_log, folders, "metrics.jsonl", "training log", missing)
    run_file = _optional(flags.run, folders, "run.json", "what was run", missing)
    score_file = _optional(
        flags.score, (metrics_file.parent,), "score.json", "how score worked", missing
    )
    notes_file = flags.notes or workdir / "notes.json"
    notes = read_json_object(notes_file) if flags.notes or notes_file.is_file() else {}
    notes["run"] = read_json_object(run_file) if run_file else {}
    notes["score"] = read_json_object(score_file) if score_file else {}
    notes["missing"] = missing

    page = write_page(
        out_dir=flags.out,
        title=flags.title or f"VinDr-CXR-VQA results: {workdir.resolve().name}",
        metrics=metrics,
        references=references,
        predictions=predictions,
        image_root=flags.image_root or _image_root(references),
        training_log=log,
        notes=notes,
        max_images=flags.max_images,
        codec=CODECS[flags.codec] if flags.codec else None,
    )
    print(page)


def _metrics(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"{path}: no such file: run `python -m cxrjax.score` first")
    return read_json_object(path)


def _predictions(workdir: Path, given: Sequence[Path] | None) -> dict[str, Path]:
    """System -> predictions file; `base` before `tuned`, because so the alphabet has it."""
    folder = workdir / "predictions"
    found = list(given) if given else sorted(folder.glob("*.jsonl"))
    if not found:
        raise UserError(
            f"{folder}: holds no predictions (*.jsonl): run `python -m cxrjax.predict` first, or "
            "give files with --predictions=FILE"
        )
    systems: dict[str, Path] = {}
    for path in found:
        if not path.is_file():
            raise UserError(f"{path}: no such predictions file")
        if path.stem in systems:
            raise UserError(f"{path}: {systems[path.stem]} is called {path.stem} too: rename one")
        systems[path.stem] = path
    return systems


def _optional(
    given: Path | None, folders: Sequence[Path], name: str, what: str, missing: list[str]
) -> Path | None:
    """A file named by an option must be there; one looked for by default need not."""
    if given is not None:
        if not given.is_file():
            raise UserError(f"{given}: no such file ({what})")
        return given
    places = [folder / name for folder in folders]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        missing.append(f"{what} ({', '.join(map(str, places))})")
    return found


def _image_root(references: Path) -> Path:
    folder = references.resolve().parent
    return folder.parent if folder.name == "records" else folder


if __name__ == "__main__":
    run(main)
