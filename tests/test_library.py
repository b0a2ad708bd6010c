"""libinspan as any other program sees it."""

import ctypes
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT

LIBRARY = ROOT / "build" / "src" / "libinspan.so"


def test_only_public_names_are_exported():
    symbols = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], check=True, capture_output=True, text=True).stdout
    names = [line.split()[-1] for line in symbols.splitlines()]
    assert "inspan_allreduce" in names
    assert [name for name in names if not name.startswith("inspan_")] == []


def test_every_public_function_is_there():
    exported = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], check=True, capture_output=True, text=True).stdout
    for header in (ROOT / "include" / "inspan").glob("*.h"):
        for name in re.findall(r"INSPAN_API[^;(]*?\*?\b(inspan_\w+)\s*\(", header.read_text()):
            assert re.search(rf"\b{name}\b", exported), f"{header.name}: {name}"


def test_it_brings_no_framework_along():
    needed = subprocess.run(["readelf", "-d", str(LIBRARY)], check=True, capture_output=True, text=True).stdout
    assert not re.search(r"NEEDED.*(grpc|blas|dnnl|gloo|protobuf|sqlite|uv)", needed), needed


@pytest.mark.parametrize("compiler, suffix, flags", [("gcc", "c", ["-std=c11"]), ("g++", "cc", ["-std=c++17"])])
def test_a_program_outside_builds_against_it(tmp_path, compiler, suffix, flags):
    headers = "".join(f"#include <inspan/{h.name}>\n" for h in sorted((ROOT / "include" / "inspan").glob("*.h")))
    source = tmp_path / f"program.{suffix}"
    source.write_text(headers + '#include <stdio.h>\nint main(void)\n{\n    puts(inspan_status_text(INSPAN_PEER_LOST));\n'
                                "    return 0;\n}\n")
    program = tmp_path / "program"
    subprocess.run([compiler, *flags, "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{Path(ROOT) / 'include'}",
                    str(source), f"-L{LIBRARY.parent}", "-linspan", f"-Wl,-rpath,{LIBRARY.parent}", "-o", str(program)],
                   check=True)
    assert subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout == "peer lost\n"


# ---- The Python package declares what the headers say ------------------------------------------------

PACKAGE = ROOT / "bindings" / "python"
STRUCTURES = {"Error": "inspan_error_t", "Member": "inspan_member_t", "Cause": "inspan_cause_t",
              "Options": "inspan_comm_options_t", "Part": "inspan_part_t", "Finished": "inspan_finished_t"}


@pytest.fixture(scope="module")
def bindings():
    """inspan._lib, which needs no PyTorch."""
    sys.path.insert(0, str(PACKAGE))
    try:
        yield importlib.import_module("inspan._lib")
    finally:
        sys.path.remove(str(PACKAGE))


def compiled(tmp_path, lines):
    """What a C program prints that has these lines in its main."""
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text("#include <inspan/open.h>\n#include <stdio.h>\n#include <stddef.h>\nint main(void)\n{\n"
                      + "\n".join(lines) + "\n    return 0;\n}\n")
    subprocess.run(["gcc", "-std=c11", f"-I{ROOT / 'include'}", str(source), "-o", str(program)], check=True)
    return subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.split()


def test_structures_of_the_python_package(bindings, tmp_path):
    fields = [(name, field[0]) for name in STRUCTURES for field in getattr(bindings, name)._fields_]
    found = compiled(tmp_path, [f'    printf("%zu\\n", sizeof({c}));' for c in STRUCTURES.values()]
                     + [f'    printf("%zu\\n", offsetof({STRUCTURES[name]}, {field}));' for name, field in fields])
    sizes = [ctypes.sizeof(getattr(bindings, name)) for name in STRUCTURES]
    offsets = [getattr(getattr(bindings, name), field).offset for name, field in fields]
    assert [int(word) for word in found] == sizes + offsets


@pytest.mark.parametrize("python, extra", [("Status", []), ("Dtype", ["DTYPES"]), ("Reduction", ["REDUCTIONS"])])
def test_numbers_of_the_python_package(bindings, tmp_path, python, extra):
    names = [member.name for member in getattr(bindings, python)]
    found = compiled(tmp_path, [f'    printf("%d\\n", (int)INSPAN_{name});' for name in names + extra])
    assert [int(word) for word in found] == [*getattr(bindings, python), *([len(names)] if extra else [])]


def test_functions_of_the_python_package(bindings):
    loaded = bindings.lib()  # declares all, or names the one that is missing
    assert loaded.inspan_status_text(6) == b"peer lost" and bindings.status_text(6) == "peer lost"
    assert bindings.library_path() == str(LIBRARY)
