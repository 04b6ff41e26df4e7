"""Checkpoints whose files are no longer what was written: never loaded, told by name."""

import json
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cxrjax.errors import UserError
from cxrjax.training import loop
from cxrjax.training.checkpoint import check_same_base
from cxrjax.training.config_file import typed_config
from cxrjax.training.step import TrainState
from cxrjax.training.store import CHECKSUMS, DAMAGED, CheckpointStore, find_damage, write_checksums

# Whatever a pickle, or another format that can run code, would begin with.
_CODE = (b"\x80\x04", b"\x80\x05", b"PK\x03\x04", b"cposix", b"#!")


@pytest.fixture
def run(run_config, tiny_model, batch_stream):
    """`run(workdir)`: six steps with a checkpoint at every second one, the last two kept."""
    run_config.training.checkpoint_every = 2
    run_config.optimizer.learning_rate = 0.01

    def train(workdir):
        lines = []
        loop.train(
            typed_config(run_config),
            workdir,
            loop.Start(tiny_model(), {"kind": "random", "seed": 0, "sha256": "abc"}),
            loop.TrainingData(batch_stream(), 6),
            log_line=lines.append,
        )
        return lines

    return train


def _files(checkpoint):
    return sorted(path for path in checkpoint.rglob("*") if path.is_file() and path.stat().st_size)


def _flip(path, position):
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1
    path.write_bytes(content)


def _truncate(path, position):
    path.write_bytes(path.read_bytes()[: position % path.stat().st_size])


def _remove(path, position):
    del position
    path.unlink()


def _open(workdir, **options):
    return CheckpointStore(workdir, "vqa/f1", keep_last=2, **options)


def test_any_damage_to_any_file_is_refused_and_the_one_before_taken(run, tmp_path, saved_arrays):
    whole = tmp_path / "whole"
    run(whole)
    files = [path.relative_to(whole) for path in _files(whole / "checkpoints/6")]
    # Times, and the mark that it counts, which Orbax writes last.
    names = ("_CHECKPOINT_METADATA", "commit_success.txt")
    later = [Path("checkpoints/6") / name for name in names]
    assert all(path in files for path in later)
    files = [path for path in files if path not in later]
    assert len(files) > 15 and any(path.name == CHECKSUMS for path in files)
    rng = np.random.default_rng(0)
    for number, file in enumerate(files):
        damage = (_flip, _truncate, _remove)[number % 3] if number % 4 else _flip
        if damage is _flip and file.name == CHECKSUMS:
            damage = _remove  # a flip in its white space would change nothing
        cut = tmp_path / f"cut{number}"
        shutil.copytree(whole, cut)
        damage(cut / file, int(rng.integers(1, 1_000_000)))
        with pytest.raises(
            UserError, match=r"step 6 is damaged: .*; move it away to use another \(4\)"
        ):
            _open(cut, writing=False).restore_json(6, "base")
        lines = []
        store = _open(cut, log_line=lines.append)
        assert store.latest_step() == 4, file
        data = {"step": 4, "set_aside": [], "skipped_steps": 0, "unvaried": {}}
        assert store.restore_json(4, "data") == data
        store.close()
        assert (cut / DAMAGED / "6").is_dir()
        assert len(lines) == 1 and lines[0].startswith("the checkpoint of step 6 is damaged")
        assert file.name in lines[0]
    # The last of them goes on, to the same end.
    assert "resumed from the checkpoint of step 4" in run(cut)
    ours, theirs = saved_arrays(cut, 6), saved_arrays(whole, 6)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


def test_damage_that_leaves_no_checkpoint_stops_the_run(run, tmp_path):
    run(tmp_path)
    for step in (4, 6):
        (tmp_path / f"checkpoints/{step}" / CHECKSUMS).unlink()
    with pytest.raises(UserError, match=r"no checkpoint is whole: .*6/checksums\.json is missing"):
        run(tmp_path)
    assert (tmp_path / "checkpoints/4").is_dir() and not (tmp_path / DAMAGED).exists()


