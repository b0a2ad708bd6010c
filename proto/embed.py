"""Turn a file into C: embed.py SYMBOL IN OUT makes `const unsigned char SYMBOL[]` and `const unsigned int SYMBOL_bytes`."""

import sys


def main():
    symbol, source, target = sys.argv[1:]
    with open(source, "rb") as file:
        data = file.read()
    rows = [", ".join(str(byte) for byte in data[at:at + 24]) for at in range(0, len(data), 24)]
    with open(target, "w", encoding="ascii") as out:
        out.write(f"extern const unsigned char {symbol}[];\nextern const unsigned int {symbol}_bytes;\n")
        out.write(f"const unsigned char {symbol}[] = {{\n    " + ",\n    ".join(rows) + "};\n")
        out.write(f"const unsigned int {symbol}_bytes = {len(data)};\n")


if __name__ == "__main__":
    main()
