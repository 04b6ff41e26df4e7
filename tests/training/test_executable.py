"""A compiled step goes through a file unchanged, and a file that does not fit is refused."""

import json
import os
import shutil
from pathlib import Path

import jax
import pytest

from cxrjax.errors import UserError
from cxrjax.training import executable, loop
from tests.training import conftest as small


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The file of a compiled step, to copy."""
    folder = tmp_path_factory.mktemp("compiled")
    run = small.trainer(folder, small.settings())
    lines = run(function=loop.compile_only, path=folder / "step")
    assert lines[-1] == f"the compiled step is in {folder / 'step'}"
    assert not list((folder / "run/checkpoints").glob("*"))
    return folder / "step"


@pytest.fixture
def made(compiled, tmp_path):
    """The file of a compiled step, to change."""
    return shutil.copy(compiled, tmp_path / "step")


def _change(path, missing=None, **changes):
    line, _, payload = path.read_bytes().partition(b"\n")
    header = json.loads(line) | changes
    header.pop(missing, None)
    path.write_bytes(json.dumps(header).encode() + b"\n" + payload)


def _refused(run, path):
    """The one line in which a file is refused."""
    with pytest.raises(UserError, match="--compiled=") as error:
        run(workdir="refused", compiled=path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_loaded_step_trains_as_the_compiled_one(made, run, ended, tmp_path, monkeypatch):
    loads, load = [], executable.CompiledStep._load

    def watched(self, lowered):
        loads.append(1)
        return load(self, lowered)

    monkeypatch.setattr(executable.CompiledStep, "_load", watched)
    run(workdir="loaded", compiled=made)
    assert loads == [1]
    small.assert_same_arrays(tmp_path / "loaded", ended)


def test_file_holds_no_pickle_and_jax_s_cache_is_left_alone(made):
    header, payload = executable._read(made)
    assert header["jax"] == jax.__version__
    # A pickle of protocol 2 and later begins so; JAX's own serialisation of executables is one.
    assert not payload.startswith(b"\x80")
    assert "cxrjax_step_" not in str(jax.config.jax_compilation_cache_dir)


def test_other_batches_are_compiled_as_ever(made, run):
    """The file is for one shape; a longer bucket is not refused."""
    _change(made, batch=["another shape"])
    lines = run(workdir="other", compiled=made)
    assert any("compiling for" in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"jax": "0.1.0"}, "made with jax 0.1.0"),
        ({"device": "TPU v5 lite"}, "made with device TPU v5 lite"),
        ({"devices": 16}, "made with devices 16"),
        ({"steps": 7}, "made for a run of 7 steps, this one has 6"),
        ({"program": "0" * 64}, "made of another program"),
        ({"format": 9}, "format 9, expected 1"),
        ({"entry": "../../evil-cache"}, "format 1"),
        ({"sha256": "0" * 64}, "damaged"),
    ],
)
def test_what_does_not_fit_is_refused(made, run, changes, told):
    _change(made, **changes)
    assert told in _refused(run, made)


def test_another_configuration_is_refused(made, run):
    run.config.optimizer.learning_rate = 0.02
    assert "optimizer.learning_rate=0.01, here it is 0.02" in _refused(run, made)


def test_paths_and_cadence_may_change(made, run):
    run.config.training.log_every = 2
    run.config.training.checkpoint_every = 3
    run(workdir="moved", compiled=made)


@pytest.mark.parametrize(
    "content",
    [b"", b"not json\n", b'{"format": 1}\n', b"[]\nx", b"[" * 100_000, b"1" * 1000 + b"\n"],
)
def test_other_files_are_refused(run, tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)
    assert "not a file that --compile_only wrote" in _refused(run, path)
    assert "cannot be read" in _refused(run, tmp_path / "absent")
    assert "a device or pipe" in _refused(run, Path("/dev/zero"))


@pytest.mark.parametrize(
    "changes",
    [
        *({"missing": key} for key in ("batch", "config", "steps", "program")),
        *({"config": 3}, {"batch": None}, {"entry": 7}, {"sha256": 1}, {"steps": "6"}),
    ],
)
def test_a_header_without_a_key_or_of_other_types_is_refused(made, run, changes):
    _change(made, **changes)
    assert "not a file that --compile_only wrote" in _refused(run, made)


def test_cut_payload_is_refused(made, run):
    made.write_bytes(made.read_bytes()[:-100])
    assert "damaged" in _refused(run, made)


@pytest.mark.parametrize(("mode", "who"), [(0o664, "its group"), (0o646, "everybody")])
def test_machine_code_that_others_may_write_is_not_loaded(made, run, mode, who):
    made.chmod(mode)
    assert f"is machine code, and {who} may write it" in _refused(run, made)


def test_machine_code_of_another_user_is_not_loaded(made, run, monkeypatch):
    os.chown(made, 12345, -1) if os.geteuid() == 0 else monkeypatch.setattr(os, "geteuid", int)
    with pytest.raises(UserError, match=r"is machine code, and user .* may write it"):
        run(workdir="refused", compiled=made)
