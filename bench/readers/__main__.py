"""Accuracy of the reader of radiology language on sentences labelled by others.

    python -m bench.readers [--held_out] [--families]     (make readers: beside other libraries)
    python -m bench.readers --show=FAMILY|inversions|all  what was read wrongly
    python -m bench.readers --page=FILE                   every sentence, as a page
    python -m bench.readers --write                       figures of the held-out files, for tables
    python -m bench.readers --metamorphic [--show=RELATION|reading|place] [--write]
    python -m bench.readers --frames              frames of sentences with every finding
    python -m bench.readers --speed | --radlabels

Prints for each file, and for each of its families with --families, the share that is right with its
95 % interval and counts; `grading.py` defines the measures, and which readings turn a label round.
Beside this reader stand negspacy and medspaCy's ConText where they are installed, on the same
English sentences; "where all found" is the status of the labels that each of them found.

Of the held-out files only totals are printed, since who reads a sentence of theirs may mend the
reader on it: --show and --page take them with --look alone, which spends them.
"""

import argparse
import datetime
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from bench.readers import frames, metamorphic, radlabels
from bench.readers.grading import MEASURES, Graded, grade, rate
from bench.readers.sentences import HELD_OUT, Label, files, language, read_file
from bench.readers.systems import OURS, Read, open_systems
from cxrjax.evaluation.text_tables import grid, template
from cxrjax.radiology_text.assertions import Assertion, Outcome
from cxrjax.radiology_text.error_rates import DATA, ReadingErrors
from cxrjax.radiology_text.lexicon import split_sentences
from cxrjax.radiology_text.reading import open_reader

TURNED = "turned round"


def grade_file(path: Path) -> list[Graded]:
    """All rows of a file as this project's reader reads them."""
    reader = open_reader(language(path))
    found = []
    for row in read_file(path):
        answer = reader.read(row.text, row.question)
        found.append(grade(row, answer.assertions, answer.outcome))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the measurement that the flags select."""
    parser = argparse.ArgumentParser("bench.readers", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--held_out", action="store_true", help="the files that nobody tuned on, too")
    add("--look", action="store_true", help="show sentences of those, which spends them")
    add("--families", action="store_true", help="a row for each family")
    add("--show", metavar="FAMILY", help="what is read wrongly: a family, inversions, or all")
    add("--page", type=Path, metavar="FILE", help="write a page of all sentences")
    add(
        "--write",
        action="store_true",
        help="keep the figures: the held-out files', or --metamorphic's",
    )
    add("--speed", action="store_true", help="sentences a second")
    add("--metamorphic", action="store_true", help="relations of texts that do not hold")
    add("--frames", action="store_true", help="error rates on frames, shown and held aside")
    add("--radlabels", action="store_true", help="beside radlabels' labels of its reports")
    add("--examples", type=int, default=0, help="disagreements with radlabels to print")
    flags = parser.parse_args(argv)
    if flags.held_out and not flags.look and (flags.show or flags.page):
        parser.error("--show and --page of held-out files take --look, which spends them")
    paths = [*files(), *(files(held_out=True) if flags.held_out else ())]
    if flags.speed:
        english = [path for path in files() if language(path) == "en"]
        print(speed([row.text for path in english for row in read_file(path)]))
    elif flags.metamorphic:
        checked = list(metamorphic.checks())
        for one in checked:
            if one.broken and flags.show in ("all", one.relation, one.broken):
                print(f"{one.relation} [{one.broken}]\t{one.id}\t{one.changed!r}")
                print(f"  expected {one.expected}\n      read {one.read}")
        for name, count in metamorphic.count_broken(checked).items():
            print(f"{count:6,} {name}")
        print(f"{sum(bool(one.broken) for one in checked):,} of {len(checked):,} do not hold")
        if flags.write:
            metamorphic.write_not_yet(checked)
    elif flags.frames:
        for name in ("en", "vi", "zh"):
            print(f"## frames_{name}\n\n{grid(frames.table(name, open_systems()))}")
    elif flags.radlabels:
        print(radlabels.compared(flags.examples))
    elif flags.write:
        write_rates(DATA)
    elif flags.page:
        flags.page.write_text(page({path.stem: grade_file(path) for path in paths}))
    elif flags.show:
        for graded in itertools.chain.from_iterable(map(grade_file, paths)):
            wanted = graded.inversions if flags.show == "inversions" else not graded.is_right
            if wanted and flags.show in ("inversions", "all", graded.sentence.family):
                print(shown(graded))
    else:
        systems = open_systems()
        for path in paths:
            print(f"## {path.stem}\n\n{table(path, flags.families, systems)}")
        print("RadGraph: its weights are not on this machine, so that it is not compared.")


def table(path: Path, families: bool, systems: dict[str, Read]) -> str:
    """One file's figures in Markdown."""
    ours = grade_file(path)
    by_family: dict[str, list[Graded]] = {}
    for graded in ours if families else ():
        by_family.setdefault(graded.sentence.family, []).append(graded)
    if path.stem.startswith("answers"):
        lines = [["", "answers", "read right", TURNED]]
        for name, part in {**by_family, "all": ours}.items():
            turned = rate((bool(one.inversions), 1) for one in part)
            lines.append(
                [name, str(len(part)), str(rate((o.is_right, 1) for o in part)), str(turned)]
            )
        said = Counter((one.sentence.outcome, one.outcome) for one in ours)
        names = get_args(Outcome)
        confusion = [["label, then read as", *names]]
        confusion += [[a, *(str(said[a, b]) for b in names)] for a in names]
        return grid(lines) + "\n" + grid(confusion)
    compared = {OURS: ours}
    if language(path) == "en":
        rows = read_file(path)
        others = {name: read for name, read in systems.items() if name != OURS}
        for name, read in others.items():
            answers = read([row.text for row in rows])
            compared[name] = [grade(row, one) for row, one in zip(rows, answers, strict=True)]
    common = _status_where_all_found(compared)
    heading = ["", "sentences", "labels", *MEASURES.values(), TURNED]
    lines = [heading, *([name, *_figures(part)] for name, part in compared.items())]
    # A measure a row: the other way round it is too wide to read.
    turned = list(map(list, zip(*lines, strict=True)))
    if common:
        turned.append(["status, where all found it", *common.values()])
    detail = [heading, *([name, *_figures(part)] for name, part in by_family.items())]
    return grid(turned) + ("\n" + grid(detail) if families else "")


