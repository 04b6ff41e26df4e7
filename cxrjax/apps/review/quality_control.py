"""The actions of `python -m cxrjax.review`: reads files, calls checks, writes and prints."""

import collections
import itertools
import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cxrjax.apps.review.agreement import (
    agreement,
    consensus_columns,
    consensus_rows,
    markdown,
    outcome_summary,
    read_consensus,
)
from cxrjax.apps.review.export import export_reviews
from cxrjax.apps.review.flags import ReviewFlags
from cxrjax.apps.review.record_checks import check_file, contradictions, reason_words
from cxrjax.apps.review.review_pages import render_agreement, render_review_page
from cxrjax.apps.review.sheet import (
    COLUMNS,
    MOST_SAMPLED,
    RESERVED,
    format_csv,
    read_corrections,
    read_sheet,
    sheet_rows,
    stratified_sample,
)
from cxrjax.apps.review.store import STORE_FILE, ReviewStore, kept_reviews
from cxrjax.errors import UserError, optional
from cxrjax.evaluation.run_record import side_file
from cxrjax.files import read_json_object, replace_text, write_json, writing
from cxrjax.input_pipeline.sources import default_image_root
from cxrjax.metrics.bootstrap import Bootstrap
from cxrjax.paper import load_papers
from cxrjax.paths import to_path
from cxrjax.progress import waiting
from cxrjax.radiology_text.english import longitudinal_wording
from cxrjax.records import QARecord, read_records, write_records
from cxrjax.records_io.leakage import find_leakage, question_variety
from cxrjax.records_io.quality import QualityLog

_SHOWN = 5  # faults printed of each reason; all are in check.json


def run(flags: ReviewFlags) -> int:
    """Runs what the options request; returns the exit code, 1 if a check failed."""
    if flags.check:
        return 0 if check(flags) else 1
    if flags.serve:
        serve_review(flags)
    elif flags.export:
        export_review(flags, flags.export)
    elif flags.records:
        draw_sample(flags)
    elif flags.sheets:
        compare_sheets(flags.sheets, flags.out, _bootstrap(flags), flags.consensus)
    elif flags.readers:
        compare_readers(flags, flags.readers)
    return 0


def _bootstrap(flags: ReviewFlags) -> Bootstrap:
    return Bootstrap(resamples=flags.resamples, seed=flags.seed)


def check(flags: ReviewFlags) -> bool:
    """All checks of section 2.2 and of leakage; whether they hold."""
    log = QualityLog()
    files = list(record_files(flags.records))
    with waiting("reading the questions and checking their structure"):
        by_file = {file: _read(file, log) for file in files}
        for file, records in by_file.items():
            check_file(records, log, file.name)
    everything = list(itertools.chain.from_iterable(by_file.values()))
    if not everything and not log.entries:
        raise UserError(f"{files[0]}: no question to check")
    result: dict[str, object] = {"files": [str(file) for file in files]}
    if flags.source:
        result["source_coverage"] = _readings().check_source(by_file, flags.source, log)
    splits: dict[str, list[QARecord]] = collections.defaultdict(list)
    for record in everything:
        splits[record.split].append(record)
    leaks = 0
    if len(splits) > 1:
        root = flags.image_root or default_image_root(files[0])
        leakage = find_leakage(splits, root, flags.processes)
        leaks, result["leakage"] = len(leakage["leaks"]), leakage
    passed = not log.entries and (leaks == 0 or flags.allow_leakage)
    result |= {"passed": passed, "faults": log.to_json()}
    with waiting("looking for contradictions and repeated questions"):
        result |= {
            "reason_words": reason_words(everything),
            "repeated_questions": question_variety(everything),
            "contradictions": contradictions(everything),
            "longitudinal_wording": {
                split: longitudinal_wording(records) for split, records in splits.items()
            },
        }
    with writing(flags.out):
        flags.out.mkdir(parents=True, exist_ok=True)
        write_json(flags.out / "check.json", result)
    _print_check(result, log)
    print(f"{flags.out}: check.json")
    return passed


