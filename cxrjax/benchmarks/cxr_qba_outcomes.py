"""What came of one of CXR-QBA's questions, for the page."""

from cxrjax.benchmarks.cxr_qba_answers import Answer, AnswerReader
from cxrjax.benchmarks.cxr_qba_claims import CLAIMS, Verdict
from cxrjax.benchmarks.cxr_qba_truth import Question, read_question
from cxrjax.benchmarks.outcomes import Outcome
from cxrjax.benchmarks.predictions import Prediction
from cxrjax.codecs import Codec
from cxrjax.metrics.region_overlap import region_areas, region_iou
from cxrjax.records import QARecord


def outcome(record: QARecord, prediction: Prediction, codec: Codec | None) -> Outcome:
    """What came of one question, for the page.

    Right: the yes or no is, where one is asked for; else every claim is borne out with all that is
    said of it, and every statement found. Not decidable where there is neither a claim nor a
    statement.
    """
    question = read_question(record, "references")
    reader = AnswerReader(codec, "predictions")
    answer = reader.read(question, prediction)
    verdict = reader.judge(question, answer)
    iou = None
    if len(answer.boxes) and len(question.boxes):
        iou = float(region_iou(*region_areas(answer.boxes, question.boxes)))
    right, note = _right(question, answer, verdict)
    return Outcome(right, iou, note)


def _right(question: Question, answer: Answer, verdict: Verdict) -> tuple[bool | None, str]:
    wrong = [f"{CLAIMS[kind]}: {claim.name}" for claim, kind in verdict.claims if kind != "right"]
    lost = [
        f"{'denied' if kind == 'contradicted' else 'not mentioned'}; it is there: {name}"
        for name, kind in verdict.statements
        if kind != "found"
    ]
    faults = "; ".join([*wrong, *lost])
    if question.yes is not None:
        said = {True: "yes", False: "no", None: "neither yes nor no"}
        right = answer.yes == question.yes
        note = f"said {said[answer.yes]}" + ("" if right else f", not {said[question.yes]}")
        return right, "; ".join(filter(None, [note, faults]))
    if faults:
        return False, faults
    if not verdict.claims and not verdict.statements:
        return None, "names nothing that is there, nor does the reference"
    return True, "all that it names is borne out, and nothing is missed"
