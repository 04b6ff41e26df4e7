"""Questions of a study from its scene graph, by the release's four strategies (its types A to D).

Templates are the project's own. Answers rest on what the report says; what it does not mention is
answered as not mentioned, neither yes nor no. Where the graph cannot vouch for an answer, no
question is asked.
"""

from collections.abc import Iterator

from cxrjax.files import read_packaged
from cxrjax.papers.cxr_qba import native
from cxrjax.papers.cxr_qba.construct import phrases, wording
from cxrjax.papers.cxr_qba.construct.checks import overlap
from cxrjax.papers.cxr_qba.construct.sampling import MentionCounts, sample, unmentioned_findings
from cxrjax.papers.cxr_qba.construct.wording import Node, Nodes, least_sure
from cxrjax.radiology_text.definitions import SIDES, Finding
from cxrjax.radiology_text.english import capital, join

Questions = Iterator[native.NativeQuestion]

_DATA = read_packaged(str(__package__), "reference/questions.toml")
DEFAULT_REGIONS: tuple[str, ...] = tuple(_DATA["regions"]["default"])
_CARDIOPULMONARY = "cardiopulmonary abnormality"
_ANY_ABNORMALITY = frozenset(_DATA["findings"]["any_abnormality"])
# Regions and findings that a study is asked about beyond what its report mentions; ours.
RANDOM_REGIONS = 3
RANDOM_FINDINGS = 3
# In place of a certainty: only what is acute is denied.
_ACUTE_ONLY = "acute"


def generate_questions(
    graph: native.StudySceneGraph, counts: MentionCounts, seed: int = 0
) -> native.StudyQuestions:
    """Makes all questions of a study. A pure function: same arguments, same questions.

    Args:
        counts: of the corpus; they decide which unmentioned findings and regions are asked about.
    """
    made = _Generator(graph, counts, seed)
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
        wording.number_answers(question.answers, f"{question.question_id}_A")
    return native.StudyQuestions(
        patient_id=graph.patient_id, study_id=graph.study_id, questions=questions
    )


