"""Form of the four numbers of a box, detected from the data or stated by the user.

`xyxy` corners, `xywh` corner and size, `cxcywh` centre and size; of pixels, fractions, percent or
thousandths of the image's sides.
Where a file's columns do not say so, the form is the one under which boxes lie on their images; if
several would do, nobody guesses: the message names the flag that settles it.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

from cxrjax.errors import UserError
from cxrjax.records_io.quality import PixelBox

Form = Literal["xyxy", "xywh", "cxcywh"]
Units = Literal["pixels", "fractions", "percent", "thousandths", "unclear"]
SCALES = {"fractions": 1.0, "percent": 100.0, "thousandths": 1000.0}
FORMS: tuple[Form, ...] = get_args(Form)
# Boxes that may fit badly without telling against a form.
_FEW = 0.02
# Boxes that a form named by the file may fit badly: more, and another fits, and it is refused.
_MANY = 0.5
_PERCENT_SIDE = 200  # a picture larger than this has few boxes within 100 pixels
_ENOUGH = 5  # boxes to say so of


class Four(NamedTuple):
    """Four numbers that give a box; `image_hw` is (height, width), None where it isn't known."""

    numbers: tuple[float, ...]
    image_hw: tuple[int, int] | None
    where: str


class Settled(NamedTuple):
    """Form and units of the boxes of a source, and why they were chosen."""

    form: Form
    units: Units
    why: str


def corners(numbers: Sequence[float], form: Form) -> PixelBox:
    """(x_min, y_min, x_max, y_max) in the numbers' own units."""
    a, b, c, d = numbers
    if form == "xywh":
        return a, b, a + c, b + d
    if form == "cxcywh":
        return a - c / 2, b - d / 2, a + c / 2, b + d / 2
    return a, b, c, d


def in_pixels(
    numbers: Sequence[float], settled: Settled, image_hw: tuple[int, int] | None
) -> PixelBox:
    """The box in pixels; `image_hw` is needed for other units only."""
    box = corners(numbers, settled.form)
    if settled.units == "pixels" or image_hw is None:
        return box
    height, width = image_hw
    scale = SCALES[settled.units]
    # Fractions are written with few digits: a hundredth of a pixel is more than they say.
    x_min, y_min, x_max, y_max = box
    return (
        round(x_min * width / scale, 2),
        round(y_min * height / scale, 2),
        round(x_max * width / scale, 2),
        round(y_max * height / scale, 2),
    )


def settle(
    given: Sequence[Four],
    where: str,
    named_form: Form | None = None,
    named_units: Units | None = None,
    form_flag: Form | None = None,
    units_flag: Units | None = None,
) -> Settled:
    """The form and the units of all boxes of a source.

    Args:
        where: the source, for messages.
        named_form, named_units: what the format or the names of columns say.
        form_flag, units_flag: what the user says, which decides.

    Raises:
        UserError: several would do, or none does.
    """
    units, why_units = _units(given, where, named_units, units_flag)
    form, why_form = _form(given, where, units, named_form, form_flag)
    return Settled(form, units, f"boxes are {form} {why_form}, in {units} {why_units}")


def _units(
    given: Sequence[Four], where: str, named: Units | None, flag: Units | None
) -> tuple[Units, str]:
    if flag:
        return flag, "(--units)"
    if not given:
        return named or "pixels", "(there is none)"
    numbers = [value for one in given for value in one.numbers]
    highest = max(map(abs, numbers))
    if named in ("fractions", "percent"):
        most = 1 if named == "fractions" else 100
        outside = sum(max(one.numbers) > most * 1.05 for one in given)
        if outside > _FEW * len(given):
            raise UserError(
                f"{where}: {outside:,} of {len(given):,} boxes have numbers above {most}, expected "
                f"{named}; the highest is {highest:g}; pass --units=pixels if they are pixels"
            )
        return named, "as the format has them"
    if highest <= 1:
        if all(value == int(value) for value in numbers):
            raise UserError(
                f"{where}: all {len(given):,} boxes consist of 0 and 1: fractions or pixels? pass "
                "--units=fractions or --units=pixels"
            )
        return "fractions", "(none is above 1)"
    if named == "unclear":
        return _pixels_or_thousandths(given, where, highest)
    sides = [min(one.image_hw) for one in given if one.image_hw]
    within = highest <= 100 and len(given) >= _ENOUGH and highest > 50
    if named is None and within and sides and min(sides) > _PERCENT_SIDE:
        raise UserError(
            f"{where}: all {len(given):,} boxes are between 0 and 100, of images of "
            f"{min(sides):,} pixels and more: percent or pixels? pass --units=percent or "
            "--units=pixels"
        )
    return "pixels", f"(up to {highest:g})"


