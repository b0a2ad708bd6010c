"""libinspan by ctypes: where it is, its structures, its functions (include/inspan/comm.h, open.h, status.h).

Units and ownership are the headers'. Every call here lets other Python threads run meanwhile.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import os
from ctypes import POINTER, Structure, c_bool, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16
from ctypes import c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Iterator

NAME_MAX = 64
KEY_BYTES = 32


class Status(enum.IntEnum):
    """inspan_status_t, in its order."""

    OK = 0
    PENDING = 1
    INVALID = 2
    NO_MEMORY = 3
    TIMEOUT = 4
    ABORTED = 5
    PEER_LOST = 6
    REFUSED = 7
    UNREACHABLE = 8
    AUTH = 9
    VERSION = 10
    MISMATCH = 11
    NOT_FOUND = 12
    EXISTS = 13
    LIMIT = 14
    CORRUPT = 15
    IO = 16
    UNSUPPORTED = 17
    JOB_FAILED = 18
    INTERNAL = 19


class Dtype(enum.IntEnum):
    """inspan_dtype_t."""

    FP32 = 0
    FP64 = 1
    FP16 = 2
    BF16 = 3
    INT32 = 4
    INT64 = 5
    UINT8 = 6
    INT8 = 7
    INT16 = 8


class Reduction(enum.IntEnum):
    """inspan_reduction_t."""

    SUM = 0
    MIN = 1
    MAX = 2
    PRODUCT = 3
    BIT_AND = 4
    BIT_OR = 5
    BIT_XOR = 6


class CommError(RuntimeError):
    """A failure of the communicator, the same on all ranks that could be told.

    status: what it was. rank: who is at fault, counted in the whole job, -1 where nobody knows. node, address: that rank's.
    operation: what was under way. waited_s: for how long, seconds.
    """

    def __init__(self, status: Status, text: str, rank: int = -1, node: str = "", address: str = "", operation: str = "",
                 waited_s: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.rank = rank
        self.node = node
        self.address = address
        self.operation = operation
        self.waited_s = waited_s


class Error(Structure):
    """inspan_error_t."""

    _fields_ = [("status", c_int), ("text", c_char * 512)]

    def raised(self, what: str) -> CommError:
        """The exception for it."""
        return CommError(Status(self.status), f"{what}: {self.text.decode(errors='replace')}")


class Member(Structure):
    """inspan_member_t."""

    _fields_ = [("number", c_uint32), ("node", c_char * NAME_MAX), ("address", c_char * NAME_MAX), ("port", c_uint16),
                ("incarnation", c_uint64), ("pace_sample_ns", c_uint64), ("pace_step_ns", c_uint64)]


class Cause(Structure):
    """inspan_cause_t."""

    _fields_ = [("status", c_int), ("rank", c_int32), ("node", c_char * NAME_MAX), ("address", c_char * NAME_MAX),
                ("operation", c_char * NAME_MAX), ("waited_ns", c_int64), ("noticed_by", c_int32), ("text", c_char * 256)]


class Options(Structure):
    """inspan_comm_options_t."""

    _fields_ = [("io", c_void_p), ("listener", c_void_p), ("job", c_uint64), ("view", c_uint64), ("rank", c_uint32),
                ("world", c_uint32), ("members", POINTER(Member)), ("key", c_uint8 * KEY_BYTES),
                ("failure_timeout_ns", c_int64)]


class Part(Structure):
    """inspan_part_t."""

    _fields_ = [("data", c_void_p), ("count", c_uint64)]


class Finished(Structure):
    """inspan_finished_t."""

    _fields_ = [("token", c_uint64), ("status", c_int)]


_OP = POINTER(c_void_p)
_ERROR = POINTER(Error)

# name: result, arguments. c_void_p: a handle, or the caller's buffer.
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "inspan_status_text": (c_char_p, [c_int]),
    "inspan_reduces": (c_bool, [c_int, c_int]),
    "inspan_io_open": (c_int, [POINTER(c_void_p), _ERROR]),
    "inspan_io_close": (None, [c_void_p]),
    "inspan_listen": (c_int, [c_uint16, c_uint16, POINTER(c_void_p), POINTER(c_uint16), _ERROR]),
    "inspan_listener_close": (None, [c_void_p]),
    "inspan_comm_open": (c_int, [POINTER(Options), POINTER(c_void_p), _ERROR]),
    "inspan_comm_close": (None, [c_void_p]),
    "inspan_comm_expire": (None, [c_void_p, c_int64]),
    "inspan_comm_abort": (None, [c_void_p, c_char_p]),
    "inspan_comm_cause": (c_bool, [c_void_p, POINTER(Cause)]),
    "inspan_allreduce": (c_int, [c_void_p, c_void_p, c_void_p, c_uint64, c_int, c_int, _OP]),
    "inspan_reduce": (c_int, [c_void_p, c_void_p, c_void_p, c_uint64, c_int, c_int, c_uint32, _OP]),
    "inspan_reduce_scatter_blocks": (c_int, [c_void_p, c_void_p, c_void_p, c_uint64, c_int, c_int, _OP]),
    "inspan_allgather_blocks": (c_int, [c_void_p, c_void_p, c_void_p, c_uint64, c_int, _OP]),
    "inspan_broadcast": (c_int, [c_void_p, c_void_p, c_uint64, c_int, c_uint32, _OP]),
    "inspan_barrier": (c_int, [c_void_p, _OP]),
    "inspan_gather": (c_int, [c_void_p, c_void_p, c_uint64, POINTER(Part), c_int, c_uint32, _OP]),
    "inspan_scatter": (c_int, [c_void_p, POINTER(Part), c_void_p, c_uint64, c_int, c_uint32, _OP]),
    "inspan_alltoall": (c_int, [c_void_p, POINTER(Part), POINTER(Part), c_int, _OP]),
    "inspan_send": (c_int, [c_void_p, c_void_p, c_uint64, c_int, c_uint32, c_uint32, _OP]),
    "inspan_receive": (c_int, [c_void_p, c_void_p, c_uint64, c_int, c_uint32, c_uint32, _OP]),
    "inspan_queue_open": (c_int, [POINTER(c_void_p)]),
    "inspan_queue_close": (None, [c_void_p]),
    "inspan_queue_take": (c_int, [c_void_p, c_int64, POINTER(Finished), c_size_t, POINTER(c_size_t)]),
    "inspan_queue_wake": (None, [c_void_p]),
    "inspan_op_to_queue": (c_int, [c_void_p, c_void_p, c_uint64]),
}


def _places() -> Iterator[Path]:
    """Where the library may be: as told, beside this package, in the build folder of a source tree."""
    told = os.environ.get("INSPAN_LIBRARY")
    if told:
        yield Path(told)
        return
    here = Path(__file__).resolve().parent
    yield here / "libinspan.so"
    yield here.parents[2] / "build" / "src" / "libinspan.so"


def library_path() -> str:
    """The library that is loaded: a path, or a bare name for the loader's own search."""
    for place in _places():
        if place.exists():
            return str(place)
    told = os.environ.get("INSPAN_LIBRARY")
    if told:
        raise OSError(f"INSPAN_LIBRARY names {told}, which does not exist; set it to the path of libinspan.so")
    return "libinspan.so.0"


@functools.lru_cache(maxsize=None)
def lib() -> ctypes.CDLL:
    """The loaded library with its functions declared. OSError, naming where it was looked for."""
    path = library_path()
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        looked = ", ".join(str(place) for place in _places())
        raise OSError(f"libinspan cannot be loaded ({error}); looked for it at {looked} and where the loader looks: build it "
                      "(./dev build) or set INSPAN_LIBRARY to its path") from error
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
        except AttributeError:
            raise OSError(f"{path} has no {name}: it is older than this package; build it again") from None
        function.restype = result
        function.argtypes = arguments
    return loaded


def status_text(status: int) -> str:
    """Short English name: "peer lost"."""
    return lib().inspan_status_text(status).decode()
