"""The released questions joined with the box table that they were made from."""

from collections.abc import Iterable, Sequence

from cxrjax.datasets.quality import QualityLog
from cxrjax.datasets.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.datasets.vindr_cxr_vqa.assemble import reader_boxes
from cxrjax.datasets.vindr_cxr_vqa.verify import contradiction
from cxrjax.records import QARecord


def join_table(
    records: Iterable[QARecord],
    images: Sequence[ImageAnnotation],
    where: str,
    quality: QualityLog,
) -> list[QARecord]:
    """Release records with their image's readers; sets aside what the table contradicts.

    Section 2.2 of the paper reports that labels and boxes agree with the source without exception;
    a question whose finding or box is not one of its image's rows is set aside.
    """
    by_id = {image.image_id: image for image in images}
    joined = []
    for record in records:
        image = by_id.get(record.image_id)
        found = contradiction(record, image)
        if found or image is None:
            quality.set_aside("source_mismatch", record.question_id, where, found)
            continue
        joined.append(
            record.model_copy(update={"readers": reader_boxes(image), "image_hw": image.image_hw})
        )
    return joined