def _pixels_or_thousandths(given: Sequence[Four], where: str, highest: float) -> tuple[Units, str]:
    """Units of boxes in chats, which are of pixels or of thousandths as the model has them."""
    if highest > 1000:
        return "pixels", f"(up to {highest:g})"
    outside = sum(not _fits(one, "xyxy", "pixels") for one in given if one.image_hw)
    if outside > _FEW * len(given):
        return "thousandths", f"({outside:,} of {len(given):,} would leave their images in pixels)"
    raise UserError(
        f"{where}: boxes up to {highest:g}: pixels, or thousandths of the image's sides? pass "
        "--units=pixels or --units=thousandths"
    )


def _form(
    given: Sequence[Four], where: str, units: Units, named: Form | None, flag: Form | None
) -> tuple[Form, str]:
    if flag:
        return flag, "(--box_form)"
    known = [one for one in given if units != "pixels" or one.image_hw]
    misfits = {form: sum(not _fits(one, form, units) for one in known) for form in FORMS}
    fit = [form for form in FORMS if misfits[form] <= _FEW * len(known)]
    total = f"{len(known):,}"
    boxes = f"{total} box fits its image" if len(known) == 1 else f"{total} boxes fit their images"
    if named:
        better = [form for form in fit if form != named]
        if known and misfits[named] > _MANY * len(known) and better:
            raise UserError(
                f"{where}: {misfits[named]:,} of {total} boxes do not fit their images as {named}, "
                f"which the file states, and all fit as {better[0]}; pass --box_form={better[0]} "
                f"or --box_form={named}"
            )
        return named, "as the file states"
    if not known:
        raise UserError(
            f"{where}: no image of these boxes can be opened, so that xyxy and xywh cannot "
            "be distinguished; pass --box_form, or --images=FOLDER"
        )
    # A centre is seldom written without being called one: it needs that nothing else fits.
    likely = [form for form in fit if form != "cxcywh"] or fit
    if units != "pixels" and "cxcywh" in fit:
        likely = fit
    if len(likely) == 1:
        others = ", ".join(
            f"{misfits[form]:,} would not as {form}" for form in FORMS if form not in likely
        )
        return likely[0], f"(all but {misfits[likely[0]]:,} of {total} fit so; {others})"
    if likely:
        flags = " or ".join(f"--box_form={form}" for form in likely)
        raise UserError(f"{where}: {boxes} as {' and as '.join(likely)}; pass {flags}")
    told = ", ".join(f"{count:,} not as {form}" for form, count in misfits.items())
    raise UserError(
        f"{where}: {total} boxes, which fit in no form ({told}); check that "
        "these are the annotated images, else pass --box_form and --units"
    )


def _fits(one: Four, form: Form, units: Units) -> bool:
    """Returns whether a box has an area and is within its image, up to rounding."""
    scale = SCALES.get(units)
    if scale:
        height = width = scale
        slack = 0.005 * scale
    else:
        assert one.image_hw is not None
        height, width = map(float, one.image_hw)
        slack = 1.0 + 0.002 * max(height, width)
    x_min, y_min, x_max, y_max = corners(one.numbers, form)
    return -slack <= x_min < x_max <= width + slack and -slack <= y_min < y_max <= height + slack
