"""Do unequal machines give what they can? Laboratory of four nodes of 0.8, 0.4, 0.4 and 0.2 cores, 1 Gbit/s links.

usage: unequal.py [VERB ...] [--quick] [--rounds N] [--minutes M] [--json] [--strict]

    quotas       the job among four against the sum of each alone, batches of 128 and 32; PyTorch DDP (Gloo) beside it
    disturb      the first node cut to 30 % at step 50, restored at step 100: verdict, throughput, longest step, result
    changes      random changes of quotas for some minutes: samples done against the sum of what each could have done
    never-worse  20 random set-ups of quotas and links: the job against the fastest node alone
    plan         12 set-ups: `inspan plan` against what is measured, and its best set against the best measured one

All figures are ratios within one run; each speed is that of whole steps, behind some that do not count. --quick tries
a verb with a tiny model and few steps: its ratios say nothing. --strict: exit code 1 where a bound is not met.
Needs root.
"""

import json
import random
import statistics
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

from bounds import Bounds, parse
from cluster import Cluster, Failed, beside, laboratory, wait_for, write_book
from phases import middle

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
import safetensors_file  # noqa: E402

QUOTAS, LINK = (0.8, 0.4, 0.4, 0.2), "1gbit"
FULL = {"layers": 6, "heads": 6, "dim": 384, "context": 128}  # 10.9 million parameters
SMALL = {"layers": 4, "heads": 4, "dim": 128, "context": 128}
TINY = {"layers": 2, "heads": 2, "dim": 64, "context": 32}
BY_HAND = (14, 7, 7, 4)  # of 32 samples
ENDLESS = 1000000
JOB = """
name: %(name)s
model: {kind: gpt, layers: %(layers)d, heads: %(heads)d, dim: %(dim)d, context: %(context)d}
data: {kind: text, path: book.txt, validation: 0}
train: {steps: %(steps)d, global_batch: %(batch)d, %(train)s}
nodes: {min: %(least)d, max: %(most)d}
failure_timeout: 10s
checkpoint: {dir: %(name)s}
"""
names = (f"run{i}" for i in count(1))


def note(text):
    print(f"  {text}", file=sys.stderr, flush=True)


# ---- running and measuring

def submit(cluster, model, batch, nodes, steps=ENDLESS, train="lr: 1e-3", least=None, most=None):
    """A job on these nodes (indices)."""
    name = next(names)
    text = JOB % {**model, "name": name, "steps": steps, "batch": batch, "train": train,
                  "least": least or len(nodes), "most": most or len(nodes)}
    return cluster.job(text, name, "--nodes", ",".join(f"node-{i + 1}" for i in nodes))


def commits(job):
    """When each step was committed, in order: as the worker that was in it longest has it."""
    logs = job.read_logs()
    longest = max((log.commits() for log in logs.values()), key=len, default={})
    return [longest[step] for step in sorted(longest)]


def rate(times, batch, skip):
    """Samples per second of the steps behind the first `skip`."""
    return (len(times) - skip) * batch / (times[-1] - times[skip - 1])


def speeds(jobs, batch, steps, skip, seconds=600):
    """Of jobs that run at the same time, until each has had its steps; then they are cancelled."""
    def reached():
        for job in jobs:
            if job.has_ended():
                raise Failed(f"job {job.name} has ended: {job.text(job.err)}")
        return all(len(commits(job)) >= steps + skip for job in jobs)

    wait_for(reached, seconds, f"{steps + skip} steps", 0.1)
    found = [rate(commits(job), batch, skip) for job in jobs]
    for job in jobs:
        job.cancel()
    return found


def speed(cluster, model, batch, nodes, steps, skip=3, **options):
    return speeds([submit(cluster, model, batch, nodes, **options)], batch, steps, skip)[0]


def settled(job, quiet, most=120):
    """Wait until for `quiet` seconds and 12 steps nobody has been let go or come; `most` seconds at most."""
    state, changed, steps = None, 0, 0
    deadline = time.monotonic() + most
    while time.monotonic() < deadline:
        if job.has_ended():
            raise Failed(f"job {job.name} has ended: {job.text(job.err)}")
        done, now = len(commits(job)), ((job.info() or {}).get("view"), sum(v["let_go"] for v in verdicts(job)))
        if done < 3 or now != state:
            state, changed, steps = now, time.monotonic(), done
        elif time.monotonic() - changed >= quiet and done - steps >= 12:
            return
        time.sleep(0.2)


