"""What every test runs under: the CPU, eight simulated devices, no progress bars."""

import ctypes
import gc
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path

import hypothesis
import pytest

import tests.shape_checks

pytest_plugins = ["tests.durations"]

# The parts that compute with arrays. Set up before anything imports them. (Codecs, whose functions
# are many and small, would take twice the time.)
_CHECKED = "boxes decoding images input_pipeline metrics models training"
tests.shape_checks.install([f"cxrjax.{part}" for part in _CHECKED.split()])

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TQDM_DISABLE", "1")
# Half of the time of compiling would go into making faster what runs for milliseconds.
os.environ.setdefault(_QUICK := "JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Tests and the processes they start compile the same programs again and again.
_COMPILED = Path(__file__).resolve().parents[1] / ".pytest_cache" / "compiled"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_COMPILED))
os.environ["XDG_CACHE_HOME"] = str(_COMPILED.with_name("home"))
# Every program, however small: a model's random parameters are dozens of them.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "")
        + " --xla_force_host_platform_device_count=8"
        # The elder emitters of loops compile twice as fast, into slower programs.
        + " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
        # Eight devices on two busy cores: XLA would abort where one of them is 40 s late.
        + " --xla_cpu_collective_call_terminate_timeout_seconds=900"
    ).strip()


# A shell ignores Ctrl-C in what it runs in the background, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


# How long an example takes is the machine's.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")


# Python would look through a million objects of imports and tests again and again, in an eighth of
# the time; what a module leaves is collected after it (below).
gc.set_threshold(50_000, 20, 50)


def pytest_collection_finish():
    """What exists before the first test stays."""
    gc.freeze()


_MUCH = 600  # MB that a process may hold after a module


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Gives memory back after a module: it would pile up to gigabytes a process.

    Half of it is compiled programs, half what was freed and glibc keeps.
    """
    ends = nextitem is None or nextitem.path != item.path
    if ends and _resident_mb() > _MUCH:
        if "jax" in sys.modules:
            sys.modules["jax"].clear_caches()
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL("libc.so.6").malloc_trim(0)


def _resident_mb():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


# What took over five seconds of processor time, and has a quick sibling for the same module.
SLOW_CASES = frozenset(Path(__file__).with_name("slow_cases.txt").read_text().splitlines())


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items):
    """What is heavy is slow as well."""
    for item in items:
        if item.get_closest_marker("heavy") or item.nodeid in SLOW_CASES:
            item.add_marker("slow")


@pytest.fixture(scope="module")
def optimised():
    """XLA compiles for this module, and what it starts, as it does for users."""
    import jax

    def compile_anew(quickly):
        os.environ[_QUICK] = quickly
        jax.config.update(_QUICK.lower(), quickly == "1")
        jax.clear_caches()

    before = os.environ[_QUICK]
    compile_anew("0")
    yield
    compile_anew(before)


@pytest.fixture(scope="session")
def chat():
    """tests/language_model/server.py: `with chat.Server(script) as server: ...`."""
    path = Path(__file__).parent / "language_model" / "server.py"
    spec = importlib.util.spec_from_file_location("chat_server", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def write_hf():
    """`write_hf(directory, sizes, config={}, shards=1, dtype="float32", edit=None, seed=0)`.

    Writes a Hugging Face directory with random weights under the published names and returns them;
    `edit(tensors)` may change them first.
    """

    def write(directory, sizes, config=(), shards=1, dtype="float32", edit=None, seed=0):
        import ml_dtypes
        import numpy as np
        from safetensors.numpy import save_file

        from cxrjax.models.hf_import import abstract_vlm
        from cxrjax.models.hf_layout import published_prefixes, tensor_rules, with_prefix
        from cxrjax.models.partition import parameter_shapes

        rng = np.random.default_rng(seed)
        kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
        shapes, prefixes = parameter_shapes(abstract_vlm(sizes)), published_prefixes(sizes)
        patch = sizes.vision.patch_size if sizes.vision else 0
        tensors = {}
        for rule in tensor_rules(sizes):
            shape = shapes[rule.path]
            for name in rule.names(sizes):
                values = rng.normal(size=rule.their_shape(shape, patch))
                tensors[with_prefix(name, prefixes)] = values.astype(kind)
        if edit is not None:
            edit(tensors)
        directory.mkdir(parents=True, exist_ok=True)
        if config:
            (directory / "config.json").write_text(json.dumps(config))
        if shards == 1:
            save_file(tensors, directory / "model.safetensors")
            return tensors
        weight_map = {}
        for number in range(shards):
            shard = {name: tensors[name] for name in list(tensors)[number::shards]}
            file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
            save_file(shard, directory / file)
            weight_map |= dict.fromkeys(shard, file)
        index = {"metadata": {}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
        return tensors

    return write


@pytest.fixture(scope="session")
def drawn():
    """`drawn(build)`: what `build()` makes, with parameters drawn by NumPy."""
    from tests.models.sizes import drawn

    return drawn
