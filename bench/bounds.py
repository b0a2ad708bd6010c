"""What a benchmark must show, and whether it does."""


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
