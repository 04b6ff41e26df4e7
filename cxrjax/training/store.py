"""The checkpoints of a run: the best and the last ones, written while training goes on.

A checkpoint of step n holds what training changes and nothing that it does not: the trainable
parameters, the optimiser's state, where the data stands, and which frozen base they belong to.
Arrays are kept flat by dotted parameter path, so that the format does not depend on how a library
nests its containers. All of it is tensors (OCDBT) and JSON: to read a checkpoint runs no code of
whoever wrote it. `checksums.json` is written before the checkpoint counts, and compared before
anything of it is used.
"""

import contextlib
import gc
import json
import math
import os
import stat
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from cxrjax.distributed import hosts
from cxrjax.distributed.meshes import named_leaves
from cxrjax.errors import BucketError, UserError
from cxrjax.files import file_sha256, replace_text
from cxrjax.paths import in_bucket, remove_tree, to_path, walk
from cxrjax.training import orbax_s3
from cxrjax.training.step import TrainState
from cxrjax.training.workdir import silence_writers, storage_errors
from cxrjax.untrusted.foreign_files import MIB, read_bytes
from cxrjax.untrusted.json_text import parse_object
from cxrjax.untrusted.names import path_inside, shown_value

DIRECTORY = "checkpoints"
# Where damaged checkpoints go when a run goes on without them.
DAMAGED = "damaged_checkpoints"
_DELETED = "deleted"
_FOR_EVER = 10**7  # seconds
_AT_ONCE = 16  # files that are hashed: of a bucket, requests under way
_MOVE_AWAY = "bring back the files as they were written, or move it away"
_JSON = ("data", "base", "metrics")
CHECKSUMS = "checksums.json"
_MOST_CHECKSUM_BYTES = 8 * MIB
# Not of the content: Orbax writes to them when the checksums are made.
_COMMITTED = "commit_success.txt"
_WRITTEN_LATER = ("_CHECKPOINT_METADATA", _COMMITTED)


orbax_s3.enable()


def has_checkpoints(workdir: Path) -> bool:
    """Returns whether the workdir has a checkpoint, complete or not."""
    directory = workdir / DIRECTORY
    return directory.is_dir() and any(directory.iterdir())


