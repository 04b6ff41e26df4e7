"""Scene graphs of CXR-QBA against what people said of the same studies: what tags and boxes share.

This scores a data set, not a model: "references" are a published label table or box set, and a
"system" is a folder (or zip) of scene graphs, the release's or `native/` of a build. The release's
page has tables of both; theirs stand beside ours.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.cxr_qba_validation.human_labels import ClassTags
from cxrjax.errors import UserError
from cxrjax.evaluation import layout as layouts
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
from cxrjax.progress import progress_bar
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.records_io.quality import QualityLog

PROTOCOLS = (PAPER, STRICT)
LAYOUT = layouts.load_layout(str(__package__))
# Label set -> the page's row -> group or overlap -> value as printed.
PRINTED: Mapping[str, Mapping[str, Mapping[str, float]]] = LAYOUT.texts["printed"]
OURS = "CXR-QBA"
_TITLES = {"iou@0.3": "IoU ≥ 0.3", "iop@0.3": "IoP ≥ 0.3", "iot@0.3": "IoT ≥ 0.3"}
_UNIT = tables.Column("", {}, decimals=2)  # as the page prints them
# One study's numbers, by column; what is not there is 0.
Row = dict[str, float]


def tagged(graph: StudySceneGraph, which: ClassTags) -> list[NativeObservation]:
    """Returns the nodes that say that a class is there, by its tags or by what is more special."""
    return [
        node
        for node in graph.observations.values()
        if node.positive and which.tags & (_names(node) if which.special else _own(node))
    ]


def _own(node: NativeObservation) -> set[str]:
    return set(map(normalised, node.obs_entities))


def _names(node: NativeObservation) -> set[str]:
    """Returns a node's findings and those above them, by the definitions and the node itself."""
    above = map(load_definitions().finding_ancestors, _own(node))
    return _own(node).union(*above, map(normalised, node.obs_entities_parents))


@dataclasses.dataclass(frozen=True)
class Labels:
    """Labels that people gave, and the counts of a study beside them.

    Attributes:
        count: (study's digits, graph) -> its row, None where the labels have nothing of it.
        figures: {protocol: {metric: figure}}.
        pooled: column to add -> columns whose sum it is; these are all columns there are, so that
            what never happened is a zero.
        settings: `labels` names the set, `classes` lists its classes.
        wanted: studies to read; None for all.
        closing: settings that are known once all graphs are counted.
    """

    count: Callable[[str, StudySceneGraph], Row | None]
    figures: Mapping[str, dict[str, Figure | Estimate]]
    pooled: Mapping[str, Collection[str]]
    settings: Mapping[str, Any]
    wanted: Collection[str] | None = None
    closing: Callable[[], Mapping[str, Any]] = dict


