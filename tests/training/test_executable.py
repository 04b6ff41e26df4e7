"""A compiled step goes through a file unchanged, and a file that does not fit is refused."""

import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest

from cxrjax.errors import UserError
from cxrjax.training import executable, loop
from cxrjax.training.config_file import typed_config

BASE = {"kind": "random", "seed": 0, "sha256": "abc"}


@pytest.fixture
def run(run_config, tiny_model, batch_stream, tmp_path):
    """`run(workdir, **options)`: six steps of a model that compiles in a blink."""
    run_config.mesh.data = 8
    run_config.training.log_every = 1
    run_config.optimizer.learning_rate = 0.01

    def train(workdir, steps=6, function=loop.train, **options):
        lines = []
        function(
            typed_config(run_config),
            tmp_path / workdir,
            loop.Start(tiny_model(0), BASE),
            loop.TrainingData(batch_stream(), steps),
            log_line=lines.append,
            **options,
        )
        return lines

    train.config = run_config
    return train


_MADE: list[bytes] = []  # by the first test that wants it


@pytest.fixture
def made(run, tmp_path):
    """The file of a compiled step."""
    path = tmp_path / "step"
    if not _MADE:
        lines = run("compiling", function=loop.compile_only, path=path)
        assert lines[-1] == f"the compiled step is in {path}"
        assert not list((tmp_path / "compiling/checkpoints").glob("*"))
        _MADE.append(path.read_bytes())
    path.write_bytes(_MADE[0])
    return path


def _change(path, **changes):
    line, _, payload = path.read_bytes().partition(b"\n")
    header = json.loads(line)
    header.update(changes)
    path.write_bytes(json.dumps(header).encode() + b"\n" + payload)


def test_loaded_step_trains_as_the_compiled_one(made, run, saved_arrays, tmp_path, monkeypatch):
    run("plain")
    loads = []
    monkeypatch.setattr(
        executable.CompiledStep,
        "_load",
        lambda self, lowered, load=executable.CompiledStep._load: (
            loads.append(1) or load(self, lowered)
        ),
    )
    run("loaded", compiled=made)
    assert loads == [1]
    plain, loaded = saved_arrays(tmp_path / "plain", 6), saved_arrays(tmp_path / "loaded", 6)
    assert plain.keys() == loaded.keys()
    assert all(np.array_equal(plain[name], loaded[name]) for name in plain)


def test_file_holds_no_pickle(made):
    header, payload = executable._read(made)
    assert header["jax"] == jax.__version__
    # A pickle of protocol 2 and later begins so; JAX's own serialisation of executables is one.
    assert not payload.startswith(b"\x80")


def test_other_batches_are_compiled_as_ever(made, run, batch_stream, random_batch, tmp_path):
    """The file is for one shape; a longer bucket is not refused."""
    _change(made, batch=["another shape"])
    lines = run("other", compiled=made)
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
    with pytest.raises(UserError, match="--compiled=") as error:
        run("refused", compiled=made)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_another_configuration_is_refused(made, run):
    run.config.optimizer.learning_rate = 0.02
    with pytest.raises(UserError, match=r"optimizer.learning_rate=0.01, here it is 0.02"):
        run("refused", compiled=made)


def test_paths_and_cadence_may_change(made, run):
    run.config.training.log_every = 2
    run.config.training.checkpoint_every = 3
    run("moved", compiled=made)


@pytest.mark.parametrize("content", [b"", b"not json\n", b'{"format": 1}\n', b"[]\nx"])
def test_other_files_are_refused(run, tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a file that --compile_only wrote"):
        run("refused", compiled=path)
    with pytest.raises(UserError, match="cannot be read"):
        run("refused", compiled=tmp_path / "absent")


@pytest.mark.parametrize("key", ["batch", "config", "steps", "program"])
def test_a_header_without_a_key_is_refused(made, run, key):
    line, _, payload = made.read_bytes().partition(b"\n")
    header = json.loads(line)
    del header[key]
    made.write_bytes(json.dumps(header).encode() + b"\n" + payload)
    with pytest.raises(UserError, match="not a file that --compile_only wrote"):
        run("refused", compiled=made)


def test_cut_payload_is_refused(made, run):
    made.write_bytes(made.read_bytes()[:-100])
    with pytest.raises(UserError, match="damaged"):
        run("refused", compiled=made)


def test_cache_of_compiled_programs_is_as_before(made):
    """Compiling into a file leaves JAX's cache where it was configured."""
    assert "cxrjax_step_" not in str(jax.config.jax_compilation_cache_dir)


@pytest.mark.parametrize(("mode", "who"), [(0o664, "its group"), (0o646, "everybody")])
def test_machine_code_that_others_may_write_is_not_loaded(made, run, mode, who):
    made.chmod(mode)
    with pytest.raises(UserError, match=f"is machine code, and {who} may write it"):
        run("refused", compiled=made)


def test_machine_code_of_another_user_is_not_loaded(made, run, monkeypatch):
    os.chown(made, 12345, -1) if os.geteuid() == 0 else monkeypatch.setattr(os, "geteuid", int)
    with pytest.raises(UserError, match=r"is machine code, and user .* may write it"):
        run("refused", compiled=made)


@pytest.mark.parametrize(
    "changes", [{"config": 3}, {"batch": None}, {"entry": 7}, {"sha256": 1}, {"steps": "6"}]
)
def test_a_header_of_other_types_is_refused(made, run, changes):
    _change(made, **changes)
    with pytest.raises(UserError, match="not a file that --compile_only wrote"):
        run("refused", compiled=made)


@pytest.mark.parametrize("content", [b"[" * 100_000, b"1" * 1000 + b"\n"])
def test_a_header_is_bounded(run, tmp_path, content):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a file that --compile_only wrote"):
        run("refused", compiled=path)
    with pytest.raises(UserError, match="a device or pipe"):
        run("refused", compiled=Path("/dev/zero"))
