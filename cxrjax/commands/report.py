"""The results page: tables, curves and every single answer with its picture, for people to look at.

    python -m cxrjax.report --workdir=runs/demo --out=runs/demo

Reads what `score`, `predict` and `train` left in the work directory (below, DIR); an option names
another place for any of it:

    DIR/metrics.json                    --metrics       required
    DIR/predictions/*.jsonl             --predictions   required; a system is called by the stem
    DIR/data/records/validation.jsonl   --references    required
    the folder above records/           --image_root    what image_path in the records starts from
    tables.md, curves.json, comparisons.json, score.json beside metrics.json
                                        --score         another score.json
    DIR/train/metrics.jsonl             --training_log  else DIR/metrics.jsonl
    DIR/train/run.json                  --run           else DIR/run.json
    DIR/notes.json                      --notes         keys: classes_seen_by_base, remarks

What of the lines from tables.md to notes.json is not there is said on the page. score.json says
which benchmark it is.

Up to 300 images the page is one file, beyond that a file and a folder beside it (--pictures); the
folder also has the radiographs with all their pixels, which are loaded when one looks closely. It
opens from a disk and loads nothing else; `#q=QUESTION_ID` behind its address opens one answer. With
--compare, which may be repeated, the systems of further work directories, scored on the same
references, stand beside the first's as `<its name>/<system>`; and `tuned` of each, or else its last
system, is compared with that of the first by a paired test, as `score` compares.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cxrjax.apps.results.cases import ranked_system
from cxrjax.apps.results.pictures import PICTURES
from cxrjax.cli import command_parser, garbage_collector_paused
from cxrjax.codecs import CODECS, Codec
from cxrjax.errors import UserError
from cxrjax.files import read_json_list, read_json_object, reading
from cxrjax.input_pipeline.sources import default_image_root
from cxrjax.lock import folder_lock
from cxrjax.papers.benchmarks import BENCHMARKS
from cxrjax.progress import waiting
from cxrjax.untrusted.foreign_files import read_text

if TYPE_CHECKING:
    from cxrjax.evaluation.benchmark import Benchmark
    from cxrjax.evaluation.scores import ScoreOptions


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Flags of the command; leaves with code 2 where they are unusable."""
    parser = command_parser("report", __doc__)
    add = parser.add_argument
    add("--workdir", type=Path, required=True, metavar="DIR")
    add(
        "--compare",
        type=Path,
        action="append",
        default=[],
        metavar="DIR2",
        help="a further work directory; may be repeated",
    )
    add("--out", type=Path, required=True, metavar="DIR", help="for index.html")
    add("--title", help="default: the work directory's name")
    add("--metrics", type=Path, metavar="FILE")
    add("--predictions", type=Path, action="append", metavar="FILE", help="may be repeated")
    add("--name", action="append", help="the system's, once for each --predictions, in order")
    add("--references", type=Path, metavar="FILE")
    add("--image_root", type=Path, metavar="DIR")
    add("--training_log", type=Path, metavar="FILE")
    add("--run", type=Path, metavar="FILE")
    add("--score", type=Path, metavar="FILE")
    add("--notes", type=Path, metavar="FILE")
    add("--codec", choices=sorted(CODECS), help="reads boxes of predictions that are text alone")
    add("--benchmark", choices=sorted(BENCHMARKS), help="default: the one that score.json names")
    add("--max_images", type=int, default=5000, help="radiographs shown at most (5000)")
    add(
        "--pictures",
        choices=PICTURES,
        default="auto",
        help="in the page's file, in a folder beside it, or none: boxes alone (no image is read)",
    )
    text = "radiographs kept beside the page with all their pixels, at most (1000)"
    add("--full_pictures", type=int, default=1000, metavar="N", help=text)
    flags = parser.parse_args(argv)
    if flags.max_images < 1:
        parser.error(f"--max_images={flags.max_images}: expected at least 1")
    if flags.full_pictures < 0:
        parser.error(f"--full_pictures={flags.full_pictures}: expected at least 0")
    return flags


