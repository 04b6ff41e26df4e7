"""Checkpoints whose files are no longer what was written: never loaded, told by name."""

import json
import os
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cxrjax.errors import UserError
from cxrjax.training.base_model import check_finite
from cxrjax.training.checkpoint import check_same_base, load_model
from cxrjax.training.step import TrainState
from cxrjax.training.store import CHECKSUMS, DAMAGED, CheckpointStore, find_damage, write_checksums
from tests.training.conftest import assert_same_arrays

# Whatever a pickle, or another format that can run code, would begin with.
_CODE = (b"\x80\x04", b"\x80\x05", b"PK\x03\x04", b"cposix", b"#!")


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


def _swap(path, position):
    others = [other for other in sorted(path.parent.iterdir()) if other.is_file() and other != path]
    shutil.copy(others[position % len(others)] if others else __file__, path)


def _add(path, position):
    if "params" in path.parts:
        path = path.parent / f"more{position}"
    path.write_bytes(b"x")


def _open(workdir, **options):
    return CheckpointStore(workdir, "vqa/f1", keep_last=2, **options)


def test_any_damage_to_any_file_is_refused_and_the_one_before_taken(run, ended, tmp_path):
    files = [path.relative_to(ended) for path in _files(ended / "checkpoints/6")]
    # Times, and the mark that it counts, which Orbax writes last.
    for name in ("_CHECKPOINT_METADATA", "commit_success.txt"):
        files.remove(Path("checkpoints/6") / name)
    assert len(files) > 15 and any(path.name == CHECKSUMS for path in files)
    rng = np.random.default_rng(0)
    for number, file in enumerate(files):
        damage = (_flip, _truncate, _remove)[number % 3] if number % 4 else _flip
        if damage is _flip and file.name == CHECKSUMS:
            damage = _remove  # a flip in its white space would change nothing
        cut = shutil.copytree(ended, tmp_path / f"cut{number}")
        damage(cut / file, int(rng.integers(1, 1_000_000)))
        told = r"step 6 is damaged: .*; move it away to use another \(4\)"
        with pytest.raises(UserError, match=told):
            _open(cut, writing=False).restore_json(6, "base")
        lines = []
        store = _open(cut, log_line=lines.append)
        assert store.latest_step() == 4, file
        data = {"step": 4, "set_aside": [], "skipped_steps": 0, "unvaried": {}}
        saved = store.restore_json(4, "data")
        assert saved.pop("goodput")["step"] == 4 and saved == data
        store.close()
        assert (cut / DAMAGED / "6").is_dir()
        assert len(lines) == 1 and lines[0].startswith("the checkpoint of step 6 is damaged")
        assert file.name in lines[0]
    # The last of them goes on, to the same end.
    assert "resumed from the checkpoint of step 4" in run(workdir=cut)
    assert_same_arrays(cut, ended)


def test_any_damage_to_a_base_is_refused_by_name(tmp_path):
    base = Path(__file__).parents[2] / "data/demo_base"
    whole = load_model(base).model
    files = [f for f in _files(base) if f.name not in ("README.md", "notes.json", CHECKSUMS)]
    rng = np.random.default_rng(0)
    for number in range(90):
        damage = (_flip, _truncate, _remove, _swap, _add)[number % 5]
        file = files[int(rng.integers(len(files)))].relative_to(base)
        cut = shutil.copytree(base, tmp_path / "cut")
        damage(cut / file, int(rng.integers(1, 1_000_000)))
        with pytest.raises(UserError) as caught:
            load_model(cut)
        said = str(caught.value)
        assert "\n" not in said and (file.name in said or damage is _add or "model.json" in said)
        shutil.rmtree(cut)
    # A base of before there were checksums, with weights that are no numbers.
    kernel = whole.projector.kernel
    kernel[...] = kernel[...].at[0, 0].set(jnp.nan)
    with pytest.raises(UserError, match=r"numbers that are not finite in projector\.kernel; use"):
        check_finite("base", nnx.state(whole))


