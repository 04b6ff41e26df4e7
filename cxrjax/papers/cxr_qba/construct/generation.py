"""Questions of a study from its scene graph, by the four strategies.

Templates are the project's own. Answers rest on what the report says; what it does not speak of is
answered as not mentioned, neither yes nor no. Where the graph can't vouch for an answer, no
question is asked.
"""

from collections.abc import Callable, Iterator, Sequence

from cxrjax.papers.cxr_qba.construct import phrases
from cxrjax.papers.cxr_qba.construct.checks import overlap
from cxrjax.papers.cxr_qba.construct.phrases import CERTAINTIES
from cxrjax.papers.cxr_qba.construct.sampling import MentionCounts, sample, unmentioned_findings
from cxrjax.papers.cxr_qba.construct.wording import QuestionMaker, from_observation, number_answers
from cxrjax.papers.cxr_qba.native import (
    NativeObservation,
    NativeQuestion,
    StudyQuestions,
    StudySceneGraph,
)
from cxrjax.radiology_text.definitions import Definitions
from cxrjax.radiology_text.english import capital, join

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
# Asked about devices where the report speaks of none.
_DEVICE_REGIONS = ("cardiac silhouette", "mediastinum")
# What is said of heart and lungs holds for no region in these.
_NOT_CARDIOPULMONARY = frozenset(("bones", "soft tissues", "abdomen", "diaphragm"))
_CARDIOPULMONARY = "cardiopulmonary abnormality"
# How many a study is asked about beyond what its report mentions; ours.
RANDOM_REGIONS = 3
RANDOM_FINDINGS = 3
# Not organ systems: asked about by types of their own.
_NOT_SYSTEMS = ("general", "devices", "imaging")
# "Devices" as such, then kinds of them: each asked about where the report speaks of devices.
_ALL_DEVICES = "devices"
_DEVICE_KINDS = {
    "tubes": ("endotracheal tube", "tracheostomy tube", "enteric tube", "chest tube"),
    "lines": ("central venous catheter", "pulmonary artery catheter"),
    "cardiac devices": ("cardiac pacemaker", "prosthetic valve"),
    "surgical materials": ("sternotomy wires", "surgical clips", "surgical material", "stent"),
}
# Denials of these deny any abnormality of what they are said of.
_ANY_ABNORMALITY = frozenset(
    (
        "cardiopulmonary abnormality",
        "lung disease",
        "bone abnormality",
        "soft tissue abnormality",
        "rib abnormality",
        "esophageal abnormality",
    )
)
# Answers by the least sure denial; of these, nothing but what is acute is denied.
_ACUTE_ONLY = "acute"


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
        *made.all_devices(),
        *made.images_quality(),
        *made.regions(),
        *made.findings(),
    ]
    for number, question in enumerate(questions, start=1):
        question.question_id = f"Q{number:04d}"
        number_answers(question.answers, f"{question.question_id}_A")
    return StudyQuestions(patient_id=graph.patient_id, study_id=graph.study_id, questions=questions)


