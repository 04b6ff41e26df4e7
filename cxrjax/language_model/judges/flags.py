"""Chooses a judge from a command line."""

import json
from pathlib import Path

from cxrjax.errors import UserError
from cxrjax.files import replace_text, replacing
from cxrjax.language_model.flags import ClientFlags, client_from_flags
from cxrjax.language_model.judges.judge import Judge

_VERDICTS, _ANSWERS = "verdicts.jsonl", "judge_answers.jsonl"


def find_judge(kind: str, verdicts: Path | None, flags: ClientFlags, out: Path) -> Judge | None:
    """Returns the judge that `--judge` names.

    Args:
        verdicts: stored, or to replay; None: in `out`, where its other files are.

    Raises:
        UserError: flags that do not go together, verdicts of several judges and none named, or a
            file that cannot be used.
    """
    # Not at the top: --help stays quick.
    from cxrjax.language_model.judges.asked import LanguageModelJudge, VerdictStore, judge_name
    from cxrjax.language_model.judges.surrogate import SurrogateJudge

    if kind != "language_model" and flags.dry_run:
        raise UserError("--dry_run counts what --judge=language_model would request; pass both")
    if kind in ("none", "surrogate"):
        if verdicts is not None:
            raise UserError(f"--verdicts is for a judge that keeps them, not --judge={kind}")
        return SurrogateJudge() if kind == "surrogate" else None
    path = verdicts or out / _VERDICTS
    if kind == "replay":
        store = VerdictStore(path, replay=True)
        return LanguageModelJudge(_only_judge(path, store.judges(), flags.model), store, None)
    client = client_from_flags(flags, out / _ANSWERS, ())  # score tells whose texts they are
    return LanguageModelJudge(judge_name(client), VerdictStore(path), client, flags.dry_run)


def write_judgements(out: Path, judge: Judge) -> None:
    """Writes judgements.jsonl, a line for each judged answer, and judge.json: who judged, how.

    Raises:
        UserError: the folder cannot be written to.
    """
    about = {"name": judge.name, "surrogate": judge.surrogate, **judge.to_json()}
    lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in judge.judgements)
    try:
        out.mkdir(parents=True, exist_ok=True)
        with replacing(out / "judgements.jsonl") as file:
            file.writelines(lines)
        replace_text(out / "judge.json", json.dumps(about, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"{out}: cannot be written to: {error.strerror}") from None


def _only_judge(path: Path, known: list[str], name: str | None) -> str:
    if name is not None:
        if name not in known:
            raise UserError(f"{path}: no verdict of {name!r}, only of {', '.join(known)}")
        return name
    if len(known) != 1:
        found = f"{len(known)} judges ({', '.join(known)})" if known else "no verdict"
        raise UserError(f"{path}: {found}; expected one; pass --model=NAME")
    return known[0]