class _Generator(wording.QuestionMaker):
    """Attributes: `said`, top-level findings of the report; `assumed`, the default ones."""

    def __init__(self, graph: native.StudySceneGraph, counts: MentionCounts, seed: int) -> None:
        super().__init__(graph, seed)
        self.counts = counts
        self.reported = [o for o in self.nodes if o.from_report]
        # How the image was made is no finding of the chest.
        self.said = [o for o in self.top if o.from_report and not _is_technique(o)]
        self.assumed = [o for o in self.top if not o.from_report]
        self.abnormalities = [o for o in self.said if _of(o, "abnormality", "acquisition")]
        self.devices = [o for o in self.said if _of(o, "device")]

    # ---- A ----

    def indication(self) -> Questions:
        given = self.graph.indication
        if given is None or given.answer_for_indication is None or not given.indication_summary:
            return
        answer = wording.from_observation(self.graph, given.answer_for_indication, "main_answer")
        answer.sub_answers = [
            wording.from_observation(
                self.graph, self.graph.observations[obs_id], "details", level=1
            )
            for obs_id in given.associated_obs_ids
        ]
        values = {"indication": given.indication_summary.rstrip(". ")}
        yield self.question("A_indication", [answer], values, given.associated_obs_ids)

    # ---- B ----

    def abnormal(self) -> Questions:
        observed = [o for o in self.said if not _of(o, "artifact")]
        if observed:
            yield self.question("B01_describe_all", [*self.say(observed), *self._unmentioned()])
        yield from self.quartet("", self.abnormalities, {}, "thorax")
        systems = {s for o in self.abnormalities for s in o.obs_subcategories}
        unsaid = {s for o in self.assumed for s in o.obs_subcategories} - systems
        for system in sorted((systems | unsaid) - {*_DATA["findings"]["not_systems"]}):
            values = _grammar(system, subcat=system)
            kind = "B08_describe_subcat"
            if system in unsaid:
                yield self.by_template(kind, "subcat_not_mentioned", False, (), values)
                continue
            of_system = [o for o in self.abnormalities if system in o.obs_subcategories]
            yield self.question(kind, self.say(of_system), values)
            yield from self.quartet("subcat_", of_system, values)

    def _unmentioned(self) -> list[native.NativeAnswer]:
        """Returns one sentence on all that is assumed, as related information."""
        answers = self.say(self.assumed, "related_information")
        if len(answers) < 2:
            return answers
        names = [name for o in self.assumed for name in o.obs_entities]
        findings = [self.definitions.findings[name] for name in names]
        name, text = phrases.describe_unmentioned(findings)
        update = {"text": text, "name_tag": name, **wording.united(answers)}
        return [answers[0].model_copy(update=update)]

    def all_devices(self) -> Questions:
        """Asks about devices as such; where the report mentions any, about each kind too."""
        for kind, names in {"devices": (), **(_DATA["devices"] if self.devices else {})}.items():
            of_kind = [o for o in self.devices if not names or _entities(o) & {*names}]
            values = {"devices": kind, "Devices": capital(kind)}
            denials = [o for o in of_kind if not o.positive]
            yield from self.there_or_not("devices_", _present(of_kind), denials, values)

    def images_quality(self) -> Questions:
        """Asks about acquisition and artifacts."""
        acquired = [o for o in self.top if o.from_report and o.positive and _of(o, "acquisition")]
        if acquired:
            yield self.question("B14_describe_acquisition", self.say(acquired))
        artifacts = [o for o in self.said if _of(o, "artifact")]
        yield from self.there_or_not("artifacts_", _present(artifacts), (), {})

    def there_or_not(
        self, prefix: str, present: Nodes, denials: Nodes, values: dict[str, str]
    ) -> Questions:
        """Asks to describe what is there, and whether there is any."""
        describe, has = _DATA["pairs"][prefix]
        if not present:
            yield self.by_template(describe, f"{prefix}none", False, denials, values)
            yield self.by_template(has, f"{prefix}no", False, denials, values)
            return
        yield self.question(describe, self.say(present), values)
        if _any_sure(present):
            yield self.by_template(has, f"{prefix}yes", True, present, values)

    def quartet(
        self,
        prefix: str,
        about: Nodes,
        values: dict[str, str],
        region: str | None = None,
        own: Nodes | None = None,
    ) -> Questions:
        """Asks to describe what is abnormal, whether anything is, and whether all is normal.

        Skipped where all that is there is uncertain, only what is acute is denied, or denials say
        little of a region: neither yes nor no would be right. `region` and `own` are those of
        `denial_of`.
        """
        describe, abnormal, normal = _DATA["quartets"][prefix]
        none = f"{prefix}none" if prefix else "none_abnormal"
        present = [o for o in _present(about) if _of(o, "abnormality")]
        denials = [o for o in about if not o.positive and _of(o, "abnormality")]
        if present:
            yield self.question(describe, self.say(present), values)
            if _any_sure(present):
                yield self.by_template(abnormal, f"{prefix}abnormal_yes", True, present, values)
                yield self.by_template(normal, f"{prefix}normal_no", False, present, values)
        elif denials and (sure := self.denial_of(denials, region, own)) == _ACUTE_ONLY:
            yield self.by_template(describe, f"{none}_acute", False, denials, values)
        elif denials and sure != "uncertain":
            denied = _lasting(denials)
            yield self.by_template(describe, none, False, denied, values, sure)
            yield self.by_template(abnormal, f"{prefix}abnormal_no", False, denied, values, sure)
            yield self.by_template(normal, f"{prefix}normal_yes", True, denied, values, sure)

    def denial_of(self, denials: Nodes, region: str | None = None, own: Nodes | None = None) -> str:
        """Returns how sure it is that there is no abnormality, or that only acute ones are denied.

        Args:
            region: must be covered by a denial; None: every denial is of what is asked about.
            own: of a region, what is said of it or its parts; findings denied of what it lies in
                say little of it.
        """
        lasting = _lasting(denials)
        if not lasting:
            return _ACUTE_ONLY
        covering = [o for o in lasting if _denies_any(o) and self._covers(o, region)]
        # Without a covering one, this and that is not there, of others nothing is said.
        sure = least_sure(o.certainty for o in lasting) if covering else "likely"
        if own is None:
            systems = {system for o in lasting for system in o.obs_subcategories}
            # Of a study much is denied before it is normal.
            much = "lungs" in systems and ("heart" in systems or any(map(_denies_any, lasting)))
            return sure if covering or much or region is None else "uncertain"
        if not covering and not any(o in own for o in lasting):
            return "uncertain"
        # "A normal chest" was not said with one segment in mind.
        whole = any(not {*o.region_names} <= {"thorax"} for o in covering)
        return sure if whole or region == "thorax" else least_sure((sure, "likely"))

    def _covers(self, denial: Node, region: str | None) -> bool:
        names = {*denial.region_names}
        if region is None or not names:
            return True
        wide = {region, *self.definitions.region_ancestors(region)}
        of_both = [sides for name, sides in self.definitions.sides.items() if name in wide]
        return bool(wide & names) or any({*sides.values()} <= names for sides in of_both)

    # ---- C ----

    def regions(self) -> Questions:
        mentioned = [
            name
            for node in self.reported
            for own in node.region_names
            for name in (own, *self.definitions.region_ancestors(own))
        ]
        names = list(dict.fromkeys([*DEFAULT_REGIONS, *mentioned]))
        every = self.definitions.regions.items()
        others = [name for name, region in every if region.localized and name not in names]
        names += sample(others, self.counts, RANDOM_REGIONS, self.rng("regions"), "region/")
        sided = {side: _Generator(self.on_side(side), self.counts, self.seed) for side in SIDES}
        for name in names:
            of_side = sided.get(self.definitions.regions[name].side, self)
            inside, around = of_side.inside_and_around(name)
            yield from of_side.region(name, inside, around)
            yield from of_side.region_devices(name, inside, around)

    def inside_and_around(self, region: str) -> tuple[list[Node], list[Node]]:
        """Splits what the report says into that of a region or its parts, and of what it lies in,
        which may or may not hold for it."""
        inside, around = [], []
        above = self.definitions.region_ancestors
        outer = {region, *above(region)} & {*_DATA["regions"]["not_cardiopulmonary"]}
        hidden = {region, *above(region)} & {*_DATA["regions"]["not_outlined"]}
        side = self.definitions.regions[region].side
        # Fluid at a lung's base is in the pleural space.
        pleural = region in ("pleural spaces", *self.definitions.on_side("pleural spaces", "both"))
        for node in self.said:
            if outer and _CARDIOPULMONARY in node.obs_entities and not node.positive:
                continue
            of_pleura = pleural and node.positive and "pleura" in node.obs_subcategories
            of_pleura = of_pleura and (not side or node.laterality in (side, "bilateral"))
            if any(region in (name, *above(name)) for name in node.region_names) or of_pleura:
                inside.append(node)
            elif overlap(node.region_names, [region]) and (
                node.positive or not hidden or hidden & {*node.region_names}
            ):
                around.append(node)
        return inside, around

    def region(self, region: str, inside: Nodes, around: Nodes) -> Questions:
        values = _grammar(region, region=phrases.shown(region))
        about = [o for o in inside if _of(o, "abnormality", "acquisition")]
        open_question = any(o.positive and _of(o, "abnormality") for o in around)
        # A denial of the whole holds for its parts.
        wider = [o for o in around if not o.positive and _of(o, "abnormality")]
        kind = "C01_describe_region"
        if about or (wider and not open_question):
            if about:  # what is said of more than the region describes it badly
                yield self.question(kind, self.say(about), values)
            if not open_question or _present(about):
                asked = [*about, *filter(_denies_any, wider)] if about else wider
                yield from self.quartet("region_", asked, values, region, about)
        elif not open_question and region in DEFAULT_REGIONS:
            yield self.by_template(kind, "region_not_mentioned", False, (), values)

    def region_devices(self, region: str, inside: Nodes, around: Nodes) -> Questions:
        devices = [o for o in inside if _of(o, "device") and o.positive]
        may_be_here = any(_of(o, "device") for o in around)
        if devices or (
            not may_be_here and (self.devices or region in _DATA["regions"]["of_devices"])
        ):
            values = _grammar(region, region=phrases.shown(region))
            yield from self.there_or_not("region_devices_", devices, (), values)

    # ---- D ----

    def findings(self) -> Questions:
        names = list(dict.fromkeys(name for node in self.reported for name in node.obs_entities))
        absent = unmentioned_findings(self.graph)
        names += sample(absent, self.counts, RANDOM_FINDINGS, self.rng("findings"))
        for name in names:
            finding = self.definitions.findings[name]
            # "Where is the cardiopulmonary abnormality?" is nobody's question.
            if finding.category in ("abnormality", "device") and finding.subcategory != "general":
                one = phrases.noun([finding], [], article=True)
                values = _grammar(name, finding=phrases.shown(name), a_finding=one)
                yield from self.finding(finding, {**values, "A_finding": capital(one)})

    def finding(self, finding: Finding, values: dict[str, str]) -> Questions:
        name, types = finding.name, _DATA["about_finding"][finding.category]
        own = [o for o in self.reported if name in _entities(o)]
        # What another of them is taken for is below that one.
        below = {child for o in _present(own) for child in self.graph.children(o.obs_id)}
        present = [o for o in _present(own) if o.obs_id not in below]
        if present:
            yield from self._present_finding(finding, present, values)
            return
        denials = [o for o in own if not o.positive and name in o.obs_entities]
        whole, sure = _lasting(denials), None
        if denials and not whole:
            return  # only what is acute is denied
        if not denials:
            # What denies the general denies the special, though it was not said of it.
            above, sure = {*self.definitions.finding_ancestors(name)}, "likely"
            if any(part in name for part in _DATA["findings"]["passed_over"]):
                above -= _ANY_ABNORMALITY
            wider = [o for o in self.reported if not o.positive and above & {*o.obs_entities}]
            whole = _lasting(wider)
        yield self.by_template(types[0], "finding_none", False, whole, values, sure)
        yield self.by_template(types[1], "finding_no", False, whole, values, sure)

    def _present_finding(self, one: Finding, present: Nodes, values: dict[str, str]) -> Questions:
        """Asks to describe a finding that is there, whether, where, and how severe it is."""
        describe, has, where = _DATA["about_finding"][one.category]
        yield self.question(describe, self.say(present), values)
        sure = min((o.certainty or "certain" for o in present), key=phrases.CERTAINTIES.index)
        named = "finding_yes" if _any_sure(present) else "finding_maybe"
        yield self.by_template(has, named, True, present, values, sure)
        placed = [o for o in present if o.regions and not o.default_regions]
        # Where a sign of it is need not be where it is.
        placed = [
            o for o in placed if one.name in o.obs_entities or overlap(o.region_names, one.regions)
        ]
        if placed and one.name not in _ANY_ABNORMALITY:
            places = dict.fromkeys(place for o in placed for place in _places(o))
            told = {"regions": join(list(places))}
            yield self.by_template(where, "finding_where", True, placed, values, sure, told)
        if one.category == "device" or any(lump in one.name for lump in _DATA["findings"]["lumps"]):
            return
        # One word: of several lesions, those that are worst; none where one is left open.
        grades = [phrases.grade(o.modifiers) for o in present]
        if all(grades):
            graded = [o for o, n in zip(present, grades, strict=True) if n == max(grades)]
            told = {"severity": graded[0].modifiers["severity"][0]}
            kind = "D04_how_severe_is_finding"
            yield self.by_template(kind, "finding_severity", True, graded, values, sure, told)


