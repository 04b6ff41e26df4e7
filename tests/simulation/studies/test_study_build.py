"""Building: deterministic, resumable after a kill, refused where it would mix with another."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cxrjax.errors import UserError
from cxrjax.simulation.studies.build import StudiesBuilder, StudiesOptions
from cxrjax.simulation.studies.plan import plan_patients
from cxrjax.simulation.studies.views import render_study

FLAGS = ["--dataset=phantom_studies", "--seed=1"]
QUIET = os.environ | {"TQDM_DISABLE": "1", "JAX_PLATFORMS": "cpu"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow  # a process
def test_killed_build_goes_on_and_ends_the_same(built, tmp_path):
    out = tmp_path / "studies"
    flags = [*FLAGS, "--studies=20", "--long_side=192", "--processes=1", f"--out={out}"]
    child = subprocess.Popen([sys.executable, "-m", "cxrjax.build", *flags], env=QUIET)
    deadline = time.monotonic() + 120
    while not list((out / "parts").glob("*.json")) and time.monotonic() < deadline:
        assert child.poll() is None, "ended before it could be killed"
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (out / "manifest.json").exists()
    part = json.loads(min((out / "parts").glob("*.json")).read_text())
    made = {
        name: (out / name).stat().st_mtime_ns for entry in part["made"] for name in entry["hashes"]
    }
    StudiesBuilder(StudiesOptions(out, 20, seed=1, long_side=192)).build()
    # What was complete is not made again, and the whole is as if nothing had happened.
    assert made == {name: (out / name).stat().st_mtime_ns for name in made}
    assert not (out / "parts").exists()
    (out / ".lock").unlink()  # of the command that was killed
    assert contents(out) == contents(built)


@pytest.mark.slow
def test_number_of_processes_changes_nothing(built, tmp_path):
    StudiesBuilder(StudiesOptions(tmp_path / "two", 20, seed=1, long_side=192, processes=2)).build()
    assert contents(tmp_path / "two") == contents(built)


def test_finished_or_foreign_folder_is_refused(built, tmp_path):
    with pytest.raises(UserError, match="finished build"):
        StudiesBuilder(StudiesOptions(built, 20, seed=1, long_side=192)).build()
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "fingerprint").write_text("of another version")
    with pytest.raises(UserError, match="another seed, size or version"):
        StudiesBuilder(StudiesOptions(tmp_path, 20, seed=1, long_side=192)).build()


@pytest.mark.parametrize(
    "flag", ["studies=0", "seed=-1", "processes=0", "long_side=63", "long_side=5000"]
)
def test_unusable_options(flag):
    name, value = flag.split("=")
    with pytest.raises(UserError, match=f"--{flag}"):
        StudiesOptions(Path("x"), **({"studies": 1, name: int(value)}))


def test_second_film_shows_the_same_body():
    """Lesions of two frontal views fall on the same places of the person."""
    pairs = 0
    for studies in plan_patients(2, 60):
        for study in studies:
            frontal = [view for view in study.views if view.position != "LATERAL"]
            if len(frontal) < 2 or not study.presences or pairs > 4:
                continue
            first, second = (p for p in render_study(study, 224) if p.canvas is not None)
            for one in second.lesions:
                same = next(other for other in first.lesions if other.number == one.number)
                places = []
                for picture, lesion in ((first, same), (second, one)):
                    canvas = picture.canvas
                    centre = (lesion.box[:2] + lesion.box[2:]) / 2 * (canvas.width, canvas.height)
                    x, y = (centre - (canvas.origin_x, canvas.origin_y)) / canvas.scale
                    cos, sin = np.cos(canvas.tilt), np.sin(canvas.tilt)
                    places.append((x * cos + y * sin, y * cos - x * sin))
                cut = (one.box <= 0.01).any() or (one.box >= 0.99).any()
                assert cut or np.hypot(*np.subtract(*places)) < 0.12, (one.label, places)
            pairs += 1
    assert pairs > 2
