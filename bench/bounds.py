"""What a benchmark must show, and whether it does; how those that consist of verbs are called and end."""

import argparse
import json
import sys


class Bounds:
    def __init__(self):
        self.rows = []

    def least(self, what, value, bound):
        self._add(what, value, f"at least {bound:g}", value is not None and value >= bound)

    def most(self, what, value, bound):
        self._add(what, value, f"at most {bound:g}", value is not None and value <= bound)

    def is_true(self, what, value):
        self._add(what, value, "", bool(value))

    def _add(self, what, value, bound, met):
        self.rows.append({"what": what, "value": value, "bound": bound, "met": met})

    def show(self):
        for row in self.rows:
            value = f"{row['value']:.3f}" if isinstance(row["value"], float) else str(row["value"])
            print(f"  {'met    ' if row['met'] else 'NOT MET'}  {row['what']}: {value} {row['bound']}")

    def finish(self, bench, options, results, failed=False):
        """Show them, print the line of JSON, exit."""
        self.show()
        quick = {"quick": options.quick} if hasattr(options, "quick") else {}
        print(json.dumps({"bench": bench, **quick, **(results if options.json else {}), "bounds": self.rows}))
        sys.exit(1 if failed or (options.strict and not all(row["met"] for row in self.rows)) else 0)


def parse(doc, verbs, **more):
    """The words of the command line: verbs (all where none is named), --json, --strict, and `more` (add_argument's)."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verbs", nargs="*", metavar="VERB", help=", ".join(verbs) + " (all)")
    for name, about in more.items():
        parser.add_argument(f"--{name}", **about)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    unknown = [verb for verb in options.verbs if verb not in verbs]
    if unknown:
        parser.error(f"no verb {unknown[0]}: {', '.join(verbs)}")
    options.verbs = options.verbs or list(verbs)
    return options
