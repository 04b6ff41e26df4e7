"""Records in run.json what was predicted and scored, and checks it when scoring.

`predict` leaves PREDICTIONS.run.json beside its predictions; `score` repeats it in its own.
"""

import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError
from cxrjax.files import (
    file_sha256,
    git_commit,
    hash_lines,
    package_versions,
    read_json_lines,
    read_json_object,
    write_json,
    writing,
)
from cxrjax.records import FIELDS_HELP, read_records, strip_answers
from cxrjax.scoring.scores import Scores, named_file


def split_hashes(records: Path) -> dict[str, str]:
    """Split -> hash of its image ids, as `build` writes it to manifest.json.

    Raises:
        UserError: the file cannot be read, or a line has no split and image_id.
    """
    images: dict[str, set[str]] = {}
    for where, fields in read_json_lines(records, "records", FIELDS_HELP):
        if not {"split", "image_id"} <= fields.keys():
            raise UserError(f"{where}: not a record with split and image_id; {FIELDS_HELP}")
        images.setdefault(str(fields["split"]), set()).add(str(fields["image_id"]))
    return {split: hash_lines(ids) for split, ids in sorted(images.items())}


def check_split(
    references: Path, split_sha256: str | None = None, manifest: Path | None = None
) -> None:
    """Refuses references of another split.

    Args:
        split_sha256: the hash that the one split of the references must have.
        manifest: manifest.json of a build, which has the hash of each of its splits.

    Raises:
        UserError: another hash, a split that the manifest does not have, or unusable files.
    """
    if split_sha256 is None and manifest is None:
        return
    found = split_hashes(references)
    if split_sha256 is not None:
        if len(found) != 1:
            raise UserError(
                f"{references}: holds the splits {', '.join(found)}; --split_sha256 is of one"
            )
        ((split, sha256),) = found.items()
        _compare(references, split, sha256, split_sha256, "--split_sha256")
    if manifest is not None:
        splits = read_json_object(manifest).get("splits", {})
        if not isinstance(splits, dict):
            raise UserError(f"{manifest}: splits is no object; give the manifest.json of a build")
        for split, sha256 in found.items():
            entry = splits.get(split)
            known = entry.get("split_sha256") if isinstance(entry, dict) else None
            if known is None:
                raise UserError(
                    f"{manifest}: knows no split {split!r}, which {references} is of; expected one "
                    f"of {', '.join(splits) or 'none'}"
                )
            _compare(references, split, sha256, known, str(manifest))


def _compare(references: Path, split: str, found: str, expected: str, source: str) -> None:
    if found != expected:
        raise UserError(
            f"{references}: the images of {split!r} have the hash {found}, expected {expected} "
            f"({source}): score against the split that the predictions were made for"
        )


PACKAGES = ("numpy", "scipy", "rouge-score", "sacrebleu")
_MODEL_FILES = ("config.json", "model.json", "tokenizer.model", "tokenizer.json")


def side_file(predictions: Path) -> Path:
    """The file that keeps how a predictions file was made."""
    return predictions.with_name(predictions.name + ".run.json")


def write_prediction_record(predictions: Path, questions: Path, flags: Namespace) -> None:
    """Writes the side file; warns where the questions carry answers, which no model should see.

    Args:
        flags: of the command: what answered, and how it decoded.

    Raises:
        UserError: the questions cannot be read or the file not written.
    """
    answered = sum(record != strip_answers(record) for record in read_records(questions))
    if answered:
        print(
            f"warning: {questions}: {answered:,} questions carry answers; the model is not shown "
            "them, but give a file of questions/ to be sure",
            file=sys.stderr,
        )
    named = (getattr(flags, name, None) for name in ("workdir", "checkpoint", "folder"))
    folder = next(filter(None, named), None)
    content = {
        "command": sys.argv,
        "predictions_sha256": file_sha256(predictions),
        "questions": named_file(questions),
        "split_sha256": split_hashes(questions),
        "questions_with_answers": answered,
        "model_sha256": {
            name: file_sha256(Path(folder) / name)
            for name in _MODEL_FILES
            if folder and (Path(folder) / name).is_file()
        },
        "settings": {name: _plain(value) for name, value in sorted(vars(flags).items())},
        "git_commit": git_commit(),
        "versions": package_versions(("jax", "flax", "numpy")),
    }
    with writing(predictions.parent):
        write_json(side_file(predictions), content)


def check_folder(out: Path) -> None:
    """Refuses to write over a training run's own record.

    Raises:
        UserError: the folder is a training run's.
    """
    if (out / "checkpoints").is_dir():
        raise UserError(f"{out}: is a training run's folder; choose another --out")


def write_score_record(
    out: Path, references: Path, predictions: Mapping[str, Path], scores: Scores
) -> None:
    """Writes run.json beside the scores.

    Raises:
        UserError: the folder cannot be written to.
    """
    systems = {}
    for name, path in predictions.items():
        known = side_file(path)
        made = read_json_object(known, finite=True) if known.is_file() else None
        predicted = named_file(path)
        # What is kept of another file of the same name says nothing of this one.
        if made and made.get("predictions_sha256") != predicted["sha256"]:
            made = None
        systems[name] = {"predictions": predicted, "made": made}
    content = {
        "command": sys.argv,
        "references": named_file(references),
        "split_sha256": split_hashes(references),
        "systems": systems,
        "bootstrap_seed": scores.settings["bootstrap"]["seed"],
        "git_commit": git_commit(),
        "versions": package_versions(PACKAGES),
    }
    with writing(out):
        write_json(out / "run.json", content)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
