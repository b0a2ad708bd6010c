"""Copy a .proto file without its service blocks, keeping line numbers: strip_services.py IN OUT."""

import sys


def strip(lines):
    depth = 0
    for line in lines:
        code = line.split("//", 1)[0]
        if depth == 0 and not code.lstrip().startswith("service "):
            yield line
            continue
        depth += code.count("{") - code.count("}")
        yield "\n"


def main():
    with open(sys.argv[1], encoding="utf-8") as source, open(sys.argv[2], "w", encoding="utf-8") as target:
        target.writelines(strip(source))


if __name__ == "__main__":
    main()
