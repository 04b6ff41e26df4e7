"""Describes a run in `run.json`."""

import json
import resource
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from cxrjax.files import file_sha256, git_commit, package_versions
from cxrjax.training.workdir import storage_errors

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "numpy",
    "ml_collections",
)


def describe_run(
    *,
    seed: int,
    steps: int,
    resumed_from: int,
    parameters: Mapping[str, int],
    base: Mapping[str, Any],
    data_files: Iterable[Path],
) -> dict[str, Any]:
    """Versions, hashes, seed, device and sizes of a run, fit for JSON.

    Args:
        steps: of the whole run.
        resumed_from: the checkpoint's step, 0 for a new run.
        parameters: counts by name.
        base: the frozen base's reference.
        data_files: records files, or folders of TFDS data sets or of shards; the `manifest.json` of
            their data set is hashed too, and the hashes of its splits are repeated.
    """
    files = [
        file
        for path in data_files
        for file in (sorted(path.glob("records/*.jsonl")) if path.is_dir() else [path])
        if file.is_file()
    ]
    manifests = {path.parent.parent / "manifest.json" for path in files}
    manifests |= {path / "manifest.json" for path in data_files}  # of shards, hashed in it
    files += sorted(path for path in manifests if path.is_file())
    return {
        "command": sys.argv,
        "seed": seed,
        "steps": steps,
        "resumed_from": resumed_from,
        "parameters": dict(parameters),
        "base": dict(base),
        "data_sha256": {str(path): file_sha256(path) for path in files},
        "split_sha256": {str(path): _split_hashes(path) for path in files if path in manifests},
        "git_commit": git_commit(),
        "versions": package_versions(PACKAGES),
        "devices": {
            "kind": jax.devices()[0].device_kind,
            "count": jax.device_count(),
            "processes": jax.process_count(),
        },
    }


def _split_hashes(manifest: Path) -> dict[str, str]:
    """Split -> hash of its image ids, as the data set's manifest has them; empty without any.

    A file of this name beside records that `build` did not write may say anything.
    """
    try:
        splits = json.loads(manifest.read_text(encoding="utf-8"))["splits"]
        return {name: split["split_sha256"] for name, split in splits.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_json(path: Path, content: Any) -> None:
    """Replaces a JSON file in one move, so that a killed run leaves the old or the new one."""
    temporary = path.with_suffix(".tmp")
    with storage_errors(str(path)):
        temporary.write_text(json.dumps(content, indent=2, default=str) + "\n", encoding="utf-8")
        temporary.replace(path)


def peak_memory_gb() -> float:
    """The most memory that this process, or the largest of its finished workers, has held."""
    kibibytes = max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return kibibytes * 1024 / 1e9
