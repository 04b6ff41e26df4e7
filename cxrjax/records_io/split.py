"""Dividing images or patients into training and validation."""

import collections
import hashlib
import math
import random
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from cxrjax.errors import UserError
from cxrjax.files import read_json_object
from cxrjax.records import QARecord
from cxrjax.records_io.quality import QualityLog

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")

VALIDATION_PERCENT = 15  # VinDr-CXR-VQA, Table 3: 659 of 4,394 images


def stratified_validation(label_sets: Mapping[str, Collection[str]], seed: int) -> set[str]:
    """Image ids for validation, with every label at about its own share.

    Images are put in an order in which like label sets stand together, the rarest label deciding
    first, and cut into blocks; of each block the one image goes to validation that keeps the
    labels' shares best up to there. Rare labels get their share by the order, common ones by the
    choice.

    Args:
        label_sets: image id -> its labels.
        seed: decides among images with equal labels.

    Returns:
        15 % of the ids, rounded, at least one where there are two.
    """
    frequency = collections.Counter(label for labels in label_sets.values() for label in labels)

    def rarest_first(image_id: str) -> tuple[list[tuple[int, str]], float]:
        labels = sorted((frequency[label], label) for label in label_sets[image_id])
        return labels, random.Random(f"{seed}/{image_id}/split").random()

    ordered = sorted(sorted(label_sets), key=rarest_first)
    wanted = _wanted(len(ordered), VALIDATION_PERCENT)
    share = wanted / max(len(ordered), 1)
    chosen: set[str] = set()
    # label -> how many of it validation has more than its share of the blocks so far
    excess = dict.fromkeys(frequency, 0.0)
    for number in range(wanted):
        start, stop = (len(ordered) * edge // wanted for edge in (number, number + 1))
        block = ordered[start:stop]
        for image_id in block:
            for label in label_sets[image_id]:
                excess[label] -= share

        def harm(image_id: str) -> float:
            # Sum of squared excesses, each over the label's frequency, as choosing changes it.
            # Exact: rounded sums break ties by the order of a set, and by Python's version.
            changes = ((2 * excess[label] + 1) / frequency[label] for label in label_sets[image_id])
            return math.fsum(changes)

        best = min(block, key=harm)
        chosen.add(best)
        for label in label_sets[best]:
            excess[label] += 1
    return chosen


def read_split_manifest(path: Path, allowed: Collection[str] | None = None) -> dict[str, str]:
    """Image id -> split, from a JSON object {split: [image ids]}.

    Args:
        allowed: splits that it may have; None: any, with at least "train".

    Raises:
        UserError: the file is not that, or an image stands there twice.
    """
    splits: dict[str, str] = {}
    content = read_json_object(path)
    if allowed is None and "train" not in content:
        raise UserError(f"{path}: found splits {sorted(content)}, expected at least 'train'")
    for split, ids in content.items():
        if allowed is not None and split not in allowed:
            raise UserError(f"{path}: split {split!r}: expected one of {list(allowed)}")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", split):
            raise UserError(f"{path}: split {split!r}: expected lower-case letters, digits and _")
        if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
            raise UserError(f"{path}: {split}: expected a list of image ids")
        for image_id in ids:
            if image_id in splits:
                raise UserError(
                    f"{path}: image {image_id!r} stands in {splits[image_id]} and again in "
                    f"{split}: leave it in one"
                )
            splits[image_id] = split
    return splits


def follow_manifest(
    manifest: Mapping[str, str],
    image_ids: Iterable[str],
    known: Collection[str],
    where: str,
    quality: QualityLog,
) -> dict[str, str]:
    """Image id -> split of those images that the manifest names.

    Args:
        known: what the source has besides; what of the manifest is in neither is set aside, and so
            are images that it does not name.
    """
    image_ids = list(image_ids)
    for missing in sorted(manifest.keys() - {*image_ids, *known}):
        quality.set_aside("not_in_source", missing, where, f"in split {manifest[missing]}")
    followed = {}
    for image_id in image_ids:
        if image_id in manifest:
            followed[image_id] = manifest[image_id]
        else:
            quality.set_aside("not_in_split", image_id, where, "an image in no split of it")
    return followed


def split_by_hash(group: str, seed: int, percents: Mapping[str, int]) -> str:
    """The split of a group (a patient), which no other group changes.

    Args:
        percents: split -> share; they add up to 100.
    """
    place = int(hashlib.sha256(f"{seed}/{group}".encode()).hexdigest(), 16) % 100
    for split, percent in percents.items():
        if place < percent:
            return split
        place -= percent
    raise ValueError(f"shares add up to {sum(percents.values())}, expected 100")


def validation_groups(
    groups: Collection[Key], seed: int, percent: float = VALIDATION_PERCENT
) -> set[Key]:
    """Groups (patients) for validation: a share, rounded, at least one where there are two."""
    ordered = sorted(set(groups), key=str)
    random.Random(f"{seed}/groups").shuffle(ordered)
    return set(ordered[: _wanted(len(ordered), percent)])


def divide(
    items: Iterable[Item], group: Callable[[Item], Hashable], seed: int
) -> dict[str, list[Item]]:
    """Items for training and, of 15 % of the groups (patients), for validation."""
    items = list(items)
    held_out = validation_groups({group(item) for item in items}, seed)
    divided: dict[str, list[Item]] = {"train": [], "validation": []}
    for item in items:
        divided["validation" if group(item) in held_out else "train"].append(item)
    return divided


def group_of(record: QARecord) -> str:
    """The unit that splits must not divide: patient; without one, study or image."""
    return record.patient_id or record.study_id or record.image_id


def hold_out(
    records: Sequence[QARecord], seed: int, where: str, remedy: str
) -> dict[str, list[QARecord]]:
    """Records for training and, of 15 % of the patients, for validation.

    Args:
        where, remedy: for the message.

    Raises:
        UserError: all records are of one patient.
    """
    divided = divide(records, group_of, seed)
    if not divided["validation"]:
        raise UserError(
            f"{where}: all records are of one patient ({group_of(records[0])}), which cannot be "
            f"divided, and none has a split; {remedy}"
        )
    return {
        split: [record.model_copy(update={"split": split}) for record in here]
        for split, here in divided.items()
    }


def by_split(
    records: Sequence[QARecord], seed: int, where: str, remedy: str, quality: QualityLog
) -> dict[str, list[QARecord]]:
    """Records by the split that they name; where none does, of `hold_out`.

    Rejected are records without a split among others, and those of a patient in another split.
    """
    if not any(record.split for record in records):
        return hold_out(records, seed, where, remedy)
    first_split: dict[str, str] = {}
    splits: dict[str, list[QARecord]] = collections.defaultdict(list)
    for record in records:
        group, split = group_of(record), record.split
        if split and split == first_split.setdefault(group, split):
            splits[split].append(record)
            continue
        file = record.provenance.source_file if record.provenance else where
        found = f"split is {split!r}; expected one for all records of {group}, as others have it"
        place = f"{file}: question {record.question_id}"
        quality.set_aside("split_conflict", record.image_id, place, found)
    return dict(sorted(splits.items()))


def _wanted(count: int, percent: float) -> int:
    return max(round(count * percent / 100), int(count > 1))
