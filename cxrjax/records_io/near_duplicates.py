"""Texts and images that are the same but for details."""

import collections
import dataclasses
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8
from scipy import sparse
from tqdm import tqdm

from cxrjax.images.decode import read_image
from cxrjax.images.files import ImageError
from cxrjax.records import QARecord
from cxrjax.records_io import workers

# Perceptual hashes have SIDE x SIDE bits. On 90 radiographs of 48 patients, the same picture at a
# third of its size, as a poor JPEG or with less contrast is at most 6 bits away, another picture at
# least 60.
SIDE = 16
MAX_DISTANCE = 24
# Shares of equal runs of four characters above which two questions about one image say the same.
SIMILAR = 0.8
_RUN = 4
# Pairs of hashes compared at once.
_CHUNK = 2_000_000

Hash = UInt8[np.ndarray, "bytes"]  # SIDE * SIDE / 8 of them


def normalise(text: str) -> str:
    """Lower case, without accents of typography, punctuation and repeated spaces."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.findall(r"\w+", folded))


def similarity(first: str, second: str) -> float:
    """Jaccard index of the runs of four characters of two normalised texts; 1 for equal ones."""
    if first == second:
        return 1.0
    a, b = _runs(first), _runs(second)
    return len(a & b) / len(a | b)


def _runs(text: str) -> set[str]:
    return {text[start : start + _RUN] for start in range(max(len(text) - _RUN + 1, 1))}


@dataclasses.dataclass(frozen=True)
class RepeatedQuestion:
    """Two questions about one image that say the same."""

    image_id: str
    question_ids: tuple[str, str]
    questions: tuple[str, str]
    similarity: float


@dataclasses.dataclass(frozen=True)
class QuestionVariety:
    """How often questions repeat.

    Attributes:
        questions, distinct, distinct_normalised: all, different as written, different when
            normalised.
        most_common: the normalised questions asked most often, and how often.
        repeated: within an image, most similar first.
    """

    questions: int
    distinct: int
    distinct_normalised: int
    most_common: dict[str, int]
    repeated: list[RepeatedQuestion]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def question_variety(records: Iterable[QARecord]) -> QuestionVariety:
    """Counts repeated questions, over all images and within each.

    Over all images only equal (normalised) questions are compared: templates ask thousands of
    images the same, which is no fault.
    """
    asked: dict[str, list[tuple[str, str, str]]] = collections.defaultdict(list)
    for record in records:
        entry = (record.question_id, record.question, normalise(record.question))
        asked[record.image_id].append(entry)
    everything = [entry for entries in asked.values() for entry in entries]
    normalised = collections.Counter(text for _, _, text in everything)
    repeated = []
    for image_id, entries in asked.items():
        for place, (first_id, first, first_text) in enumerate(entries):
            for second_id, second, second_text in entries[place + 1 :]:
                alike = similarity(first_text, second_text)
                if alike >= SIMILAR:
                    repeated.append(
                        RepeatedQuestion(image_id, (first_id, second_id), (first, second), alike)
                    )
    return QuestionVariety(
        questions=len(everything),
        distinct=len({question for _, question, _ in everything}),
        distinct_normalised=len(normalised),
        most_common=dict(normalised.most_common(10)),
        repeated=sorted(repeated, key=lambda pair: (-pair.similarity, pair.question_ids)),
    )


def hash_images(paths: Iterable[Path], processes: int) -> tuple[dict[Path, Hash], list[str]]:
    """Perceptual hash of every image, and why images have none."""
    paths = sorted(set(paths))
    hashes: dict[Path, Hash] = {}
    failures = []
    with workers.pool(min(processes, len(paths) or 1)) as apply:
        results = tqdm(apply(_hash, paths), total=len(paths), unit="image", desc="hashing")
        for path, result in zip(paths, results, strict=True):
            if isinstance(result, str):
                failures.append(result)
            else:
                hashes[path] = result
    return hashes, failures


def _hash(path: Path) -> Hash | str:
    import imagehash  # brings scipy.fftpack and PyWavelets: only when wanted
    from PIL import Image

    try:
        picture = read_image(path)
    except ImageError as error:
        return str(error)
    except OSError as error:
        return f"{path}: cannot read: {error.strerror}"
    return np.packbits(imagehash.phash(Image.fromarray(picture), hash_size=SIDE).hash.ravel())


def close_pairs(
    first: Sequence[Hash],
    second: Sequence[Hash],
    max_distance: int = MAX_DISTANCE,
) -> list[tuple[int, int, int]]:
    """(index in `first`, index in `second`, bits that differ) of hashes that nearly agree."""
    if not len(first) or not len(second):
        return []
    a, b = np.stack(first), np.stack(second)
    step = max(1, _CHUNK // len(b))
    pairs = []
    for start in range(0, len(a), step):
        distance = _distances(a[start : start + step], b)
        for row, column in np.argwhere(distance <= max_distance).tolist():
            pairs.append((start + row, column, int(distance[row, column])))
    return pairs


def _distances(
    a: UInt8[np.ndarray, "n bytes"], b: UInt8[np.ndarray, "m bytes"]
) -> Int[np.ndarray, "n m"]:
    words_a, words_b = (np.ascontiguousarray(x).view(np.uint64) for x in (a, b))
    total = np.zeros((len(a), len(b)), np.int64)
    for word in range(words_a.shape[1]):
        total += np.bitwise_count(words_a[:, word, None] ^ words_b[None, :, word])
    return total


def overlapping_texts(
    first: Mapping[str, str], second: Mapping[str, str]
) -> list[tuple[str, list[str]]]:
    """Ids of `second` whose normalised text some of `first` has, with those of `first`."""
    by_text: dict[str, list[str]] = collections.defaultdict(list)
    for key, text in first.items():
        by_text[normalise(text)].append(key)
    return [(key, by_text[n]) for key, text in second.items() if (n := normalise(text)) in by_text]


def near_duplicate_texts(
    first: Iterable[str], second: Iterable[str]
) -> tuple[int, int, list[tuple[str, str]]]:
    """Texts of `second` that `first` has too, in nearly the same words (`similarity` >= SIMILAR).

    Returns:
        How many different (normalised) texts `second` has, how many of them are nearly the same as
        one of `first`, and those that are not quite the same, with theirs of `first`.
    """
    ours, theirs = (sorted({normalise(text) for text in texts}) for texts in (first, second))
    known = set(ours)
    different = [text for text in theirs if text not in known]
    pairs = []
    if ours and different:
        table = _runs_table([*ours, *different])
        sizes = np.asarray(table.sum(axis=1)).ravel()
        a, rest = table[: len(ours)], table[len(ours) :]
        step = max(1, _CHUNK // len(ours))
        for start in range(0, len(different), step):
            common = (rest[start : start + step] @ a.T).tocoo()
            union = sizes[len(ours) + start + common.row] + sizes[common.col] - common.data
            for place in np.flatnonzero(common.data >= SIMILAR * union):
                pairs.append((ours[common.col[place]], different[start + common.row[place]]))
    alike = {text for _, text in pairs}
    return len(theirs), len(theirs) - len(different) + len(alike), sorted(pairs)


def _runs_table(texts: Sequence[str]) -> sparse.csr_matrix:
    """Which runs of four characters each text has, as rows of 0 and 1."""
    numbers: dict[str, int] = {}
    starts, columns = [0], []
    for text in texts:
        columns += [numbers.setdefault(run, len(numbers)) for run in _runs(text)]
        starts.append(len(columns))
    shape = (len(texts), len(numbers))
    return sparse.csr_matrix((np.ones(len(columns), np.int32), columns, starts), shape=shape)
