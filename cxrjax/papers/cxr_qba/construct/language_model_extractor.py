"""Reads reports by a language model, and estimates what reading and rating would cost."""

import collections
import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cxrjax.language_model.client import Client
from cxrjax.language_model.request import NoAnswer, Request
from cxrjax.papers.cxr_qba.construct import construction, extraction
from cxrjax.papers.cxr_qba.construct import language_model_answers as answers
from cxrjax.papers.cxr_qba.construct.language_model_rater import LanguageModelRater
from cxrjax.papers.cxr_qba.construct.ratings import mentions_change
from cxrjax.papers.cxr_qba.construct.rule_extractor import merge_similar, split_report
from cxrjax.papers.cxr_qba.construct.sampling import MentionCounts
from cxrjax.papers.cxr_qba.construct.sources import read_studies
from cxrjax.papers.cxr_qba.native import StudySceneGraph
from cxrjax.progress import progress_bar
from cxrjax.records_io.quality import QualityLog, Unusable

FAILED = "generator_failed"
# Ours: least probability of the side that the report takes.
CERTAINTIES = (("certain", 0.95), ("likely", 0.7), ("uncertain", 0.0))
LEFT_OUT = "report sentences that the language model left out"
MERGED = "report sentences that the language model took for the same as another"
CHANGE_KEPT = "observations in whose words the language model left a mention of change"
NO_INDICATION = "indications without a usable answer of the language model"
ANSWER_REPLACED = "answers to the indication with a mention of change, replaced"
_ARTICLE = re.compile(r"^(?:the|an?)\s+", re.IGNORECASE)