def _figures(part: Sequence[Graded]) -> list[str]:
    turned = rate((len(one.inversions), len(one.pairs)) for one in part)
    rates = [rate(one.counts(measure) for one in part) for measure in MEASURES]
    labels = sum(len(one.sentence.labels) for one in part)
    return [str(len(part)), str(labels), *map(str, (*rates, turned))]


def _status_where_all_found(compared: dict[str, list[Graded]]) -> dict[str, str]:
    """Reader -> how often the status is right, of the labels that all of them found."""
    if len(compared) < 2:
        return {}
    told: dict[str, list[tuple[int, int]]] = {name: [] for name in compared}
    for parts in zip(*compared.values(), strict=True):
        right = [{id(p.label): p.rights()["status"] for p in part.pairs} for part in parts]
        common = set.intersection(*(set(one) for one in right))
        for name, one in zip(compared, right, strict=True):
            told[name].append((sum(one[label] for label in common), len(common)))
    return {name: str(rate(counts)) for name, counts in told.items()}


def said(one: Label | Assertion) -> str:
    """A label or an assertion in a line."""
    parts = [one.finding, one.status, one.certainty, one.time, one.side or "-"]
    return "|".join([*parts, *([" + ".join(one.regions)] if one.regions else [])])


def shown(graded: Graded) -> str:
    """Formats the errors of a reading for a terminal."""
    row = graded.sentence
    lines = [f"{row.id} [{row.family}] {row.text!r}"]
    if row.outcome:
        return f"{lines[0]}\n  to {row.question!r}: {row.outcome}, read as {graded.outcome}"
    for pair in graded.pairs:
        if pair.is_kin or not all(pair.rights().values()):
            lines.append(f"  label {said(pair.label)}\n   read {said(pair.read)} {pair.inversion}")
    lines += [f"  label {said(one)}\n   read nothing" for one in graded.missed]
    return "\n".join(lines + [f"  extra {said(one)}" for one in graded.extra])