class _Generator(QuestionMaker):
    """Attributes: `said`, top-level observations of the report; `assumed`, the default ones."""

    def __init__(
        self, graph: StudySceneGraph, definitions: Definitions, counts: MentionCounts, seed: int
    ) -> None:
        super().__init__(graph, seed)
        self.definitions = definitions
        self.counts = counts
        self.said = [o for o in self.top if o.from_report]
        self.assumed = [o for o in self.top if not o.from_report]
        self.abnormalities = [o for o in self.said if _of(o, "abnormality", "acquisition")]
        self.devices = [o for o in self.said if _of(o, "device")]
        self.artifacts = [o for o in self.said if _of(o, "artifact")]

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
        observed = [o for o in self.said if not _of(o, "artifact")]
        if observed:
            yield self.question("B01_describe_all", [*self.say(observed), *self._unmentioned()])
        yield from self.quartet(
            self.abnormalities,
            ("B02_describe_abnormal", "B03_is_abnormal", "B04_is_normal"),
            "",
            {},
            lambda denials: self.denial_of(denials, self._covers("thorax")),
        )
        systems = {s for o in self.abnormalities for s in o.obs_subcategories}
        unsaid = {s for o in self.assumed for s in o.obs_subcategories} - systems
        for system in sorted((systems | unsaid) - set(_NOT_SYSTEMS)):
            values = _grammar(system, subcat=system)
            kind = "B08_describe_subcat"
            if system in unsaid:
                answer = self.template(kind, "subcat_not_mentioned", False, values)
                yield self.question(kind, [answer], values)
                continue
            of_system = [o for o in self.abnormalities if system in o.obs_subcategories]
            yield self.question(kind, self.say(of_system), values)
            yield from self.quartet(
                of_system,
                ("B09_describe_abnormal_subcat", "B10_is_abnormal_subcat", "B11_is_normal_subcat"),
                "subcat_",
                values,
                lambda denials: self.denial_of(denials, lambda o: True),
            )

    def _unmentioned(self) -> list:
        """One sentence on all that is assumed, as related information."""
        answers = self.say(self.assumed, "related_information")
        if len(answers) < 2:
            return answers
        names = [name for o in self.assumed for name in o.obs_entities]
        findings = [self.definitions.findings[name] for name in names]
        name, text = phrases.describe_unmentioned(findings)
        first = answers[0].model_copy(update={"text": text, "name_tag": name})
        for field in ("regions", "obs_entities", "obs_entities_parents", "obs_subcategories"):
            values = [value for answer in answers for value in getattr(answer, field)]
            setattr(first, field, list(dict.fromkeys(values)))
        return [first]

    def all_devices(self) -> Iterator[NativeQuestion]:
        """Devices as such; where the report speaks of any, each kind of them too."""
        kinds = {_ALL_DEVICES: (), **(_DEVICE_KINDS if self.devices else {})}
        for kind, names in kinds.items():
            of_kind = [
                o
                for o in self.devices
                if not names or {*o.obs_entities, *o.obs_entities_parents} & {*names}
            ]
            values = {"devices": kind, "Devices": capital(kind)}
            yield from self.there_or_not(
                ("B12_describe_device", "B13_has_devices"),
                "devices_",
                _present(of_kind),
                [o for o in of_kind if not o.positive],
                values,
            )

    def there_or_not(
        self,
        kinds: tuple[str, str],
        prefix: str,
        present: Sequence[NativeObservation],
        denials: Sequence[NativeObservation],
        values: dict[str, str],
    ) -> Iterator[NativeQuestion]:
        """Describe what is there, and whether there is any; templates' names begin with prefix."""
        describe, has = kinds
        if present:
            yield self.question(describe, self.say(present), values)
            if any(o.certainty != "uncertain" for o in present):
                yield self.yes_no(has, f"{prefix}yes", True, present, values)
            return
        none = self.template(describe, f"{prefix}none", False, values, self.say(denials, "details"))
        yield self.question(describe, [none], values)
        yield self.yes_no(has, f"{prefix}no", False, denials, values)

    def images_quality(self) -> Iterator[NativeQuestion]:
        """Acquisition and artifacts."""
        acquired = [o for o in self.said if _of(o, "acquisition") and o.positive]
        if acquired:
            yield self.question("B14_describe_acquisition", self.say(acquired))
        yield from self.there_or_not(
            ("B15_describe_imaging_artifacts", "B16_has_imaging_artifacts"),
            "artifacts_",
            _present(self.artifacts),
            [],
            {},
        )

    def quartet(
        self,
        about: Sequence[NativeObservation],
        kinds: tuple[str, str, str],
        prefix: str,
        values: dict[str, str],
        denial_of: Callable[[Sequence[NativeObservation]], str],
    ) -> Iterator[NativeQuestion]:
        """Describe what is abnormal; is it abnormal; is it normal; a denial no surer than said.

        Templates' names begin with `prefix`. Skipped where all that is there is uncertain, or what
        is acute alone is denied: neither yes nor no would be right.
        """
        describe, abnormal, normal = kinds
        none = f"{prefix}none" if prefix else "none_abnormal"
        present = [o for o in _present(about) if _of(o, "abnormality")]
        denials = [o for o in about if not o.positive and _of(o, "abnormality")]
        if present:
            yield self.question(describe, self.say(present), values)
            if any(o.certainty != "uncertain" for o in present):
                yield self.yes_no(abnormal, f"{prefix}abnormal_yes", True, present, values)
                yield self.yes_no(normal, f"{prefix}normal_no", False, present, values)
            return
        if not denials:
            return
        sure = denial_of(denials)
        if sure == _ACUTE_ONLY:
            details = self.say(denials, "details")
            answer = self.template(describe, f"{none}_acute", False, values, details)
            yield self.question(describe, [answer], values)
            return
        lasting = _lasting(denials)
        details = self.say(lasting, "details")
        answer = self.template(describe, none, False, values, details, sure)
        yield self.question(describe, [answer], values)
        yield self.yes_no(abnormal, f"{prefix}abnormal_no", False, lasting, values, sure)
        yield self.yes_no(normal, f"{prefix}normal_yes", True, lasting, values, sure)

    def denial_of(
        self,
        denials: Sequence[NativeObservation],
        covers: Callable[[NativeObservation], bool],
    ) -> str:
        """How sure it is that there is no abnormality, or that only what is acute is denied.

        Args:
            covers: says of a denial whether it speaks of all of what is asked about.
        """
        lasting = _lasting(denials)
        if not lasting:
            return _ACUTE_ONLY
        if not any(_denies_any(o) and covers(o) for o in lasting):
            return "likely"  # this and that is not there, of others nothing is said
        return max((o.certainty or "certain" for o in lasting), key=CERTAINTIES.index)

    def _covers(self, region: str) -> Callable[[NativeObservation], bool]:
        wide = {region, *self.definitions.region_ancestors(region)}
        both = [
            {*self.definitions.sides[name].values()} for name in wide & {*self.definitions.sides}
        ]

        def covers(denial: NativeObservation) -> bool:
            names = {*denial.region_names}
            return not names or bool(wide & names) or any(sides <= names for sides in both)

        return covers

    # ---- C ----

    def regions(self) -> Iterator[NativeQuestion]:
        mentioned = list(
            dict.fromkeys(
                name
                for node in self.nodes
                if node.from_report
                for own in node.region_names
                for name in (own, *self.definitions.region_ancestors(own))
            )
        )
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
        outer = {region, *self.definitions.region_ancestors(region)} & _NOT_CARDIOPULMONARY
        for node in self.said:
            if outer and _CARDIOPULMONARY in node.obs_entities and not node.positive:
                continue
            names = node.region_names
            within = any(
                name == region or region in self.definitions.region_ancestors(name)
                for name in names
            )
            if within:
                inside.append(node)
            elif overlap(names, [region], self.definitions):
                around.append(node)
        values = _grammar(phrases.shown(region), region=phrases.shown(region))
        about = [o for o in inside if _of(o, "abnormality", "acquisition")]
        open_question = any(o.positive and _of(o, "abnormality") for o in around)
        # A denial of the whole holds for its parts.
        wider = [o for o in around if not o.positive and _of(o, "abnormality")]
        spoken = about or ([] if open_question else wider)
        kind = "C01_describe_region"
        if spoken:
            yield self.question(kind, self.say(spoken), values)
            if not (open_question and not _present(about)):
                yield from self.quartet(
                    [*about, *filter(_denies_any, wider)] if about else wider,
                    (
                        "C02_describe_abnormal_region",
                        "C03_is_abnormal_region",
                        "C04_is_normal_region",
                    ),
                    "region_",
                    values,
                    lambda denials: self._denial_of_region(region, about, denials),
                )
        elif not open_question and region in DEFAULT_REGIONS:
            answer = self.template(kind, "region_not_mentioned", False, values)
            yield self.question(kind, [answer], values)
        devices = [o for o in inside if _of(o, "device") and o.positive]
        may_be_here = any(_of(o, "device") for o in around)
        if devices or (not may_be_here and (self.devices or region in _DEVICE_REGIONS)):
            yield from self.there_or_not(
                ("C07_describe_region_device", "C08_has_region_device"),
                "region_devices_",
                devices,
                [],
                values,
            )

    def _denial_of_region(
        self,
        region: str,
        about: Sequence[NativeObservation],
        denials: Sequence[NativeObservation],
    ) -> str:
        """As `denial_of`; findings denied of what a region lies in say little of the region."""
        covers = self._covers(region)
        sure = self.denial_of(denials, covers)
        if sure == _ACUTE_ONLY:
            return sure
        lasting = _lasting(denials)
        near = any(_denies_any(o) and covers(o) for o in lasting)
        if not near and not any(o in about for o in lasting):
            return "uncertain"
        whole = any(
            _denies_any(o) and covers(o) and not {*o.region_names} <= {"thorax"} for o in lasting
        )
        # "A normal chest" was not said with one segment in mind.
        return sure if whole or region == "thorax" else max(sure, "likely", key=CERTAINTIES.index)

    # ---- D ----

    def findings(self) -> Iterator[NativeQuestion]:
        names = list(
            dict.fromkeys(
                name for node in self.nodes if node.from_report for name in node.obs_entities
            )
        )
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
        a_finding = phrases.noun([finding], [], article=True)
        values = {
            **_grammar(name, finding=phrases.shown(name)),
            "a_finding": a_finding,
            "A_finding": capital(a_finding),
        }
        said = [o for o in self.nodes if o.from_report]
        own = [o for o in said if name in {*o.obs_entities, *o.obs_entities_parents}]
        present = _present(own)
        # What another of them is taken for stands below that one.
        below = {child for o in present for child in self.graph.children(o.obs_id)}
        present = [o for o in present if o.obs_id not in below]
        if not present:
            denials = [o for o in own if not o.positive and name in o.obs_entities]
            whole = _lasting(denials)
            if denials and not whole:
                return  # only what is acute is denied
            sure = None
            if not denials:
                # What denies the general denies the special, though it was not said of it.
                above = set(self.definitions.finding_ancestors(name))
                whole = _lasting(
                    [o for o in said if not o.positive and above & set(o.obs_entities)]
                )
                sure = "likely"
            details = self.say(whole, "details")
            none = self.template(kinds[0], "finding_none", False, values, details, sure)
            yield self.question(kinds[0], [none], values)
            yield self.yes_no(kinds[1], "finding_no", False, whole, values, sure)
            return
        yield self.question(kinds[0], self.say(present), values)
        sure_of = any(o.certainty != "uncertain" for o in present)
        certainty = min((o.certainty or "certain" for o in present), key=CERTAINTIES.index)
        yield self.yes_no(
            kinds[1],
            "finding_yes" if sure_of else "finding_maybe",
            True,
            present,
            values,
            certainty,
        )
        placed = [o for o in present if o.regions and not o.default_regions]
        if placed:
            where = join(list(dict.fromkeys(place for o in placed for place in _places(o))))
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
            grades = list(dict.fromkeys(_severity(o) for o in graded))
            answer = self.template(
                kind,
                "finding_severity",
                True,
                {**values, "severity": join(grades)},
                self.say(graded, "details"),
                certainty,
            )
            yield self.question(kind, [answer], values)