def _print_check(result: dict, log: QualityLog) -> None:
    for kind, count in log.examined.items():
        print(f"{kind}: {count:,}")
    for reason, count in log.counts().items():
        if count:
            print(f"FAULT {reason}: {count:,}")
            for entry in [e for e in log.entries if e.reason == reason][:_SHOWN]:
                print(f"  {entry.where}: {entry.item}: {entry.found}")
    if found := result.get("source_coverage"):
        print(
            f"of {found['images_with_findings']:,} images with findings "
            f"{found['asked_about']:,} are asked about"
        )
    read = result["contradictions"]
    print(f"contradictions: {read['contradictory']:,} of {read['read']:,} questions")
    for question_id, said in [*read["found"].items()][:_SHOWN]:
        print(f"  {question_id}: {said[0]}")
    words, repeated = result["reason_words"], result["repeated_questions"]
    if words["reasons"]:
        print(
            f"reasons: median {words['quantiles']['50%']:g} words, "
            f"{100 * words['share_within_150_to_250']:.1f} % within 150 to 250"
        )
    print(
        f"questions: {repeated['distinct_normalised']:,} different of {repeated['questions']:,}, "
        f"{len(repeated['repeated']):,} pairs alike within an image"
    )
    for split, counts in result["longitudinal_wording"].items():
        print(
            f"{split}: wording of change over time in {counts['questions']:,} questions and "
            f"{counts['answers']:,} answers of {counts['records']:,}"
        )
    if leakage := result.get("leakage"):
        counts = leakage["counts"] or "none"
        print(f"leakage: {counts}; {leakage['images_hashed']:,} images compared")
        for leak in leakage["leaks"][:_SHOWN]:
            print(f"  {' / '.join(leak['splits'])}: {' and '.join(leak['items'])}: {leak['found']}")
        for pair, text in leakage["shared_text"].items():
            print(
                f"  {pair}: the second has {text['questions']:,} questions, "
                f"{text['same_question']:,} word for word in the first, and {text['answers']:,} "
                f"answers, {text['same_answer']:,} word for word; of its "
                f"{text['distinct_questions']:,} different questions "
                f"{text['distinct_questions_nearly_the_same']:,} are there nearly the same"
            )
    else:
        print("leakage: not checked, for there is one split only")
    print("passed" if result["passed"] else "FAILED")


def draw_sample(flags: ReviewFlags) -> None:
    """sheet.csv and index.html of the questions to review."""
    drawn = _drawn(flags)
    page = render_review_page(drawn.sample, drawn.root, about=drawn.about, own=drawn.own)
    with writing(flags.out):
        flags.out.mkdir(parents=True, exist_ok=True)
        replace_text(flags.out / "sheet.csv", format_csv(COLUMNS, sheet_rows(drawn.sample)))
        replace_text(flags.out / "index.html", page.html)
    print(
        f"{flags.out}: sheet.csv, index.html ({page.without} of {len(drawn.sample)} without an "
        "image)"
    )
    _print_next(flags)


class _Drawn(NamedTuple):
    """A review's questions."""

    records: list[QARecord]  # the set that they were drawn from
    sample: list[QARecord]  # with the answers to review, which may be a model's
    root: Path  # what image paths are relative to
    about: dict[str, str]  # question id -> what the page says of it
    # Question id -> the record with the set's own answer, where the one to review is not it.
    own: dict[str, QARecord]


def _drawn(flags: ReviewFlags) -> _Drawn:
    log = QualityLog()
    files = list(record_files(flags.records))
    with waiting("reading the questions"):
        records = [record for file in files for record in _read(file, log)]
    if log.entries:
        print(
            f"{len(log.entries)} questions could not be read and were not drawn from: see --check"
        )
    root = flags.image_root or default_image_root(files[0])
    if not flags.predictions:
        count = flags.sample or min(MOST_SAMPLED, len(records))
        sample = stratified_sample(records, count, flags.seed)
        return _Drawn(records, sample, root, {}, {})
    from cxrjax.apps.review.predicted import least_certain, read_lines

    systems = [read_lines(path) for path in flags.predictions]
    queue = least_certain(records, systems, root, flags.codec, flags.letterbox, flags.sample)
    for count, what in (
        (queue.without, "questions have no prediction and are not in this review"),
        (queue.strange, "predictions are for questions that are not in --records"),
    ):
        if count:
            print(f"{count:,} {what}")
    return _Drawn(
        records, queue.sample, root, queue.about, {one.question_id: one for one in records}
    )


def _print_next(flags: ReviewFlags) -> None:
    """The command that takes the review over, with the flags that draw the same questions."""
    words = [f"--records={path}" for path in flags.records]
    words += [f"--predictions={path}" for path in flags.predictions]
    words += [
        f"--{name}={value}"
        for name, value, default in (
            ("image_root", flags.image_root, None),
            ("sample", flags.sample, None),
            ("seed", flags.seed, ReviewFlags.seed),
            ("codec", flags.codec, ReviewFlags.codec),
            ("letterbox", ",".join(f"{h}x{w}" for h, w in flags.letterbox), ""),
            ("out", flags.out, None),
        )
        if value != default
    ]
    print(f"next: python -m cxrjax.review {shlex.join(words)} --export=CORRECTED", flush=True)


