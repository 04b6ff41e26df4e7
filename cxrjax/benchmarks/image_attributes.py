"""What is known of an image besides its findings, in the groups that figures are broken down by."""

from collections.abc import Sequence

from cxrjax.records import QARecord

# Upper ends of the groups of images by their number of true boxes.
_BOX_COUNTS = (0, 1, 2, 4, 8)
_OLDEST = 90


def image_attributes(records: Sequence[QARecord], true_boxes: int | None) -> dict[str, str]:
    """Attribute -> group: `view`, `sex`, `age_band` and `boxes_per_image`, those that are known.

    Args:
        records: of one image; the first that knows counts.
        true_boxes: how many it has; None where nobody marked any.
    """
    known = {
        "view": (record.view for record in records if record.view),
        "sex": (record.sex for record in records if record.sex),
        "age_band": (age_band(record.age) for record in records if record.age is not None),
    }
    found = {name: next(values, None) for name, values in known.items()}
    found["boxes_per_image"] = None if true_boxes is None else box_count_band(true_boxes)
    return {name: value for name, value in found.items() if value is not None}


def age_band(years: float) -> str:
    """The decade of an age: `0-9`, ..., `80-89`, `90+`."""
    if years >= _OLDEST:
        return f"{_OLDEST}+"
    decade = int(max(years, 0)) // 10 * 10
    return f"{decade}-{decade + 9}"


def box_count_band(boxes: int) -> str:
    """`0`, `1`, `2`, `3-4`, `5-8` or `9+` boxes."""
    for low, high in zip((-1, *_BOX_COUNTS), _BOX_COUNTS, strict=False):
        if boxes <= high:
            return str(high) if high == low + 1 else f"{low + 1}-{high}"
    return f"{_BOX_COUNTS[-1] + 1}+"
