"""libinspan as any other program sees it."""

import re
import subprocess
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