def main(argv: Sequence[str] | None = None) -> None:
    """Collects what there is and writes the page."""
    flags = parse_arguments(argv)
    # After the flags: --help stays quick.
    from cxrjax.apps.results.page import Inputs, write_page
    from cxrjax.evaluation.scores import ScoreOptions

    workdir: Path = flags.workdir
    metrics_file: Path = flags.metrics or workdir / "metrics.json"
    scored_in = metrics_file.parent
    metrics = _metrics(metrics_file)
    predictions = _predictions(workdir, flags.predictions, flags.name)
    missing: list[str] = []
    tables = _tables(scored_in, "", missing)
    curves = _curves(scored_in)
    paired = [ranked_system(list(predictions))]
    for folder, name in zip(flags.compare, _run_names(flags.compare), strict=True):
        metrics |= {f"{name}/{k}": v for k, v in _metrics(folder / "metrics.json").items()}
        further = {f"{name}/{k}": v for k, v in _predictions(folder, None, None).items()}
        paired.append(ranked_system(list(further), name))
        predictions |= further
        tables |= _tables(folder, name, missing)
        curves |= {f"{name}/{k}": v for k, v in _curves(folder).items()}
    references = flags.references or workdir / "data" / "records" / "validation.jsonl"
    if not references.is_file():
        raise UserError(f"{references}: no such file: give the records with --references=FILE")

    folders = (workdir / "train", workdir)
    log = _optional(flags.training_log, folders, "metrics.jsonl", "training log", missing)
    run_file = _optional(flags.run, folders, "run.json", "what was run", missing)
    score_file = _optional(flags.score, (scored_in,), "score.json", "how score worked", missing)
    notes_file = flags.notes or workdir / "notes.json"
    notes = read_json_object(notes_file) if flags.notes or notes_file.is_file() else {}
    for name in ("classes_seen_by_base", "remarks"):
        if not isinstance(notes.get(name, []), list):
            raise UserError(f"{notes_file}: {name}: expected a list")
    score = read_json_object(score_file) if score_file else {}
    notes |= {"run": read_json_object(run_file) if run_file else {}, "score": score}
    comparisons = scored_in / "comparisons.json"  # not there of a single system
    name = str(flags.benchmark or score.get("benchmark"))
    benchmark = BENCHMARKS[name]() if name in BENCHMARKS else None
    codec = _codec(flags.codec, score)
    compared = read_json_list(comparisons) if comparisons.is_file() else []
    if flags.compare and benchmark is not None:
        files = {system: predictions[system] for system in paired if system is not None}
        modes = benchmark.gt_modes
        mode = score.get("gt_mode")
        options = ScoreOptions(
            mode if mode in modes else modes[0],
            codec=None if codec is None else codec.name,
            compare_to=paired[0],
            floors=False,
        )
        compared += _compare_runs(benchmark, references, files, options)
    heading = score.get("title") or (benchmark.layout.title if benchmark else "Results")

    inputs = Inputs(
        metrics=metrics,
        references=references,
        predictions=predictions,
        image_root=flags.image_root or default_image_root(references.resolve()),
        tables=tables,
        curves=curves,
        comparisons=compared,
        training_log=log,
        notes={**notes, "missing": missing},
    )
    with folder_lock(flags.out), garbage_collector_paused():
        page = write_page(
            flags.out,
            flags.title or f"{heading}: {workdir.resolve().name}",
            inputs,
            benchmark=benchmark,
            codec=codec,
            max_images=flags.max_images,
            pictures=flags.pictures,
            full_pictures=flags.full_pictures,
        )
    print(page)


def _run_names(folders: Sequence[Path]) -> list[str]:
    """What further runs are called: as their folders, and by number where two are called alike."""
    names = [folder.resolve().name for folder in folders]
    return [
        f"{name} {names[:place].count(name) + 1}" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def _compare_runs(
    benchmark: "Benchmark[Any]",
    references: Path,
    systems: Mapping[str, Path],
    options: "ScoreOptions",
) -> list[Mapping[str, Any]]:
    """Lines of comparisons.json of the best system of each run with that of the first."""
    with waiting("comparing the runs"):
        return list(benchmark.score_files(references, systems, options).comparisons)


def _tables(folder: Path, heading: str, missing: list[str]) -> dict[str, str]:
    path = folder / "tables.md"
    if not path.is_file():
        missing.append(f"the benchmark's tables ({path})")
        return {}
    with reading(path, "the tables"):
        return {heading: read_text(path)}


def _curves(folder: Path) -> dict[str, Any]:
    path = folder / "curves.json"  # not every benchmark has curves
    return read_json_object(path) if path.is_file() else {}


def _codec(given: str | None, score: Mapping[str, Any]) -> Codec | None:
    """The codec asked for, else the one that score read boxes with."""
    name = given or str(score.get("codec")).partition(",")[0]
    return CODECS.get(name)


def _metrics(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"{path}: no such file: run `python -m cxrjax.score` first")
    return read_json_object(path)


def _predictions(
    workdir: Path, given: Sequence[Path] | None, names: Sequence[str] | None
) -> dict[str, Path]:
    """System -> predictions file, in the order given, else of their names."""
    folder = workdir / "predictions"
    found = list(given) if given else sorted(folder.glob("*.jsonl"))
    if not found:
        raise UserError(
            f"{folder}: holds no predictions (*.jsonl): run `python -m cxrjax.predict` first, or "
            "give files with --predictions=FILE"
        )
    if names and len(names) != len(found):
        raise UserError(f"{len(names)} --name for {len(found)} --predictions: give one each")
    systems: dict[str, Path] = {}
    for path, name in zip(found, names or [path.stem for path in found], strict=True):
        if not path.is_file():
            raise UserError(f"{path}: no such predictions file")
        if name in systems:
            raise UserError(f"{path}: {systems[name]} is called {name} too: rename one")
        systems[name] = path
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
