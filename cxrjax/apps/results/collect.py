"""Files that `score`, `predict` and `train` left in a work directory, made into a page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cxrjax.apps.results.cases import ranked_system
from cxrjax.apps.results.flags import ReportFlags
from cxrjax.apps.results.page import Inputs, write_page
from cxrjax.cli import garbage_collector_paused
from cxrjax.codecs import CODECS, Codec
from cxrjax.errors import UserError
from cxrjax.evaluation.benchmark import Benchmark
from cxrjax.evaluation.scores import ScoreOptions
from cxrjax.files import read_json_list, read_json_object, reading
from cxrjax.input_pipeline.sources import default_image_root
from cxrjax.lock import folder_lock
from cxrjax.paper import benchmark_places, load_benchmark
from cxrjax.progress import waiting
from cxrjax.untrusted.foreign_files import read_text


class _Systems:
    """Figures and answers of the systems of all work directories; `missing`: files not found."""

    def __init__(self, files: ReportFlags) -> None:
        self.missing: list[str] = []
        self.metrics = _metrics(files.metrics or files.workdir / "metrics.json")
        self.predictions = _predictions(files.workdir, files.predictions, files.name)
        self.tables = _tables(files.scored_in, "", self.missing)
        self.curves = _curves(files.scored_in)
        self.paired = [ranked_system(list(self.predictions))]
        for folder, name in zip(files.compare, _run_names(files.compare), strict=True):
            metrics = _metrics(folder / "metrics.json")
            further = {f"{name}/{k}": v for k, v in _predictions(folder).items()}
            self.metrics |= {f"{name}/{k}": v for k, v in metrics.items()}
            self.paired.append(ranked_system(list(further), name))
            self.predictions |= further
            self.tables |= _tables(folder, name, self.missing)
            self.curves |= {f"{name}/{k}": v for k, v in _curves(folder).items()}


def write_report(files: ReportFlags) -> Path:
    """Collects what there is, writes the page and returns its file.

    Raises:
        UserError: a file is missing or cannot be used.
    """
    systems = _Systems(files)
    references = files.references or files.workdir / "data" / "records" / "validation.jsonl"
    if not references.is_file():
        raise UserError(f"{references}: no such file: give the records with --references=FILE")
    log, notes = _about(files, systems.missing)
    score = notes["score"]
    chosen, reader = _benchmark(files.benchmark, score), _codec(files.codec, score)
    inputs = Inputs(
        metrics=systems.metrics,
        references=references,
        predictions=systems.predictions,
        image_root=files.image_root or default_image_root(references.resolve()),
        tables=systems.tables,
        curves=systems.curves,
        comparisons=_comparisons(files, systems, references, chosen, reader, score),
        training_log=log,
        notes={**notes, "missing": systems.missing},
    )
    heading = score.get("title") or (chosen.layout.title if chosen else "Results")
    title = files.title or f"{heading}: {files.workdir.resolve().name}"
    with folder_lock(files.out), garbage_collector_paused():
        return write_page(
            files.out,
            title,
            inputs,
            benchmark=chosen,
            codec=reader,
            max_images=files.max_images,
            pictures=files.pictures,
            full_pictures=files.full_pictures,
        )


def _benchmark(given: str | None, score: Mapping[str, Any]) -> Benchmark[Any] | None:
    name = str(given or score.get("benchmark"))
    return load_benchmark(name) if name in benchmark_places() else None


def _about(files: ReportFlags, missing: list[str]) -> tuple[Path | None, dict[str, Any]]:
    """Returns the training log, and the notes with the contents of run.json and score.json."""
    folders = (files.workdir / "train", files.workdir)
    log = _optional(files.training_log, folders, "metrics.jsonl", "training log", missing)
    run_file = _optional(files.run, folders, "run.json", "what was run", missing)
    scored_in = (files.scored_in,)
    score_file = _optional(files.score, scored_in, "score.json", "how score worked", missing)
    notes_file = files.notes or files.workdir / "notes.json"
    notes = read_json_object(notes_file) if files.notes or notes_file.is_file() else {}
    for name in ("classes_seen_by_base", "remarks"):
        if not isinstance(notes.get(name, []), list):
            raise UserError(f"{notes_file}: {name}: expected a list")
    run = read_json_object(run_file) if run_file else {}
    return log, notes | {"run": run, "score": read_json_object(score_file) if score_file else {}}


def _comparisons(
    files: ReportFlags,
    systems: _Systems,
    references: Path,
    benchmark: Benchmark[Any] | None,
    codec: Codec | None,
    score: Mapping[str, Any],
) -> list[Mapping[str, Any]]:
    """Returns comparisons.json and the best system of each further run against the first's."""
    path = files.scored_in / "comparisons.json"  # absent where there is a single system
    compared = read_json_list(path) if path.is_file() else []
    if not files.compare or benchmark is None:
        return compared
    mode = score.get("gt_mode")
    options = ScoreOptions(
        mode if mode in benchmark.gt_modes else benchmark.gt_modes[0],
        codec=None if codec is None else codec.name,
        compare_to=systems.paired[0],
        floors=False,
    )
    best = {name: systems.predictions[name] for name in systems.paired if name is not None}
    with waiting("comparing the runs"):
        return [*compared, *benchmark.score_files(references, best, options).comparisons]


def _run_names(folders: Sequence[Path]) -> list[str]:
    """Returns the names of further runs: their folders', numbered where two are the same."""
    names = [folder.resolve().name for folder in folders]
    return [
        f"{name} {names[:place].count(name) + 1}" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


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
    workdir: Path, given: Sequence[Path] = (), names: Sequence[str] = ()
) -> dict[str, Path]:
    """Returns system -> predictions file, in the order given, else of their names."""
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
