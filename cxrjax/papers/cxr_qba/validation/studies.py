"""Scene graphs of CXR-QBA against what people said of the same studies: what tags and boxes share.

This scores a data set, not a model: "references" are a published label table or box set, and a
"system" is a folder (or zip) of scene graphs, the release's or `native/` of a build. The release's
page has tables of both; theirs stand beside ours.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cxrjax.errors import UserError
from cxrjax.evaluation import tables
from cxrjax.evaluation.benchmark import check_options, with_comparisons
from cxrjax.evaluation.counted import PAPER, STRICT, Counted
from cxrjax.evaluation.scores import ScoreOptions, Scores, make_scores
from cxrjax.evaluation.text_tables import UNDEFINED, grid
from cxrjax.files import file_sha256
from cxrjax.metrics.bootstrap import Estimate, Figure
from cxrjax.paper import terms_json
from cxrjax.papers.cxr_qba.native import NativeObservation, StudySceneGraph
from cxrjax.papers.cxr_qba.study_files import SUFFIXES, StudyFiles
from cxrjax.papers.cxr_qba.truth import normalised
from cxrjax.papers.cxr_qba.validation.human_labels import ClassTags
from cxrjax.progress import progress_bar
from cxrjax.radiology_text.definitions import Definitions, load_definitions
from cxrjax.records_io.quality import QualityLog

PROTOCOLS = (PAPER, STRICT)
LAYOUT = tables.load_layout(str(__package__))
# Label set -> the page's row -> group or overlap -> value as printed.
PRINTED: Mapping[str, Mapping[str, Mapping[str, float]]] = LAYOUT.texts["printed"]
OURS = "CXR-QBA"
OVERLAPS = {"iou@0.3": "IoU ≥ 0.3", "iop@0.3": "IoP ≥ 0.3", "iot@0.3": "IoT ≥ 0.3"}
_UNIT = tables.Column("", {}, decimals=2)  # as the page prints them
# One study's numbers, by column; what is not there is 0.
Row = dict[str, float]
Named = dict[str, Figure | Estimate]


class Tags:
    """The findings that a study's nodes say are there, with those that are more general."""

    def __init__(self, graph: StudySceneGraph) -> None:
        definitions = load_definitions()
        self._nodes = [
            (node, *_names(node, definitions))
            for node in graph.observations.values()
            if node.positive
        ]

    def nodes(self, which: ClassTags) -> list[NativeObservation]:
        """The nodes that mean a class."""
        return [
            node
            for node, own, above in self._nodes
            if which.tags & (own | above if which.special else own)
        ]


def _names(node: NativeObservation, definitions: Definitions) -> tuple[set[str], set[str]]:
    """A node's findings, and those above them, by the definitions and by the node itself."""
    own = set(map(normalised, node.obs_entities))
    above = {general for name in own for general in definitions.finding_ancestors(name)}
    return own, above | set(map(normalised, node.obs_entities_parents))


def score_studies(
    labels: Path,
    graphs: Mapping[str, Path],
    options: ScoreOptions,
    count: Callable[[str, StudySceneGraph], Row | None],
    wanted: Collection[str] | None,
    figures: Mapping[str, Named],
    settings: Mapping[str, Any],
    pooled: Mapping[str, Collection[str]],
) -> Scores:
    """Figures of several sets of scene graphs on one set of labels.

    Args:
        labels: where the labels were read, for the settings.
        graphs: name -> folder or zip of scene graphs.
        count: (study's digits, graph) -> its row, None where the labels have nothing of it.
        wanted: studies to read; None for all.
        figures: {protocol: {metric: figure}}.
        pooled: column to add -> columns whose sum it is; these are all columns there are, so that
            what never happened is a zero.

    Raises:
        UserError: a folder is unusable, or no study is in both.
    """
    rows: dict[str, dict[str, Row]] = {}
    patients: dict[str, str] = {}
    problems: dict[str, dict[str, int]] = {}
    for name, path in graphs.items():
        quality = QualityLog()
        rows[name] = {}
        for study, graph in _studies(path, wanted, quality):
            if (row := count(study, graph)) is not None:
                rows[name][study] = row
                patients[study] = graph.patient_id
        if not rows[name]:
            raise UserError(
                f"{path}: no study of {labels} is among its scene graphs; expected the data set "
                "that the labels are of"
            )
        problems[name] = {f"set_aside/{r}": n for r, n in quality.counts().items() if n}
        if wanted is not None:
            missing = set(wanted) - rows[name].keys()
            problems[name]["labelled_studies_not_in_the_data_set"] = len(missing)
    studies = sorted(patients)
    counted = {
        name: Counted(_columns(found, studies, pooled), figures, problems[name])
        for name, found in rows.items()
    }
    clusters = [("patient", patients[study]) for study in studies]
    datasets = ["cxr_qba", *(["ms_cxr"] if settings["labels"] == "MS-CXR" else [])]
    about = {
        **settings,
        "datasets": datasets,
        "data_terms": terms_json(datasets),
        "studies": {name: len(found) for name, found in rows.items()},
        "labels_file": {
            "name": labels.name,
            "sha256": None if labels.is_dir() else file_sha256(labels),
        },
        "scene_graphs": {name: str(path) for name, path in graphs.items()},
    }
    compared = {
        protocol: [metric for metric, figure in named.items() if metric.endswith("/micro")]
        for protocol, named in figures.items()
    }
    return make_scores(counted, clusters, about, options, compared=compared)


