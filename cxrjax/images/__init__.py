"""Image files as uint8 RGB, and where boxes go when an image is resized."""

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
