"""Questions of a study from its scene graph, by the four strategies.

Templates are the project's own. Where the graph can't vouch for an answer, no question is asked.

Findings and regions that a report does not mention are asked about too. The release samples
something more, the more often it goes with positive findings and the less often with negative ones;
its formula is not published, `cxrjax_sampling_weight` is this project's.
"""

import collections
import dataclasses
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from cxrjax.papers.cxr_qba.construct import wording
from cxrjax.papers.cxr_qba.construct.checks import overlap
from cxrjax.papers.cxr_qba.construct.wording import QuestionMaker, from_observation, number_answers
from cxrjax.papers.cxr_qba.native import (
    NativeObservation,
    NativeQuestion,
    StudyQuestions,
    StudySceneGraph,
)
from cxrjax.radiology_text.definitions import Definitions
from cxrjax.radiology_text.english import join


def cxrjax_sampling_weight(positive: int, negative: int) -> float:
    """(positive + 1) / (negative + 1): this project's formula, not the release's."""
    return (positive + 1) / (negative + 1)


@dataclasses.dataclass
class MentionCounts:
    """Counts of findings and regions in positive and in negative observations."""

    positive: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    negative: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def add(self, graph: StudySceneGraph, definitions: Definitions) -> None:
        """Counts a study's observations; those that were only assumed do not count."""
        for observation in graph.observations.values():
            if not observation.from_report:
                continue
            counts = self.positive if observation.positive else self.negative
            counts.update({*observation.obs_entities, *observation.obs_entities_parents})
            regions = set(observation.region_names)
            for region in observation.region_names:
                regions.update(definitions.region_ancestors(region))
            counts.update(f"region/{region}" for region in regions)

    def merge(self, other: "MentionCounts") -> None:
        """Adds the counts of another part of the corpus."""
        self.positive.update(other.positive)
        self.negative.update(other.negative)

    def weight(self, name: str) -> float:
        """The sampling weight of a finding, or of a region under `region/<name>`."""
        return cxrjax_sampling_weight(self.positive[name], self.negative[name])

    def to_json(self) -> dict[str, Any]:
        """Counts and weights by name, for people."""
        names = sorted({*self.positive, *self.negative})
        return {
            name: {
                "positive": self.positive[name],
                "negative": self.negative[name],
                "weight": round(self.weight(name), 6),
            }
            for name in names
        }


def sample(
    candidates: Iterable[str],
    counts: MentionCounts,
    number: int,
    rng: random.Random,
    prefix: str = "",
) -> list[str]:
    """Up to `number` different candidates, drawn by weight without replacement.

    Args:
        prefix: what stands before a candidate's name in the counts ("region/").
    """
    # Of independent exponential waiting times, the shortest are such a sample.
    waits = {
        name: rng.expovariate(counts.weight(prefix + name)) for name in sorted(set(candidates))
    }
    return sorted(waits, key=lambda name: waits[name])[:number]


def unmentioned_findings(graph: StudySceneGraph, definitions: Definitions) -> Collection[str]:
    """Findings that may safely be called absent: neither they nor kin are mentioned.

    Kin of what is there are left out: under a "lung opacity", pneumonia is open, not absent.
    """
    named: set[str] = set()
    present: set[str] = set()
    for observation in graph.observations.values():
        named.update((*observation.obs_entities, *observation.obs_entities_parents))
        if observation.positive:
            present.update((*observation.obs_entities, *observation.obs_entities_parents))
    return [
        finding.name
        for finding in definitions.findings.values()
        if finding.category in ("abnormality", "device")
        and finding.name not in named
        and not any(parent in present for parent in definitions.finding_ancestors(finding.name))
    ]


# Asked about in every study; the release has such regions too, these are ours.
DEFAULT_REGIONS = (
    "lungs",
    "left lung",
    "right lung",
    "pleural spaces",
    "cardiac silhouette",
    "mediastinum",
    "bones",
)
# How many a study is asked about beyond what its report mentions; ours.
RANDOM_REGIONS = 3
RANDOM_FINDINGS = 3
# Not organ systems: asked about by types of their own.
_NOT_SYSTEMS = ("general", "devices", "imaging")


def generate_questions(
    graph: StudySceneGraph, definitions: Definitions, counts: MentionCounts, seed: int = 0
) -> StudyQuestions:
    """All questions of a study. A pure function: same arguments, same questions.

    Args:
        counts: of the corpus, for what to ask about that the report does not mention.
    """
    made = _Generator(graph, definitions, counts, seed)
    questions = [
        *made.indication(),
        *made.abnormal(),
        *made.regions(),
        *made.findings(),
    ]
    for number, question in enumerate(questions, start=1):
        question.question_id = f"Q{number:04d}"
        number_answers(question.answers, f"{question.question_id}_A")
    return StudyQuestions(patient_id=graph.patient_id, study_id=graph.study_id, questions=questions)


