"""How a question is put to another model.

| wording    | what is asked                                                                   |
|------------|---------------------------------------------------------------------------------|
| `plain`    | the question, and its options where it has some                                 |
| `typed`    | the same after the instruction for its type (`type_prompt`), as in GEMeX        |
| `grounded` | as `plain`, and a request for boxes in the form that the system writes          |
| `locate`   | the system's own request to find one thing, `variables.finding`                 |
"""

from cxrjax.errors import UserError
from cxrjax.records import QARecord
from cxrjax.runners.systems import System

WORDINGS = ("plain", "typed", "grounded", "locate")


def default_wording(system: System) -> str:
    """With boxes where the system has a form for them."""
    return "grounded" if system.box_request else "plain"


def check_wording(wording: str, system: System) -> None:
    """Refuses a wording that the system has no words for.

    Raises:
        UserError: it has no request for boxes, or none for one finding.
    """
    missing = {"grounded": not system.box_request, "locate": not system.locate}
    if missing.get(wording):
        known = [name for name in WORDINGS if not missing.get(name)]
        raise UserError(
            f"--wording={wording}: nothing is published of how {system.title} is asked for boxes "
            f"in that way; use one of {', '.join(known)}"
        )


def question_text(record: QARecord, wording: str, system: System) -> str | None:
    """What is asked; None where the record cannot be asked in this wording."""
    if wording == "locate":
        finding = record.finding
        return system.locate.replace("{finding}", finding) if finding else None
    question = record.question
    if record.choices:
        question += f" <choices>: [{', '.join(record.choices)}]"
    if wording == "typed":
        return f"{record.type_prompt}\n{question}" if record.type_prompt else None
    return f"{question}\n{system.box_request}" if wording == "grounded" else question


def earlier_turns(record: QARecord) -> list[tuple[str, str]]:
    """(question, answer) of the turns before this question; "" for an answer not there yet."""
    return [(turn.question, turn.answer or "") for turn in record.history]
