"""Shared by all entry points: how they end, and where compiled programs are kept."""

import argparse
import contextlib
import gc
import os
import re
import select
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from cxrjax.errors import Preempted, UserError

EXIT_BUG = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130
EXIT_READER_LEFT = 141  # as a shell tells of SIGPIPE
# EX_TEMPFAIL of sysexits.h: start the same command again, and it goes on where it stopped.
EXIT_RESUME = 75
_LONGEST_MESSAGE = 2_000  # characters; what is quoted of a file may be all of it
_LEAVE_SECONDS = 5.0
# Where JAX itself looks for the setting; an empty value turns the cache off.
_COMPILED_PROGRAMS = "JAX_COMPILATION_CACHE_DIR"
# Seconds; JAX keeps what took a whole one, and compiles the small programs of a start anew.
_LEAST_COMPILE_TIME = "jax_persistent_cache_min_compile_time_secs"


def run(main: Callable[[], object]) -> NoReturn:
    """Calls `main()` and leaves the process.

    Args:
        main: parses its own arguments (argparse leaves with code 2 on unusable ones) and does the
            work. An int it returns is the exit code; anything else means success.

    The process ends with 0 on success, 2 on a `UserError` (its message on stderr, one line), 75
    when it was told to stop and can go on later (`Preempted`), and 130 on Ctrl-C where there is
    nothing to go on with, 141 where whoever reads its output has left (`| head`). Any other
    exception is a bug of ours and keeps its traceback.
    """
    # Importing JAX makes half a million objects; Python looks through them 650 times by default.
    gc.set_threshold(10_000)
    # transformers would say that PyTorch is not there, which nothing here asks it for.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        try:
            code = main()
        finally:
            sys.stdout.flush()
    except UserError as error:
        print(f"error: {for_terminal(str(error))}", file=sys.stderr)
        _leave(EXIT_USER_ERROR)
    except Preempted as stopped:
        print(f"{stopped}; resume by the same command (exit code {EXIT_RESUME})", file=sys.stderr)
        _leave(EXIT_RESUME)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        _leave(EXIT_INTERRUPTED)
    except BrokenPipeError:
        if not _reader_left():
            raise
        _leave(EXIT_READER_LEFT)
    except Exception:
        if not _is_one_of_several():
            raise
        traceback.print_exc()
        _leave(EXIT_BUG)
    _leave(code if isinstance(code, int) else 0)


def start(module: str, main: Callable[[], object]) -> None:
    """Runs a command's `main` where its module is what `python -m` started.

    Args:
        module: its `__name__`.

    Raises:
        ImportError: it was imported, which would put a module in the place of a function of
            `cxrjax`. Processes that the command starts may import it.
    """
    if module == "__main__":
        run(main)
    if module != "__mp_main__":
        name = module.rpartition(".")[2]
        raise ImportError(
            f"{module} is a command, for `python -m {module}`; from Python: from cxrjax import "
            f"{name}"
        )


def _reader_left() -> bool:
    """Returns whether nobody reads the output any more; what is left to print then goes nowhere."""
    look = select.poll()
    look.register(sys.stdout.fileno(), 0)
    if not look.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def for_terminal(message: str) -> str:
    """A message as one line, cut in its middle where it is long, that steers no terminal."""
    line = " ".join(message.split())
    if len(line) > _LONGEST_MESSAGE:
        half = _LONGEST_MESSAGE // 2
        line = f"{line[:half]} [...] {line[-half:]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def command_parser(command: str, about: str | None) -> argparse.ArgumentParser:
    """A parser of `python -m cxrjax.COMMAND`; its help is the module's docstring as it stands."""
    return argparse.ArgumentParser(
        prog=f"python -m cxrjax.{command}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def input_sizes(text: str) -> tuple[tuple[int, int], ...]:
    """Reads (height, width) of each input in "HEIGHTxWIDTH[,HEIGHTxWIDTH...]".

    Raises:
        ValueError: the text has another form.
    """
    if not re.fullmatch(r"\d{1,5}x\d{1,5}(,\d{1,5}x\d{1,5})*", text):
        raise ValueError("expected HEIGHTxWIDTH, or several with commas")
    sizes = [size.split("x") for size in text.split(",")]
    return tuple((int(height), int(width)) for height, width in sizes)


def _leave(code: int) -> NoReturn:
    if code and _is_one_of_several():
        # Without JAX's farewell: it waits minutes for the others, which wait for this one.
        sys.stdout.flush()
        sys.stderr.flush()
        let_others_leave()
        os._exit(code)
    sys.exit(code)


def let_others_leave(seconds: float = _LEAVE_SECONDS) -> None:
    """Process 0 leaves last: JAX aborts the others, whose exit code is then lost, when it ends.

    It waits so long at most, since one that hangs does not come.
    """
    from jax._src import distributed  # the store that all processes see is nowhere public

    client, process = distributed.global_state.client, distributed.global_state.process_id
    if client is None:
        return
    deadline = time.monotonic() + seconds
    with contextlib.suppress(Exception):
        client.key_value_set(f"cxrjax/leaving/{process}", "yes")
        for other in range(1, distributed.global_state.num_processes if process == 0 else 0):
            left = max(1, int(1000 * (deadline - time.monotonic())))
            client.blocking_key_value_get(f"cxrjax/leaving/{other}", left)
    if process == 0:
        time.sleep(0.5)  # they have said so, and are about to


def _is_one_of_several() -> bool:
    jax = sys.modules.get("jax")  # entry points without a model have not loaded it
    return jax is not None and jax.distributed.is_initialized()


def keep_compiled_programs() -> None:
    """Enables JAX's compilation cache on disk, so that a second start need not compile again.

    In `~/.cache/cxrjax/compiled`, or where the environment's JAX_COMPILATION_CACHE_DIR says.
    """
    import jax  # not at the top: entry points without a model start without it

    if _COMPILED_PROGRAMS not in os.environ:
        folder = Path.home() / ".cache" / "cxrjax" / "compiled"
        jax.config.update("jax_compilation_cache_dir", str(folder))
    if _LEAST_COMPILE_TIME.upper() not in os.environ:
        jax.config.update(_LEAST_COMPILE_TIME, 0.05)


@contextlib.contextmanager
def garbage_collector_paused() -> Iterator[None]:
    """Pauses garbage collection, which doubles the time of work on millions of acyclic objects."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
