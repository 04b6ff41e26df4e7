"""Builds a data set from VinDr-CXR-VQA's table, release file and images.

`source.py` lists the parts of a source. Without the release file, questions are constructed from
the table.
"""

import collections
import dataclasses
import functools
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cxrjax.errors import UserError
from cxrjax.files import write_json
from cxrjax.language_model.flags import CACHE_NAME, ClientFlags, client_from_flags
from cxrjax.papers.vindr_cxr_vqa import statistics
from cxrjax.papers.vindr_cxr_vqa.annotation import ImageAnnotation
from cxrjax.papers.vindr_cxr_vqa.box_table import check_image_labels, read_box_table
from cxrjax.papers.vindr_cxr_vqa.construct.mix import (
    MixName,
    normal_images,
    pick_normal,
    plan_splits,
)
from cxrjax.papers.vindr_cxr_vqa.construct.plan import Assembly, PlannedQuestion, Writer
from cxrjax.papers.vindr_cxr_vqa.construct.template_writer import TemplateWriter
from cxrjax.papers.vindr_cxr_vqa.native import (
    FILE_NAME,
    SPLIT_FILE,
    read_native,
    write_native,
)
from cxrjax.papers.vindr_cxr_vqa.source import SPLIT as TEST_SPLIT
from cxrjax.papers.vindr_cxr_vqa.source import (
    ImageFiles,
    Source,
    annotate_sizes,
    find_or_unpack,
    join_image_files,
    join_table,
    read_official_test,
    sample_test300,
)
from cxrjax.progress import progress_bar
from cxrjax.records import GeneratorInfo, Provenance, QARecord
from cxrjax.records_io.builder import Builder, SourceOptions, describe_file, write_split
from cxrjax.records_io.csv_table import read_size_table
from cxrjax.records_io.row_files import UNPACKED
from cxrjax.records_io.split import (
    VALIDATION_PERCENT,
    follow_manifest,
    read_split_manifest,
    stratified_validation,
)
from cxrjax.records_io.statistics import RecordStatistics, tables_markdown

if TYPE_CHECKING:
    from cxrjax.papers.vindr_cxr_vqa.construct.language_model_writer import LanguageModelWriter

SPLITS = ("train", "validation")
TABLES_FILE = "tables.md"


@dataclasses.dataclass(frozen=True)
class VinDrOptions(SourceOptions):
    """Flags of VinDr-CXR-VQA.

    Attributes:
        sizes: table of image sizes.
        mix: released: positive questions, four an image; paper: with negatives, in the paper's
            numbers; balanced: one negative for each positive question, of its class and kind, in
            every split.
        questions: dense: also ask for every finding of an image with all of its boxes.
        split_manifest: JSON {split: [image ids]} (default: stratified by the seed).
        generator: what words constructed questions.
    """

    sizes: Path | None = None
    mix: MixName = "released"
    questions: Literal["one_box", "dense"] = "one_box"
    split_manifest: Path | None = None
    generator: Literal["templates", "language_model"] = "templates"
    client: ClientFlags = dataclasses.field(default_factory=ClientFlags)


@dataclasses.dataclass(frozen=True)
class _Opened:
    """A source that has been read, images excepted."""

    source: Source
    table: list[ImageAnnotation] | None
    # `test`, `test_normal`: images with and without findings of the official test part, where the
    # source has it.
    test: list[ImageAnnotation]
    test_normal: list[ImageAnnotation]
    files: ImageFiles
    manifest: Mapping[str, str] | None  # image id -> split, where one is given


