"""Data of the model families, for every part of the package that needs some.

Each family has a file of it beside its code, `cxrjax/models/families/NAME.toml`: sizes of its
models, its conversation, its boxes and images, its licences.
"""

import functools
from pathlib import Path
from typing import Any

from cxrjax.files import read_packaged

_FOLDER = Path(__file__).parent / "models" / "families"


@functools.cache
def family_tables(section: str) -> dict[str, Any]:
    """Returns the entries of a section in the files of all families, by name.

    An entry that begins with `like` has the fields of the entry that it names, but for its own.
    """
    found: dict[str, Any] = {}
    for path in sorted(_FOLDER.glob("*.toml")):
        tables = read_packaged("cxrjax", f"models/families/{path.name}")
        for name, entry in tables.get(section, {}).items():
            if name in found:
                raise ValueError(f"{path}: {section}.{name} occurs twice")
            found[name] = entry

    def whole(name: str) -> Any:
        own = found[name]
        if not isinstance(own, dict):
            return own
        own = dict(own)
        return (whole(own.pop("like")) if "like" in own else {}) | own

    return {name: whole(name) for name in found}
