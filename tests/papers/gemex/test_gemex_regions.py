"""arXiv 2411.16778, Table 8, and what follows from it for boxes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxrjax.papers.sources.regions import load_regions

REGIONS = load_regions()


def test_the_tables_sums():
    merged = sum(map(len, REGIONS.merge.values()))
    assert (len(REGIONS.keep), merged, len(REGIONS.merge), len(REGIONS.remove)) == (12, 13, 6, 4)
    assert 12 + 13 + 4 == 29 == len(set(REGIONS.sources))
    assert 12 + 6 + 12 == 30 == len(set(REGIONS.regions))


def test_one_name_for_one_region():
    assert REGIONS.name("Cardiac Region") == "cardiac silhouette"
    assert REGIONS.name("bilateral  lung") == "bilateral lung"
    assert REGIONS.name("carina") is None
    assert REGIONS.from_source("carina") is None
    assert REGIONS.from_source("right costophrenic angle") == "right lower lung zone"
    with pytest.raises(KeyError):
        REGIONS.from_source("liver")


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        (["left lung", "right lung"], ["bilateral lung"]),
        (["left mid lung zone", "left lower lung zone"], ["left mid-to-lower lung zone"]),
        (["left lower lung zone", "right lower lung zone"], ["bilateral lower lung zone"]),
        (
            [f"{s} {z} lung zone" for s in ("left", "right") for z in ("mid", "lower")],
            ["bilateral mid-to-lower lung zone"],
        ),
        (["left lung", "left upper lung zone"], ["left lung"]),
        (["spine", "trachea"], ["trachea", "spine"]),
        (["left upper lung zone", "right lower lung zone"], None),
        ([], []),
    ],
)
def test_combining(parts, whole):
    assert sorted(REGIONS.combine(parts)) == sorted(parts if whole is None else whole)


def test_overlap_is_of_places():
    assert REGIONS.overlap("left lung", "bilateral lower lung zone")
    assert REGIONS.overlap("left mid-to-lower lung zone", "left mid lung zone")
    assert not REGIONS.overlap("left lung", "right lower lung zone")
    assert not REGIONS.overlap("left upper lung zone", "left mid-to-lower lung zone")


coordinate = st.integers(0, 223)
box = st.tuples(coordinate, coordinate, st.integers(1, 100), st.integers(1, 100)).map(
    lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3])
)


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