def speed_now(job, batch, seconds):
    """Samples per second of the steps in the next so many seconds."""
    before = len(commits(job))
    time.sleep(seconds)
    times = commits(job)[before - 1:]
    if len(times) < 2:
        raise Failed(f"job {job.name}: no step in {seconds} s")
    return (len(times) - 1) * batch / (times[-1] - times[0])


class Size:
    """How long things are measured."""

    def __init__(self, quick):
        self.model = TINY if quick else FULL
        self.small = TINY if quick else SMALL
        self.solo_steps = 4 if quick else 5
        self.steps = {128: 6, 32: 20}
        self.cut, self.back, self.end = (20, 40, 60) if quick else (50, 100, 130)
        self.setups = 2 if quick else 20
        self.quiet, self.window = (4, 2) if quick else (25, 10)  # a job looks at a view for 20 s before it lets anyone go
        self.plans = 2 if quick else 12


def lab(quotas=QUOTAS, link=LINK):
    cluster = Cluster(len(quotas), "--cpu", ",".join(f"{q:g}" for q in quotas), "--link", link)
    write_book(cluster.folder)
    return cluster


# ---- quotas

def ddp(cluster, model, shares, nodes, steps, port, megabytes=25, hook="none"):
    """Samples per second of PyTorch's DDP with these shares, in the same laboratory."""
    agents = [cluster.agent(i) for i in nodes]
    nodes_now = {node["name"]: node["address"] for node in cluster.ask("nodes")["nodes"]}
    address = nodes_now[f"node-{nodes[0] + 1}"].rsplit(":", 1)[0]
    shape = [str(model[key]) for key in ("layers", "heads", "dim", "context")]
    env = {**cluster.env, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    ranks = []
    try:
        for rank, agent in enumerate(agents):
            words = [sys.executable, str(ROOT / "bench" / "ddp_rank.py"), str(rank), address, str(port),
                     ",".join(map(str, shares)), str(steps), "2", *shape, str(megabytes), hook]
            with open(cluster.folder / f"torch-{nodes[rank]}.err", "w") as err:
                ranks.append(beside(agent, words, stdout=subprocess.PIPE, stderr=err, env=env, cwd=ROOT / "bench"))
        out = ranks[0].communicate(timeout=900)[0]
        for rank, program in enumerate(ranks):
            if program.wait(60) != 0:
                raise Failed(f"rank {rank} of PyTorch: {(cluster.folder / f'torch-{nodes[rank]}.err').read_text()[-2000:]}")
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()
    return json.loads(out)["samples_per_s"]


def quotas_round(cluster, size, number):
    row, everyone = {}, range(len(QUOTAS))
    row["solo"] = [speed(cluster, size.model, 8, [i], size.solo_steps, 2) for i in everyone]
    note(f"solo {[f'{s:.2f}' for s in row['solo']]}")
    row["at_once"] = speeds([submit(cluster, size.model, 8, [i]) for i in everyone], 8, size.solo_steps, 2)
    note(f"at once {[f'{s:.2f}' for s in row['at_once']]}")
    for batch in (128, 32):
        row[f"batch_{batch}"] = speed(cluster, size.model, batch, list(everyone), size.steps[batch])
        note(f"batch {batch}: {row[f'batch_{batch}']:.2f}")
    port = 29600 + 10 * number
    row["torch_solo"] = [ddp(cluster, size.model, [8], [i], size.solo_steps, port) for i in everyone]
    note(f"PyTorch solo {[f'{s:.2f}' for s in row['torch_solo']]}")
    row["torch_equal"] = ddp(cluster, size.model, [8] * 4, list(everyone), 6, port + 1)
    row["torch_by_hand"] = ddp(cluster, size.model, BY_HAND, list(everyone), 8, port + 2)
    note(f"PyTorch DDP {row['torch_equal']:.2f}, by hand {row['torch_by_hand']:.2f}")
    return row


def quotas(size, options, bounds):
    with lab() as cluster:
        rounds = [quotas_round(cluster, size, number) for number in range(options.rounds)]

    def ratio(key, to):
        return statistics.median(row[key] / sum(row[to]) for row in rounds)

    result = {"rounds": rounds, "at_once_ratio": statistics.median(sum(r["at_once"]) / sum(r["solo"]) for r in rounds),
              "batch_128_ratio": ratio("batch_128", "solo"), "batch_32_ratio": ratio("batch_32", "solo"),
              "torch_equal_ratio": ratio("torch_equal", "torch_solo"),
              "torch_by_hand_ratio": ratio("torch_by_hand", "torch_solo"),
              "faster_than_torch_equal": statistics.median(r["batch_32"] / r["torch_equal"] for r in rounds),
              "faster_than_torch_by_hand": statistics.median(r["batch_32"] / r["torch_by_hand"] for r in rounds)}

    def each(key):
        return " + ".join(f"{middle([r[key][i] for r in rounds]):.2f}" for i in range(len(QUOTAS)))

    print(f"quotas {', '.join(map(str, QUOTAS))}, {LINK}, medians of {len(rounds)} rounds, samples/s")
    print(f"  alone, one after the other        {each('solo')} = {middle([sum(r['solo']) for r in rounds]):.2f}")
    print(f"  alone, all at once                {each('at_once')} = {result['at_once_ratio']:.3f} of the sum")
    for batch in (128, 32):
        print(f"  together, global batch {batch:<4}       {middle([r[f'batch_{batch}'] for r in rounds]):6.2f} = "
              f"{result[f'batch_{batch}_ratio']:.3f} of the sum")
    print(f"  PyTorch alone                     {each('torch_solo')}")
    for key, text in (("torch_equal", "DDP, equal shares of 32"), ("torch_by_hand", "DDP, shares by hand")):
        print(f"  PyTorch {text:<25} {middle([r[key] for r in rounds]):6.2f} = {result[f'{key}_ratio']:.3f} of its sum; "
              f"Inspan is {result['faster_than_' + key]:.2f} times as fast")
    bounds.least("global batch 128 against the sum", result["batch_128_ratio"], 0.95)
    bounds.least("global batch 32 against the sum", result["batch_32_ratio"], 0.85)
    return result


# ---- disturb

def set_quota(cluster, node, cores):
    result = cluster.run("lab", "set", f"node-{node + 1}", "--cpu", f"{cores:g}")
    if result.returncode != 0:
        raise Failed(f"inspan lab set: {result.stderr.strip()}")
    return time.time()


def verdicts(job):
    """Of the job so far, as its information shows them."""
    return (job.info() or {}).get("verdicts", [])


def follow(job, batch, script, seconds):
    """Run a job to its end; script: {step: what to do when it is committed}. What was done when, verdicts when seen."""
    done, seen = {}, []
    deadline = time.monotonic() + seconds
    while not job.has_ended():
        if time.monotonic() > deadline:
            raise Failed(f"job {job.name} has not ended within {seconds} s")
        step = len(commits(job))
        for at in [s for s in script if s not in done and step >= s]:
            done[at] = script[at]()
            note(f"step {step}: changed what was to be changed at {at}")
        for verdict in verdicts(job)[len(seen):]:
            seen.append({**verdict, "seen_at_step": step})
            note(f"step {step}: {verdict['text']}")
        time.sleep(0.1)
    return job.finish(60), done, seen


def recovered_after(times, batch, first, sum_of_speeds):
    """Steps from `first` on until three in a row reach 95 % of the sum; None: never."""
    for step in range(first, len(times) - 3):
        if 3 * batch / (times[step + 2] - times[step - 1]) >= 0.95 * sum_of_speeds:
            return step - first
    return None


def disturb(size, options, bounds):
    batch, cut = (1024 if options.quick else 128), 0.3 * QUOTAS[0]
    everyone = list(range(len(QUOTAS)))
    with lab() as cluster:
        solo = [speed(cluster, size.model, 8, [i], size.solo_steps, 2) for i in everyone]
        set_quota(cluster, 0, cut)
        slow = speed(cluster, size.model, 8, [0], size.solo_steps, 2)
        set_quota(cluster, 0, QUOTAS[0])
        note(f"solo {[f'{s:.2f}' for s in solo]}, the first cut to {cut:g} cores {slow:.2f}")
        job = submit(cluster, size.model, batch, everyone, size.end)
        script = {size.cut: lambda: set_quota(cluster, 0, cut), size.back: lambda: set_quota(cluster, 0, QUOTAS[0])}
        summary, done, seen = follow(job, batch, script, 3600)
        ledger, times = job.ledger(), commits(job)[:size.end]
        again = [speed(cluster, size.model, 8, [i], size.solo_steps, 2) for i in everyone]  # the machine wanders
        set_quota(cluster, 0, cut)
        slow = (slow + speed(cluster, size.model, 8, [0], size.solo_steps, 2)) / 2
        set_quota(cluster, 0, QUOTAS[0])
        note(f"solo again {[f'{s:.2f}' for s in again]}")
        solo = [(a + b) / 2 for a, b in zip(solo, again)]
        exact = same_result(cluster, size)
    lengths = [b - a for a, b in zip(times, times[1:])]
    undisturbed = middle(lengths[3:size.cut - 1])
    # The step in which it is changed is the one behind the last commit before it.
    changed = {at: sum(t <= when for t in times) for at, when in done.items()}
    first = next((v for v in seen if v["cause"] == "quota" and v["node"] == "node-1" and v["step"] >= changed[size.cut]),
                 None)
    result = {"solo": solo, "slow": slow, "verdicts": seen, "summary": summary, "times": times, "changed": changed,
              "verdict_after": first and first["step"] - changed[size.cut], "ledger_exact": ledger["exact"],
              "recovered_after": recovered_after(times, batch, changed[size.cut], sum(solo[1:]) + slow),
              "restored_after": recovered_after(times, batch, changed[size.back], sum(solo)),
              "longest_of_median": max(lengths[3:]) / middle(lengths[3:]),
              "longest_of_undisturbed": max(lengths[3:]) / undisturbed, **exact}
    print(f"the first of {', '.join(map(str, QUOTAS))} cut to {cut:g} at step {size.cut}, restored at {size.back}, batch {batch}")
    print(f"  sums of solo speeds {sum(solo):.2f}, cut {sum(solo[1:]) + slow:.2f}; steps of {undisturbed:.2f} s before; "
          f"longest {max(lengths[3:]):.2f} s")
    for verdict in seen:
        if verdict["cause"] == "quota":
            print(f"  step {verdict['step']}: {verdict['text']}")
    print(f"  {sum(verdict['cause'] != 'quota' for verdict in seen)} verdicts of other causes")
    bounds.most("steps until the verdict (quota)", result["verdict_after"], 3)
    bounds.most("steps until 95 % of the new sum", result["recovered_after"], 5)
    bounds.most("steps until 95 % of the old sum, restored", result["restored_after"], 5)
    bounds.most("longest step against the median", result["longest_of_median"], 2)
    bounds.is_true("ledger exact", result["ledger_exact"])
    bounds.most("weights of a job cut and restored (fp64), off by", result["distance"], 1e-9)
    return result


def same_result(cluster, size):
    """The same disturbance to a small job in fp64: its weights against those of one undisturbed node."""
    train, steps, batch = "optimizer: sgd, lr: 1e-2, seed: 3, dtype: fp64", 120, 64
    everyone, cut = list(range(len(QUOTAS))), 0.3 * QUOTAS[0]
    alone = submit(cluster, TINY, batch, [0], steps, train)
    alone.finish(900)
    disturbed = submit(cluster, TINY, batch, everyone, steps, train)
    script = {40: lambda: set_quota(cluster, 0, cut), 80: lambda: set_quota(cluster, 0, QUOTAS[0])}
    follow(disturbed, batch, script, 900)
    weights = [safetensors_file.read(cluster.folder / job.name / "model.safetensors") for job in (disturbed, alone)]
    return {"distance": safetensors_file.relative_distance(*weights), "small_ledger_exact": disturbed.ledger()["exact"]}


# ---- changes

def random_quota(choose, node, present):
    """A new quota of one node, another one than it has; together they never want more than 1.8 cores."""
    room = 1.8 - sum(q for i, q in enumerate(present) if i != node)
    return choose.choice([q for q in (0.1, 0.2, 0.3, 0.4, 0.6, 0.8) if q <= room and abs(q - present[node]) > 0.05])


def resplits(job):
    """How often the shares of the table were changed, as the workers' summaries say; None: they do not."""
    found = [rank["summary"].get("resplits") for rank in (job.info() or {"ranks": []})["ranks"] if rank.get("summary")]
    found = [n for n in found if n is not None]
    return max(found) if found else None


def changes(size, options, bounds):
    choose, batch, everyone = random.Random(7), 64, list(range(len(QUOTAS)))
    seconds, every = (60, 10) if options.quick else (60 * options.minutes, 30)
    with lab() as cluster:
        solo = [speed(cluster, size.small, 8, [i], 2 * size.solo_steps, 2) for i in everyone]
        steps = max(int(seconds * 0.8 * sum(solo) / batch), 20)
        job = submit(cluster, size.small, batch, everyone, steps)
        wait_for(lambda: len(commits(job)) >= 5, 300, "the job trains", 0.1)
        present, log = list(QUOTAS), [(time.time(), list(QUOTAS))]
        change_at = time.monotonic() + every
        while len(commits(job)) < steps - 5 and not job.has_ended():
            time.sleep(0.1)
            if time.monotonic() < change_at:
                continue
            change_at += every * (0.5 + choose.random())
            node = choose.randrange(len(QUOTAS))
            present[node] = random_quota(choose, node, present)
            log.append((set_quota(cluster, node, present[node]), list(present)))
            note(f"quotas {present}")
        job.finish(600)
        splits, seen, ledger = resplits(job), verdicts(job), job.ledger()
        for i, cores in enumerate(QUOTAS):
            set_quota(cluster, i, cores)
        again = [speed(cluster, size.small, 8, [i], 2 * size.solo_steps, 2) for i in everyone]  # the machine wanders
        note(f"solo {[f'{s:.1f}' for s in solo]}, again {[f'{s:.1f}' for s in again]}")
        solo = [(a + b) / 2 for a, b in zip(solo, again)]
        per_core = [s / q for s, q in zip(solo, QUOTAS)]
        within = [t for t in commits(job)[:steps] if t >= log[0][0]]
    done = (len(within) - 1) * batch
    possible = 0.0  # samples that the nodes alone would have computed from the first to the last of these commits
    for (at, quota), after in zip(log, [when for when, _ in log[1:]] + [within[-1]]):
        span = min(after, within[-1]) - max(at, within[0])
        possible += max(span, 0) * sum(p * q for p, q in zip(per_core, quota))
    result = {"seconds": within[-1] - within[0], "changes": len(log) - 1, "solo": solo, "samples": done,
              "ratio": done / possible, "resplits": splits, "verdicts": seen, "ledger_exact": ledger["exact"]}
    print(f"random quotas for {result['seconds']:.0f} s, {result['changes']} changes, batch {batch}: {done} samples, "
          f"{result['ratio']:.3f} of what the nodes alone would have done; re-splits {splits}, verdicts {len(seen)}")
    bounds.least("samples against the sum of what was possible", result["ratio"], 0.9)
    if splits is not None:
        bounds.most("re-splits per change", splits / max(result["changes"], 1), 1)
    bounds.is_true("ledger exact under random changes", ledger["exact"])
    return result


# ---- never worse than the best machine alone

def random_setup(choose):
    quotas_ = [choose.choice((0.1, 0.2, 0.4, 0.6, 0.8)) for _ in range(choose.randint(2, 4))]
    while sum(quotas_) > 1.8:
        quotas_[quotas_.index(max(quotas_))] /= 2
    links = [choose.choice(("20mbit", "50mbit", "100mbit", "300mbit", "1gbit")) for _ in quotas_]
    return quotas_, links, choose.choice((16, 32, 64))


def never_worse(size, options, bounds):
    choose, rows = random.Random(11), []
    for number in range(size.setups):
        quotas_, links, batch = random_setup(choose)
        best = quotas_.index(max(quotas_))
        with lab(quotas_, ",".join(links)) as cluster:
            found = []
            for nodes in ([best], list(range(len(quotas_))), [best]):  # alone before and after: the machine wanders
                job = submit(cluster, size.small, batch, nodes, least=1)
                settled(job, size.quiet if len(nodes) > 1 else 1)  # it may leave nodes out: what counts is how it goes on
                found.append(speed_now(job, batch, size.window))
                if len(nodes) > 1:
                    said = [verdict["text"] for verdict in verdicts(job) if verdict["let_go"]]
                job.cancel()
        alone, together = (found[0] + found[2]) / 2, found[1]
        rows.append({"quotas": quotas_, "links": links, "batch": batch, "alone": (found[0], found[2]),
                     "together": together, "ratio": together / alone, "said": said})
        note(f"{number + 1}: {rows[-1]}")
    print(f"{len(rows)} random set-ups against the fastest node of each alone: least {min(r['ratio'] for r in rows):.3f}, "
          f"median {middle([r['ratio'] for r in rows]):.3f}")
    bounds.least("the job against the fastest node alone, the least", min(r["ratio"] for r in rows), 0.97)
    return {"setups": rows}


# ---- plan

TURNS = 2


def plan_setups(n):
    setups = [(quotas_, link) for link in ("50mbit", "200mbit", "1gbit")
              for quotas_ in ((0.8,), (0.8, 0.4), (0.8, 0.4, 0.4), (0.8, 0.4, 0.4, 0.2))]
    return setups[-n:]


def ask_plan(cluster, model, batch, nodes, link):
    """{nodes as indices: samples per second} that `inspan plan` predicts."""
    name = next(names)
    path = cluster.folder / f"{name}.yaml"
    path.write_text(JOB % {**model, "name": name, "steps": 100, "batch": batch, "train": "lr: 1e-3", "least": 1,
                           "most": nodes})
    links = [word for i in range(nodes) for word in ("--link", f"node-{i + 1}={link}")]  # a veth says 10 Gbit/s of itself
    return {tuple(sorted(int(node.rsplit("-", 1)[1]) - 1 for node in one["nodes"])): one["samples_per_s"]
            for one in cluster.ask("plan", path, *links)["sets"]}


def plan(size, options, bounds):
    rows = []
    for quotas_, link in plan_setups(size.plans):
        batch = 32
        with lab(quotas_, link) as cluster:
            everyone = tuple(range(len(quotas_)))
            asked, tried, turns = [], {everyone[:n] for n in range(1, len(everyone) + 1)}, []
            for _ in range(TURNS):  # the machine wanders: what is asked and what is measured has the same of it
                for i in everyone:  # so that the nodes' speeds are known
                    speed(cluster, size.small, 8, [i], 6, 2)
                asked.append(ask_plan(cluster, size.small, batch, len(quotas_), link))
                sets = {one: sum(sets[one] for sets in asked) / len(asked) for one in asked[0]}
                best = max(sets, key=sets.get)
                tried.add(best)
                turns.append({one: speed(cluster, size.small, batch, list(one), 8, 3) for one in sorted(tried)})
            found = {one: [turn[one] for turn in turns if one in turn] for one in tried}
            measured = {one: sum(speeds_) / len(speeds_) for one, speeds_ in found.items()}
        rows.append({"quotas": quotas_, "link": link, "best": best,
                     "sets": [{"nodes": one, "predicted": sets.get(one), "measured": measured[one]} for one in sorted(tried)],
                     "error": abs(sets[best] / measured[best] - 1), "of_best": measured[best] / max(measured.values())})
        note(json.dumps(rows[-1]))
    print(f"{len(rows)} set-ups, plan against measured")
    for row in rows:
        print(f"  {row['quotas']!s:<24} {row['link']:>8}: set {row['best']}, off by {row['error'] * 100:.1f} %, "
              f"{row['of_best']:.3f} of the best measured set")
    bounds.most("largest error of a prediction", max(row["error"] for row in rows), 0.10)
    bounds.least("chosen set against the best measured, the least", min(row["of_best"] for row in rows), 0.97)
    return {"setups": rows}


VERBS = {"quotas": quotas, "disturb": disturb, "changes": changes, "never-worse": never_worse, "plan": plan}


def main():
    options = parse(__doc__, VERBS, quick={"action": "store_true"}, rounds={"type": int, "help": "of quotas (3)"},
                    minutes={"type": float, "default": 10, "help": "of changes (10)"})
    missing = laboratory()
    if missing is not None:
        sys.exit(f"unequal: needs a laboratory: {missing}")
    options.rounds = options.rounds or (1 if options.quick else 3)
    size, bounds, results, failed = Size(options.quick), Bounds(), {}, []
    for verb in options.verbs:
        try:
            results[verb] = VERBS[verb](size, options, bounds)
        except Failed as failure:
            failed.append(verb)
            print(f"unequal {verb}: {failure}", file=sys.stderr)
    bounds.finish("unequal", options, results, failed)


if __name__ == "__main__":
    main()
