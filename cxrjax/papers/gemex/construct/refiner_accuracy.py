"""Accuracy of a refiner: how often it gives a sentence its right regions (section 3.1.2)."""

import argparse
import collections
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from scipy.stats import binomtest

from cxrjax.errors import UserError
from cxrjax.files import reading
from cxrjax.language_model.flags import client_from_flags
from cxrjax.papers.gemex.construct.language_model import LanguageModelRefiner, read_prompt
from cxrjax.papers.gemex.construct.refine import Refiner, RuleRefiner
from cxrjax.papers.sources.regions import load_regions
from cxrjax.papers.sources.report import ImageReport, ReportSentence
from cxrjax.records_io.quality import QualityLog
from cxrjax.untrusted.foreign_files import MIB, read_lines
from cxrjax.untrusted.json_text import parse_object

RULES = {
    0: "no rule but the words' own place",
    1: "no region",
    2: "overall description",
    3: "one sentence, one region",
    4: "effusion by size",
    5: "pulmonary veins",
    6: "atria and ventricles",
}


class LabelledSentence(NamedTuple):
    """A sentence and the regions that it is to be given."""

    label_id: str
    sentence: str
    regions: frozenset[str]
    rule: int | None


class Accuracy(NamedTuple):
    """right of total, with Wilson's 95 % interval."""

    right: int
    total: int

    @property
    def value(self) -> float | None:
        """The share, None of nothing."""
        return self.right / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """(low, high), None of nothing."""
        if not self.total:
            return None
        found = binomtest(self.right, self.total).proportion_ci(method="wilson")
        return found.low, found.high


def measure(
    refiner: Refiner, labels: Sequence[LabelledSentence]
) -> tuple[dict[int | None, Accuracy], list[tuple[LabelledSentence, frozenset[str]]]]:
    """(rule -> accuracy, what went wrong: label and the regions that were given)."""
    reports = map(_report, labels)
    right: collections.Counter[int | None] = collections.Counter()
    wrong = []
    for label, (_, refinement) in zip(labels, refiner.refine(reports), strict=True):
        given = frozenset(sentence.region for sentence in refinement.sentences)
        right[label.rule] += given == label.regions
        if given != label.regions:
            wrong.append((label, given))
    total = collections.Counter(label.rule for label in labels)
    return {rule: Accuracy(right[rule], total[rule]) for rule in total}, wrong


def _report(label: LabelledSentence) -> ImageReport:
    sentence = ReportSentence(label.sentence)
    return ImageReport(label.label_id, label.label_id, "", (sentence,), {}, where=label.label_id)


def read_labels(path: Path) -> list[LabelledSentence]:
    """Labels of a file in either form.

    Raises:
        UserError: the file cannot be read, or a line is none (names it).
    """
    labels: list[LabelledSentence] = []
    with reading(path, "labels"):
        for number, line in read_lines(path, MIB):
            labels += _labels(line, f"{path}:{number}")
    if not labels:
        raise UserError(f"{path}: no labelled sentence in it")
    return labels


def _labels(line: bytes, where: str) -> Iterator[LabelledSentence]:
    try:
        row = parse_object(line)
        if "sentences" in row:
            yield from _phantom_labels(row)
            return
        label = LabelledSentence(
            str(row["id"]), row["sentence"], frozenset(row["regions"]), row.get("rule")
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{where}: {error}; expected an object with id, sentence and regions"
        ) from None
    unknown = [region for region in label.regions if region not in load_regions().regions]
    if unknown:
        raise UserError(f"{where}: region {unknown[0]!r} is none of the 30")
    yield label


def _phantom_labels(row: dict) -> Iterator[LabelledSentence]:
    regions = load_regions()
    for sentence in row["sentences"]:
        # What a sentence about earlier studies is about is no question of regions.
        if sentence["longitudinal"]:
            continue
        # Left and right are one region where one finding has both, else each finding has its own.
        by_finding: dict[str, set[str]] = {}
        for fact in sentence["facts"]:
            merged = {regions.from_source(name) for name in fact["regions"]} - {None}
            found = by_finding.setdefault(f"{fact['finding']}/{fact['polarity']}", set())
            found.update(name for name in merged if name)
        named = {one for found in by_finding.values() for one in regions.combine(found)}
        label_id = f"{row['study_id']}-{sentence['sentence_id']}"
        yield LabelledSentence(label_id, sentence["text"], frozenset(named), None)


def accuracy_lines(flags: argparse.Namespace) -> Iterator[str]:
    """Yields lines of accuracy, by rule and in all, and what went wrong.

    Args:
        flags: of `measure_gemex_refiner`.

    Raises:
        UserError: unusable flags or labels.
    """
    labels = read_labels(flags.labels)
    refiner: Refiner = RuleRefiner()
    quality = QualityLog()
    if flags.refiner == "language_model":
        prompt = read_prompt(flags.prompt) if flags.prompt else None
        cache = flags.labels.with_suffix(".answers.jsonl")
        client = client_from_flags(flags, cache, ["gemex"])
        refiner = LanguageModelRefiner(client, quality, prompt)
        if flags.dry_run:
            yield str(refiner.estimate(map(_report, labels)))
            return
    elif flags.prompt:
        raise UserError("--prompt is a language model's; give --refiner=language_model too")
    accuracies, wrong = measure(refiner, labels)
    for rule in sorted(accuracies, key=lambda rule: -1 if rule is None else rule):
        name = "unlabelled" if rule is None else f"rule {rule} ({RULES.get(rule, '')})"
        yield _line(name, accuracies[rule])
    right = sum(accuracy.right for accuracy in accuracies.values())
    total = sum(accuracy.total for accuracy in accuracies.values())
    yield _line("all", Accuracy(right, total))
    if quality.entries:
        yield f"{len(quality.entries)} without a usable answer, which counts as nothing given"
    for label, given in wrong:
        yield (
            f"  {label.label_id}: expected {sorted(label.regions)}, given {sorted(given)}: "
            f"{label.sentence}"
        )


def _line(name: str, accuracy: Accuracy) -> str:
    low, high = accuracy.interval or (0.0, 0.0)
    share = 100 * (accuracy.value or 0.0)
    return (
        f"{name:45} {accuracy.right:4} of {accuracy.total:4}  {share:5.1f} % "
        f"[{100 * low:.1f}, {100 * high:.1f}]"
    )