class CheckpointStore:
    """Checkpoints under `workdir/checkpoints/<step>`.

    Saving returns as soon as the arrays are copied to the host; a checkpoint counts from the
    moment its directory is renamed into place, so a killed run never leaves half of one.

    Args:
        workdir: of the run.
        best_metric: the evaluation figure whose largest value marks the best checkpoint; of
            equals, the last.
        keep_last: checkpoints kept besides the best one.
        writing: False reads a finished or running run and touches nothing. True goes on with a run:
            checkpoints that are damaged are moved to `workdir/damaged_checkpoints`, from the last
            one down to one that is not.
        log_line: told of every checkpoint that is moved.

    Raises:
        UserError: there are checkpoints, and every one is damaged; when reading, the figures of one
            are.
    """

    def __init__(
        self,
        workdir: Path,
        best_metric: str,
        keep_last: int = 1,
        writing: bool = True,
        log_line: Callable[[str], None] = print,
    ) -> None:
        self._workdir = workdir
        self._writing = writing
        self._whole: set[int] = set()  # steps whose files were compared with their checksums
        self._saving: int | None = None
        if writing:
            self._remove_deleted()
            hosts.refuse_in_all(self._move_damaged(log_line) if hosts.is_first() else None)
            self._whole = set(hosts.from_first(sorted(self._whole)))
        else:
            # Orbax reads the figures of all of them; a run that goes on may just be saving another.
            for step in hosts.from_first(_steps(workdir)):
                self._refuse_damage(step, ("metrics",))
        silence_writers()

        def score(metrics: Mapping[str, float | None]) -> float:
            value = metrics.get(best_metric) if isinstance(metrics, Mapping) else None
            if isinstance(value, int | float) and not math.isnan(value):
                return value
            return float("-inf")

        with readable(workdir / DIRECTORY):
            self._manager = self._open_manager(score, keep_last)

    def _open_manager(
        self, score: Callable[[Mapping[str, float | None]], float], keep_last: int
    ) -> ocp.CheckpointManager:
        policies, writing = ocp.checkpoint_managers, self._writing
        return ocp.CheckpointManager(
            str((self._workdir / DIRECTORY).absolute()),
            options=ocp.CheckpointManagerOptions(
                best_fn=score,
                preservation_policy=policies.AnyPreservationPolicy(
                    [policies.LatestN(keep_last), policies.BestN(get_metric_fn=score, n=1)]
                ),
                create=writing,
                cleanup_tmp_directories=writing,
                # Renamed there, so that a killed run leaves no half of an old one either.
                todelete_subdir=_DELETED if writing and not in_bucket(self._workdir) else None,
                # When all files are there, and before the checkpoint counts.
                # Orbax counts its timeout by a clock that may be set, and jump; what hangs is the
                # watchdog's to end.
                async_options=ocp.AsyncOptions(
                    timeout_secs=_FOR_EVER, post_finalization_callback=self._write_checksums
                ),
            ),
            # Told up front, so that a new process can read what another one saved.
            item_handlers={
                "parameters": ocp.StandardCheckpointHandler(),
                "optimizer": ocp.StandardCheckpointHandler(),
                "data": ocp.JsonCheckpointHandler(),
                "base": ocp.JsonCheckpointHandler(),
            },
        )

    def save(
        self,
        step: int,
        state: TrainState,
        data_state: Mapping[str, Any],
        base: Mapping[str, Any],
        metrics: Mapping[str, float | None],
    ) -> None:
        """Begins to save; waits for the one before it.

        Args:
            data_state: of the data iterator after this step's batch; fit for JSON.
            base: which frozen parameters belong to it; fit for JSON.
            metrics: the evaluation's figures at this step; empty if there was none.

        Raises:
            UserError: this one, or the one before it, cannot be written (a full disk).
        """
        optimizer = {"step": state.step, "opt_state": state.opt_state}
        with storage_errors(self._what()):
            self._manager.wait_until_finished()
            self._remove_deleted()
        self._saving = step
        with storage_errors(self._what()):
            if step in self._manager.all_steps():  # saved without its figures
                self._manager.delete(step)
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    parameters=ocp.args.StandardSave(flat_arrays(state.trainable)),
                    optimizer=ocp.args.StandardSave(flat_arrays(optimizer)),
                    data=ocp.args.JsonSave(dict(data_state)),
                    base=ocp.args.JsonSave(dict(base)),
                ),
                metrics=dict(metrics),
                force=True,
            )

    @property
    def directory(self) -> Path:
        """The folder of the checkpoints."""
        return self._workdir / DIRECTORY

    def all_steps(self) -> list[int]:
        return sorted(self._manager.all_steps())

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """The best checkpoint's step; the last one's where no evaluation has scored any."""
        return self._manager.best_step()

    def metrics(self, step: int) -> Mapping[str, float | None]:
        """The figures it was saved with; empty if there were none."""
        found = self._manager.metrics(step)
        return found if isinstance(found, Mapping) else {}

    def restore_state(self, step: int, like: TrainState) -> TrainState:
        """The state of a checkpoint.

        Args:
            like: a state, or its shapes and shardings.

        Raises:
            UserError: it is damaged or holds other parameters.
        """
        optimizer = {"step": like.step, "opt_state": like.opt_state}
        restored = self._restore(step, optimizer=optimizer)
        return TrainState(
            step=restored["step"],
            trainable=self.restore_parameters(step, like.trainable),
            opt_state=restored["opt_state"],
        )

    def restore_parameters(self, step: int, like: Any) -> Any:
        """The trainable parameters alone, in the tree of `like`."""
        return self._restore(step, parameters=like)

    def restore_json(self, step: int, item: str) -> dict[str, Any]:
        """Item `data` or `base` of a checkpoint.

        Raises:
            UserError: the checkpoint is damaged.
        """
        self._check_whole(step)
        where = f"{self._manager.directory}/{step}/{item}"
        args = ocp.args.Composite(**{item: ocp.args.JsonRestore()})
        with readable(where):
            found = self._manager.restore(step, args=args)[item]
        if not isinstance(found, dict):
            raise UserError(f"{where}: {shown_value(found)}, expected a JSON object; {_MOVE_AWAY}")
        return found

    def _restore(self, step: int, **item: Any) -> Any:
        ((name, like),) = item.items()
        self._check_whole(step)
        where = f"{self._manager.directory}/{step}/{name}"
        with readable(where):
            metadata = self._manager.item_metadata(step)[name]
            check_arrays(where, metadata.tree, like)
            args = ocp.args.StandardRestore(abstract_arrays(like))
            restored = self._manager.restore(step, args=ocp.args.Composite(**{name: args}))[name]
            return unflatten(restored, like)

    def close(self) -> None:
        """Waits for what is being saved.

        Raises:
            UserError: it cannot be written.
        """
        with storage_errors(self._what()):
            self._manager.wait_until_finished()
            self._remove_deleted()
            self._manager.close()

    def _remove_deleted(self) -> None:
        """Frees the room of what Orbax has put out of the way."""
        if self._writing and jax.process_index() == 0:
            remove_tree(self._workdir / DIRECTORY / _DELETED, ignore_errors=True)

    def _what(self) -> str:
        return f"{self._workdir / DIRECTORY}: the checkpoint of step {self._saving}"

    def _write_checksums(self) -> None:
        """On the first process, in the thread that saves; an error there fails the save."""
        begun = [
            path
            for path in (self._workdir / DIRECTORY).iterdir()
            # In a bucket it has its name already, and counts once commit_success.txt is there.
            if path.name == str(self._saving) or path.name.startswith(f"{self._saving}.")
        ]
        if len(begun) != 1:
            raise FileNotFoundError(f"checkpoint of step {self._saving} in writing: {begun}")
        write_checksums(begun[0])

    def _check_whole(self, step: int) -> None:
        """Compares a checkpoint with its checksums, once. Called by all processes.

        Raises:
            UserError: in all of them, before any has read it: it is damaged.
        """
        if step in self._whole:
            return
        self._refuse_damage(step)
        self._whole.add(step)

    def _refuse_damage(self, step: int, parts: Collection[str] | None = None) -> None:
        damage = None
        if hosts.is_first():
            damage = find_damage(self._workdir / DIRECTORY / str(step), parts)
        if damage is not None:
            others = [each for each in _steps(self._workdir) if each != step]
            damage = (
                f"the checkpoint of step {step} is damaged: {damage}; move it away to use another "
                f"({', '.join(map(str, others)) or 'there is none'}), or bring back the file"
            )
        hosts.refuse_in_all(damage)

    def _move_damaged(self, log_line: Callable[[str], None]) -> str | None:
        """Sets aside damaged checkpoints that are newer than the last whole one.

        Of older ones only what is read at the start is compared. What is wrong, if none is whole.
        """
        steps = _steps(self._workdir)
        damaged: dict[int, str] = {}
        for step in reversed(steps):
            found = find_damage(
                self._workdir / DIRECTORY / str(step), _JSON if self._whole else None
            )
            if found is not None:
                damaged[step] = found
            elif not self._whole:
                self._whole.add(step)
        if steps and not self._whole:
            return (
                f"{self._workdir / DIRECTORY}: no checkpoint is whole: "
                f"{'; '.join(damaged.values())}; bring back the files, or remove the folder to "
                "begin again"
            )
        for step, found in damaged.items():
            target = self._workdir / DAMAGED / str(step)
            number = 0
            while target.exists():
                number += 1
                target = target.with_name(f"{step}.{number}")
            target.parent.mkdir(exist_ok=True)
            (self._workdir / DIRECTORY / str(step)).rename(target)
            log_line(
                f"the checkpoint of step {step:,} is damaged and was moved to {target}: {found}"
            )
        return None