def serve_review(flags: ReviewFlags) -> None:
    """A review that readers fill in at links of their own, until interrupted."""
    for library in ("starlette", "uvicorn"):
        optional(library, "serve")
    from cxrjax.apps import page_server  # the other actions do without
    from cxrjax.apps.review.server import LIMITS, Review

    drawn = _drawn(flags)
    with writing(flags.out):
        flags.out.mkdir(parents=True, exist_ok=True)
    page = render_review_page(drawn.sample, drawn.root, True, drawn.about, drawn.own)
    rows = sheet_rows(drawn.sample)
    store = ReviewStore(flags.out / STORE_FILE, rows, flags.reader, page.correctable)
    review = Review(store, page.html, page.pictures, lambda: _handed_in(store, flags))
    hosts = flags.allowed_host or [flags.host]
    with page_server.listen(flags.host, flags.port) as listening:
        if store.complete():
            review.agreement()  # its files may be missing, if an earlier server was stopped
        print(f"{len(rows)} questions, {page.without} without an image; ratings: {store.path}")
        for name, token in store.tokens().items():
            print(f"{name}: {page_server.link(listening, hosts[0], token)}")
        print("Give each reader their own link. Ctrl-C stops; the same command resumes.")
        _print_next(flags)
        try:
            page_server.serve(review.guarded(hosts), listening, LIMITS)
        except KeyboardInterrupt:
            print(f"stopped; what was rated is in {store.path}")
        finally:
            store.close()


def export_review(flags: ReviewFlags, out: Path) -> None:
    """The whole set with a review's corrections, and preferred answers, to train on."""
    drawn = _drawn(flags)
    reviews = _reviews(flags, drawn.sample)
    sample = drawn.sample
    splits = dict.fromkeys(one.split for one in drawn.records)
    folder = out if len(splits) == 1 else out / "records"
    found = export_reviews(
        sample, reviews, drawn.root, out, flags.codec, flags.letterbox, drawn.records
    )
    for reason, left_out in found.left_out.items():
        print(f"  {len(left_out):,} left out: {reason}: {', '.join(left_out[:_SHOWN])}")
    if not found.reviewed:
        raise UserError(f"{flags.out}: nothing in this review is rated or corrected yet")
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for split in splits:
            name = "records.jsonl" if folder == out else f"{split}.jsonl"
            write_records(folder / name, [one for one in found.records if one.split == split])
        if found.unanswered:
            write_records(out / "questions.jsonl", found.unanswered)
        lines = [json.dumps(pair, ensure_ascii=False) + "\n" for pair in found.pairs]
        replace_text(out / "pairs.jsonl", "".join(lines))
        write_json(out / "export.json", found.to_json())
    where = "records.jsonl" if folder == out else f"records/ ({', '.join(splits)})"
    print(
        f"{out}: {where}: {len(found.records):,} questions, {found.corrected:,} corrected, "
        f"{found.followed:,} with the same boxes as one of these, {found.accepted:,} predictions "
        f"accepted, {found.missed:,} of missed findings, {found.unchanged:,} unchanged; "
        f"pairs.jsonl: {len(found.pairs):,} preferred answers"
    )
    if found.unanswered:
        print(f"{out}: questions.jsonl: {len(found.unanswered):,} without an answer yet")
    _print_training(flags, out, folder, [*splits])


def _print_training(flags: ReviewFlags, out: Path, folder: Path, splits: Sequence[str]) -> None:
    """The command that trains on an export, from the run whose predictions were reviewed."""
    told = [_said(side_file(path)).get("settings") or {} for path in flags.predictions]
    named = [one.get("workdir") or one.get("checkpoint") for one in told]
    run = str(next(filter(None, named), "RUN"))
    begun = [str(word) for word in _said(to_path(run) / "run.json").get("command", ())]
    given = [word.partition("=")[2] for word in begun if word.startswith("--config=")]
    files = {split: f"{split}.jsonl" for split in ("train", "validation") if split in splits}
    if len(splits) == 1:
        files = {"train": "records.jsonl"}
    words = [
        f"--config={given[0] if given else 'configs/records_lora.py'}",
        f"--config.model.init_from={run}",
        *(f"--config.data.{name}={folder / file}" for name, file in files.items()),
        f"--workdir={out / 'train'}",
    ]
    print(f"next: python -m cxrjax.train {shlex.join(words)}")


