"""Finds what training could know of the images and answers it is tested on.

Leaks are identities that no two splits may share: patients, studies, images, question ids, and
images that are the same but for size, compression or contrast. Text that splits share is counted
and is no leak: templates ask and answer the same about different images.
"""

import collections
import dataclasses
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8
from scipy import sparse

from cxrjax.errors import UserError
from cxrjax.images.decode import read_image
from cxrjax.images.files import ImageError
from cxrjax.progress import progress_bar
from cxrjax.records import QARecord
from cxrjax.records_io import workers

IDENTITIES = ("patient_id", "study_id", "image_id", "question_id")
# Answers share a run of this many words with training: long enough not to be a finding's name.
_WORDS = 8


@dataclasses.dataclass(frozen=True)
class Leak:
    """One thing that two splits share. `kind`: an identity of `IDENTITIES`, or "image_content"."""

    kind: str
    splits: tuple[str, str]
    items: tuple[str, str]
    found: str


def find_leakage(
    splits: Mapping[str, Iterable[QARecord]],
    image_root: Path | None,
    processes: int = 1,
) -> dict[str, Any]:
    """Compares every two splits.

    Args:
        splits: name -> records.
        image_root: what `image_path` is relative to; None: images are not compared.
        processes: for decoding images.

    Returns:
        As JSON has it: `leaks`, of which none is allowed, and their `counts` by kind; of each
        identity the records that state it, since what is not stated cannot be checked; how many
        images were compared, and why others were not; "first/second" -> how much of the second
        split's text the first one has.

    Raises:
        UserError: there are no two splits.
    """
    records = {name: list(of_split) for name, of_split in splits.items()}
    if len(records) < 2:
        raise UserError(f"leakage is between splits, and there is only {', '.join(records)!r}")
    pairs = list(itertools.combinations(records, 2))
    leaks = [leak for pair in pairs for leak in _shared_identities(records, pair)]
    by_image = {
        name: {r.image_id: image_root / r.image_path for r in of_split} if image_root else {}
        for name, of_split in records.items()
    }
    files = {path for paths in by_image.values() for path in paths.values()}
    there = {path for path in files if path.is_file()}
    hashes, failures = hash_images(there, processes)
    if missing := len(files) - len(there):
        failures.append(f"{missing} of {len(files)} files are not there")
    for first, second in pairs:
        sides = [
            [(i, hashes[path]) for i, path in by_image[name].items() if path in hashes]
            for name in (first, second)
        ]
        for i, j, bits in close_pairs([h for _, h in sides[0]], [h for _, h in sides[1]]):
            items = (sides[0][i][0], sides[1][j][0])
            if items[0] != items[1]:  # equal ids are leaks by id already
                found = f"images that differ in {bits} of 256 bits of their perceptual hash"
                leaks.append(Leak("image_content", (first, second), items, found))
    return {
        "leaks": [dataclasses.asdict(leak) for leak in leaks],
        "counts": dict(collections.Counter(leak.kind for leak in leaks)),
        "records_that_state": {
            field: sum(getattr(r, field) is not None for one in records.values() for r in one)
            for field in IDENTITIES
        },
        "images_hashed": len(hashes),
        "images_not_hashed": failures,
        "shared_text": {f"{a}/{b}": _shared_text(records[a], records[b]) for a, b in pairs},
    }


def _shared_identities(records: Mapping[str, list[QARecord]], pair: tuple[str, str]) -> list[Leak]:
    leaks = []
    for field in IDENTITIES:
        sides = [{getattr(record, field) for record in records[name]} for name in pair]
        for value in sorted(sides[0] & sides[1] - {None}):
            leaks.append(Leak(field, pair, (value, value), f"{field} {value} is in both"))
    return leaks


def _shared_text(first: list[QARecord], second: list[QARecord]) -> dict[str, float | int]:
    """Counts the second split's questions and answers that the first one has."""
    known, each = ({r.question_id: r for r in split}.values() for split in (first, second))
    asked = {normalise(record.question) for record in known}
    answered = {normalise(record.answer_text) for record in known}
    same_answer = [normalise(record.answer_text) in answered for record in each]
    boxed = [bool(record.boxes) for record in each]
    runs = {run for record in first for run in _word_runs(record.answer_text)}
    shares = [
        sum(run in runs for run in own) / len(own)
        for record in second
        if (own := _word_runs(record.answer_text))
    ]
    distinct, alike, _ = near_duplicate_texts(
        (record.question for record in first), (record.question for record in second)
    )
    return {
        "questions": len(second),
        "same_question": sum(normalise(record.question) in asked for record in each),
        "distinct_questions": distinct,
        "distinct_questions_nearly_the_same": alike,
        "answers": sum(bool(record.answer_text) for record in second),
        "same_answer": sum(same_answer),
        "answers_with_boxes": sum(boxed),
        "same_answer_with_boxes": sum(map(min, same_answer, boxed)),
        f"mean_share_of_{_WORDS}_word_runs": sum(shares) / len(shares) if shares else 0.0,
    }


def _word_runs(text: str) -> set[str]:
    words = normalise(text).split()
    return {" ".join(words[i : i + _WORDS]) for i in range(len(words) - _WORDS + 1)}


# Perceptual hashes have SIDE x SIDE bits. On 90 radiographs of 48 patients, the same image at a
# third of its size, as a poor JPEG or with less contrast is at most 6 bits away, another image at
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


def question_variety(records: Iterable[QARecord]) -> dict[str, Any]:
    """Counts repeated questions, over all images and within each.

    Over all images only equal (normalised) questions are compared: templates ask thousands of
    images the same, which is no fault.

    Returns:
        As JSON has it: `questions`, those that are `distinct` as written and normalised, the most
        common ones, and those `repeated` within an image, most similar first.
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
    repeated.sort(key=lambda pair: (-pair.similarity, pair.question_ids))
    return {
        "questions": len(everything),
        "distinct": len({question for _, question, _ in everything}),
        "distinct_normalised": len(normalised),
        "most_common": dict(normalised.most_common(10)),
        "repeated": [dataclasses.asdict(pair) for pair in repeated],
    }


def hash_images(paths: Iterable[Path], processes: int) -> tuple[dict[Path, Hash], list[str]]:
    """Perceptual hash of every image, and why images have none."""
    paths = sorted(set(paths))
    hashes: dict[Path, Hash] = {}
    failures = []
    with workers.pool(min(processes, len(paths) or 1)) as apply:
        results = progress_bar(apply(_hash, paths), total=len(paths), unit="image", desc="hashing")
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


def close_pairs(first: Sequence[Hash], second: Sequence[Hash]) -> list[tuple[int, int, int]]:
    """(index in `first`, index in `second`, bits that differ) of hashes that nearly agree."""
    if not len(first) or not len(second):
        return []
    a, b = np.stack(first), np.stack(second)
    step = max(1, _CHUNK // len(b))
    pairs = []
    for start in range(0, len(a), step):
        distance = _distances(a[start : start + step], b)
        for row, column in np.argwhere(distance <= MAX_DISTANCE).tolist():
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
    """Each text's runs of four characters, as rows of 0 and 1."""
    numbers: dict[str, int] = {}
    starts, columns = [0], []
    for text in texts:
        columns += [numbers.setdefault(run, len(numbers)) for run in _runs(text)]
        starts.append(len(columns))
    shape = (len(texts), len(numbers))
    return sparse.csr_matrix((np.ones(len(columns), np.int32), columns, starts), shape=shape)
