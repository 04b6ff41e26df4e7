"""Which questions are reviewed (the paper: 100 of 17,597)."""

import collections
import random
from collections.abc import Iterable

from cxrjax.errors import UserError
from cxrjax.records import QARecord

OPEN = "several or none"


def finding_of(record: QARecord) -> str:
    """The one finding that a question is about, else `OPEN`."""
    labels = {label for answer in record.answers for label in answer.labels}
    if record.gt_finding:
        return record.gt_finding
    return labels.pop() if len(labels) == 1 else OPEN


def stratified_sample(records: Iterable[QARecord], count: int, seed: int) -> list[QARecord]:
    """Questions with every type and every finding at about its own share, and at least once.

    One question after the other is taken from the stratum (type, finding) whose type and finding
    lack most of their share, from images not drawn yet where there are any.

    Args:
        count: how many; more than there are is an error.
        seed: decides among questions of a stratum, and the order of the sample.

    Raises:
        UserError: fewer questions than `count`.
    """
    strata: dict[tuple[str, str], list[QARecord]] = collections.defaultdict(list)
    total = 0
    for record in records:
        strata[record.question_type, finding_of(record)].append(record)
        total += 1
    if not 0 < count <= total:
        raise UserError(f"a sample of {count} from {total} questions: expected 1 to {total}")
    targets: collections.Counter[tuple[int, str]] = collections.Counter()
    for stratum, members in strata.items():
        members.sort(key=lambda r: random.Random(f"{seed}/{r.question_id}/review").random())
        for side in enumerate(stratum):
            targets[side] += len(members)
    shares = {side: max(count * have / total, 1.0) for side, have in targets.items()}
    taken: collections.Counter[tuple[int, str]] = collections.Counter()
    images: set[str] = set()
    chosen: list[QARecord] = []
    # Equal needs are settled by chance, not by the alphabet.
    order = random.Random(f"{seed}/strata/review")
    queue = sorted(strata)
    order.shuffle(queue)
    while len(chosen) < count:

        def need(stratum: tuple[str, str]) -> float:
            return sum(1 - taken[side] / shares[side] for side in enumerate(stratum))

        best = max((stratum for stratum in queue if strata[stratum]), key=need)
        members = strata[best]
        fresh = next((i for i, r in enumerate(members) if r.image_id not in images), 0)
        record = members.pop(fresh)
        images.add(record.image_id)
        taken.update(enumerate(best))
        chosen.append(record)
    random.Random(f"{seed}/order/review").shuffle(chosen)
    return chosen
