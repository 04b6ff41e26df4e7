"""Errors that Harper, an independent grammar checker, finds in records of all data sets.

    python -m bench.grammar [FILE ...]

reads records files, or makes some of our own: GEMeX and CXR-QBA of phantom studies and
VinDr-CXR-VQA of made-up annotations, 2,000 of each. (ViX-Ray is Vietnamese, which Harper does not
know; lungs say 18 sentences.) Prints what it finds, and ends with 1 if that is anything. It runs in
an environment of its own (`make grammar`), as Harper's Python binding is young; the gate runs
`sentence_faults`.
"""

import collections
import random
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from cxrjax.records import QARecord, read_records

MOST = 2_000
_MARK = re.compile(r"<[^<>]*>")
# What Harper says of sound sentences of ours: words of the field are no slips, and a comma that
# some styles want is no fault.
_NO_FAULT = re.compile(
    r"Oxford comma|Discourse markers|should (?:possibly|probably) be written|Did you mean `their`|"
    r"missing the word `be`|`\w+` is a mass noun|usually a verb|negative word|possessive|"
    r"missing a preposition",
    re.IGNORECASE,
)
_KINDS = ("Agreement", "Grammar", "Miscellaneous", "Repetition", "Capitalization", "Formatting",
          "Punctuation", "Typo", "WordChoice")  # fmt: skip


def texts(records: Iterable[QARecord]) -> Iterator[str]:
    """The texts of records, boxes aside; not questions with typing errors made on purpose."""
    for record in records:
        if not re.search(r"careless|typo", record.template_id or ""):
            yield record.question
        answers = [record.reason] if record.reason else [one.text for one in record.answers]
        yield from (_MARK.sub("X", text) for text in answers if text)


def found(records: Iterable[QARecord]) -> collections.Counter[tuple[str, str, str]]:
    """(what Harper says, of which words, in which sentence) -> how often that text occurs."""
    from harper import Dialect, Language, Linter

    linter = Linter(Dialect.BRITISH)
    counted: collections.Counter[tuple[str, str, str]] = collections.Counter()
    sentences = (one for text in texts(records) for one in re.split(r"(?<=[.?]) (?=[A-Z])", text))
    for text, count in collections.Counter(sentences).items():
        for lint in linter.lint(text, language=Language.PLAINTEXT):
            if lint.lint_kind in _KINDS and not _NO_FAULT.search(lint.message):
                counted[lint.message, lint.problem_text, text] += count
    return counted


def made(folder: Path) -> Iterator[QARecord]:
    """Records of our own."""
    from cxrjax.papers.cxr_qba.build import QbaBuilder, QbaOptions
    from cxrjax.papers.gemex.build import GemexBuilder, GemexOptions
    from cxrjax.papers.vindr_cxr_vqa.construct.mix import plan_splits
    from cxrjax.papers.vindr_cxr_vqa.construct.plan import Assembly
    from cxrjax.papers.vindr_cxr_vqa.construct.template_writer import TemplateWriter
    from cxrjax.simulation.studies.build import StudiesBuilder, StudiesOptions
    from tests.papers.vindr_cxr_vqa.test_vindr_record_checks import images

    StudiesBuilder(StudiesOptions(folder / "in", studies=220, long_side=128)).build()
    GemexBuilder(GemexOptions(folder / "in", folder / "gemex")).build()
    QbaBuilder(QbaOptions(folder / "in", folder / "cxr_qba", longitudinal=True)).build()
    for name in ("gemex", "cxr_qba"):
        files = sorted((folder / name / "records").glob("*.jsonl"))
        own = [record for file in files for record in read_records(file)]
        yield from random.Random(0).sample(own, min(MOST, len(own)))
    rng = random.Random(4)
    ill, well = list(images(250, rng)), list(images(200, rng, findings=False))
    plans, _ = plan_splits({"train": ill}, {"train": well}, "balanced", True, 0)
    yield from Assembly("vindr_cxr_vqa", TemplateWriter(0)).records(plans["train"], "train")


def main(files: list[str]) -> int:
    """Prints, most frequent first; the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        records = (
            [record for file in files for record in read_records(Path(file))]
            if files
            else list(made(Path(folder)))
        )
        counted = found(records)
    for (message, words, text), count in counted.most_common():
        print(f"{count:6} {message} ({words!r}): {text[:160]}")
    print(f"{len(records):,} records, {len(counted):,} texts with a fault")
    return 1 if counted else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
