"""Regions of images, kept from one build to the next: what masks and boxes give is the same."""

import gzip
import hashlib
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from cxrjax.errors import ForeignError, UserError
from cxrjax.papers.cxr_qba.construct.extraction import StudyImage
from cxrjax.papers.cxr_qba.construct.regions import LocalizedRegion, localize
from cxrjax.radiology_text.definitions import load_definitions
from cxrjax.records_io.quality import QualityLog
from cxrjax.untrusted.archives import open_gzip
from cxrjax.untrusted.json_text import parse_object

# Changes with what `localize` makes of the same files.
_VERSION = 2


class RegionCache:
    """A file of regions by image. Use as a context; one process at a time writes to it.

    Raises:
        UserError: it cannot be opened, or is no such file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path)
            self._file.execute("create table if not exists regions (key text primary key, of blob)")
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"{path}: cannot be used as a cache of regions: {error}") from None

    def __enter__(self) -> "RegionCache":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.commit()
        self._file.close()

    def localize(self, image: StudyImage, quality: QualityLog) -> Mapping[str, LocalizedRegion]:
        """Returns what `regions.localize` does, from the cache where the image's files are as they
        were; what was rejected or counted then is so again."""
        if not image.regions_key:
            return localize(image, quality)
        told = f"{_VERSION}/{load_definitions().version}/{image.image_hw}/{image.regions_key}"
        key = hashlib.sha256(told.encode()).hexdigest()
        row = self._file.execute("select of from regions where key = ?", (key,)).fetchone()
        if row is None:
            own = QualityLog()
            found = localize(image, own).items()
            regions = {name: [one.boxes, one.has_mask] for name, one in found}
            content = {"regions": regions, "quality": own.to_json()}
            packed = gzip.compress(json.dumps(content).encode(), mtime=0)
            self._file.execute("insert into regions values (?, ?)", (key, packed))
        else:
            try:
                content = parse_object(open_gzip(bytes(row[0])).read())
            except (ForeignError, TypeError) as error:
                raise UserError(
                    f"{self._path}: a damaged cache of regions; delete it: {error}"
                ) from None
        quality.merge(content["quality"])
        return {
            name: LocalizedRegion(tuple(tuple(box) for box in boxes), masked=masked)
            for name, (boxes, masked) in content["regions"].items()
        }