def test_an_older_damaged_checkpoint_is_found_when_it_is_asked_for(run, tmp_path):
    run(tmp_path)
    _flip(max(_files(tmp_path / "checkpoints/4/parameters"), key=lambda p: p.stat().st_size), 100)
    store = _open(tmp_path)
    assert store.all_steps() == [4, 6]
    with pytest.raises(UserError, match="step 4 is damaged"):
        store.restore_parameters(4, None)
    store.close()


def test_a_checkpoint_is_tensors_and_json(run, tmp_path):
    """Nothing in it is a pickle or a program: reading one from elsewhere runs none of its code."""
    run(tmp_path)
    for path in _files(tmp_path / "checkpoints/6"):
        content = path.read_bytes()
        assert not content.startswith(_CODE), path
        inside = path.relative_to(tmp_path / "checkpoints/6").parts
        if "d" in inside or path.name == "manifest.ocdbt":  # TensorStore's database
            assert "parameters" in inside or "optimizer" in inside
        elif path.name != "commit_success.txt":
            json.loads(content)


def test_a_pickle_in_a_checkpoint_is_not_opened(run, tiny_model, tmp_path):
    """Also where whoever sends it has made fitting checksums."""
    trap = b"cposix\nsystem\n(S'touch %s'\ntR." % str(tmp_path / "sprung").encode()
    run(tmp_path / "run")
    checkpoint = tmp_path / "run/checkpoints/6"
    for item in ("data/metadata", "metrics/metrics", "parameters/_METADATA"):
        target = tmp_path / item.split("/")[0]
        shutil.copytree(tmp_path / "run", target)
        path = target / "checkpoints/6" / item
        path.write_bytes(trap)
        write_checksums(target / "checkpoints/6")
        with pytest.raises(Exception):  # noqa: B017 - whatever the reader says, it ran nothing
            store = _open(target, writing=False)
            store.restore_json(6, "data")
            store.restore_parameters(6, jax.tree.map(lambda x: x, {"a": np.zeros(1)}))
    assert not (tmp_path / "sprung").exists()
    assert find_damage(checkpoint) is None


def test_checksums_of_a_directory(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_text("1")
    (tmp_path / "b").write_text("2")
    assert find_damage(tmp_path) == f"{tmp_path / CHECKSUMS} is missing"
    write_checksums(tmp_path)
    assert find_damage(tmp_path) is None
    (tmp_path / "b").write_text("3")
    assert find_damage(tmp_path) == f"{tmp_path / 'b'} is not what was written"
    assert find_damage(tmp_path, ["a"]) is None
    (tmp_path / CHECKSUMS).write_text('{"sha256": []}')
    assert find_damage(tmp_path) == f"{tmp_path / CHECKSUMS} cannot be read"


def test_a_file_that_cannot_be_looked_at_is_damage(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("1")
    write_checksums(tmp_path)

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    assert find_damage(tmp_path) == f"{tmp_path / 'a'}: cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"sha256": {"../../../dev/zero": "0"}}', "is not inside of"),
        ('{"sha256": {"/dev/zero": "0"}}', "is not inside of"),
        ('{"sha256": {"": "0"}}', "the name is empty"),
        ('{"sha256": {"a\\u0000": "0"}}', "control character"),
        ('{"sha256": {"%s": "0"}}' % ("a" * 5000), "has 5,000 bytes"),
        ('{"sha256": {"a": 7}}', "is not what was written"),
        ('{"sha256": {"folder": "0"}}', "a folder, expected a file"),
        ('{"sha256": {}}', "names no file"),
        ('{"sha256": ' + "[" * 100_000, "cannot be read"),
        ('{"sha256": 1' + "0" * 400 + "}", "cannot be read"),
    ],
)
def test_checksums_name_files_of_their_folder(tmp_path, content, said):
    folder = tmp_path / "checkpoint"
    (folder / "folder").mkdir(parents=True)
    (folder / "a").write_text("1")
    (folder / CHECKSUMS).write_text(content)
    found = find_damage(folder)
    assert said in found and "\n" not in found and len(found) < 500


