"""Refining by rules: Table 9, the paper's own examples, and the labelled sentences."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cxrjax.papers.gemex.construct.facts import SentenceFact, find_facts
from cxrjax.papers.gemex.construct.refine import RuleRefiner, refine_sentence, write_facts
from cxrjax.papers.sources import report as reports
from cxrjax.papers.sources.regions import Place, find_places, load_regions
from cxrjax.papers.sources.report import ReportSentence, split_sentences
from cxrjax.radiology_text.english import load_vocabulary
from cxrjax.radiology_text.sentence_faults import sentence_faults
from tests.papers.cases import cases, data


def refined(text, *regions):
    result = refine_sentence(ReportSentence(text, regions))
    return result if isinstance(result, str) else dict((r, t) for t, r in result)


@cases("text, expected")
def test_sentences_are_complete_and_free_of_comparison(text, expected):
    assert refined(text) == expected


@cases("text, given, region")
def test_the_sources_region_decides_where_words_do_not(text, given, region):
    assert set(refined(text, *given)) == {region}


@cases("text, facts")
def test_negation(text, facts):
    assert [[fact.subject, fact.polarity] for fact in find_facts(text)] == facts


@cases("text")
def test_doubt(text):
    assert not any(fact.certain for fact in find_facts(text))


@cases("text, places")
def test_places(text, places):
    assert find_places(text.replace("---", "-" * 200)) == [Place(*place) for place in places]


@cases("phrase, sentence")
def test_headings_of_sections_are_no_part_of_a_sentence(phrase, sentence):
    assert reports.plain_sentence(phrase + " ") == sentence


@cases("text, sentences")
def test_sentence_splitting(text, sentences):
    assert split_sentences(text) == sentences


@settings(deadline=None)
@given(st.text(max_size=120), st.lists(st.sampled_from(load_regions().regions), max_size=3))
def test_any_text_gives_sentences_with_known_regions_or_a_reason(text, regions):
    result = refine_sentence(ReportSentence(text, tuple(regions)))
    if not isinstance(result, str):
        assert result
        assert all(sentence and region in load_regions().regions for sentence, region in result)


def test_what_is_left_out_is_counted_and_normal_parts_leave_the_lung_open():
    texts = ["The lungs are clear.", "Rib fractures.", "The lungs are clear."]
    report = reports.ImageReport("r", "r", "", tuple(map(ReportSentence, texts)), {})
    ((_, refinement),) = RuleRefiner().refine([report])
    assert [one.text for one in refinement.sentences] == ["The lungs are clear."]
    assert refinement.left_out == {"no_region": 1}
    # Normal volumes and sharp angles are no clear lungs
    said = "Lung volumes are normal. The costophrenic angles are sharp. Pleural spaces are clear."
    for text in split_sentences(said):
        (fact,) = find_facts(text)
        (written,) = write_facts([fact], fact.regions[0])
        assert not written.startswith("The lungs"), written


def test_what_is_written_of_a_fact_is_read_back_and_is_english():
    """A sentence that is read otherwise loses what the report said, or turns it round."""
    known = data(__file__)["places_of"]
    for name, words in load_vocabulary().findings.items():
        if words.region is None or name == "chamber_enlargement":
            continue  # nothing is written of the first; a chamber is read as the heart
        for region in known.get(name) or known.get(words.region, [words.region]):
            degrees = [("pos", "mild")] if words.graded or words.sized else []
            for polarity, severity in [("pos", None), ("neg", None), *degrees]:
                fact = SentenceFact(name, polarity, (region,), True, True, severity)
                (text,) = write_facts([fact], region)
                assert sentence_faults(text) == (), text
                read = {(one.subject, one.polarity, one.severity): one for one in find_facts(text)}
                assert (name, polarity, severity) in read, (text, read)
                if polarity == "pos":
                    assert region in read[name, polarity, severity].regions, (text, read)


REGIONS = load_regions()


def test_the_tables_sums_and_one_name_for_one_region():
    merged = sum(map(len, REGIONS.merge.values()))
    assert (len(REGIONS.keep), merged, len(REGIONS.merge), len(REGIONS.remove)) == (12, 13, 6, 4)
    assert 12 + 13 + 4 == 29 == len(set(REGIONS.sources))
    assert 12 + 6 + 12 == 30 == len(set(REGIONS.regions))
    assert REGIONS.name("Cardiac Region") == "cardiac silhouette"
    assert REGIONS.name("bilateral  lung") == "bilateral lung"
    assert REGIONS.name("carina") is None
    assert REGIONS.from_source("carina") is None
    assert REGIONS.from_source("right costophrenic angle") == "right lower lung zone"
    with pytest.raises(KeyError):
        REGIONS.from_source("liver")


@cases("parts, whole")
def test_combining(parts, whole):
    assert sorted(REGIONS.combine(parts)) == whole


@cases("one, other, overlap")
def test_overlap_is_of_places(one, other, overlap):
    assert REGIONS.overlap(one, other) is overlap


sides = [st.integers(0, 223)] * 2 + [st.integers(1, 100)] * 2
box = st.tuples(*sides).map(lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3]))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(REGIONS.sources), box, max_size=29))
def test_composed_boxes_are_the_smallest_around_their_parts(source_boxes):
    boxes = REGIONS.boxes(source_boxes)
    for region, composed in boxes.items():
        if region in REGIONS.add:
            parts = [boxes[part] for part in REGIONS.add[region]]
        elif region in REGIONS.merge:
            parts = [source_boxes[part] for part in REGIONS.merge[region] if part in source_boxes]
        else:
            parts = [source_boxes[region]]
        for axis, pick in enumerate((min, min, max, max)):
            assert composed[axis] == pick(part[axis] for part in parts)
    # A region is there exactly where what it is made of is.
    for region, parts in REGIONS.add.items():
        assert (region in boxes) == all(part in boxes for part in parts)
    assert not set(boxes) & set(REGIONS.remove)
