"""The results page of a benchmark: tables, curves, and every single answer.

One HTML file with everything in it, or, where images are many, that file and a folder beside it.
It opens from a disk, an e-mail or a web server alike, and asks nothing of any other place.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from cxrjax.apps.results import tables
from cxrjax.apps.results.cases import (
    SAMPLE_SEED,
    Case,
    CaseData,
    collect_cases,
    ranked_system,
    script_json,
    write_part,
)
from cxrjax.apps.results.curves import charts, system_charts
from cxrjax.apps.results.errors import KINDS, SAME_IOU
from cxrjax.apps.results.marks import mark_facts, mark_words
from cxrjax.apps.results.pictures import (
    FOLDER,
    MOST_IN_ONE_FILE,
    PICTURES,
    empty_folder,
    inline_pictures,
    no_pictures,
    picture_files,
)
from cxrjax.apps.results.plots import Look
from cxrjax.apps.viewer import viewer_parts
from cxrjax.codecs import Codec
from cxrjax.errors import UserError
from cxrjax.evaluation.benchmark import Benchmark
from cxrjax.evaluation.overlays import COLOURS, TRUTH, system_colours
from cxrjax.evaluation.tables import FEW, UNDEFINED
from cxrjax.evaluation.text_tables import template
from cxrjax.files import read_packaged, replace_text, writing
from cxrjax.paper import about_terms
from cxrjax.untrusted.names import shown_value

# Keys of `notes`; all are optional.
NOTE_KEYS = ("classes_seen_by_base", "remarks", "run", "score", "missing")
# What a browser may load for the page: the file itself and images of the folder, scripts as well.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
_FILE_POLICY = _POLICY + "script-src 'unsafe-inline'; img-src data:"
_PICTURES_POLICY = _FILE_POLICY + " 'self' file:"
_FOLDER_POLICY = _POLICY + "script-src 'unsafe-inline' 'self' file:; img-src 'self' file: data:"


@dataclass(frozen=True)
class Inputs:
    """Contents and files that the page is made of."""

    # Content of metrics.json: `{system: {protocol: {metric: {value, ...}}}}`.
    metrics: Mapping[str, Any]
    references: Path  # records with answers (JSON Lines)
    predictions: Mapping[str, Path]  # system -> its predictions file
    image_root: Path  # folder that the records' `image_path` starts from
    # Content of tables.md, by what it is headed with ("" for none).
    tables: Mapping[str, str] = field(default_factory=dict)
    curves: Mapping[str, Any] = field(default_factory=dict)  # content of curves.json
    comparisons: Sequence[Mapping[str, Any]] = ()  # content of comparisons.json
    # Metrics.jsonl of the training, or None (the page then says so).
    training_log: Path | None = None
    # What no file says: `classes_seen_by_base` (marked in tables by class), `remarks`
    # (sentences printed under the title), `run` (content of run.json), `score` (of
    # score.json: how the figures came about), `missing` (optional files that were looked for
    # and not found).
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _SystemView:
    """Looks of a system; `style` is its number among the dash patterns of the style sheet."""

    name: str
    colour: str
    style: int


# By `style`, as the style sheet has them.
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 3), (8, 4), (3, 3))
_TRUTH = _SystemView(TRUTH, COLOURS[TRUTH], 0)


def write_page(
    out_dir: Path,
    title: str,
    inputs: Inputs,
    *,
    benchmark: Benchmark[Any] | None = None,
    codec: Codec | None = None,
    max_images: int = 5000,
    pictures: str = "auto",
    full_pictures: int = 1000,
) -> Path:
    """Writes `out_dir/index.html`, and the folder beside it if one is used; returns its path.

    Args:
        benchmark: says what came of each question; None: nobody does.
        codec: reads boxes from the text of predictions that have none of their own.
        max_images: images at most.
        pictures: one of `PICTURES`: everything in the file, or in a folder beside it, or no
            images; `auto` takes the folder for more than MOST_IN_ONE_FILE images.
        full_pictures: images that are in the folder with all their pixels, at most; none of them
            for `file`.

    Raises:
        UserError: a file is missing or not what the contract says, an image cannot be read, or
            `notes` has an unknown key.
    """
    if unknown := sorted(set(inputs.notes) - set(NOTE_KEYS)):
        raise UserError(f"notes: unknown key {unknown[0]!r}: expected {', '.join(NOTE_KEYS)}")
    if pictures not in PICTURES:
        raise UserError(f"pictures {pictures!r}: expected one of {', '.join(PICTURES)}")
    tables.check_metrics(inputs.metrics)
    figures = _figures(inputs, benchmark)
    by_facts = benchmark is not None and benchmark.layout.by_facts
    cases, overview = collect_cases(
        inputs.references,
        inputs.predictions,
        max_images,
        benchmark,
        codec,
        mark_facts if by_facts else mark_words,
    )
    many = len(cases) > MOST_IN_ONE_FILE
    in_folder = pictures == "folder" or (many and pictures in ("auto", "none"))
    with writing(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        full = 0 if pictures == "file" else full_pictures
        content = _case_content(
            inputs, cases, figures["answering"], out_dir, pictures, in_folder, full
        )
        html = _render(
            **figures,
            **content,
            title=title,
            citation=benchmark.layout.citation if benchmark else "",
            reading=benchmark.layout.reading if benchmark else "",
            overview=overview,
            terms=about_terms(overview.datasets),
            shown=len(cases),
            by_facts=by_facts,
            pictures=pictures,
            policy=_FOLDER_POLICY
            if in_folder
            else _PICTURES_POLICY
            if content["has_full"]
            else _FILE_POLICY,
        )
        path = out_dir / "index.html"
        replace_text(path, html)
    return path


def _figures(inputs: Inputs, benchmark: Benchmark[Any] | None) -> dict[str, Any]:
    """Everything on the page that is of all questions together."""
    scored = tables.ordered_systems(inputs.metrics)
    systems = _system_views([*scored, *(n for n in inputs.predictions if n not in scored)])
    by_name = {system.name: system for system in systems}
    seen = inputs.notes.get("classes_seen_by_base") or []
    parts: list[tables.Section] = []
    for number, (heading, text) in enumerate(inputs.tables.items()):
        for part in tables.sections(text, f"tables-{number}", scored, seen):
            part.title = f"{heading}: {part.title}".rstrip(": ") if heading else part.title
            parts.append(part)
    # comparisons.json has them too, and more exactly.
    parts = [part for part in parts if not part.title.endswith("Systems compared")]
    looks = {system.name: Look(system.colour, _DASHES[system.style]) for system in systems}
    first, further = system_charts(inputs.curves, looks)
    log = inputs.training_log
    training, absent = charts(log) if log is not None else ([], [])
    notes = inputs.notes
    return {
        "by_name": by_name,
        "truth": _TRUTH,
        "scored": [by_name[name] for name in scored],
        "answering": [by_name[name] for name in inputs.predictions],
        "ranked": ranked_system(list(inputs.predictions)),
        "headlines": tables.headlines(
            benchmark.layout.headlines if benchmark else (), inputs.metrics, scored
        ),
        "tables": [part for part in parts if not part.broken_down],
        "breakdowns": [part for part in parts if part.broken_down],
        "comparisons": tables.comparisons(inputs.comparisons),
        "all_metrics": tables.all_metrics(inputs.metrics, scored),
        "score_curves": first,
        "more_curves": further,
        "training": training,
        "training_absent": absent,
        "has_log": log is not None,
        "seen": seen,
        "remarks": notes.get("remarks") or [],
        "missing": notes.get("missing") or [],
        "run": _rows(notes.get("run") or {}),
        "score": _rows(notes.get("score") or {}),
        "method": _method(notes.get("score") or {}),
    }


def _case_content(
    inputs: Inputs,
    cases: Sequence[Case],
    systems: Sequence[_SystemView],
    out_dir: Path,
    pictures: str,
    in_folder: bool,
    full: int,
) -> dict[str, Any]:
    """Everything on the page that is of single questions; writes the folder, if one is used."""
    folder = empty_folder(out_dir, in_folder)
    data = CaseData(cases, list(inputs.predictions))
    if pictures == "none":
        drawn = no_pictures(cases)
    elif in_folder:
        drawn = picture_files(cases, inputs.image_root, folder, full)
    else:
        texts = sum(len(script_json(part)) for part in data.parts(no_pictures(cases)))
        texts += len(script_json(data.index())) + sum(map(len, viewer_parts()))
        drawn = inline_pictures(cases, inputs.image_root, texts, folder, full)
    parts: list[Markup] = []
    has_full = False
    for number, part in enumerate(data.parts(drawn)):
        has_full = has_full or any("full" in one for one in part)
        if in_folder:
            write_part(folder, number, part)
        else:
            parts.append(Markup(script_json(part)))
    answers = [a for case in cases for q in case.questions for a in q.answers.values()]
    judged = any(answer.outcome.right is not None for answer in answers)
    index = data.index() | {
        "judged": judged,
        "kinds": KINDS,
        "folder": FOLDER if in_folder else None,
        "truth": asdict(_TRUTH),
        "systems": [asdict(system) for system in systems],
    }
    return {
        "index": Markup(script_json(index)),
        "parts": parts,
        "has_full": has_full,
        "judged": judged,
        "kinds": {
            bit: told
            for bit, told in KINDS.items()
            if any(answer.errors & bit for answer in answers)
        },
        "boxed": any(answer.boxes for answer in answers),
        "types": index["types"],
        "subjects": index["subjects"],
    }


def _render(**values: Any) -> str:
    html = template(str(__package__), "page.html.j2").render(
        **values,
        style=Markup(read_packaged("cxrjax.apps", "page.css")),
        script=Markup(read_packaged(str(__package__), "page_cases.js")),
        taking=Markup(read_packaged(str(__package__), "page_taking.js")),
        viewer=viewer_parts(),
        few=FEW,
        undefined=UNDEFINED,
        significant=tables.SIGNIFICANT,
        sample_seed=SAMPLE_SEED,
        same_iou=SAME_IOU,
    )
    return html.lstrip() + "\n"


def _system_views(names: Sequence[str]) -> list[_SystemView]:
    colours = system_colours(names)
    return [_SystemView(name, colours[name], 1 + i % 3) for i, name in enumerate(names)]


def _rows(content: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A JSON object as (dotted key, value) rows."""
    rows = []
    for key, value in content.items():
        if isinstance(value, Mapping):
            rows += _rows(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            rows.append((f"{prefix}{key}", text))
    return rows


def _method(score: Mapping[str, Any]) -> str:
    """Describes ground truth and intervals from score.json; empty without it."""
    sentences = []
    if mode := score.get("gt_mode"):
        sentences.append(f"Ground truth: {mode}.")
    bootstrap = score.get("bootstrap")
    if isinstance(bootstrap, Mapping) and {"confidence", "resamples", "seed"} <= bootstrap.keys():
        try:
            clusters = " and ".join(map(str, bootstrap.get("clustered_by") or ["nothing"]))
            sentences.append(
                f"Intervals: {100 * bootstrap['confidence']:g} % by bootstrap, "
                f"{bootstrap['resamples']:,} resamples clustered by {clusters}, seed "
                f"{bootstrap['seed']}."
            )
        except (TypeError, ValueError):
            raise UserError(
                f"score.json: bootstrap is {shown_value(bootstrap)}: expected it as score writes "
                "it; score again"
            ) from None
    return " ".join(sentences)
