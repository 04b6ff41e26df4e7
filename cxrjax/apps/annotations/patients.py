"""Patient ids of images: from annotations, from a pattern, or from names of known archives."""

import re
from collections.abc import Mapping
from pathlib import Path

from cxrjax.apps.annotations.annotation import WORDS
from cxrjax.errors import UserError

_LONGEST_PATTERN = 200


def patients_of(
    names: Mapping[Path, str], given: Mapping[Path, str], pattern: str
) -> tuple[dict[Path, str], str]:
    """File -> patient, and by what.

    Args:
        names: file -> its path in the folder of images, without ending.
        given: file -> patient as annotations have it, "" where they do not.
        pattern: the user's; its first group is the patient.

    Raises:
        UserError: the pattern is none, or does not match a file.
    """
    if pattern:
        found = {}
        try:
            compiled = re.compile(pattern[:_LONGEST_PATTERN])
        except re.error as error:
            raise UserError(f"--patient={pattern}: {error}") from None
        if compiled.groups < 1:
            raise UserError(f"--patient={pattern}: no group (...) in it; expected the patient")
        for path, name in names.items():
            match = compiled.search(name)
            if match is None or not match[1]:
                raise UserError(
                    f"--patient={pattern}: nothing of {name} matches; change the pattern"
                )
            found[path] = match[1]
        return found, f"patients: {len({*found.values()}):,}, by --patient"
    if any(given.values()):
        found = {path: given.get(path) or name for path, name in names.items()}
        alone = sum(not given.get(path) for path in names)
        told = f"; {alone:,} images without one count as one patient each" if alone else ""
        return found, f"patients: {len({*found.values()}):,}, from the annotations{told}"
    for known in WORDS["patterns"]["patients"]:
        matches = {path: re.search(known, name) for path, name in names.items()}
        if names and all(matches.values()):
            found = {path: match[1] for path, match in matches.items() if match}
            told = f"patients: {len({*found.values()}):,}, by names such as"
            return found, f"{told} {next(iter(names.values()))}"
    return dict(names), (
        f"patients: not known, so each of {len(names):,} images counts as one patient; one "
        "patient's images may be in both splits (pass --patient=PATTERN to match names)"
    )
