"""Plan of examinations with views and findings, before any pixel is rendered.

Everything about a patient is a function of (seed, patient number): more studies keep the first.
"""

import dataclasses
import datetime
import random
from collections.abc import Iterator

import numpy as np

from cxrjax.simulation import anatomy
from cxrjax.simulation.anatomy import Patient
from cxrjax.simulation.findings import CLASSES, Presence

NORMAL_SHARE = 0.28
_PERSISTS = 0.55  # a finding is still there at the next study
_TWO_LESIONS = 0.25
# Views of a study and how often; frontal views first.
VIEW_SETS: dict[tuple[str, ...], float] = {
    ("PA", "LATERAL"): 0.44,
    ("PA",): 0.14,
    ("AP",): 0.24,
    ("AP", "AP"): 0.06,
    ("PA", "PA", "LATERAL"): 0.06,
    ("PA", "AP"): 0.06,
}
SPLITS = ("train", "validate", "test")
# Streams of the renderer that no series of plain phantoms has: its seeds stay far below.
_SERIES = 1 << 40


@dataclasses.dataclass(frozen=True)
class View:
    """One exposure: `film` is the person with this film's framing and exposure."""

    dicom_id: str
    position: str
    film: Patient
    grain: int


@dataclasses.dataclass(frozen=True)
class PhantomStudy:
    """One examination.

    Attributes:
        series, index: the renderer's random stream.
        order: 1 for the patient's first.
        body: the person as examined (an AP view magnifies the heart and raises the domes).
    """

    subject_id: int
    study_id: int
    split: str
    order: int
    time: datetime.datetime
    age: int
    series: int
    index: int
    body: Patient
    presences: list[Presence]
    views: list[View]


def patient_studies(seed: int, number: int) -> list[PhantomStudy]:
    """Plans all studies of patient `number`, in order of time; one to four."""
    draw = random.Random(f"{seed}/{number}/patient")
    person = anatomy.draw_patient(np.random.default_rng((_SERIES + seed, number)))
    subject_id = 10_000_000 + (number * 9973 + seed * 31 + 17) % 10_000_000
    born_in, age = draw.randrange(2080, 2140), draw.randint(22, 91)
    time = datetime.datetime(born_in + age, draw.randint(1, 12), draw.randint(1, 28))
    enlarged = draw.uniform(*anatomy.ENLARGED_HEART), draw.uniform(*anatomy.ENLARGED_ARCH)
    studies: list[PhantomStudy] = []
    for k in range(draw.choice((1, 1, 2, 2, 3, 4))):
        time += datetime.timedelta(days=draw.choice((1, 3, 30, 200, 700)) if k else 0)
        hour, minute, second = draw.randrange(6, 23), draw.randrange(60), draw.randrange(60)
        time = time.replace(hour=hour, minute=minute, second=second)
        before = [p.label for p in studies[-1].presences] if studies else []
        presences = _findings(draw, before)
        positions = draw.choices(list(VIEW_SETS), list(VIEW_SETS.values()))[0]
        body = _examined(person, presences, enlarged, positions[0])
        name = f"{seed}/{number}/{k}"
        views = []
        for i, position in enumerate(positions):
            film = random.Random(f"{name}/{i}/film")
            framed = _second_film(film, body, position) if i else body
            views.append(View(_dicom_id(f"{name}/{i}"), position, framed, 4 * (8 * number + k) + i))
        studies.append(
            PhantomStudy(
                subject_id=subject_id,
                study_id=50_000_000 + (number * 8 + k + seed * 131) % 10_000_000,
                split=_split(seed, number),
                order=k + 1,
                time=time,
                age=time.year - born_in,
                series=_SERIES + seed,
                index=8 * number + k,
                body=body,
                presences=presences,
                views=views,
            )
        )
    return studies


def plan_patients(seed: int, studies: int) -> Iterator[list[PhantomStudy]]:
    """Yields patients with this many studies together; the last may be cut short."""
    number = 0
    while studies > 0:
        planned = patient_studies(seed, number)[:studies]
        yield planned
        studies -= len(planned)
        number += 1


def _split(seed: int, number: int) -> str:
    """Returns the split; of ten patients eight train, one validate, one test."""
    tenth = (number + random.Random(f"{seed}/{number // 10}/split").randrange(10)) % 10
    return {8: "validate", 9: "test"}.get(tenth, "train")


def _findings(draw: random.Random, before: list[str]) -> list[Presence]:
    """Samples the findings of this study; those of the study before tend to stay."""
    normal = draw.random() < (0.1 if before else NORMAL_SHARE)
    labels: list[str] = []
    while not normal and not labels:
        for label, said in CLASSES.items():
            chance, frequency = draw.random(), said["in_studies"]
            if chance < (_PERSISTS if label in before else frequency * (0.6 if before else 1.0)):
                labels.append(label)
    presences = []
    for label in labels:
        count = 2 if CLASSES[label]["most"] > 1 and draw.random() < _TWO_LESIONS else 1
        strengths = tuple(draw.uniform(0.95, 1.25) for _ in range(count))
        presences.append(Presence(label, 3, strengths))
    return presences


def _examined(
    person: Patient, presences: list[Presence], enlarged: tuple[float, float], position: str
) -> Patient:
    labels = {p.label for p in presences}
    if "Cardiomegaly" in labels:
        person = person.with_heart(enlarged[0])
    if "Aortic enlargement" in labels:
        person = dataclasses.replace(person, arch_radius=enlarged[1])
    if position == "AP":
        # Supine or semi-upright, the heart farther from the detector, a shallower breath. Normal
        # hearts stay under half the thorax' width.
        person = dataclasses.replace(
            person,
            heart_ratio=min(person.heart_ratio * 1.05, 0.69),
            dome=min(person.dome * 1.1, 1.32),
            contrast=0.92 * person.contrast,
            clavicle_level=person.clavicle_level - 0.015,
        )
    return person


def _second_film(draw: random.Random, body: Patient, position: str) -> Patient:
    """Frames and exposes the same body anew: lesions keep their places in it."""
    wider = 1.1 if position == "AP" else 1.0
    return dataclasses.replace(
        body,
        aspect=min(draw.uniform(0.8, 1.1) * wider, 1.2),
        zoom=draw.uniform(0.86, 1.0),
        shift=(draw.gauss(0, 0.015), draw.uniform(-0.12, 0.12)),
        tilt=max(-0.08, min(0.08, draw.gauss(0, 0.03))),
        exposure=draw.gauss(0, 0.04),
        contrast=body.contrast * draw.uniform(0.9, 1.05),
        collimation=(draw.uniform(-0.05, 0.02), draw.uniform(-0.05, 0.02)),
    )


def _dicom_id(name: str) -> str:
    """Returns five groups of eight hexadecimal digits; the first marks a synthetic image."""
    draw = random.Random(f"{name}/dicom_id")
    return "-".join(["0" * 8, *(f"{draw.getrandbits(32):08x}" for _ in range(4))])