def _grammar(name: str, **about: str) -> dict[str, str]:
    """Returns what a template is filled with, with the verb after a name."""
    verb = phrases.verb(phrases.shown(name))
    return {**about, "is": verb, "Is": verb.capitalize()}


def _of(observation: Node, *categories: str) -> bool:
    return any(category in categories for category in observation.obs_categories)


def _is_technique(observation: Node) -> bool:
    return _of(observation, "acquisition") and "imaging" in observation.obs_subcategories


def _entities(observation: Node) -> set[str]:
    return {*observation.obs_entities, *observation.obs_entities_parents}


def _present(observations: Nodes) -> list[Node]:
    return [o for o in observations if o.positive]


def _any_sure(present: Nodes) -> bool:
    return any(o.certainty != "uncertain" for o in present)


def _lasting(denials: Nodes) -> list[Node]:
    """Returns those that deny more than what is acute."""
    kind, value = phrases.ACUTE
    return [o for o in denials if value not in o.modifiers.get(kind, [])]


def _denies_any(denial: Node) -> bool:
    """Returns true for a denial of any abnormality of what it is said of."""
    return phrases.calls_normal(denial.name) or bool(_ANY_ABNORMALITY & {*denial.obs_entities})


def _places(observation: Node) -> Iterator[str]:
    """Yields `the trachea, 4 cm above the carina`, for each region."""
    for entry in observation.regions:
        measured = "".join(f", {distance}" for distance in entry.distances)
        yield f"the {phrases.shown(entry.region)}{measured}"
