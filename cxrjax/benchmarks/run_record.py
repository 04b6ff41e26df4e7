"""run.json of what was predicted and scored: enough to do it again, and to see if it was.

`predict` leaves PREDICTIONS.run.json beside its predictions; `score` repeats it in its own.
"""

import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cxrjax.benchmarks.scores import Scores, named_file
from cxrjax.benchmarks.split_check import split_hashes
from cxrjax.datasets.output import write_json, writing
from cxrjax.errors import UserError
from cxrjax.json_file import read_json_object
from cxrjax.provenance import file_sha256, git_commit, package_versions
from cxrjax.records import read_records, strip_answers

PACKAGES = ("numpy", "scipy", "rouge-score", "sacrebleu")
_MODEL_FILES = ("config.json", "model.json", "tokenizer.model", "tokenizer.json")


def side_file(predictions: Path) -> Path:
    """Where what is known of a predictions file's making is kept."""
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
        made = read_json_object(known) if known.is_file() else None
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
