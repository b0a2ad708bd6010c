"""What a worker was doing when: read out of the lines that its step driver logs at level debug (src/worker/driver.c).

    step 12: computes 6 samples in view 3       a micro-batch begins
    step 12: bucket 4 is reduced in view 3      its all-reduce begins, perhaps behind the backward pass
    step 12: computed 6 samples in view 3       the micro-batch is over
    step 12: voted in view 3                    all reduced buckets are here
    step 12: committed in view 3, 0 samples again so far
    view 3: broken: ...                         a member is lost
    view 4: entered as rank 2 of 3              the new view is announced
    view 4: decided, step 13 goes on            DECIDE is here
"""

import os
import re
import statistics
from datetime import datetime, timezone
from typing import NamedTuple

LINE = re.compile(r"(\S+) DEBUG worker: (.*)")
PATTERNS = [
    ("computes", re.compile(r"step (?P<step>\d+): computes (?P<n>\d+) samples in view (?P<view>\d+)")),
    ("reduces", re.compile(r"step (?P<step>\d+): bucket (?P<n>\d+) is reduced in view (?P<view>\d+)")),
    ("computed", re.compile(r"step (?P<step>\d+): computed (?P<n>\d+) samples in view (?P<view>\d+)")),
    ("voted", re.compile(r"step (?P<step>\d+): voted in view (?P<view>\d+)")),
    ("committed", re.compile(r"step (?P<step>\d+): committed in view (?P<view>\d+), (?P<n>\d+) samples again")),
    ("broken", re.compile(r"view (?P<view>\d+): broken")),
    ("entered", re.compile(r"view (?P<view>\d+): entered as rank \d+ of (?P<n>\d+)")),
    ("decided", re.compile(r"view (?P<view>\d+): decided, step (?P<step>\d+)")),
]


class Event(NamedTuple):
    at: float  # seconds since 1970, as time.time() has them; to the millisecond below
    what: str
    step: int  # -1: of none
    view: int
    n: int  # samples, bucket, samples computed again so far, members


def parse(line):
    """The event of one line of a log, or None."""
    match = LINE.fullmatch(line)
    if not match:
        return None
    for what, pattern in PATTERNS:
        found = pattern.match(match[2])
        if found:
            groups = found.groupdict()
            at = datetime.fromisoformat(match[1]).replace(tzinfo=timezone.utc).timestamp()
            return Event(at, what, int(groups.get("step", -1)), int(groups["view"]), int(groups.get("n") or 0))
    return None


class WorkerLog:
    """The log of one worker, read as it grows. It has a cap: the older half is PATH.1."""

    def __init__(self, path, rank):
        self.path, self.rank = path, rank
        self.node = f"node-{int(path.parts[-4]) + 1}"
        self.events, self.file, self.rest = [], None, ""

    def _take(self):
        text = self.rest + self.file.read()
        lines = text.split("\n")
        self.rest = lines.pop()
        found = [event for event in map(parse, lines) if event]
        self.events += found
        return found

    def read(self):
        """New events."""
        try:
            if self.file is None:
                self.file = open(self.path, errors="replace")
            found = self._take()
            if self.path.stat().st_ino != os.fstat(self.file.fileno()).st_ino:  # it has become PATH.1, a new one was begun
                found += self._take()
                self.file.close()
                self.file = open(self.path, errors="replace")
                found += self._take()
        except OSError:  # gone with its job
            return []
        return found

    def phase(self):
        """compute, bucket, vote (between vote and commit) or None (anything else), as the last line says."""
        for event in reversed(self.events):
            if event.what == "computes":
                return "compute"
            if event.what in ("reduces", "computed"):
                # Computed and nothing reduced yet: more leases follow.
                return "bucket" if event.what == "reduces" or self._reduces(event) else "compute"
            return "vote" if event.what == "voted" else None
        return None

    def _reduces(self, event):
        for before in reversed(self.events):
            if (before.step, before.view) != (event.step, event.view):
                return False
            if before.what == "reduces":
                return True
        return False

    def last(self, what, view=None):
        return next((e for e in reversed(self.events) if e.what == what and view in (None, e.view)), None)

    def first(self, what, after, view=None):
        return next((e for e in self.events if e.what == what and e.at >= after and view in (None, e.view)), None)

    def commits(self):
        """{step: when it was committed}, the first time."""
        found = {}
        for event in self.events:
            if event.what == "committed":
                found.setdefault(event.step, event.at)
        return found


class Pace(NamedTuple):
    """Of one worker, over some steps."""
    steps: int
    step_s: float  # from commit to commit, median
    step_most_s: float
    share: int  # samples of a step, the most
    sample_s: float  # compute alone
    run_s: float  # a micro-batch, median
    reduction_s: float  # from the first bucket to the vote, median
    vote_s: float  # from vote to commit, median


def pace(log, view, steps=40):
    """How the last `steps` steps of a view went by, or None where it has had no two."""
    commits = [e for e in log.events if e.what == "committed" and e.view == view][-steps - 1:]
    if len(commits) < 3:
        return None
    first, last = commits[0].step, commits[-1].step
    runs, reductions, votes, shares = [], [], [], {}
    begun = reduced = voted = None  # of the present micro-batch, step, step
    for event in log.events:
        if event.view != view or not first < event.step <= last:
            continue
        if event.what == "computes":
            begun = event.at
        elif event.what == "computed":
            runs.append((event.n, event.at - begun))
            shares[event.step] = shares.get(event.step, 0) + event.n
        elif event.what == "reduces":
            reduced = event.at if reduced is None else reduced
        elif event.what == "voted":
            reductions.append(event.at - (event.at if reduced is None else reduced))
            voted = event.at
        elif event.what == "committed":
            if voted is not None:
                votes.append(event.at - voted)
            reduced = voted = None
    between = [b.at - a.at for a, b in zip(commits, commits[1:])]
    samples = sum(n for n, _ in runs)
    return Pace(len(between), middle(between), max(between), max(shares.values(), default=0),
                sum(s for _, s in runs) / samples if samples else 0.0, middle([s for _, s in runs]),
                middle(reductions), middle(votes))


def middle(values):
    return statistics.median(values) if values else 0.0