class LanguageModelExtractor:
    """An `Extractor` (extraction.py) that asks a language model."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._sentences = answers.SentenceStage(client)
        self._indication = answers.IndicationStage(client)
        self._observations = answers.ObservationStage(client)
        self.name, self.version = self._sentences.name, self._sentences.version

    def extract(self, report: extraction.ReportSections) -> extraction.Extraction:
        """See `extraction.Extractor`; what was left out or merged is counted in `left_out`.

        Raises:
            Unusable: the report is too long or has nothing to read; or, as `generator_failed`,
                there is no usable answer on its sentences or on one sentence's observations: what
                a failed sentence says must not pass for something that the report is silent on.
            UserError: sending is not allowed, the cost limit is reached, or the server is unusable.
        """
        by_rule = split_report(report)
        step = "sentences"
        left_out: collections.Counter[str] = collections.Counter()
        try:
            read = self._sentences.ask(report)
            sentences = _number(read)
            left_out[LEFT_OUT] = _count_left_out(by_rule, read)
            left_out[MERGED] = sum(len(one.same) for one in read.sentences)
            step = "observations"
            observations: list[extraction.Observation] = []
            silent: list[str] = []
            for sentence in sentences:
                if sentence.section not in extraction.OBSERVED_SECTIONS:
                    continue
                found = self._observations.ask(sentence.text).observations
                left_out[CHANGE_KEPT] += len(answers.comparing(found))
                observations += [_to_observation(one, sentence.sent_id) for one in found]
                silent += [] if found else [sentence.sent_id]
        except NoAnswer as failure:
            # Without the detail, which may quote the report.
            raise Unusable(FAILED, f"{step}: {failure.category}") from None
        return extraction.Extraction(
            tuple(sentences),
            tuple(merge_similar(observations)),
            self._read_indication(sentences, left_out),
            tuple(silent),
            +left_out,
        )

    def ask_ahead(self, reports: Iterable[extraction.ReportSections]) -> None:
        """Asks about many reports at once, so that `extract` finds its answers in the cache.

        Raises:
            UserError: as `extract`.
        """

        def one(report: extraction.ReportSections) -> None:
            with contextlib.suppress(Unusable):  # `extract` raises it again at the report's turn
                self.extract(report)

        for _ in progress_bar(self.client.map(one, reports), "language model", unit="report"):
            pass

    def require_permission(self, reports: Iterable[extraction.ReportSections]) -> None:
        """Refuses to send reports off this machine unasked, before anything is sent.

        Raises:
            UserError: as `Client.require_permission`.
        """
        self._sentences.require_permission(_usable(reports))

    def planned_requests(self, reports: Iterable[extraction.ReportSections]) -> Iterator[Request]:
        """Yields about what `extract` would send, from sentences split by rule, each once."""
        seen: set[str] = set()
        for report in _usable(reports):
            yield self._sentences.request(report)
            sentences = split_report(report)
            if any(one.section == "indication" for one in sentences):
                yield self._indication.request(sentences)
            for one in sentences:
                if one.section in extraction.OBSERVED_SECTIONS and one.text not in seen:
                    seen.add(one.text)
                    yield self._observations.request(one.text)

    def _read_indication(
        self, sentences: Sequence[extraction.NumberedSentence], left_out: collections.Counter[str]
    ) -> extraction.Indication | None:
        own = tuple(one.sent_id for one in sentences if one.section == "indication")
        if not own:
            return None
        try:
            read = self._indication.ask(sentences)
        except NoAnswer:
            left_out[NO_INDICATION] += 1
            return None
        answer = answers.joined(read.answer_for_indication)
        if mentions_change(answer):
            left_out[ANSWER_REPLACED] += 1
            answer = ""
        names = ("indication_summary", "patient_info", "indication", "evaluation")
        return extraction.Indication(
            **{name: answers.joined(getattr(read, name)) for name in names},
            sentence_ids=own,
            answer_sentence_ids=tuple(dict.fromkeys(read.answer_sentence_ids)),
            answer=answer,
        )


def _usable(reports: Iterable[extraction.ReportSections]) -> Iterator[extraction.ReportSections]:
    for report in reports:
        try:
            split_report(report)
        except Unusable:
            continue
        yield report


def _number(read: answers.ReadSentences) -> list[extraction.NumberedSentence]:
    """Returns sentences in order of sections, each once, numbered S01, S02, ..."""
    kept: dict[tuple[str, str], str] = {}
    for one in sorted(read.sentences, key=lambda one: answers.SECTIONS.index(one.section)):
        kept.setdefault((one.section, answers.words_of(one.sentence)), one.sentence)
    return [
        extraction.NumberedSentence(
            f"S{number:02d}", section, section.upper(), answers.joined(sentence)
        )
        for number, ((section, _), sentence) in enumerate(kept.items(), start=1)
    ]


def _count_left_out(
    by_rule: Iterable[extraction.NumberedSentence], read: answers.ReadSentences
) -> int:
    read_texts = (text for one in read.sentences for text in (one.sentence, *one.same))
    texts = [answers.words_of(text) for text in read_texts]
    by_rule_texts = (answers.words_of(one.text) for one in by_rule)
    return sum(not any(text in own or own in text for text in texts) for own in by_rule_texts)


def _to_observation(read: answers.ReadObservation, sent_id: str) -> extraction.Observation:
    sure = max(read.probability, 1 - read.probability)
    return extraction.Observation(
        name=answers.joined(read.name),
        summary_sentence=answers.joined(read.summary_sentence),
        entity=_named(read.entity),
        regions=_named(read.regions),
        side=read.side,
        positive=read.probability >= 0.5,
        probability=f"{read.probability:g}",
        certainty=next(name for name, least in CERTAINTIES if sure >= least),
        modifiers=tuple(
            (kind, value)
            for kind, values in read.modifiers.model_dump().items()
            for value in _named(values)
        ),
        change=_named(read.change),
        change_sentence=answers.joined(read.change_sentence),
        children=tuple(_to_observation(child, sent_id) for child in read.children),
        sentence_ids=(sent_id,),
    )


def _named(values: Iterable[str]) -> tuple[str, ...]:
    """Returns free values in lower case, without articles, each once."""
    names = (_ARTICLE.sub("", answers.joined(value)).lower() for value in values)
    return tuple(dict.fromkeys(name for name in names if name))


def estimate_language_model(
    source: Path,
    seed: int,
    extractor: LanguageModelExtractor | None = None,
    rater: LanguageModelRater | None = None,
) -> str:
    """Estimates what a build would ask a language model, with the rules' sentences and questions
    in place of the model's; sends and writes nothing.

    Of reading, a sentence of several reports counts once; of rating, what is the same in several
    studies counts each time, though it is sent once.

    Raises:
        UserError: the source cannot be read.
    """
    lines = []
    if extractor:
        reports = (study.report for study in read_studies(source, QualityLog()))
        lines.append(f"reading: {extractor.client.estimate(extractor.planned_requests(reports))}")
    if rater:
        estimate = rater.client.estimate(_planned_ratings(rater, source, seed))
        lines.append(f"rating, repetitions included: {estimate}")
    return "\n".join(lines)


def _planned_ratings(rater: LanguageModelRater, source: Path, seed: int) -> Iterator[Request]:
    how, counts = construction.CxrQbaConstruction(seed=seed), MentionCounts()

    def graphs() -> Iterator[StudySceneGraph]:
        quality = QualityLog()
        for study in progress_bar(read_studies(source, quality), "counting", unit="study"):
            with contextlib.suppress(Unusable):
                yield construction.construct_graph(study, how, quality)

    for graph in graphs():
        counts.add(graph)
    for graph in graphs():
        yield from rater.planned_requests(
            graph, construction.construct_questions(graph, counts, how)
        )
