"""What a parser may do to the process that it runs in."""

import ctypes
import os
import pathlib
import time


def reverse(content, sign=1):
    return {"pid": os.getpid(), "sign": sign}, bytes(content)[::-1]


def raise_error(content):
    raise ValueError(bytes(content).decode())


def allocate(content, size):
    return {"length": len(bytearray(size))}, b""


def allocate_in_c(content, size):
    library = ctypes.CDLL(None)
    library.malloc.restype = ctypes.c_void_p
    library.malloc.argtypes = [ctypes.c_size_t]
    ctypes.memset(library.malloc(size), 1, size)
    return {}, b""


def spin(content):
    while True:
        pass


def sleep(content, duration):
    time.sleep(duration)
    return {"pid": os.getpid()}, b""


def crash(content):
    ctypes.string_at(0)


def leave(content):
    os._exit(0)


def taken_over(content):
    """Answers past the protocol, as a decoder that a file has taken over may."""
    os.write(0, bytes(content))
    time.sleep(60)


def no_object(content):
    return 1, b""


def write_file(content, path):
    pathlib.Path(path).write_bytes(bytes(content))
    return {}, b""


def modules(content):
    import sys

    return {"modules": sorted(sys.modules)}, b""
