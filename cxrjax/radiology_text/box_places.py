"""Places that words name against places where boxes are, of one radiograph."""

from collections.abc import Iterator, Mapping, Sequence

from cxrjax.files import read_packaged
from cxrjax.radiology_text.answer_details import SaidPlace

Box = Sequence[float]

# A side that is named must hold a tenth of the image's width of some box, measured from the middle,
# or the whole of one.
_MIDLINE = 0.05
_LEVELS: Mapping[str, Sequence[float]] = read_packaged(
    str(__package__), "reference/box_levels.toml"
)


def place_faults(
    said: SaidPlace, boxes: Sequence[Box], hw: tuple[int, int] | None, where: str
) -> Iterator[str]:
    """Sides and levels that are named and no box is at, and boxes' sides that are left out."""
    if hw is None or not boxes or not (said.sides or said.regions):
        return
    height, width = hw
    held = set()
    for x_min, _, x_max, _ in boxes:
        middle = (x_min + x_max) / 2 / width
        if middle < 0.5 + _MIDLINE or (0.5 * width - x_min) > 2 * _MIDLINE * width:
            held.add("right")
        if middle > 0.5 - _MIDLINE or (x_max - 0.5 * width) > 2 * _MIDLINE * width:
            held.add("left")
    for side in sorted(said.sides - held):
        yield f"{where}: names the {side} side, where no box is"
    if said.sides:
        middles = [(box[0] + box[2]) / 2 / width for box in boxes]
        clear = {("right" if x < 0.35 else "left") for x in middles if not 0.35 <= x <= 0.65}
        for side in sorted(clear - said.sides):
            yield f"{where}: leaves out the {side} side, where a box is"
    levels = [(box[1] + box[3]) / 2 / height for box in boxes]
    spans = [(box[1] / height, box[3] / height) for box in boxes]
    for region in sorted(said.regions):
        for name, (low, high) in _LEVELS.items():
            if name in region and not any(
                low <= level <= high or (top <= high and bottom >= low and bottom - top > 0.15)
                for level, (top, bottom) in zip(levels, spans, strict=True)
            ):
                yield f"{where}: names {region}, and no box is at that level"
