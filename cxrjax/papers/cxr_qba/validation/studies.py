"""Scene graphs of CXR-QBA against what people said of the same studies: what tags and boxes share.

This scores a data set, not a model: "references" are a published label table or box set, and a
"system" is a folder (or zip) of scene graphs, the release's or `native/` of a build.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from cxrjax.errors import UserError
from cxrjax.files import file_sha256
from cxrjax.metrics.bootstrap import Estimate, Figure
from cxrjax.papers.cxr_qba.native import NativeObservation, StudySceneGraph
from cxrjax.papers.cxr_qba.study_files import SUFFIXES, StudyFiles
from cxrjax.papers.cxr_qba.truth import normalised
from cxrjax.papers.cxr_qba.validation.human_labels import ClassTags
from cxrjax.radiology_text.definitions import Definitions, load_definitions
from cxrjax.records_io.quality import QualityLog
from cxrjax.scoring.scores import PAPER, STRICT, Counted, ScoreOptions, Scores, make_scores

PROTOCOLS = (PAPER, STRICT)
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
    about = {
        **settings,
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
        for key in tqdm(keys, desc=f"reading {path.name}", unit="study", disable=None):
            graph, _ = files.read(key)
            if graph is not None:
                yield digits(key[1]), graph


def digits(study_id: str) -> str:
    """A study's number, as label tables have it: s50414267 is 50414267."""
    return study_id.strip().removeprefix("s")


def refuse_codec(options: ScoreOptions) -> None:
    """Raises `UserError`: scene graphs have boxes of their own."""
    if options.codec is not None:
        raise UserError(f"--codec={options.codec}: scene graphs have no box notation; leave it out")