def _said(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _reviews(
    flags: ReviewFlags, sample: Sequence[QARecord]
) -> dict[str, dict[str, dict[str, str]]]:
    """Reader -> question id -> field -> value, from the server's store or from sheets.

    Raises:
        UserError: there is no review, one of other questions, or none by the requested reader.
    """
    if (flags.out / STORE_FILE).is_file():
        found = kept_reviews(flags.out / STORE_FILE, sheet_rows(sample))
    else:
        sheets = [one for one in sorted(flags.out.glob("*.csv")) if one.stem not in RESERVED]
        if not sheets:
            raise UserError(
                f"{flags.out}: no review there: expected the --out of --serve, or sheets that the "
                "page has saved"
            )
        found = {sheet.stem: read_corrections(sheet, sample) for sheet in sheets}
    wanted = flags.reader or list(found)
    if strangers := [name for name in wanted if name not in found]:
        raise UserError(f"--reader={strangers[0]}: reviewed by {', '.join(found)}")
    return {name: found[name] for name in wanted}


def _handed_in(store: ReviewStore, flags: ReviewFlags) -> str:
    """All sheets, their agreement and the consensus file; the page that shows them."""
    sheets = [flags.out / f"{name}.csv" for name in store.tokens()]
    with writing(flags.out):
        for sheet in sheets:
            replace_text(sheet, format_csv(COLUMNS, store.filled_rows(sheet.stem)))
    written = [sheet.name for sheet in sheets]
    if len(sheets) == 1:
        return render_agreement(None, "", written)
    result, text = compare_sheets(sheets, flags.out, _bootstrap(flags))
    return render_agreement(result, text, [*written, "agreement.json", "consensus.csv"])


def compare_sheets(
    files: Iterable[Path], out: Path, bootstrap: Bootstrap, consensus: Path | None = None
) -> tuple[dict[str, object], str]:
    """Agreement of sheets, and what they settled; agreement.json and agreement.md."""
    sheets = [read_sheet(path) for path in files]
    names = [one.reader for one in sheets]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"several sheets are called {twice[0]!r}: name each after its reader")
    result = agreement(sheets, bootstrap)
    settled = outcome_summary(read_consensus(consensus, sheets), sheets) if consensus else None
    text = markdown(result)
    written = ["agreement.json", "agreement.md"]
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "agreement.json", result)
        replace_text(out / "agreement.md", text)
        if settled is not None:
            write_json(out / "consensus.json", settled)
            written.append("consensus.json")
        elif not (out / "consensus.csv").exists():
            rows = consensus_rows(sheets)
            columns = consensus_columns(len(sheets))
            replace_text(out / "consensus.csv", format_csv(columns, rows))
            written.append("consensus.csv")
        else:
            # Somebody may have begun to fill it in.
            print(f"{out / 'consensus.csv'}: left as it is; give it as --consensus when full")
    print(text)
    if settled is not None:
        print(
            "{initial_disagreements} of {ratings} ratings differed at first; in the end "
            "{questions_accepted_on_all_dimensions} of {questions} questions were accepted on all "
            "dimensions".format(**settled)
        )
    print(f"{out}: {', '.join(written)}", flush=True)
    return result, text


def compare_readers(flags: ReviewFlags, table: Path) -> None:
    """Every reader scored against the others."""
    with waiting("reading the readers' boxes"):
        readers = _readers(table)
    result, text = _readings().compare_readers(readers, _bootstrap(flags))
    with writing(flags.out):
        flags.out.mkdir(parents=True, exist_ok=True)
        write_json(flags.out / "readers.json", result)
        replace_text(flags.out / "readers.md", text)
    print(text)
    print(f"{flags.out}: readers.json, readers.md")


def _readings() -> Any:
    """The `review` module of the data set that has one: its table of readers' boxes, its release.

    Raises:
        UserError: no installed data set has one.
    """
    for paper in load_papers():
        if paper.review:
            return paper.part("review")
    raise UserError("no installed data set has a table of readers' boxes")


def _readers(path: Path) -> dict[str, Any]:
    """Each reader's marks by image, from a table of boxes or from records."""
    if path.name.endswith((".csv", ".csv.gz", ".whl")):
        return _readings().read_readers(path)
    found: dict[str, Any] = {}
    for file in record_files([path]):
        for record in read_records(file):
            if record.readers is not None:
                found.setdefault(record.image_id, record.readers)
    if not found:
        raise UserError(f"{path}: no record has readers; give records built from the box table")
    return found


def record_files(paths: Iterable[Path]) -> Iterator[Path]:
    """The records files that the flags name, those of a built folder one by one.

    Raises:
        UserError: a folder holds none.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        files = sorted((path / "records").glob("*.jsonl"))
        if not files:
            raise UserError(f"{path}: no records/*.jsonl in it; expected a folder that build wrote")
        yield from files


def _read(path: Path, log: QualityLog) -> list[QARecord]:
    """Reads a file of records, or of a release (its structure is checked while it is read)."""
    if path.suffix == ".json":
        return _readings().read_release(path, log)
    return list(read_records(path))
