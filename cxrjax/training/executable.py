"""The compiled step in a file: made once, loaded where compiling would take minutes.

    python -m cxrjax.train --config=FILE --workdir=DIR --compile_only=STEP
    python -m cxrjax.train --config=FILE --workdir=DIR --compiled=STEP

A line of JSON, then the entry of JAX's compilation cache: the compiler's own bytes and no pickle.
Trees, shapes and shardings are not in it; they come from the configuration, by tracing the step
again, and the program that results must be the one that was compiled. The bytes are machine code
all the same: whoever writes the file runs what he likes with the rights of whoever loads it, and no
check of ours can tell. The hash in the file finds damage, not malice. So a file is read that its
user or root owns and nobody else may write, and no other; load files that you made yourself.
Several processes share one file, which the first of them writes.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import jax
from jax.experimental.compilation_cache import compilation_cache

from cxrjax.border.foreign_files import MIB, open_foreign
from cxrjax.border.json_text import parse_object
from cxrjax.distributed import hosts
from cxrjax.errors import ForeignError, UserError
from cxrjax.files import reading
from cxrjax.training.config import ExperimentConfig, flatten
from cxrjax.training.step import StepFunction

_FORMAT = 1
# What of a configuration a step is made of.
_COMPILED_KEYS = (
    *("model.", "lora.", "trainable", "optimizer.", "mesh."),
    *("data.questions_per_image", "data.max_boxes", "data.codec"),
    *("data.prefix_buckets", "data.answer_buckets", "data.packed_buckets"),
    *("training.batch_", "training.accumulation_steps", "training.seed", "training.lambda_box"),
    *(
        "training.box_route",
        "training.box_loss",
        "training.box_matching",
        "training.coordinate_",
        "training.logit_chunk",
        "training.skip_nonfinite",
    ),
)
_HEADER: dict[str, Any] = {
    **{"format": int, "steps": int, "config": dict, "batch": list},
    **{"program": str, "entry": str, "sha256": str},
    **{name: object for name in ("jax", "jaxlib", "device", "platform", "devices", "processes")},
}
_LONGEST_HEADER = 8 * MIB
_PATHS = ("model.init", "model.tower_from", "model.tokenizer", "lora.init_from")


def save(
    path: Path, train_step: Any, config: ExperimentConfig, steps: int, arguments: tuple[Any, ...]
) -> None:
    """Compiles a step and writes it.

    Args:
        train_step: from `compile_train_step`.
        steps: of the whole run; the learning rate's schedule is in the program.
        arguments: state, frozen parameters and a batch.

    Raises:
        UserError: the file cannot be written.
    """
    lowered = train_step.lower(*arguments)
    problem = None
    with _cache_in_folder() as folder:
        lowered.compile()
        if hosts.is_first():  # JAX writes the entry there alone
            header = {
                "format": _FORMAT,
                **_environment(),
                "steps": steps,
                "config": _compiled_values(config),
                "batch": _shapes(arguments[-1]),
                "program": _program_hash(lowered),
            }
            problem = _write(path, header, list(folder.glob("*-cache")))
    problem = hosts.from_first(problem)
    if problem is not None:
        raise UserError(problem)


def _write(path: Path, header: dict[str, Any], entries: list[Path]) -> str | None:
    """Writes the only entry of the cache; what is wrong, if it cannot."""
    if len(entries) != 1:
        return (
            "--compile_only: this device's programs cannot be written to a file "
            f"({len(entries)} entries of the compilation cache)"
        )
    payload = entries[0].read_bytes()
    header |= {"entry": entries[0].name, "sha256": hashlib.sha256(payload).hexdigest()}
    try:
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(json.dumps(header).encode() + b"\n" + payload)
        temporary.chmod(0o644)  # whatever the umask lets others do
        temporary.replace(path)
    except OSError as error:
        return f"--compile_only={path}: cannot be written: {error.strerror}"
    return None


class CompiledStep:
    """A step that is loaded for the batch it was compiled for, and compiled for others.

    Args:
        train_step: from `compile_train_step`.
        path: what `save` wrote.
        config: of this run.
        steps: of this run.

    Raises:
        UserError: the file is damaged, or of another configuration, JAX or device; says which.
    """

    def __init__(self, train_step: Any, path: Path, config: ExperimentConfig, steps: int) -> None:
        self._train_step, self._path = train_step, path
        self._header, self._payload = _read(path)
        self._check(config, steps)
        self._compiled: StepFunction | None = None

    def __call__(self, state: Any, frozen: Any, batch: Any) -> Any:
        if _shapes(batch) != self._header["batch"]:
            return self._train_step(state, frozen, batch)
        if self._compiled is None:
            self._compiled = self._load(self._train_step.lower(state, frozen, batch))
        return self._compiled(state, frozen, batch)

    def _check(self, config: ExperimentConfig, steps: int) -> None:
        found, here = self._header, _environment()
        for name, value in here.items():
            if found[name] != value:
                self._refuse(f"made with {name} {found[name]}, here is {value}")
        if found["steps"] != steps:
            self._refuse(f"made for a run of {found['steps']} steps, this one has {steps}")
        there, now = found["config"], _compiled_values(config)
        for key in sorted({*there, *now}):
            if there.get(key) != now.get(key):
                self._refuse(f"made with {key}={there.get(key)!r}, here it is {now.get(key)!r}")

    def _load(self, lowered: Any) -> StepFunction:
        problem = compiled = None
        if _program_hash(lowered) != self._header["program"]:
            problem = "made of another program: the code has changed since, or the tokenizer"
        else:
            with _cache_in_folder() as folder:
                (folder / self._header["entry"]).write_bytes(self._payload)
                compiled = lowered.compile()
                if len(list(folder.glob("*-cache"))) != 1:  # it was compiled anew
                    problem = "made with other flags of the compiler (XLA_FLAGS, LIBTPU_INIT_ARGS)"
        with jax.transfer_guard("allow"):
            problems = [found for found in hosts.gather(problem) if found is not None]
        if problems:
            self._refuse(problems[0])
        assert compiled is not None
        self._payload = b""
        return compiled

    def _refuse(self, why: str) -> NoReturn:
        raise UserError(f"--compiled={self._path}: {why}; make it again with --compile_only")


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    with reading(f"--compiled={path}"), open_foreign(path) as file:
        status = os.fstat(file.fileno())
        others = stat.S_IWGRP | stat.S_IWOTH
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & others:
            raise UserError(
                f"--compiled={path}: is machine code, and {_writer(status)} may write it; chmod "
                "go-w and chown it if you made it yourself, else make it again with --compile_only"
            )
        line, payload = file.readline(_LONGEST_HEADER), file.read()
    try:
        header = parse_object(line)
        fits = all(isinstance(header[key], kind) for key, kind in _HEADER.items())
    except (ForeignError, KeyError):
        fits = False
    if not fits:
        raise UserError(f"--compiled={path}: not a file that --compile_only wrote")
    expected, kind, name = header["sha256"], header["format"], header["entry"]
    if kind != _FORMAT or Path(name).name != name or not name.endswith("-cache"):
        raise UserError(f"--compiled={path}: format {kind!r}, expected {_FORMAT}")
    found = hashlib.sha256(payload).hexdigest()
    if found != expected:
        raise UserError(
            f"--compiled={path}: damaged, its bytes have hash {found[:12]} and should have "
            f"{expected[:12]}; make it again with --compile_only"
        )
    return header, payload


def _writer(status: os.stat_result) -> str:
    if status.st_uid not in (0, os.geteuid()):
        return f"user {status.st_uid}, who owns it,"
    return "everybody" if status.st_mode & stat.S_IWOTH else "its group"


def _environment() -> dict[str, Any]:
    devices = jax.devices()
    return {
        **{name: importlib.metadata.version(name) for name in ("jax", "jaxlib")},
        "device": devices[0].device_kind,
        "platform": devices[0].client.platform_version,
        "devices": len(devices),
        "processes": jax.process_count(),
    }


def _compiled_values(config: ExperimentConfig) -> dict[str, Any]:
    values = json.loads(json.dumps(flatten(config.to_json())))
    return {
        key: value
        for key, value in values.items()
        if key.startswith(_COMPILED_KEYS) and not key.startswith(_PATHS)
    }


def _shapes(batch: Any) -> list[str]:
    leaves, tree = jax.tree.flatten(batch)
    return [str(tree), *(f"{x.dtype}{list(x.shape)}" for x in leaves)]


def _program_hash(lowered: Any) -> str:
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()


@contextlib.contextmanager
def _cache_in_folder() -> Iterator[Path]:
    """JAX's compilation cache in a folder of its own, whatever it is otherwise."""
    names = {
        "jax_enable_compilation_cache": True,
        "jax_compilation_cache_dir": None,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_persistent_cache_enable_xla_caches": "none",
    }
    before = {name: getattr(jax.config, name) for name in names}
    with tempfile.TemporaryDirectory(prefix="cxrjax_step_") as folder:
        names["jax_compilation_cache_dir"] = folder
        try:
            for name, value in names.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
            yield Path(folder)
        finally:
            for name, value in before.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
