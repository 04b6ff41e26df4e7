"""What is installed is what is pinned, file by file, under licences that were looked at. Offline.

Known vulnerabilities are asked for by `make audit`, which needs the network.
"""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
_TEST = ROOT / "requirements" / "test.txt"
_BUILD = ROOT / "requirements" / "build.txt"

# Licences that let everybody use, change and pass on: SPDX names, then what older metadata says.
_SPDX = """0BSD, AFL-2.1, Apache-2.0, Apache-2.0 WITH LLVM-exception, BSD-2-Clause, BSD-3-Clause,
CC0-1.0, CNRI-Python, ISC, MIT, MIT-CMU, MPL-2.0, PSF-2.0, Unlicense, Zlib"""
_OLDER = """2-clause BSD License, 3-Clause BSD License, Apache, Apache 2.0, Apache 2.0 License,
Apache License, Apache License 2.0, Apache Software License, BSD License, FreeBSD,
ISC License (ISCL), MIT License, Mozilla Public License 2.0 (MPL 2.0),
Python Software Foundation License"""
_ALLOWED = {*re.split(r",\s", f"{_SPDX}, {_OLDER}")}
# Packages whose metadata names none, with what their repository says.
_LOOKED_UP = {"namex": "Apache-2.0"}
# Under the GPL: each an extra of its own that nothing else needs (setup.py).
_COPYLEFT_EXTRAS = {"krippendorff": "agreement", "pylibjpeg-libjpeg": "dicom-jpeg"}


def _locked(path: Path) -> dict[str, tuple[Requirement, list[str]]]:
    """Name -> requirement and hashes of its files."""
    blocks = re.split(r"\n(?=\S)", path.read_text().strip())
    found = {}
    for block in blocks:
        first, *rest = re.split(r" \\\n\s+", block)
        requirement = Requirement(first)
        found[canonicalize_name(requirement.name)] = (requirement, rest)
    return found


def _constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate()


@pytest.mark.parametrize("path", [_TEST, _BUILD], ids=lambda path: path.name)
def test_every_package_has_one_version_and_the_hashes_of_its_files(path):
    locked = _locked(path)
    assert locked
    for name, (requirement, hashes) in locked.items():
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), name
        assert requirement.url is None, name
        assert hashes and all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", one) for one in hashes)


def test_hashes_are_of_the_versions_that_are_pinned():
    pinned = _constraints()
    for path in (_TEST, _BUILD):
        here = {
            name: str(requirement.specifier).removeprefix("==")
            for name, (requirement, _) in _locked(path).items()
            if _applies(requirement)
        }
        assert here.items() <= pinned.items(), f"{path.name}: run `make lock`"
    assert _locked(_TEST).keys() >= pinned.keys(), "run `make lock`"
    assert {"setuptools", "wheel"} <= _locked(_BUILD).keys()


def test_what_setup_py_asks_for_is_locked():
    """`make lock` was run after the last change of setup.py."""
    locked = _locked(_TEST)
    text = (ROOT / "setup.py").read_text()
    named = text[text.index("install_requires") : text.index('"hf"')] + text[: text.index("setup(")]
    for line in re.findall(r'"([A-Za-z0-9_.-]+(?:\[\w+\])?[=<>][^"]*)"', named):
        requirement = Requirement(line)
        if requirement.name in ("torch", "apache-beam", "gradio"):  # extras of other environments
            continue
        found, _ = locked[canonicalize_name(requirement.name)]
        version = str(found.specifier).removeprefix("==")
        assert requirement.specifier.contains(version), line


def test_extras_are_found_by_an_old_pip():
    """Before 23.3 it compares names with metadata, where an underscore is a hyphen."""
    extras = importlib.metadata.metadata("cxrjax").get_all("Provides-Extra")
    text = (ROOT / "setup.py").read_text()
    assert extras and all(f'"{extra}": [' in text for extra in extras)


def _installed() -> dict[str, importlib.metadata.Distribution]:
    return {
        canonicalize_name(one.metadata["Name"]): one for one in importlib.metadata.distributions()
    }


def test_nothing_is_installed_that_is_not_pinned():
    """For the environment of `make test`; what else is in yours, `pip uninstall` or pin."""
    ours = {"cxrjax", "pip"}
    pinned = _constraints()
    # A new environment of Python's brings setuptools, in a version of its own.
    odd = {
        name: one.version
        for name, one in _installed().items()
        if name not in ours and pinned.get(name) != one.version
    }
    assert not odd


def test_packages_agree_and_their_licences_were_looked_at():
    check = [sys.executable, "-m", "pip", "check", "--disable-pip-version-check"]
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    odd = {
        name: found
        for name, one in _installed().items()
        if name not in ("cxrjax", *_COPYLEFT_EXTRAS)
        for found in [_licences(one)]
        if not all(_ALLOWED & set(each.split(" OR ")) for each in found)
    }
    assert not odd


def _licences(one: importlib.metadata.Distribution) -> list[str]:
    """Every licence that the metadata names; all must be allowed, of alternatives (`OR`) one."""
    told = one.metadata
    name = canonicalize_name(told["Name"])
    if name in _LOOKED_UP:
        return [_LOOKED_UP[name]]
    classifiers = [line.split(" :: ") for line in told.get_all("Classifier", [])]
    named = [parts[-1] for parts in classifiers if parts[0] == "License" and len(parts) > 2]
    # A whole licence may stand in the older field.
    text = told.get("License-Expression") or ("" if named else told.get("License") or "none")
    return re.sub(r"[()]", "", text.splitlines()[0]).split(" AND ") if text else named


def test_copyleft_is_never_required():
    text = (ROOT / "setup.py").read_text()
    required = text[text.index("install_requires") : text.index("extras_require")]
    for name, extra in _COPYLEFT_EXTRAS.items():
        assert name not in required and f'"{extra}": ["{name}' in text
        needed_by = [
            one.metadata["Name"]
            for one in _installed().values()
            for line in one.requires or []
            if canonicalize_name(Requirement(line).name) == name and "extra ==" not in line
        ]
        assert needed_by == []