class VinDrBuilder(Builder[VinDrOptions]):
    """Writes records, the release's form of them, splits and Table 3.

    Attributes:
        images: split -> annotations of its images; empty without a box table.
        order: image ids as the source has them, for the release's form.
        notes: what to say about the build, for manifest.json.
        written: split -> its records.
    """

    dataset = "vindr_cxr_vqa"
    options_class = VinDrOptions

    def __init__(self, options: VinDrOptions) -> None:
        super().__init__(options)
        self.images: dict[str, list[ImageAnnotation]] = {}
        self.order: list[str] = []
        self.notes: dict[str, Any] = {}
        self.written: dict[str, list[QARecord]] = {}
        self._comparison: Mapping[str, Any] = {}

    @functools.cached_property
    def _templates(self) -> TemplateWriter:
        return TemplateWriter(self.options.seed)

    @functools.cached_property
    def _model(self) -> "LanguageModelWriter":
        from cxrjax.papers.vindr_cxr_vqa.construct.language_model_writer import (
            LanguageModelWriter,
        )

        client = client_from_flags(
            self.options.client, self.options.out / CACHE_NAME, ["vindr_cxr_vqa"]
        )
        return LanguageModelWriter(client, self.quality, self.options.out)

    def estimate(self) -> str | None:
        if self.options.generator == "templates" or not self.options.client.dry_run:
            return None
        return str(self._model.estimate(self.plan()))

    def plan(self) -> list[PlannedQuestion]:
        """The questions that a build would have worded. Writes nothing.

        Raises:
            UserError: as `read`.
        """
        self._refuse_words()
        return [plan for plans in self._plan()[0].values() for plan in plans]

    def read(self) -> Mapping[str, Iterable[QARecord]]:
        self.published = (
            statistics.PAPER
            if self._opened.table is None
            else statistics.PAPER | statistics.SOURCE_TABLE
        )
        if self._opened.source.release is None:
            return self._constructed()
        if self.options.generator != "templates":
            self._refuse_words()
        return self._released()

    def _refuse_words(self) -> None:
        if self._opened.source.release:
            raise UserError(
                f"{self._opened.source.release}: brings its own questions: nothing to word"
            )

    @functools.cached_property
    def _opened(self) -> _Opened:
        options, quality = self.options, self.quality
        unpacked = options.out / UNPACKED
        source = find_or_unpack(options.source, options.sizes, unpacked, quality)
        if source.release and (options.mix != "released" or options.questions != "one_box"):
            raise UserError(
                f"{source.release}: --mix and --questions are about constructed questions; "
                "this source brings its own: name the table alone as --source"
            )
        path = options.split_manifest
        if path is None and source.release == unpacked / FILE_NAME:
            path = unpacked / SPLIT_FILE if (unpacked / SPLIT_FILE).is_file() else None
        manifest = read_split_manifest(path) if path else None
        sizes = read_size_table(source.sizes, quality) if source.sizes else None
        files = ImageFiles(source.images, options.out, sizes, options.processes)
        table = read_box_table(source.table, quality) if source.table else None
        if table is not None and source.labels:
            check_image_labels(source.labels, table, quality)
        every = [] if source.release else self._test_images(source)
        test = [image for image in every if image.findings]
        if manifest and TEST_SPLIT in manifest.values():
            test = [image for image in test if manifest.get(image.image_id) == TEST_SPLIT]
        else:
            test = sample_test300(test, options.seed)
        wanted = normal_images(options.mix, len(test))
        return _Opened(
            source, table, test, pick_normal(every, wanted, options.seed), files, manifest
        )

    def _test_images(self, source: Source) -> list[ImageAnnotation]:
        """Images of the official test part."""
        if source.test is None:
            return []
        images = read_official_test(source.test, self.quality)
        files = ImageFiles(source.test.images, self.options.out, None, self.options.processes)
        if not files:
            return images
        return annotate_sizes(images, files, self.quality)

    def _released(self) -> dict[str, list[QARecord]]:
        """The release's own questions, with what the other pieces know of their images."""
        opened, quality = self._opened, self.quality
        release, table = opened.source.release, opened.table
        assert release is not None
        records = read_native(release, quality, _provenance(release))
        if table is not None:
            records = join_table(records, table, release.name, quality)
        if opened.files:
            records = join_image_files(records, opened.files, quality)
        by_id = {image.image_id: image for image in table or []}
        labels: dict[str, set[str]] = collections.defaultdict(set)
        for record in records:
            labels[record.image_id].update(record.answers[0].labels)
        # The table knows all classes of an image; the release, those that it asks about.
        label_sets = {key: by_id[key].present if key in by_id else labels[key] for key in labels}
        split_of = self._divide(label_sets, by_id)
        self.order = list(label_sets)
        splits: dict[str, list[QARecord]] = {split: [] for split in _names(split_of.values())}
        if table is not None:
            self.images = {
                split: [by_id[key] for key in split_of if split_of[key] == split and key in by_id]
                for split in splits
            }
        for record in records:
            if split := split_of.get(record.image_id):
                splits[split].append(record.model_copy(update={"split": split}))
        return splits

    def _plan(self) -> tuple[dict[str, list[PlannedQuestion]], dict[str, Any]]:
        """Questions planned from the table, by split, and notes on them."""
        opened, seed = self._opened, self.options.seed
        assert opened.table is not None  # find_source saw to it
        abnormal = [image for image in opened.table if image.findings]
        normal = self._normal_images(len(abnormal))
        if opened.files:
            every = [*abnormal, *(image for images in normal.values() for image in images)]
            usable = {i.image_id: i for i in annotate_sizes(every, opened.files, self.quality)}
            abnormal = [image for image in usable.values() if image.findings]
            normal = {
                split: [usable[i.image_id] for i in images if i.image_id in usable]
                for split, images in normal.items()
            }
        label_sets = {image.image_id: image.present for image in abnormal}
        known = {image.image_id for image in (*opened.table, *opened.test)}
        split_of = self._divide(label_sets, known)
        splits: dict[str, list[ImageAnnotation]] = {
            split: [image for image in abnormal if split_of.get(image.image_id) == split]
            for split in _names(split_of.values())
        }
        if opened.test:
            splits[TEST_SPLIT] = opened.test
            normal[TEST_SPLIT] = opened.test_normal
        dense = self.options.questions == "dense"
        return plan_splits(splits, normal, self.options.mix, dense, seed)

    def _normal_images(self, abnormal: int) -> dict[str, list[ImageAnnotation]]:
        """Images without findings by split, as many as the mix of so many others can use."""
        opened, mix, seed = self._opened, self.options.mix, self.options.seed
        assert opened.table is not None
        normal = pick_normal(opened.table, None, seed)
        if opened.manifest is not None:
            split_of = {i.image_id: opened.manifest.get(i.image_id, "train") for i in normal}
            shares = dict.fromkeys(split_of.values(), 1.0)
        else:
            held_out = {i.image_id for i in normal[: len(normal) * VALIDATION_PERCENT // 100]}
            held_out = held_out if mix == "balanced" else set()
            split_of = {
                i.image_id: "validation" if i.image_id in held_out else "train" for i in normal
            }
            shares = {"train": 1 - VALIDATION_PERCENT / 100, "validation": VALIDATION_PERCENT / 100}
        return {
            split: pick_normal(
                [image for image in normal if split_of[image.image_id] == split],
                normal_images(mix, math.ceil(abnormal * share)),
                seed,
            )
            for split, share in shares.items()
        }

    def _constructed(self) -> dict[str, Iterable[QARecord]]:
        """Questions planned from the table, in the writer's words."""
        planned, notes = self._plan()
        source, table = self._opened.source, self._opened.table
        assert source.table is not None and table is not None
        sources = dict.fromkeys(planned, _provenance(source.table))
        by_templates = self.options.generator == "templates"
        writer: Writer = self._templates if by_templates else self._model
        if self._opened.test:
            assert source.test is not None and source.test.table is not None
            sources[TEST_SPLIT] = _provenance(source.test.table)
        self.images = {
            split: list({plan.image.image_id: plan.image for plan in plans}.values())
            for split, plans in planned.items()
        }
        self.order = [image.image_id for image in (*table, *self._opened.test)]
        self.notes = {"mix": self.options.mix, **notes}
        return {
            split: progress_bar(
                Assembly("vindr_cxr_vqa", writer, sources[split]).records(plans, split),
                desc=f"{split} questions",
                total=len(plans),
                unit="question",
            )
            for split, plans in planned.items()
        }

    def _divide(
        self, label_sets: Mapping[str, Iterable[str]], known: Collection[str]
    ) -> dict[str, str]:
        """Image id -> split, by the manifest or stratified; `known`: images that aren't divided."""
        manifest, path = self._opened.manifest, self.options.split_manifest
        if manifest is not None:
            where = path.name if path else f"{UNPACKED}/{SPLIT_FILE}"
            splits = follow_manifest(manifest, label_sets, known, where, self.quality)
        else:
            labels = {key: list(of_image) for key, of_image in label_sets.items()}
            held_out = stratified_validation(labels, self.options.seed)
            splits = {key: "validation" if key in held_out else "train" for key in label_sets}
        if not splits:
            raise self.nothing_left()
        return splits

    def write_split(self, split: str, records: Iterable[QARecord]) -> dict[str, Any]:
        self.written[split] = list(records)
        # The test images are none of the paper's 4,394.
        counts = self.counts if split != TEST_SPLIT else RecordStatistics()
        counted = self.counted(split, self.written[split])
        return write_split(self.options.out, split, counted, counts)

    def balance_rule(self) -> str:
        if self._opened.source.release is not None:
            return super().balance_rule()
        return statistics.BALANCES[self.options.mix]

    def values(self) -> dict[str, float | None]:
        table = self._opened.table
        values = {} if table is None else statistics.table_values(table)
        if "validation" in self.written:
            images = self.images.get("validation", [])
            ceiling = statistics.recall_ceiling(images, self.written["validation"])
            values["validation_recall_ceiling"] = ceiling
        values |= self.counts.values()
        if own := {split: shown for split, shown in self.images.items() if split != TEST_SPLIT}:
            values |= statistics.annotation_values(own)
        if TEST_SPLIT in self.splits:
            values["test_images"] = self.splits[TEST_SPLIT]["images"]
        return values

    @functools.cached_property
    def _in_order(self) -> list[QARecord]:
        """The records in the source's order of images, as far as the release's form holds them:
        it has one finding a question, and no place for questions about all."""
        rank = {image_id: number for number, image_id in enumerate(self.order)}
        every = [record for records in self.written.values() for record in records]
        return sorted(
            (record for record in every if len(record.answers) == 1 or record.gt_finding),
            key=lambda record: rank[record.image_id],
        )

    @property
    def _generator(self) -> GeneratorInfo | None:
        return next((record.generator for record in self._in_order), None)

    @property
    def _worded_by(self) -> str:
        made_by = self._generator
        return f"{made_by.name} {made_by.version}" if made_by else "the release"

    @property
    def _built(self) -> str:
        notes = {"seed": self.options.seed, **self.notes}
        told = "; ".join(f"{key} {value}" for key, value in notes.items())
        return f"Source: {self.options.source.name}; questions by {self._worded_by}; {told}"

    def write_files(self, comparison: Mapping[str, Any]) -> None:
        out = self.options.out
        write_native(out / FILE_NAME, self._in_order)
        members = {
            split: list(dict.fromkeys(record.image_id for record in records))
            for split, records in self.written.items()
        }
        write_json(out / SPLIT_FILE, members)
        (out / TABLES_FILE).write_text(statistics.tables(comparison, self._built), "utf-8")
        self._comparison = comparison

    def describe(self) -> dict[str, Any]:
        source, made_by = self._opened.source, self._generator
        worded = source.release is None and self.options.generator == "templates"
        pieces = {
            "table": source.table,
            "release": source.release,
            "sizes": source.sizes,
            "test": source.test.table if source.test else None,
            "split_manifest": self.options.split_manifest,
        }
        return {
            "seed": self.options.seed,
            "generator": made_by.model_dump() if made_by else None,
            **self.notes,
            **({"question_variations": dict(self._templates.variations)} if worded else {}),
            "source": {name: describe_file(path) for name, path in pieces.items() if path},
        }

    def report(self) -> Iterator[str]:
        yield tables_markdown(self.dataset, [self._built], self._comparison, statistics.TABLE_3)
        if self.options.generator == "language_model":
            yield json.dumps({self._model.name: self._model.client.account.to_json()})


def _names(splits: Iterable[str]) -> list[str]:
    """Training and validation, empty or not, and what other splits there are."""
    return list(dict.fromkeys([*SPLITS, *sorted(set(splits))]))


def _provenance(path: Path) -> Provenance:
    file = describe_file(path)
    return Provenance(source_file=file["path"], source_sha256=file["sha256"])