@contextlib.contextmanager
def readable(where: str | Path) -> Iterator[None]:
    """Turns what Orbax and TensorStore say of what they cannot read into a line for the user.

    Checksums find damage; here it is files whose checksums fit, and that make no checkpoint.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # each part of the libraries has its own
        _drop_frames(error)
        said = " ".join(str(error).split())[:300]
        raise UserError(
            f"{where}: cannot be read as a checkpoint ({type(error).__name__}: {said}); "
            f"{_MOVE_AWAY}"
        ) from None


def _drop_frames(error: BaseException) -> None:
    """Lets go of what the libraries had begun; else each part complains when it is collected."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = error.__context__ = error.__cause__ = None
        gc.collect()
    finally:
        sys.unraisablehook = hook


def _steps(workdir: Path) -> list[int]:
    directory = workdir / DIRECTORY
    found = directory.iterdir() if directory.is_dir() else ()
    steps = [path for path in found if path.name.isdigit()]
    if in_bucket(directory):
        steps = [path for path in steps if (path / _COMMITTED).is_file()]
    return sorted(int(path.name) for path in steps)


def flat_arrays(tree: Any) -> dict[str, Any]:
    """`{"decoder.embedder.table": array, ...}` of any pytree."""
    return {name.replace("/", "."): leaf for name, leaf in named_leaves(tree).items()}