def page(graded: dict[str, list[Graded]]) -> str:
    """All sentences on one HTML page, wrong ones first."""
    rows = [
        {
            "file": name,
            "language": "vi" if "vi" in name else "en",
            "graded": one,
            "pieces": _pieces(one),
        }
        for name, part in graded.items()
        for one in part
    ]
    rows.sort(key=lambda row: (not row["graded"].inversions, row["graded"].is_right))
    css = (Path(__file__).parents[2] / "cxrjax/apps/page.css").read_text(encoding="utf-8")
    return template("bench.readers", "page.html.j2", said=said).render(
        rows=rows,
        css=css,
        files=list(graded),
        families=sorted({row["graded"].sentence.family for row in rows}),
        right=rate((row["graded"].is_right, 1) for row in rows),
        turned=sum(bool(row["graded"].inversions) for row in rows),
    )


def _pieces(graded: Graded) -> list[tuple[str, list[Assertion]]]:
    """The text in pieces, each with what was read of it."""
    read = [*(pair.read for pair in graded.pairs), *graded.extra]
    text, pieces, done = graded.sentence.text, [], 0
    for (start, end), group in itertools.groupby(sorted(read, key=_span), key=_span):
        start = max(start, done)
        pieces += [(text[done:start], []), (text[start:end], list(group))]
        done = max(done, end)
    return [*pieces, (text[done:], [])]


def _span(one: Assertion) -> tuple[int, int]:
    return one.span


def speed(texts: Iterable[str]) -> str:
    """Sentences a second of one core, nothing kept, of every reader that is installed: the best of
    three, since other work on the machine takes from it."""
    distinct = list(dict.fromkeys(texts))
    random.Random(0).shuffle(distinct)
    sentences = sum(len(list(split_sentences(text))) for text in distinct)
    seconds: dict[str, float] = {}
    for name, read in open_systems().items():
        list(read(distinct[:20]))
        for _ in range(3):
            start = time.process_time()
            list(read(distinct))
            taken = time.process_time() - start
            seconds[name] = min(taken, seconds.get(name, taken))
    lines = [["", "sentences a second", "times as fast as this"]]
    for name, one in seconds.items():
        lines.append([name, f"{sentences / one:,.0f}", f"{one / seconds[OURS]:.1f}"])
    return f"{sentences:,} sentences in {len(distinct):,} distinct texts\n\n{grid(lines)}"


def measured() -> list[ReadingErrors]:
    """The figures of the held-out files."""
    found = []
    for path in files(held_out=True):
        graded = grade_file(path)
        counts = {
            "read": [(not one.is_right, 1) for one in graded],
            "turned_round": [(bool(one.inversions), 1) for one in graded],
        }
        for name in () if path.stem.startswith("answers") else ("status", "side", "certainty"):
            told = [one.counts(name) for one in graded]
            counts[name] = [(total - right, total) for right, total in told]
        shares = {
            name: (one.right, one.total, round(one.low or 0.0, 5), round(one.high or 0.0, 5))
            for name, one in ((name, rate(told)) for name, told in counts.items())
        }
        found.append(ReadingErrors(path.stem.removesuffix(HELD_OUT), len(graded), shares))
    return found


def write_rates(path: Path) -> None:
    """Keeps the figures of the held-out files where tables find them."""
    lines = [
        "# Written by `python -m bench.readers --write`: of sentences that nobody tuned the reader",
        "# on, how many are wrong, of how many, and the 95 % interval of the share.",
        f'date = "{datetime.date.today()}"',
    ]
    for one in measured():
        lines += ["", f"[files.{one.file}]", f"sentences = {one.sentences}"]
        lines += [f"{name} = {json.dumps(share)}" for name, share in one.wrong.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path} written")


if __name__ == "__main__":
    main()