class _Generator(QuestionMaker):
    def __init__(
        self, graph: StudySceneGraph, definitions: Definitions, counts: MentionCounts, seed: int
    ) -> None:
        super().__init__(graph, seed)
        self.definitions = definitions
        self.counts = counts
        self.abnormalities = [o for o in self.top if _of(o, "abnormality", "acquisition")]
        self.devices = [o for o in self.top if _of(o, "device")]
        self.artifacts = [o for o in self.top if _of(o, "artifact")]

    # ---- A ----

    def indication(self) -> Iterator[NativeQuestion]:
        given = self.graph.indication
        if given is None or given.answer_for_indication is None or not given.indication_summary:
            return
        answer = from_observation(self.graph, given.answer_for_indication, "main_answer")
        answer.sub_answers = [
            from_observation(self.graph, self.graph.observations[obs_id], "details", level=1)
            for obs_id in given.associated_obs_ids
        ]
        values = {"indication": given.indication_summary.rstrip(". ")}
        yield self.question("A_indication", [answer], values, given.associated_obs_ids)

    # ---- B ----

    def abnormal(self) -> Iterator[NativeQuestion]:
        observed = [o for o in self.top if not _of(o, "artifact")]
        if observed:
            reported = [o for o in observed if o.from_report]
            assumed = [o for o in observed if not o.from_report]
            yield self.question(
                "B01_describe_all",
                [*self.say(reported), *self.say(assumed, "related_information")],
            )
        yield from self.quartet(
            self.abnormalities,
            ("B02_describe_abnormal", "B03_is_abnormal", "B04_is_normal"),
            ("none_abnormal", "abnormal_yes", "abnormal_no", "normal_yes", "normal_no"),
            {},
        )
        systems = {s for o in self.abnormalities for s in o.obs_subcategories}
        for system in sorted(systems - set(_NOT_SYSTEMS)):
            of_system = [o for o in self.abnormalities if system in o.obs_subcategories]
            values = {"subcat": system}
            yield self.question("B08_describe_subcat", self.say(of_system), values)
            yield from self.quartet(
                of_system,
                ("B09_describe_abnormal_subcat", "B10_is_abnormal_subcat", "B11_is_normal_subcat"),
                (
                    "subcat_none",
                    "subcat_abnormal_yes",
                    "subcat_abnormal_no",
                    "subcat_normal_yes",
                    "subcat_normal_no",
                ),
                values,
            )
        present = _present(self.devices)
        denied = [o for o in self.devices if not o.positive]
        if present:
            yield self.question("B12_describe_device", self.say(present))
            yield self.yes_no("B13_has_devices", "devices_yes", True, present, {})
        elif denied:
            yield self.yes_no("B13_has_devices", "devices_no", False, denied, {})
        acquired = [o for o in self.top if _of(o, "acquisition") and o.positive]
        if acquired:
            yield self.question("B14_describe_acquisition", self.say(acquired))
        limits = _present(self.artifacts)
        kind = "B15_describe_imaging_artifacts"
        if limits:
            yield self.question(kind, self.say(limits))
        else:
            yield self.question(kind, [self.template(kind, "artifacts_none", False, {})])
        name = "artifacts_yes" if limits else "artifacts_no"
        yield self.yes_no("B16_has_imaging_artifacts", name, bool(limits), limits, {})

    def quartet(
        self,
        about: Sequence[NativeObservation],
        kinds: tuple[str, str, str],
        names: tuple[str, str, str, str, str],
        values: dict[str, str],
    ) -> Iterator[NativeQuestion]:
        """Describe what is abnormal; is it abnormal; is it normal.

        Skipped where all that is there is uncertain: neither yes nor no would be right. "No" needs
        a denial in the report.
        """
        describe, abnormal, normal = kinds
        none, abnormal_yes, abnormal_no, normal_yes, normal_no = names
        present = [o for o in _present(about) if _of(o, "abnormality")]
        denials = [o for o in about if not o.positive]
        if present:
            yield self.question(describe, self.say(present), values)
            if any(o.certainty != "uncertain" for o in present):
                yield self.yes_no(abnormal, abnormal_yes, True, present, values)
                yield self.yes_no(normal, normal_no, False, present, values)
        elif any(o.from_report for o in denials):
            answer = self.template(describe, none, False, values, self.say(denials, "details"))
            yield self.question(describe, [answer], values)
            yield self.yes_no(abnormal, abnormal_no, False, denials, values)
            yield self.yes_no(normal, normal_yes, True, denials, values)

    # ---- C ----

    def regions(self) -> Iterator[NativeQuestion]:
        mentioned = list(self.graph.regions)
        names = list(dict.fromkeys([*DEFAULT_REGIONS, *mentioned]))
        others = [
            name
            for name, region in self.definitions.regions.items()
            if region.localized and name not in names
        ]
        names += sample(others, self.counts, RANDOM_REGIONS, self.rng("regions"), "region/")
        for name in names:
            yield from self.region(name)

    def region(self, region: str) -> Iterator[NativeQuestion]:
        # Of a region speaks what is said of it, of its parts, or of everywhere; what is said of the
        # region it lies in may or may not hold for it.
        inside, around = [], []
        for node in self.top:
            names = node.region_names
            within = any(
                name == region or region in self.definitions.region_ancestors(name)
                for name in names
            )
            if within:
                inside.append(node)
            elif overlap(names, [region], self.definitions):
                around.append(node)
        are = "are" if wording.is_plural(region) else "is"
        values = {"region": region, "are": are, "Are": are.capitalize()}
        about = [o for o in inside if _of(o, "abnormality", "acquisition")]
        open_question = any(o.positive and _of(o, "abnormality") for o in around)
        # A denial of the whole holds for its parts.
        wider = [o for o in around if not o.positive and _of(o, "abnormality")]
        if about or (wider and not open_question):
            spoken = about or wider
            yield self.question("C01_describe_region", self.say(spoken), values)
            if not (open_question and not _present(about)):
                yield from self.quartet(
                    spoken,
                    (
                        "C02_describe_abnormal_region",
                        "C03_is_abnormal_region",
                        "C04_is_normal_region",
                    ),
                    (
                        "region_none",
                        "region_abnormal_yes",
                        "region_abnormal_no",
                        "region_normal_yes",
                        "region_normal_no",
                    ),
                    values,
                )
        devices = [o for o in inside if _of(o, "device") and o.positive]
        if devices:
            yield self.question("C07_describe_region_device", self.say(devices), values)
            yield self.yes_no("C08_has_region_device", "region_devices_yes", True, devices, values)
        elif self.devices and not any(_of(o, "device") for o in around):
            # The report speaks of devices, and of none here.
            kind = "C07_describe_region_device"
            yield self.question(
                kind, [self.template(kind, "region_devices_none", False, values)], values
            )
            yield self.yes_no("C08_has_region_device", "region_devices_no", False, [], values)

    # ---- D ----

    def findings(self) -> Iterator[NativeQuestion]:
        names = list(dict.fromkeys(name for node in self.nodes for name in node.obs_entities))
        absent = unmentioned_findings(self.graph, self.definitions)
        names += sample(absent, self.counts, RANDOM_FINDINGS, self.rng("findings"))
        for name in names:
            finding = self.definitions.findings[name]
            if finding.category in ("abnormality", "device"):
                yield from self.finding(name, finding.category == "device")

    def finding(self, name: str, device: bool) -> Iterator[NativeQuestion]:
        kinds = (
            ("D05_describe_device", "D06_has_device", "D07_where_is_device")
            if device
            else ("D01_describe_finding", "D02_has_finding", "D03_where_is_finding")
        )
        finding = self.definitions.findings[name]
        values = {"finding": name, "a_finding": wording.noun([finding], [], article=True)}
        own = [o for o in self.nodes if name in {*o.obs_entities, *o.obs_entities_parents}]
        present = _present(own)
        denials = [o for o in own if not o.positive and name in o.obs_entities]
        whole = [o for o in denials if "acute" not in o.modifiers.get("temporal", [])]
        if denials and not whole and not present:
            return  # only what is acute is denied
        if not present:
            none = self.template(
                kinds[0],
                "finding_none",
                False,
                values,
                self.say(denials, "details"),
                None if denials else "uncertain",
            )
            yield self.question(kinds[0], [none], values)
            # Of what the report does not name, "no" is a guess.
            certainty = None if denials else "uncertain"
            yield self.yes_no(kinds[1], "finding_no", False, denials, values, certainty)
            return
        yield self.question(kinds[0], self.say(present), values)
        sure = any(o.certainty != "uncertain" for o in present)
        certainty = min((o.certainty or "certain" for o in present), key=wording.CERTAINTIES.index)
        yield self.yes_no(
            kinds[1], "finding_yes" if sure else "finding_maybe", True, present, values, certainty
        )
        placed = [o for o in present if o.regions and not o.default_regions]
        if placed:
            regions = list(dict.fromkeys(r for o in placed for r in o.region_names))
            where = join(["the " + region for region in regions])
            answer = self.template(
                kinds[2],
                "finding_where",
                True,
                {**values, "regions": where},
                self.say(placed, "details"),
                certainty,
            )
            yield self.question(kinds[2], [answer], values)
        graded = [o for o in present if o.modifiers.get("severity")]
        if graded and not device:
            kind = "D04_how_severe_is_finding"
            severity = join(
                list(dict.fromkeys(value for o in graded for value in o.modifiers["severity"]))
            )
            answer = self.template(
                kind,
                "finding_severity",
                True,
                {**values, "severity": severity},
                self.say(graded, "details"),
                certainty,
            )
            yield self.question(kind, [answer], values)


def _of(observation: NativeObservation, *categories: str) -> bool:
    return any(category in categories for category in observation.obs_categories)


def _present(observations: Sequence[NativeObservation]) -> list[NativeObservation]:
    return [o for o in observations if o.positive]
