"""Finds libaddend.so and declares its functions to ctypes (lib/client/addend.h is the contract)."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("socket", c_char_p),
        ("rank", c_int32),
        ("size", c_int32),
        ("local_rank", c_int32),
        ("local_size", c_int32),
        ("job", c_char_p),
        ("connect_timeout_s", c_double),
    ]


class Statistics(ctypes.Structure):
    _fields_ = [
        ("copied_in_bytes", c_uint64),
        ("copied_out_bytes", c_uint64),
        ("rounds", c_uint64),
    ]


# Opaque pointers are plain integers in Python: c_void_p.
_FUNCTIONS = {
    "addend_init": (c_int, [POINTER(Options), POINTER(c_void_p)]),
    "addend_shutdown": (None, [c_void_p]),
    "addend_rank": (c_int32, [c_void_p]),
    "addend_size": (c_int32, [c_void_p]),
    "addend_local_rank": (c_int32, [c_void_p]),
    "addend_local_size": (c_int32, [c_void_p]),
    "addend_node_rank": (c_int32, [c_void_p]),
    "addend_num_nodes": (c_int32, [c_void_p]),
    "addend_nodes_present": (c_int32, [c_void_p]),
    "addend_nodes_waiting": (c_int32, [c_void_p]),
    "addend_declare": (
        c_int,
        [c_void_p, c_char_p, POINTER(c_int64), c_int32, c_int, c_int, POINTER(c_void_p)],
    ),
    "addend_declare_among": (
        c_int,
        [c_void_p, c_char_p, POINTER(c_int64), c_int32, c_int, c_int]
        + [POINTER(c_int32), c_int32, POINTER(c_void_p)],
    ),
    "addend_declare_wire": (
        c_int,
        [c_void_p, c_char_p, POINTER(c_int64), c_int32, c_int, c_int, c_char_p]
        + [POINTER(c_int32), c_int32, POINTER(c_void_p)],
    ),
    "addend_undeclare": (c_int, [c_void_p]),
    "addend_alloc": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_size_t)]),
    "addend_pin_memory": (c_int, [c_void_p, POINTER(c_void_p)]),
    "addend_unpin": (None, [c_void_p]),
    "addend_push_pull": (c_int, [c_void_p, c_void_p, c_void_p, c_int32, POINTER(c_void_p)]),
    "addend_push_pull_device": (
        c_int,
        [c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_int32, POINTER(c_void_p)],
    ),
    "addend_wait_on_stream": (c_int, [c_void_p, c_double, c_void_p]),
    "addend_poll": (c_int32, [c_void_p]),
    "addend_wait": (c_int, [c_void_p, c_double]),
    "addend_result": (c_void_p, [c_void_p]),
    "addend_release": (None, [c_void_p]),
    "addend_set_tag": (None, [c_void_p, c_uint64]),
    "addend_next_done": (c_int, [c_void_p, c_double, POINTER(c_uint64)]),
    "addend_get_statistics": (None, [c_void_p, POINTER(Statistics)]),
    "addend_last_error": (c_char_p, []),
    "addend_version": (c_char_p, []),
}


def _candidates() -> list[str]:
    """ADDEND_LIBRARY alone if it is set; else the package's folder, then a checkout's build."""
    chosen = os.environ.get("ADDEND_LIBRARY")
    if chosen:
        return [chosen]
    package = os.path.dirname(os.path.abspath(__file__))
    checkout = os.path.dirname(os.path.dirname(package))
    return [
        os.path.join(package, "libaddend.so"),
        os.path.join(checkout, "build", "lib", "libaddend.so"),
    ]


def load() -> ctypes.CDLL:
    candidates = _candidates()
    path = next((p for p in candidates if os.path.exists(p)), None)
    if path is None:
        raise ImportError(
            "libaddend.so is at none of: %s; run scripts/build, or set ADDEND_LIBRARY to its path"
            % ", ".join(candidates)
        )
    try:
        library = ctypes.CDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as e:
        raise ImportError("%s is not a usable libaddend.so of this release: %s" % (path, e)) from None
    return library


lib = load()
