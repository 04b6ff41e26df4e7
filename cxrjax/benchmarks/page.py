"""The results page of VinDr-CXR-VQA: one HTML file with tables, curves and radiographs (V31).

Everything is inside the file: pictures as JPEG `data:` addresses, boxes as SVG over them, style and
script inline. It opens from a disk, an e-mail or a web server alike, and loads nothing.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from cxrjax.benchmarks import page_tables
from cxrjax.benchmarks.overlays import COLOURS, TRUTH, jpeg_data_uri, system_colours
from cxrjax.benchmarks.page_cases import (
    BEST,
    RANDOM,
    SAMPLE_SEED,
    WORST,
    Case,
    Overview,
    collect_cases,
)
from cxrjax.benchmarks.page_curves import Chart, charts
from cxrjax.benchmarks.page_pictures import VIEW_WIDTH, BoxView, box_layers
from cxrjax.benchmarks.tables import FEW, UNDEFINED
from cxrjax.codecs import Codec
from cxrjax.errors import UserError
from cxrjax.images import read_image

# Keys of `notes`; all are optional.
NOTE_KEYS = ("classes_seen_by_base", "remarks", "run", "score", "missing")
_GROUP_TITLES = {RANDOM: "random sample", WORST: "among the worst", BEST: "among the best"}
_BOX_TEXT = re.compile(r"(?:<loc[0-9_]+>)+")


@dataclass(frozen=True)
class _SystemView:
    """How a system looks; `style` is its number among the dash patterns of the style sheet."""

    name: str
    colour: str
    style: int


@dataclass(frozen=True)
class _CaseView:
    case: Case
    uri: str
    height: float
    layers: dict[str, list[BoxView]]


def write_page(
    out_dir: str | Path,
    title: str,
    metrics: Mapping[str, Any],
    references: str | Path,
    predictions: Mapping[str, str | Path],
    image_root: str | Path,
    training_log: str | Path | None,
    notes: Mapping[str, Any],
    max_images: int = 48,
    codec: Codec | None = None,
) -> Path:
    """Writes `out_dir/index.html` and returns its path.

    Args:
        title: heading of the page.
        metrics: content of metrics.json: `{system: {protocol: {metric: {value, ...}}}}`.
        references: records with answers (JSON Lines); only the lines shown are kept in memory.
        predictions: system -> its predictions file. `tuned` ranks the pictures, else the last one.
        image_root: folder that the records' `image_path` starts from.
        training_log: metrics.jsonl of the training, or None (the page then says so).
        notes: what no file says: `classes_seen_by_base` (marked in the table per class),
            `remarks` (sentences printed under the title), `run` (content of run.json), `score` (of
            score.json: how the figures came about), `missing` (optional files that were looked for
            and not found).
        max_images: radiographs at most; half of them are a random sample.
        codec: reads boxes from the text of predictions that have none of their own.

    Raises:
        UserError: a file is missing or not what the contract says, an image cannot be read, or
            `notes` has an unknown key.
    """
    if unknown := sorted(set(notes) - set(NOTE_KEYS)):
        raise UserError(f"notes: unknown key {unknown[0]!r}: expected {', '.join(NOTE_KEYS)}")
    page_tables.check_metrics(metrics)
    scored = page_tables.ordered_systems(metrics)
    files = {name: Path(path) for name, path in predictions.items()}
    cases, overview, ranked_system = collect_cases(Path(references), files, max_images, codec)
    drawn, absent = charts(training_log) if training_log is not None else ([], [])
    html = _render(
        title=title,
        systems=_system_views([*scored, *(name for name in files if name not in scored)]),
        scored=scored,
        metrics=metrics,
        cases=[_case_view(case, Path(image_root), list(files)) for case in cases],
        answering=list(files),
        overview=overview,
        ranked_system=ranked_system,
        curves=drawn,
        curves_absent=absent,
        has_log=training_log is not None,
        notes=notes,
    )
    path = Path(out_dir) / "index.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(html, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot write the page: {error.strerror}") from None
    return path


def _render(
    *,
    title: str,
    systems: Sequence[_SystemView],
    scored: Sequence[str],
    metrics: Mapping[str, Any],
    cases: Sequence[_CaseView],
    answering: Sequence[str],
    overview: Overview,
    ranked_system: str | None,
    curves: Sequence[Chart],
    curves_absent: Sequence[str],
    has_log: bool,
    notes: Mapping[str, Any],
) -> str:
    seen = notes.get("classes_seen_by_base") or []
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["mark_boxes"] = _mark_boxes
    questions = [question for view in cases for question in view.case.questions]
    by_name = {system.name: system for system in systems}
    html = environment.get_template("page.html.j2").render(
        title=title,
        by_name=by_name,
        truth=_SystemView(TRUTH, COLOURS[TRUTH], 0),
        scored=[by_name[name] for name in scored],
        answering=[by_name[name] for name in answering],
        headlines=page_tables.headlines(metrics, scored),
        tables=page_tables.paper_tables(metrics, scored),
        parse_table=page_tables.parse_table(metrics, scored),
        breakdowns=page_tables.breakdowns(metrics, scored, seen),
        all_metrics=page_tables.all_metrics(metrics, scored),
        few=FEW,
        undefined=UNDEFINED,
        cases=cases,
        classes=sorted({name for question in questions for name in question.classes}),
        types=sorted({question.question_type for question in questions}),
        groups=_GROUP_TITLES,
        overview=overview,
        ranked_system=ranked_system,
        sample_seed=SAMPLE_SEED,
        curves=curves,
        curves_absent=curves_absent,
        has_log=has_log,
        seen=seen,
        remarks=notes.get("remarks") or [],
        missing=notes.get("missing") or [],
        run=_rows(notes.get("run") or {}),
        score=_rows(notes.get("score") or {}),
        method=_method(notes.get("score") or {}),
        view_width=VIEW_WIDTH,
    )
    return html.lstrip() + "\n"


def _system_views(names: Sequence[str]) -> list[_SystemView]:
    colours = system_colours(names)
    return [_SystemView(name, colours[name], 1 + i % 3) for i, name in enumerate(names)]


def _case_view(case: Case, image_root: Path, systems: Sequence[str]) -> _CaseView:
    image = read_image(image_root / case.image_path)
    height = round(VIEW_WIDTH * image.shape[0] / image.shape[1], 1)
    return _CaseView(case, jpeg_data_uri(image), height, box_layers(case, systems, height))


def _mark_boxes(text: str) -> Markup:
    """The text, escaped, with its box notation set apart so that the words stand out."""
    pieces, end = [], 0
    for match in _BOX_TEXT.finditer(text):
        pieces += [escape(text[end : match.start()]), Markup("<code>{}</code>").format(match[0])]
        end = match.end()
    return Markup("").join([*pieces, escape(text[end:])])


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
    """How truth and intervals came about, from score.json; empty without it."""
    sentences = []
    if mode := score.get("gt_mode"):
        sentences.append(f"Ground truth: {mode}.")
    bootstrap = score.get("bootstrap")
    if isinstance(bootstrap, Mapping) and {"confidence", "resamples", "seed"} <= bootstrap.keys():
        clusters = " and ".join(map(str, bootstrap.get("clustered_by") or ["nothing"]))
        sentences.append(
            f"Intervals: {100 * bootstrap['confidence']:g} % by bootstrap, "
            f"{bootstrap['resamples']:,} resamples clustered by {clusters}, seed "
            f"{bootstrap['seed']}."
        )
    return " ".join(sentences)