def abstract_arrays(tree: Any) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes, dtypes and shardings of `flat_arrays(tree)`, to be restored."""
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))
        for name, leaf in flat_arrays(tree).items()
    }


def unflatten(arrays: Mapping[str, Any], like: Any) -> Any:
    """Inverse of `flat_arrays`: the tree of `like` with these arrays."""
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[n] for n in flat_arrays(like)])


def check_arrays(where: str, found: Mapping[str, Any], like: Any) -> None:
    """Compares names and shapes of saved arrays with those of a tree.

    Raises:
        UserError: names the first difference.
    """
    saved = {name: tuple(leaf.shape) for name, leaf in found.items()}
    wanted = {name: tuple(leaf.shape) for name, leaf in flat_arrays(like).items()}
    for name in sorted(saved.keys() | wanted.keys()):
        if saved.get(name) != wanted.get(name):
            raise UserError(
                f"{where}: {name} is {saved.get(name, 'absent')} there and "
                f"{wanted.get(name, 'absent')} in the configured model; use the configuration "
                "that the checkpoint was made with"
            )


def write_checksums(directory: Path, names: Iterable[str] | None = None, **more: str) -> None:
    """Writes `checksums.json`: the SHA-256 of these files by relative path; None: of all.

    Args:
        more: hashes of something else than files, by name.
    """
    names = _content_files(directory) if names is None else list(names)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        hashes = pool.map(lambda name: file_sha256(directory / name), names)
        files = dict(zip(names, hashes, strict=True))
    replace_text(directory / CHECKSUMS, json.dumps({"sha256": files, **more}, indent=1) + "\n")


def find_odd_file(directory: Path) -> str | None:
    """Describes the first file that is unsafe to open: a link, device, pipe, or oversized."""
    # Objects of buckets are files.
    for folder, folders, names in () if in_bucket(directory) else os.walk(directory):
        for name in (*folders, *names):
            path = to_path(folder) / name
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                return f"{path} is a link, expected the file itself"
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                return f"{path} is a device or pipe, expected a file"
    for name in _WRITTEN_LATER:
        path = directory / name
        if path.is_file() and path.stat().st_size > MIB:
            return f"{path} has more than {MIB:,} bytes"
    return None


def read_checksums(directory: Path) -> dict[str, str]:
    """The SHA-256 by relative path that `write_checksums` has written.

    Raises:
        UserError: missing, unreadable or empty.
    """
    path = directory / CHECKSUMS
    try:
        expected = parse_object(read_bytes(path, _MOST_CHECKSUM_BYTES))["sha256"]
        items = {str(name): str(checksum) for name, checksum in expected.items()}
    except BucketError:
        raise
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} cannot be read") from None
    if not items:
        raise UserError(f"{path} names no file")
    return items


def find_damage(directory: Path, parts: Collection[str] | None = None) -> str | None:
    """Finds damage in the files that `write_checksums` has seen in a directory; None: none.

    Args:
        parts: look only at what lies in these of its folders.
    """
    odd = find_odd_file(directory)
    if odd is not None:
        return odd
    try:
        expected = read_checksums(directory)
    except BucketError:
        raise
    except UserError as error:
        return str(error)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(lambda name: _damage_of(directory, name, expected[name], parts), expected)
        return next(filter(None, found), None)


def _damage_of(
    directory: Path, name: str, checksum: str, parts: Collection[str] | None
) -> str | None:
    try:
        file = path_inside(directory, name)
        if parts is not None and file.relative_to(directory).parts[0] not in parts:
            return None
        if not file.exists():
            return f"{file} is missing"
        if file_sha256(file) != checksum:
            return f"{file} is not what was written"
    except BucketError:
        raise
    except OSError as error:
        return f"{file}: cannot be read: {error.strerror or error}"
    except (UserError, ValueError) as error:
        return str(error)
    return None


def _content_files(directory: Path) -> list[str]:
    found = (to_path(folder) / name for folder, _, files in walk(directory) for name in files)
    names = (path.relative_to(directory).as_posix() for path in found)
    return sorted(name for name in names if name not in (CHECKSUMS, *_WRITTEN_LATER))