@pytest.mark.parametrize("target", ["/dev/zero", __file__, "a", "nowhere", "pipe", "sub", "large"])
def test_a_checkpoint_has_files_and_no_links(tmp_path, target):
    """Whether a checksum stands for it or not: Orbax opens some that have none."""
    folder = tmp_path / "checkpoint"
    (folder / "sub").mkdir(parents=True)
    (folder / "a").write_text("1")
    write_checksums(folder)
    assert find_damage(folder) is None
    if target == "pipe":
        os.mkfifo(folder / "sub/pipe")
    elif target == "large":
        with open(folder / "_CHECKPOINT_METADATA", "wb") as file:
            file.truncate(2**40)
    else:
        (folder / "_CHECKPOINT_METADATA").symlink_to(target)
    for parts in (None, ("metrics",)):
        assert find_damage(folder, parts).startswith(f"{folder}/")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A checkpoint of two arrays, and the state that it is read into."""
    workdir = tmp_path_factory.mktemp("small")
    state = TrainState(
        step=jnp.asarray(3),
        trainable={"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(4)},
        opt_state={"m": jnp.zeros(4)},
    )
    store = CheckpointStore(workdir, "vqa/f1")
    store.save(3, state, {"step": 3}, {"sha256": "abc", "kind": "random"}, {"vqa/f1": 0.5})
    store.close()
    return workdir, state


def read_all(workdir, state):
    """What a run that goes on reads of its last checkpoint."""
    store = CheckpointStore(workdir, "vqa/f1", log_line=lambda line: None)
    try:
        step = store.best_step()
        check_same_base(workdir, store.restore_json(step, "base"), {"sha256": "abc", "kind": "x"})
        assert isinstance(store.restore_json(step, "data"), dict)
        return store.restore_state(step, state)
    finally:
        store.close()


@pytest.mark.parametrize(
    ("item", "content"),
    [
        ("parameters/_METADATA", "{"),
        ("parameters/_METADATA", "[]"),
        ("parameters/_METADATA", "[" * 100_000),
        ("parameters/_METADATA", '{"tree_metadata": 7}'),
        ("parameters/_METADATA", None),
        ("parameters/manifest.ocdbt", "garbage"),
        ("parameters/manifest.ocdbt", ""),
        ("optimizer/_METADATA", None),
        ("base/metadata", "[]"),
        ("base/metadata", "{}"),
        ("base/metadata", '{"sha256": 7}'),
        ("base/metadata", '{"sha256": "abc", "lora": 3}'),
        ("base/metadata", "[" * 100_000),
        ("data/metadata", "7"),
        ("metrics/metrics", "[]"),
        ("metrics/metrics", "{"),
        ("_CHECKPOINT_METADATA", "["),
    ],
)
def test_files_that_make_no_checkpoint_are_one_line(small, tmp_path, item, content):
    """Also where whoever made them has made fitting checksums."""
    workdir = tmp_path / "run"
    shutil.copytree(small[0], workdir)
    path = workdir / "checkpoints/3" / item
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    write_checksums(workdir / "checkpoints/3")
    try:
        found = read_all(workdir, small[1])
    except UserError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
        assert str(workdir) in str(error)
    else:
        assert item in ("_CHECKPOINT_METADATA", "metrics/metrics")  # times, and no figures
        np.testing.assert_array_equal(found.trainable["a"], small[1].trainable["a"])


def test_a_figure_that_is_no_number_is_no_best_one(small, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(small[0], workdir)
    (workdir / "checkpoints/3/metrics/metrics").write_text('{"vqa/f1": "high"}')
    write_checksums(workdir / "checkpoints/3")
    found = read_all(workdir, small[1])
    np.testing.assert_array_equal(found.trainable["a"], small[1].trainable["a"])
