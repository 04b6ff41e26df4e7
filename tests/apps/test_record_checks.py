"""Records of several data sets are each read by the rules of their own."""

from cxrjax.apps.review.record_checks import contradictions
from cxrjax.papers.vix_ray.records import records as vix_ray_records
from tests.papers.gemex.test_gemex_record_checks import changed
from tests.papers.vix_ray.test_vix_ray_record_checks import study


def _gemex(made):
    from cxrjax.records import Answer, GeneratorInfo, QARecord

    text = "<answer> Yes. <reason> There is a pneumothorax. <location>[]"
    return QARecord(
        dataset="gemex", split="train", image_id="i", image_path="i.jpg", question_id=made,
        question="Is there a pneumothorax?", question_type="closed_ended",
        content_type="disease", answer_key="Yes.", reason="There is a pneumothorax.",
        generator=GeneratorInfo(name="templates", version="3"),
        answers=[Answer(text=text, regions=["left lung"])],
    )  # fmt: skip


def test_each_by_its_own_and_few_of_many_with_their_images_whole():
    good = [_gemex("a"), *vix_ray_records(study(4))]
    assert contradictions(good) == {"read": 5, "contradictory": 0, "found": {}}
    bad = changed(_gemex("b"), reason="There is no pneumothorax.")
    other = [one.model_copy(deep=True) for one in vix_ray_records(study(5))]
    other[2].answers[0].text = "Tim to."
    told = contradictions([*good, bad, *other])
    assert set(told["found"]) == {"b", "image-5"} and told["contradictory"] == 2
    many = [one for number in range(20) for one in vix_ray_records(study(number))]
    assert contradictions(many, most=10) == {"read": 10, "contradictory": 0, "found": {}}