@dataclasses.dataclass(frozen=True)
class DataValidation:
    """A comparison of scene graphs with people's labels; it reads no records and knows no model.

    Attributes:
        read: (labels, mode, log) -> labels.
        printed_as: metric of a printed value, {} in place of its group or overlap.
        by_class: metric -> heading of the tables by class; {} in place of the class.
        protocols: those whose figures stand beside the page's.
        about: settings -> the sentences that tables.md opens with.
    """

    name: str
    title: str
    heading: str
    gt_modes: tuple[str, ...]
    read: Callable[[Path, str, QualityLog], Labels]
    printed_as: str
    by_class: Mapping[str, str]
    protocols: Sequence[str]
    about: Callable[[Mapping[str, Any]], str]
    layout: layouts.Layout = LAYOUT

    def score_files(
        self, references: Path, predictions: Mapping[str, Path], options: ScoreOptions
    ) -> Scores:
        """Figures of several sets of scene graphs.

        Raises:
            UserError: a file or an option is unusable, or no study is in both.
        """
        check_options(self.name, self.gt_modes, (), options)
        quality = QualityLog()
        labels = self.read(references, options.gt_mode, quality)
        rows: dict[str, dict[str, Row]] = {}
        patients: dict[str, str] = {}
        problems: dict[str, dict[str, int]] = {}
        for name, path in predictions.items():
            rows[name], problems[name] = _count(path, references, labels, patients)
        studies = sorted(patients)
        counted = {
            name: Counted(_columns(found, studies, labels.pooled), labels.figures, problems[name])
            for name, found in rows.items()
        }
        datasets = ["cxr_qba", *(["ms_cxr"] if labels.settings["labels"] == "MS-CXR" else [])]
        sha256 = None if references.is_dir() else file_sha256(references)
        about = {
            "benchmark": self.name,
            **labels.settings,
            "labels_set_aside": {reason: n for reason, n in quality.counts().items() if n},
            "datasets": datasets,
            "data_terms": terms_json(datasets),
            "studies": {name: len(found) for name, found in rows.items()},
            "labels_file": {"name": references.name, "sha256": sha256},
            "scene_graphs": {name: str(path) for name, path in predictions.items()},
            **labels.closing(),
        }
        compared = {
            protocol: [metric for metric, figure in named.items() if metric.endswith("/micro")]
            for protocol, named in labels.figures.items()
        }
        clusters = [("patient", patients[study]) for study in studies]
        return make_scores(counted, clusters, about, options, compared=compared)

    def markdown(self, scores: Scores) -> str:
        """tables.md, with the sets of scene graphs compared."""
        settings = scores.settings
        studies = ", ".join(f"{n:,} ({name})" for name, n in settings["studies"].items())
        how = str(LAYOUT.texts["how"]).format(
            found=studies, intervals=tables.about_intervals(settings)
        )
        labels = f"Labels: {settings['labels']}, {len(settings['classes'])} classes"
        parts = [
            f"# {self.title}\n\n{labels}{self.about(settings)} {how}\n",
            f"## {self.heading}\n\n{self._beside(scores)}",
            *(
                f"## By class, {system}\n\n{self._classes(scores, system)}"
                for system in scores.figures
            ),
            _problems(scores),
        ]
        return with_comparisons("\n".join(parts), scores)

    def rows(self, scores: Scores) -> list[dict[str, Any]]:
        """The cells of tables.csv."""
        labels = scores.settings["labels"]
        printed = PRINTED[labels][OURS].items()
        values = {self.printed_as.format(key): value for key, value in printed}
        return layouts.all_figures(scores, lambda metric: labels, values)

    def _beside(self, scores: Scores) -> str:
        """The page's rows, ours, and the difference from its own scene graphs' row."""
        printed = PRINTED[scores.settings["labels"]]
        metrics = {name: self.printed_as.format(name) for name in printed[OURS]}
        lines = [["Scene graphs", "Protocol", *(_TITLES.get(name, name) for name in metrics)]]
        for row, values in printed.items():
            cells = [f"{values[name]:.2f}" for name in metrics]
            lines.append([f"{row} (the page)", "as printed", *cells])
        for system, figures in scores.figures.items():
            for protocol in self.protocols:
                ours = [figures[protocol].get(metric) for metric in metrics.values()]
                lines.append([system, protocol, *map(_with_n, ours)])
                if protocol == PAPER:
                    pairs = zip(ours, printed[OURS].values(), strict=True)
                    differences = [
                        tables.signed(_UNIT, None if value is None else value - theirs)
                        for figure, theirs in pairs
                        for value in [figure.value if figure else None]
                    ]
                    lines.append([f"{system} − {OURS}", "difference", *differences])
        return grid(lines)

    def _classes(self, scores: Scores, system: str) -> str:
        figures = scores.figures[system][PAPER]
        lines = [["Class", *self.by_class.values()]]
        for name in (*scores.settings["classes"], "micro"):
            found = (figures.get(metric.format(name)) for metric in self.by_class)
            lines.append([name, *map(_with_n, found)])
        return f"{grid(lines)}\nIn italics: fewer than {tables.FEW}.\n"


def _count(
    path: Path, labels_file: Path, labels: Labels, patients: dict[str, str]
) -> tuple[dict[str, Row], dict[str, int]]:
    """Counts one set of scene graphs; returns study -> row, and what could not be used."""
    quality = QualityLog()
    rows: dict[str, Row] = {}
    for study, graph in _studies(path, labels.wanted, quality):
        if (row := labels.count(study, graph)) is not None:
            rows[study] = row
            patients[study] = graph.patient_id
    if not rows:
        raise UserError(
            f"{path}: no study of {labels_file} is among its scene graphs; expected the data set "
            "that the labels are of"
        )
    problems = {f"set_aside/{reason}": n for reason, n in quality.counts().items() if n}
    if labels.wanted is not None:
        missing = set(labels.wanted) - rows.keys()
        problems["labelled_studies_not_in_the_data_set"] = len(missing)
    return rows, problems


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
        # As label tables have it: s50414267 is 50414267.
        numbered = {key: key[1].strip().removeprefix("s") for key in keys}
        keys = [key for key in keys if wanted is None or numbered[key] in wanted]
        for key in progress_bar(keys, desc=f"reading {path.name}", unit="study"):
            graph, _ = files.read(key)
            if graph is not None:
                yield numbered[key], graph


def _problems(scores: Scores) -> str:
    """Lists what was set aside or is missing, of scene graphs and labels."""
    lines = [["What was set aside or is missing", *scores.problems]]
    for name in dict.fromkeys(name for counts in scores.problems.values() for name in counts):
        lines.append([name, *(str(counts.get(name, 0)) for counts in scores.problems.values())])
    for name, count in scores.settings["labels_set_aside"].items():
        lines.append([f"labels: {name}", *(str(count) for _ in scores.problems)])
    return f"## Problems\n\n{grid(lines)}"


def _with_n(figure: Estimate | None) -> str:
    """A cell with n; a dash where undefined."""
    if figure is None or figure.value is None:
        return UNDEFINED
    return tables.cell_with_n(_UNIT, figure)
