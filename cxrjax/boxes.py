"""The box and its arithmetic: one definition for NumPy and for JAX.

A box is (x_min, y_min, x_max, y_max) on the last axis of an array, everywhere in the package as
float32 fractions of the original image. The arithmetic does not depend on the unit, so pixels work
too. Arrays of NumPy give NumPy, a JAX array among the arguments gives JAX (under jit, grad and
vmap as well); JAX is not imported for users of NumPy.

What holds for every function:

- **Precision**: inputs are promoted to float32 at least, so half-precision and integer boxes are
  computed and returned in float32 or wider; `canonical` alone keeps the dtype. (A gradient with
  respect to float16 boxes is float16 again and can overflow there: cast the boxes first.)
- **Swapped corners are sorted** before anything is computed, as in Algorithm 1 of the GIoU paper
  (Rezatofighi et al., CVPR 2019, arXiv 1902.09630). Where two corners are equal they count as in
  order, so that the gradient lets a flat box grow the right way round. A loss must not sort: a
  box the wrong way round would cost it nothing, and a model trained so learns to swap. With
  `swapped="empty"` such a box has no area (`cxrjax.training.box_loss` adds what pulls it back).
- **Boxes without area** have IoU 0 with everything, themselves included: a prediction of nothing is
  never a hit. Where two boxes together cover at most `MIN_AREA`, IoU is 0; where the box around
  both does, GIoU equals IoU. Without that limit gradients, which grow as 1/area, would overflow.
- **NaN in, NaN out**: a diverging model must be seen, not scored 0.
- **Other shapes are errors**: ValueError where a last axis does not hold four coordinates.
- **Gradients are finite** for all finite boxes up to coordinates of 1e9 in float32. They vanish
  where the measure itself is flat: IoU of disjoint boxes, and a point within the other box.
"""

import sys
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Num

# In squared units of the coordinates. For fractions: a square of a millionth of the image's side.
MIN_AREA = 1e-12

Swapped: TypeAlias = Literal["sort", "empty"]


def canonical(boxes: Num[Any, "*batch 4"]) -> Num[Any, "*batch 4"]:
    """Swaps corners so that x_min <= x_max and y_min <= y_max; shape and dtype stay."""
    xp = _namespace(boxes)
    boxes = xp.asarray(boxes)
    _check_last_axis(boxes)
    return xp.concatenate(_corners(boxes, xp), axis=-1)


def area(boxes: Num[Any, "*batch 4"]) -> Float[Any, "*batch"]:
    """Area of each box, in squared units of its coordinates, never negative."""
    (boxes,), xp = _prepare(boxes)
    low, high = _corners(boxes, xp)
    return _product(high - low)


def iou(a: Num[Any, "... 4"], b: Num[Any, "... 4"], swapped: Swapped = "sort") -> Float[Any, "..."]:
    """Intersection over union of each box of `a` with the box of `b` at the same place.

    Args:
        a: boxes xyxy; b: boxes in the same unit. Leading axes broadcast.
        swapped: what corners in the wrong order mean: the box they span, or a box without area.

    Returns:
        IoU in [0, 1], one value a pair. The module's docstring defines degenerate boxes.
    """
    (a, b), xp = _prepare(a, b)
    intersection, union, _ = _areas(a, b, xp, swapped)
    return _iou(intersection, union, xp)


def giou(
    a: Num[Any, "... 4"], b: Num[Any, "... 4"], swapped: Swapped = "sort"
) -> Float[Any, "..."]:
    """Generalized IoU: IoU minus the share of the box around both that neither of them covers.

    Tells disjoint boxes apart by their distance, so that a loss of 1 - GIoU has a gradient there
    (Rezatofighi et al., CVPR 2019, arXiv 1902.09630, Algorithm 1).

    Args:
        a: boxes xyxy; b: boxes in the same unit. Leading axes broadcast.
        swapped: as of `iou`.

    Returns:
        GIoU in [-1, 1], never above IoU. The module's docstring defines degenerate boxes.
    """
    (a, b), xp = _prepare(a, b)
    intersection, union, hull = _areas(a, b, xp, swapped)
    # Rounding can make the hull smaller than the union it contains.
    uncovered = xp.maximum(hull - union, 0)
    return _iou(intersection, union, xp) - _ratio(uncovered, hull, xp)


def pairwise_iou(a: Num[Any, "n 4"], b: Num[Any, "m 4"]) -> Float[Any, "n m"]:
    """`iou` of every box of `a` with every box of `b`."""
    return iou(a[:, None, :], b[None, :, :])


def _namespace(*arrays: Any) -> ModuleType:
    """The module that computes these arrays. Who has a JAX array has imported JAX already."""
    jax = sys.modules.get("jax")
    if jax is not None and any(isinstance(array, jax.Array) for array in arrays):
        return jax.numpy
    return np


def _check_last_axis(boxes: Any) -> None:
    if boxes.ndim == 0 or boxes.shape[-1] != 4:
        raise ValueError(f"boxes of shape {tuple(boxes.shape)}: expected four on the last axis")


def _prepare(*arrays: Any) -> tuple[list[Any], ModuleType]:
    """All arrays in one namespace and one dtype, float32 at least."""
    xp = _namespace(*arrays)
    converted = [xp.asarray(array) for array in arrays]
    for boxes in converted:
        _check_last_axis(boxes)
    dtype = xp.result_type(*(boxes.dtype for boxes in converted), np.float32)
    return [boxes.astype(dtype) for boxes in converted], xp


def _corners(boxes: Any, xp: ModuleType) -> tuple[Any, Any]:
    """Lower and upper corners [..., 2], sorted.

    A selection rather than minimum and maximum: those would split the gradient of equal corners
    in halves, which cancel in the difference, and a flat box could not grow.
    """
    first, second = boxes[..., :2], boxes[..., 2:]
    swapped = first > second
    return xp.where(swapped, second, first), xp.where(swapped, first, second)


def _product(size: Any) -> Any:
    return size[..., 0] * size[..., 1]


def _areas(a: Any, b: Any, xp: ModuleType, swapped: Swapped) -> tuple[Any, Any, Any]:
    """Areas of the intersection, of the union, and of the smallest box around both."""

    def of(size: Any) -> Any:
        # Not maximum(size, 0), which halves the gradient at 0, where a flat box has to grow.
        return _product(xp.where(size < 0, 0, size))

    if swapped == "sort":
        (a_low, a_high), (b_low, b_high) = _corners(a, xp), _corners(b, xp)
    else:
        (a_low, a_high), (b_low, b_high) = ((box[..., :2], box[..., 2:]) for box in (a, b))
    intersection = of(xp.minimum(a_high, b_high) - xp.maximum(a_low, b_low))
    union = of(a_high - a_low) + of(b_high - b_low) - intersection
    hull = _product(xp.maximum(a_high, b_high) - xp.minimum(a_low, b_low))
    return intersection, union, hull


def _iou(intersection: Any, union: Any, xp: ModuleType) -> Any:
    # A compiler may fuse the union's sum and lose the last bit, which would take IoU above 1.
    return xp.minimum(_ratio(intersection, union, xp), 1)


def _ratio(part: Any, whole: Any, xp: ModuleType) -> Any:
    """part / whole, 0 where there is no whole.

    The divisor is replaced before dividing: the gradient of the branch not taken is computed too
    and must be finite. The comparison is this way round to let NaN through.
    """
    empty = whole <= MIN_AREA
    return xp.where(empty, 0, part / xp.where(empty, 1, whole))