def _columns(
    rows: Mapping[str, Row], studies: list[str], pooled: Mapping[str, Collection[str]]
) -> dict[str, np.ndarray]:
    members = dict.fromkeys(name for names in pooled.values() for name in names)
    columns = {
        name: np.array([rows.get(study, {}).get(name, 0.0) for study in studies])
        for name in members
    }
    for name, names in pooled.items():
        columns[name] = np.sum([columns[member] for member in names], axis=0)
    return columns


def _studies(
    path: Path, wanted: Collection[str] | None, quality: QualityLog
) -> Iterator[tuple[str, StudySceneGraph]]:
    """(study's digits, scene graph) of the studies wanted; None for all."""
    with StudyFiles(path, quality) as files:
        keys = [key for key, members in files.members.items() if SUFFIXES[0] in members]
        if not keys:
            raise UserError(
                f"{path}: no <study>{SUFFIXES[0]}; expected the release, or native/ of a build"
            )
        if wanted is not None:
            keys = [key for key in keys if digits(key[1]) in wanted]
        for key in progress_bar(keys, desc=f"reading {path.name}", unit="study"):
            graph, _ = files.read(key)
            if graph is not None:
                yield digits(key[1]), graph


def digits(study_id: str) -> str:
    """A study's number, as label tables have it: s50414267 is 50414267."""
    return study_id.strip().removeprefix("s")


@dataclass(frozen=True)
class DataValidation:
    """A comparison of scene graphs with people's labels; it reads no records and knows no model.

    Attributes:
        score: (labels, name -> scene graphs, options) -> figures.
        as_markdown: figures -> tables.md.
        printed_as: metric of a printed value, {} in place of its group or overlap.
    """

    name: str
    gt_modes: tuple[str, ...]
    score: Callable[[Path, Mapping[str, Path], ScoreOptions], Scores]
    as_markdown: Callable[[Scores], str]
    printed_as: str
    layout: tables.Layout = LAYOUT

    def score_files(
        self, references: Path, predictions: Mapping[str, Path], options: ScoreOptions
    ) -> Scores:
        """Figures of several sets of scene graphs.

        Raises:
            UserError: a file or an option is unusable.
        """
        check_options(self.name, self.gt_modes, (), options)
        return self.score(references, predictions, options)

    def markdown(self, scores: Scores) -> str:
        """tables.md, with the sets of scene graphs compared."""
        return with_comparisons(self.as_markdown(scores), scores)

    def rows(self, scores: Scores) -> list[dict[str, Any]]:
        """The cells of tables.csv."""
        labels = scores.settings["labels"]
        printed = PRINTED[labels][OURS].items()
        values = {self.printed_as.format(key): value for key, value in printed}
        return tables.all_figures(scores, lambda metric: labels, values)


def beside(scores: Scores, columns: Mapping[str, str], protocols: Sequence[str]) -> str:
    """The page's rows, ours, and the difference from its own scene graphs' row."""
    printed = PRINTED[scores.settings["labels"]]
    lines = [["Scene graphs", "Protocol", *(OVERLAPS.get(name, name) for name in columns)]]
    for row, values in printed.items():
        lines.append([f"{row} (the page)", "as printed", *(f"{values[n]:.2f}" for n in columns)])
    for system, figures in scores.figures.items():
        for protocol in protocols:
            ours = {name: figures[protocol].get(metric) for name, metric in columns.items()}
            lines.append([system, protocol, *(with_n(figure) for figure in ours.values())])
            if protocol == PAPER:
                differences = [_difference(f, printed[OURS][name]) for name, f in ours.items()]
                lines.append([f"{system} − {OURS}", "difference", *differences])
    return grid(lines)


def how(scores: Scores) -> str:
    """Describes the studies and intervals that the figures are based on."""
    studies = ", ".join(f"{n:,} ({name})" for name, n in scores.settings["studies"].items())
    return str(LAYOUT.texts["how"]).format(
        found=studies, intervals=tables.about_intervals(scores.settings)
    )


def problems_markdown(scores: Scores) -> str:
    """Lists what was set aside or is missing, of scene graphs and labels."""
    lines = [["What was set aside or is missing", *scores.problems]]
    for name in dict.fromkeys(name for counts in scores.problems.values() for name in counts):
        lines.append([name, *(str(counts.get(name, 0)) for counts in scores.problems.values())])
    for name, count in scores.settings["labels_set_aside"].items():
        lines.append([f"labels: {name}", *(str(count) for _ in scores.problems)])
    return f"## Problems\n\n{grid(lines)}"


def with_n(figure: Estimate | None) -> str:
    """A cell with n; a dash where undefined."""
    if figure is None or figure.value is None:
        return UNDEFINED
    return tables.cell_with_n(_UNIT, figure)


def _difference(figure: Estimate | None, printed: float) -> str:
    value = None if figure is None else figure.value
    return tables.signed(_UNIT, None if value is None else value - printed)
