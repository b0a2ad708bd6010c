"""The few lines that read a safetensors file, for comparing parameters."""

import array
import json
import math
import struct


def read(path):
    """{name: list of floats} of the F32 and F64 tensors."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = array.array({"F32": "f", "F64": "d"}[entry["dtype"]])
        values.frombytes(data[8 + length + begin:8 + length + end])
        tensors[name] = values
    return tensors


def relative_distance(a, b):
    """|a - b| / |b| over all tensors together (L2)."""
    assert a.keys() == b.keys()
    difference = sum((x - y) ** 2 for name in a for x, y in zip(a[name], b[name], strict=True))
    return math.sqrt(difference / sum(y * y for name in b for y in b[name]))
