#!/usr/bin/env python3
"""Check that every #include keeps to the layers.

Two tables: which folder may include which, and which folder alone may include a third-party header. Unit tests
(foo_test.c) may include any layer, but third-party headers only like their folder (and cmocka). Exit code 1 and one
line a fault if something is out of place. `--root DIR` checks another tree (the script's own test plants faults there).
"""

import argparse
import re
import sys
from pathlib import Path

ANY_PLATFORM = ["platform/os", "platform/wire", "platform/host", "platform/json", "platform/pack"]
CORES = ["core/collective", "core/step", "core/partition", "core/buckets", "core/sched", "core/control"]

# folder below src: folders it may include besides itself, base and include/inspan. A file name: that header alone.
MAY_INCLUDE = {
    "base": [],
    "core/collective": [],
    "core/step": [],
    "core/partition": [],
    "core/buckets": ["core/collective"],
    "core/sched": [],
    "core/control": ["core/sched", "core/step", "core/partition"],
    "platform/os": [],
    "platform/wire": [],
    "platform/host": ["platform/os"],
    "platform/json": ["platform/os"],
    "platform/pack": ["platform/os"],
    "comm": ["core/collective", "platform/os", "platform/wire"],
    "ddp": ["comm/comm.h", "core/step", "core/partition", "core/buckets", "platform/os/os_cond.h",
            "platform/os/os_memory.h", "platform/os/os_time.h"],
    "worker": ["comm/comm.h", "ddp", "core/collective/link_model.h", "core/step", "core/partition", "core/buckets", "platform/wire",
               "platform/os"],
    "nn": ["platform/os", "platform/json"],
    "train": ["worker", "nn/nn.h", "core/step", "platform/os", "platform/json"],
    "rpc": ["inspan/v1", "grpc", "platform/os"],
    "manager": ["rpc", "inspan/v1", "core/control", "core/sched", "core/step", "core/partition"] + ANY_PLATFORM,
    "agent": ["rpc", "inspan/v1"] + ANY_PLATFORM,
    "cli": ["manager/manager.h", "agent/agent.h", "train/train.h", "train/job.h", "train/checkpoint.h", "nn/nn.h",
            "comm/comm.h", "rpc/rpc.h", "rpc/rpc_files.h", "inspan/v1"] + CORES + ANY_PLATFORM,
    "tui": ["rpc/rpc.h", "inspan/v1"] + ANY_PLATFORM,
}

# pattern of a third-party header: the only folders that may include it.
THIRD_PARTY = {
    r"grpc/|grpc\.h": ["rpc"],
    r"protobuf-c/|google/protobuf": ["rpc", "manager", "agent", "cli"],
    r"sqlite3\.h": ["manager/registry"],
    r"uv\.h": ["platform/host", "agent"],
    r"dnnl|cblas|openblas": ["nn"],
    r"dlfcn\.h": ["nn", "comm/backends", "platform/host"],
    r"cyaml|yaml\.h": ["cli"],
    r"microhttpd": ["manager/web"],
    r"openssl/": ["platform/host", "platform/wire"],
    r"hwloc": ["platform/host"],
    r"zstd|archive": ["platform/pack"],
    r"xxhash": ["base"],
    r"cjson/": ["platform/json"],
    r"avahi|netlink/genl|systemd/": ["platform/host"],
    r"ncurses|curses": ["tui"],
    r"gloo/": ["comm/backends/gloo"],
    r"nccl|mpi\.h|cuda": ["comm/backends"],
    r"cmocka\.h": [],
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.M)


def layer_of(path):
    """The longest folder of MAY_INCLUDE that holds this path (relative to src)."""
    fits = [layer for layer in MAY_INCLUDE if path == layer or path.startswith(layer + "/")]
    return max(fits, key=len, default=None)


def allowed(layer, header):
    if header.startswith("inspan/") and not header.startswith("inspan/v1"):
        return True
    own = [layer, "base"] + MAY_INCLUDE[layer]
    return any(header == entry or header.startswith(entry + "/") for entry in own)


def check_file(path, relative, faults):
    layer = layer_of(str(relative))
    if layer is None:
        faults.append(f"src/{relative}: its folder is not in the table of layers")
        return
    is_test = path.name.endswith("_test.c") or "_test_" in path.name or path.name.startswith("test_")
    for quote, header in INCLUDE.findall(path.read_text(errors="replace")):
        for pattern, folders in THIRD_PARTY.items():
            if not re.match(pattern, header) or (is_test and pattern.startswith("cmocka")):
                continue
            if not any(str(relative).startswith(folder + "/") for folder in folders):
                where = " or ".join(folders) or "tests"
                faults.append(f"src/{relative}: <{header}> belongs to {where} alone")
        if quote == '"' and not is_test and not allowed(layer, header):
            faults.append(f'src/{relative}: {layer} may not include "{header}"')


def check_public(root, faults):
    for path in sorted((root / "include" / "inspan").glob("*.h")):
        for quote, header in INCLUDE.findall(path.read_text(errors="replace")):
            if quote == '"' or "/" in header and not header.startswith("inspan/"):
                faults.append(f"include/inspan/{path.name}: a public header may not include {header}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    faults = []
    files = [p for p in sorted((root / "src").rglob("*")) if p.suffix in (".c", ".h", ".cc", ".cu", ".cl", ".inc")]
    for path in files:
        check_file(path, path.relative_to(root / "src"), faults)
    check_public(root, faults)
    for fault in faults:
        print(fault)
    print(f"layers: {len(files)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
