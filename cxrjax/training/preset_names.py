"""Names of `model.preset`: a preset's, or the base's own, with sizes of images behind an '@'."""

import difflib

from cxrjax.cli import input_sizes
from cxrjax.errors import UserError
from cxrjax.models.presets import PRESETS, VLMConfig

# `model.preset` of a base whose sizes are no preset's: it carries them itself.
FROM_BASE = "from_base"


def is_from_base(preset: str) -> bool:
    """Returns whether `model.preset` means the base's own sizes, whatever the images'."""
    return preset.partition("@")[0] == FROM_BASE


def grids_of(preset: str) -> tuple[tuple[int, int], ...]:
    """(height, width) of each of the sizes of images that `model.preset` names, if any."""
    sizes = preset.partition("@")[2]
    return input_sizes(sizes) if sizes else ()


def find_preset(name: str) -> VLMConfig:
    """`PRESETS[name]`, for images of the sizes behind an '@' where there are any.

    Raises:
        UserError: no such preset; suggests the nearest. A size that it cannot have.
    """
    name, _, size = name.partition("@")
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(PRESETS)}"
        raise UserError(f"model.preset={name!r} is unknown; {hint}")
    return at_size(PRESETS[name], size)


def at_size(sizes: VLMConfig, size: str) -> VLMConfig:
    """Sizes for images of "HEIGHTxWIDTH" pixels, of several ("...,...") for those with the most
    tokens; for those of its own where that is empty.

    Raises:
        UserError: it is no size, or none that the model can have.
    """
    if not size:
        return sizes
    try:
        grids = input_sizes(size)
        if len(set(grids)) < len(grids):
            raise ValueError("expected different ones")
        return max((sizes.for_images(*grid) for grid in grids), key=lambda each: each.num_context)
    except ValueError as error:
        raise UserError(
            f"model.preset: images of {size!r} pixels: {error}; such as 'qwen3_vl_4b@576x448'"
        ) from None
