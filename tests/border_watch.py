"""Finds the bare parsers of foreign bytes in a module's source (`test_architecture.py`)."""

import ast
from collections.abc import Iterator

# Whatever reads or runs bytes, wherever it is named.
FUNCTIONS = {
    *("json.load", "json.loads", "pydicom.dcmread", "PIL.Image.open", "safetensors.safe_open"),
    *("safetensors.numpy.load", "safetensors.numpy.load_file", "safetensors.deserialize"),
    *("tarfile.open", "gzip.decompress", "zlib.decompress", "zlib.decompressobj"),
    *("bz2.open", "bz2.decompress", "lzma.open", "lzma.decompress", "shutil.unpack_archive"),
    *("pickle.load", "pickle.loads", "marshal.loads", "shelve.open", "joblib.load", "torch.load"),
    *(f"xml.etree.ElementTree.{name}" for name in ("fromstring", "parse", "iterparse", "XML")),
    *("yaml.load", "yaml.safe_load", "yaml.unsafe_load", "tomllib.load", "tomllib.loads"),
    *("io.open", "codecs.open", "eval", "exec"),
}
# The same, where they are called: their names stand in annotations too.
CLASSES = {
    *("zipfile.ZipFile", "tarfile.TarFile", "json.JSONDecoder"),
    *("pickle.Unpickler", "bz2.BZ2File", "lzma.LZMAFile"),
}
# Fit to write with as well: called with a mode that writes, they are left alone.
OPENERS = {"open", "gzip.open", "gzip.GzipFile"}
METHODS = {"read_text", "read_bytes", "model_validate_json", "validate_json"}


def bare_parsers(source: str) -> Iterator[tuple[int, str]]:
    """(line, what is named there) of every bare parser."""
    tree = ast.parse(source)
    known = _imported(tree)
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        name, call = _dotted(node, known), calls.get(id(node))
        if (
            name in FUNCTIONS
            or name.endswith(".GGUFReader")
            or (name in CLASSES and call)
            or (name in OPENERS and not _writes(call))
            or (name == "numpy.load" and not _safe(call))
        ):
            yield node.lineno, name
        elif isinstance(node, ast.Attribute) and call and not name.startswith("cxrjax."):
            reads = node.attr == "open" and _mode(call, 0).startswith("r")
            yield from ((node.lineno, node.attr),) * (reads or node.attr in METHODS)


def _imported(tree: ast.AST) -> dict[str, str]:
    """Name in the module -> what it stands for, dotted."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                first = one.name.partition(".")[0]
                known[one.asname or first] = one.name if one.asname else first
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                known[one.asname or one.name] = f"{node.module}.{one.name}"
    return known


def _dotted(node: ast.expr, known: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, known)}.{node.attr}"
    return known.get(node.id, node.id) if isinstance(node, ast.Name) else ""


def _mode(call: ast.Call | None, place: int) -> str:
    """The mode of an opening call; "" where none is written out."""
    if call is None:
        return ""
    given = [word.value for word in call.keywords if word.arg == "mode"] + call.args[place:]
    mode = given[0] if given else None
    return mode.value if isinstance(mode, ast.Constant) and isinstance(mode.value, str) else ""


def _writes(call: ast.Call | None) -> bool:
    return any(letter in "wax" for letter in _mode(call, 1))


def _safe(call: ast.Call | None) -> bool:
    """Pickles are off by default."""
    return call is not None and all(word.arg != "allow_pickle" for word in call.keywords)
