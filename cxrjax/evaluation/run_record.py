"""Records in run.json what was predicted and scored, and checks it when scoring.

`predict` leaves PREDICTIONS.run.json beside its predictions; `score` repeats it in its own.
"""

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cxrjax.errors import UserError
from cxrjax.evaluation.flags import SourceFlags
from cxrjax.evaluation.scores import Scores, named_file
from cxrjax.files import (
    file_sha256,
    git_commit,
    hash_lines,
    package_versions,
    read_json_lines,
    read_json_object,
    read_raw_json_lines,
    write_json,
    writing,
)
from cxrjax.paths import to_path
from cxrjax.records import FIELDS_HELP, read_records, strip_answers


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


def check_split(references: Path, manifest: Path | None) -> None:
    """Refuses references of another split, and those whose records are not what was built.

    Args:
        manifest: manifest.json of a build, which has the hashes of each of its splits: of the
            image ids and, but for old ones, of the records.

    Raises:
        UserError: another hash, a split that the manifest does not have, or unusable files.
    """
    if manifest is None:
        return
    splits = read_json_object(manifest).get("splits", {})
    if not isinstance(splits, dict):
        raise UserError(f"{manifest}: splits is no object; give the manifest.json of a build")
    for split, sha256 in split_hashes(references).items():
        entry = splits.get(split)
        known = entry.get("split_sha256") if isinstance(entry, dict) else None
        if known is None:
            raise UserError(
                f"{manifest}: knows no split {split!r}, which {references} is of; expected one "
                f"of {', '.join(splits) or 'none'}"
            )
        if sha256 != known:
            raise UserError(
                f"{references}: the images of {split!r} have the hash {sha256}, expected {known} "
                f"({manifest}): score against the split that the predictions were made for"
            )
    _check_records(references, splits, manifest)


def _check_records(references: Path, splits: Mapping[str, Any], manifest: Path) -> None:
    """Compares the records of each split, as they are written, with what was built."""
    built = {
        split: entry.get("records_sha256")
        for split, entry in splits.items()
        if isinstance(entry, dict)
    }
    written: dict[str, Any] = {}
    for _, fields, line in read_raw_json_lines(references, "records", FIELDS_HELP):
        digest = written.setdefault(str(fields["split"]), hashlib.sha256())
        digest.update(line.rstrip(b"\r\n") + b"\n")
    for split, digest in written.items():
        if built[split] is None:
            print(
                f"warning: {manifest}: says nothing of the records of {split!r}; image ids alone "
                "were compared",
                file=sys.stderr,
            )
        elif digest.hexdigest() != built[split]:
            raise UserError(
                f"{references}: the records of {split!r} have the hash {digest.hexdigest()}, "
                f"expected {built[split]} ({manifest}): their answers or boxes are not those that "
                "were built; build them again, or score without --manifest"
            )


PACKAGES = ("numpy", "scipy", "rouge-score", "sacrebleu")
# Flags that say who answers, where it is no model in a folder.
_WHO = ("runner", "model", "system", "train")
# Options that runs without them say nothing of.
_UNSAID = ("conformal", "cover")
_WEIGHTS = ("params/**/*", "checkpoints/**/*", "*.safetensors", "*.gguf")
_MODEL_FILES = ("config.json", "model.json", "tokenizer.model", "tokenizer.json")


def side_file(predictions: Path) -> Path:
    """The file that keeps how a predictions file was made."""
    return predictions.with_name(predictions.name + ".run.json")


def write_prediction_record(
    predictions: Path, questions: Path, flags: SourceFlags, resolved: Mapping[str, Any]
) -> None:
    """Writes the side file; warns where the questions carry answers, which no model should see.

    Args:
        flags: what answered.
        resolved: settings as they came out of flags and the model's own, how it decoded foremost.

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
    content = {
        "command": sys.argv,
        "predictions_sha256": file_sha256(predictions),
        "questions": named_file(questions),
        "split_sha256": split_hashes(questions),
        "questions_with_answers": answered,
        "model_sha256": _model_hashes(flags),
        "settings": {
            name: _plain(value)
            for name, value in sorted({**vars(flags), **resolved}.items())
            if value is not None or name not in _UNSAID
        },
        "git_commit": git_commit(),
        "versions": package_versions(("jax", "flax", "numpy")),
    }
    with writing(predictions.parent):
        write_json(side_file(predictions), content)


def _model_hashes(flags: SourceFlags) -> dict[str, str]:
    """Hashes of a model's own files, and of names and sizes of its weights, which are not read."""
    named = (getattr(flags, name, None) for name in ("workdir", "checkpoint", "folder"))
    if not (given := next(filter(None, named), None)):
        return {}
    folder = to_path(given)
    hashes = {
        name: file_sha256(folder / name) for name in _MODEL_FILES if (folder / name).is_file()
    }
    weights = [
        f"{path.relative_to(folder).as_posix()} {path.stat().st_size}"
        for part in _WEIGHTS
        for path in sorted(folder.glob(part))
        if path.is_file()
    ]
    return hashes | {"weights": hash_lines(weights)} if weights else hashes


def made_otherwise(
    predictions: Path, flags: SourceFlags, resolved: Mapping[str, Any]
) -> list[str] | None:
    """Returns names of model and settings that differ from those of existing predictions.

    Returns:
        None if no record of the settings lies beside the predictions.

    Raises:
        UserError: the record cannot be read.
    """
    if not side_file(predictions).is_file():
        return None
    told = read_json_object(side_file(predictions))
    settings, hashes = (
        one if isinstance(one, dict) else {}
        for one in (told.get("settings"), told.get("model_sha256"))
    )
    asked = {name: getattr(flags, name) for name in _WHO if hasattr(flags, name)} | {**resolved}
    differ = [name for name, value in asked.items() if settings.get(name) != _plain(value)]
    own = _model_hashes(flags)
    differ += [name for name in sorted({*own, *hashes}) if own.get(name) != hashes.get(name)]
    if told.get("predictions_sha256") != file_sha256(predictions):
        differ.append(f"{predictions.name} itself")
    return sorted(differ)


def check_same_model(predictions: Path, flags: SourceFlags, resolved: Mapping[str, Any]) -> bool:
    """Refuses margins of another model, or of one that was asked otherwise.

    Returns:
        False if nothing beside the predictions tells which model made them.

    Raises:
        UserError: another model or other settings.
    """
    differ = made_otherwise(predictions, flags, resolved)
    if differ:
        raise UserError(
            f"{predictions}: made by another model or asked otherwise ({', '.join(differ)}); "
            "margins hold for the model that they were found on alone: predict its questions again "
            "with this model and the same flags"
        )
    return differ is not None


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
    if isinstance(value, tuple | list):
        return list(map(_plain, value))
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)