def test_damage_that_leaves_no_checkpoint_stops_the_run(run, ended):
    for step in (4, 6):
        (ended / f"checkpoints/{step}" / CHECKSUMS).unlink()
    with pytest.raises(UserError, match=r"no checkpoint is whole: .*6/checksums\.json is missing"):
        run(workdir=ended)
    assert (ended / "checkpoints/4").is_dir() and not (ended / DAMAGED).exists()


def test_an_older_damaged_checkpoint_is_found_when_it_is_asked_for(ended):
    _flip(max(_files(ended / "checkpoints/4/parameters"), key=lambda p: p.stat().st_size), 100)
    store = _open(ended)
    assert store.all_steps() == [4, 6]
    with pytest.raises(UserError, match="step 4 is damaged"):
        store.restore_parameters(4, None)
    store.close()


def test_a_checkpoint_is_tensors_and_json(ended):
    """Nothing in it is a pickle or a program: reading one from elsewhere runs none of its code."""
    for path in _files(ended / "checkpoints/6"):
        content = path.read_bytes()
        assert not content.startswith(_CODE), path
        inside = path.relative_to(ended / "checkpoints/6").parts
        if "d" in inside or path.name == "manifest.ocdbt":  # TensorStore's database
            assert "parameters" in inside or "optimizer" in inside
        elif path.name != "commit_success.txt":
            json.loads(content)


def test_a_pickle_in_a_checkpoint_is_not_opened(ended, tmp_path):
    """Also where whoever sends it has made fitting checksums."""
    trap = b"cposix\nsystem\n(S'touch %s'\ntR." % str(tmp_path / "sprung").encode()
    for item in ("data/metadata", "metrics/metrics", "parameters/_METADATA"):
        target = shutil.copytree(ended, tmp_path / item.split("/")[0])
        path = target / "checkpoints/6" / item
        path.write_bytes(trap)
        write_checksums(target / "checkpoints/6")
        with pytest.raises(Exception):  # noqa: B017 - whatever the reader says, it ran nothing
            store = _open(target, writing=False)
            store.restore_json(6, "data")
            store.restore_parameters(6, jax.tree.map(lambda x: x, {"a": np.zeros(1)}))
    assert not (tmp_path / "sprung").exists()
    assert find_damage(ended / "checkpoints/6") is None


def test_checksums_of_a_directory(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x").write_text("1")
    b = tmp_path / "b"
    b.write_text("2")
    assert find_damage(tmp_path) == f"{tmp_path / CHECKSUMS} is missing"
    write_checksums(tmp_path)
    assert find_damage(tmp_path) is None
    b.write_text("3")
    assert find_damage(tmp_path) == f"{b} is not what was written"
    assert find_damage(tmp_path, ["a"]) is None
    (tmp_path / CHECKSUMS).write_text('{"sha256": []}')
    assert find_damage(tmp_path) == f"{tmp_path / CHECKSUMS} cannot be read"
    (tmp_path / CHECKSUMS).unlink()
    write_checksums(tmp_path)

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    assert find_damage(tmp_path) == f"{tmp_path / 'a/x'}: cannot be read: Permission denied"


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
    ("item", "contents"),
    [
        ("parameters/_METADATA", ["{", "[]", "[" * 100_000, '{"tree_metadata": 7}', None]),
        ("parameters/manifest.ocdbt", ["garbage", ""]),
        ("optimizer/_METADATA", [None]),
        (
            "base/metadata",
            ["[]", "{}", '{"sha256": 7}', '{"sha256": "abc", "lora": 3}', "[" * 100_000],
        ),
        ("data/metadata", ["7"]),
        ("metrics/metrics", ["[]", "{", '{"vqa/f1": "high"}']),  # the last is no best one
        ("_CHECKPOINT_METADATA", ["["]),
    ],
)
def test_files_that_make_no_checkpoint_are_one_line(small, tmp_path, subtests, item, contents):
    """Also where whoever made them has made fitting checksums."""
    for number, content in enumerate(contents):
        with subtests.test(str(content)[:40]):
            workdir = shutil.copytree(small[0], tmp_path / str(number))
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
                assert str(workdir) in str(error) and content != '{"vqa/f1": "high"}'
            else:
                assert item in ("_CHECKPOINT_METADATA", "metrics/metrics")  # times, and no figures
                np.testing.assert_array_equal(found.trainable["a"], small[1].trainable["a"])