def _grammar(name: str, **about: str) -> dict[str, str]:
    """What a template is filled with, with the verb after a name."""
    verb = phrases.verb(name)
    return {**about, "is": verb, "Is": verb.capitalize()}


def _of(observation: NativeObservation, *categories: str) -> bool:
    return any(category in categories for category in observation.obs_categories)


def _present(observations: Sequence[NativeObservation]) -> list[NativeObservation]:
    return [o for o in observations if o.positive]


def _lasting(denials: Sequence[NativeObservation]) -> list[NativeObservation]:
    """Those that deny more than what is acute."""
    kind, value = phrases.ACUTE
    return [o for o in denials if value not in o.modifiers.get(kind, [])]


def _denies_any(denial: NativeObservation) -> bool:
    """Says whether it denies any abnormality of what it is said of, not this or that alone."""
    return phrases.calls_normal(denial.name) or bool(_ANY_ABNORMALITY & set(denial.obs_entities))


def _places(observation: NativeObservation) -> Iterator[str]:
    """`the trachea, 4 cm above the carina`, for each region."""
    for entry in observation.regions:
        measured = "".join(f", {distance}" for distance in entry.distances)
        yield f"the {phrases.shown(entry.region)}{measured}"


def _severity(observation: NativeObservation) -> str:
    return " to ".join(observation.modifiers["severity"][:2])
