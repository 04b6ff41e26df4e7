"""Measures how often GEMeX's refiner gives a sentence its right regions (section 3.1.2).

    python -m bench.gemex_refiner --labels=data/gemex/labelled_sentences.jsonl
    python -m bench.gemex_refiner --labels=STUDIES/truth/studies.jsonl
    python -m bench.gemex_refiner --labels=FILE --refiner=language_model \
        --base_url=URL --model=NAME [--prompt=TRIED.toml]
    python -m bench.gemex_refiner --sample=CHEST_IMAGENOME --reports=100 --labels=NEW.jsonl

A label file is JSON Lines: `{"id", "sentence", "regions", "rule"}`, regions of the 30, [] where the
sentence is to be left out, and optionally the rule of Table 9 that it tries (0: none); or the truth
of phantom studies, whose facts name regions of Chest ImaGenome's 29. A sentence counts as right
where its set of regions is; the interval is Wilson's, 95 %. The paper reached about 98.4 % of some
367 sentences of 100 reports of Chest ImaGenome's test set with OpenBioLLM-70B.

--sample writes a file to label: each line has the regions that the rules give the sentence, to be
put right, and `rule` null, to be filled in where a rule of Table 9 decides. Sentences of
credentialed reports may not be passed on, and stay out of the repository.
"""

import argparse
import collections
import json
import random
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import binomtest

from cxrjax.cli import run
from cxrjax.errors import UserError
from cxrjax.files import reading
from cxrjax.flags import add_options, options_of
from cxrjax.language_model.flags import ClientFlags, client_from_flags
from cxrjax.papers.gemex.construct.language_model import PROMPT, LanguageModelRefiner
from cxrjax.papers.gemex.construct.refine import Refiner, RuleRefiner, refine_sentence
from cxrjax.papers.sources import mimic_tables
from cxrjax.papers.sources.chest_imagenome import find_scene_graphs, read_reports
from cxrjax.papers.sources.regions import load_regions
from cxrjax.papers.sources.report import ImageReport, ReportSentence
from cxrjax.paths import in_path, out_path
from cxrjax.records_io.quality import QualityLog
from cxrjax.untrusted.foreign_files import MIB, read_lines, read_text
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


def read_prompt(path: Path) -> dict[str, Any]:
    """A prompt file that is tried before it becomes a version of the package's.

    Raises:
        UserError: it cannot be read, or has no `[refine] system` with `{regions}`.
    """
    try:
        prompt = tomllib.loads(read_text(path, MIB))
        written = prompt["refine"]["system"].format(regions="REGIONS")
    except OSError as error:
        raise UserError(f"{path}: cannot read the prompt: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(
            f"{path}: {error}; expected TOML as cxrjax/papers/gemex/construct/{PROMPT}.toml, "
            "with [refine] system"
        ) from None
    if "REGIONS" not in written:
        raise UserError(f"{path}: [refine] system has no place for {{regions}}")
    return prompt


def accuracy_lines(flags: argparse.Namespace) -> Iterator[str]:
    """Yields lines of accuracy, by rule and in all, and what went wrong.

    Args:
        flags: of this program.

    Raises:
        UserError: unusable flags or labels.
    """
    labels = read_labels(flags.labels)
    refiner: Refiner = RuleRefiner()
    quality = QualityLog()
    if flags.refiner == "language_model":
        prompt = read_prompt(flags.prompt) if flags.prompt else None
        cache = flags.labels.with_suffix(".answers.jsonl")
        client = client_from_flags(options_of(flags, ClientFlags), cache, ["gemex"])
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


def draw(source: Path, reports: int, seed: int) -> Iterator[dict[str, Any]]:
    """Lines of a label file: every sentence of as many reports of the test split.

    Raises:
        UserError: there are no graphs of the test split (without a split table: none at all).
    """
    quality = QualityLog()
    graphs = find_scene_graphs(source, quality)
    table = mimic_tables.find_table(source, mimic_tables.SPLIT_PATTERN)
    splits = mimic_tables.read_splits(table) if table else {}
    ids = sorted(one for one in graphs if splits.get(one, "test") == "test")
    if not ids:
        raise UserError(f"{source}: no scene graphs of the test split; expected *_SceneGraph.json")
    random.Random(f"{seed}/sentences to label").shuffle(ids)
    # Sizes matter to boxes alone, which nobody looks at here.
    for report in read_reports(graphs, ids[:reports], {}, quality):
        for number, sentence in enumerate(report.sentences):
            given = refine_sentence(sentence)
            regions = [] if isinstance(given, str) else [region for _, region in given]
            yield {
                "id": f"{report.image_id}-{number}",
                "rule": None,
                "sentence": sentence.text,
                "regions": list(dict.fromkeys(regions)),
            }


def write_sample(source: Path, reports: int, seed: int, out: Path) -> str:
    """Writes a file to label; returns a line that says so.

    Raises:
        UserError: as `draw`, or the file is there or cannot be written.
    """
    lines = list(draw(source, reports, seed))
    try:
        with out.open("x", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    except FileExistsError:
        raise UserError(f"{out}: is there, and may hold labels; choose another --labels") from None
    except OSError as error:
        raise UserError(f"{out}: cannot write: {error.strerror}") from None
    return f"{out}: {len(lines)} sentences to label"


def main(argv: Sequence[str] | None = None) -> None:
    """Prints accuracy, by rule and in all, and what went wrong; or writes a file to label."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gemex_refiner",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--labels", required=True, type=Path, help="labelled sentences; with --sample: to write")
    add("--refiner", default="rules", choices=("rules", "language_model"), help="default: rules")
    add("--prompt", type=in_path, metavar="FILE", help="a prompt to try (default: the package's)")
    add("--sample", type=in_path, metavar="SOURCE", help="folder or zip of scene graphs")
    add("--reports", type=int, default=100, help="of --sample: how many (default 100)")
    add("--seed", type=int, default=0, help="of --sample: which (default 0)")
    add_options(parser, ClientFlags)
    flags = parser.parse_args(argv)
    if flags.sample:
        print(write_sample(flags.sample, flags.reports, flags.seed, out_path(flags.labels)))
        return
    for line in accuracy_lines(flags):
        print(line)


if __name__ == "__main__":
    run(main)
