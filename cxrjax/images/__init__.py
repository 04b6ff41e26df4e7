"""Image files as uint8 RGB, and where boxes go when an image is resized.

A name's module is imported when the name is asked for: who wants geometry alone, as a training step
does, needs neither Pillow nor pydicom.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cxrjax.images.audit import audit_image
    from cxrjax.images.decode import (
        audit_header,
        image_size,
        read_grey_or_rgb,
        read_image,
        three_channels,
    )
    from cxrjax.images.files import MAX_PIXELS, AnyFile, ImageError, open_file
    from cxrjax.images.geometry import (
        IDENTITY,
        Geometry,
        center_crop_geometry,
        is_resize,
        letterbox,
        letterbox_geometry,
        resize,
    )

__all__ = [
    "IDENTITY",
    "MAX_PIXELS",
    "AnyFile",
    "Geometry",
    "ImageError",
    "audit_header",
    "audit_image",
    "center_crop_geometry",
    "image_size",
    "is_resize",
    "letterbox",
    "letterbox_geometry",
    "open_file",
    "read_grey_or_rgb",
    "read_image",
    "resize",
    "three_channels",
]

_MODULES = {
    "audit": ("audit_image",),
    "decode": (
        "audit_header",
        "image_size",
        "read_grey_or_rgb",
        "read_image",
        "three_channels",
    ),
    "files": (
        "MAX_PIXELS",
        "AnyFile",
        "ImageError",
        "open_file",
    ),
    "geometry": (
        "IDENTITY",
        "Geometry",
        "center_crop_geometry",
        "is_resize",
        "letterbox",
        "letterbox_geometry",
        "resize",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
