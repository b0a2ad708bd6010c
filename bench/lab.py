"""N network namespaces on one bridge with shaped links, for measuring two programs under the same conditions."""

import os
import subprocess


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


class Lab:
    """with Lab(4, "1gbit") as lab: lab.command(0, [...]) is the command line that runs in the first machine.

    rate: of all links, or a list with one for each; None: not shaped.
    """

    def __init__(self, machines, rate):
        self.machines, self.rates = machines, rate if isinstance(rate, list) else [rate] * machines
        self.tag = f"ib{os.getpid()}"
        self.subnet = self._free_subnet()

    @staticmethod
    def _free_subnet():
        taken = ip("-4", "route", "show").stdout
        return next(f"10.{b}.77" for b in range(200, 255) if f"10.{b}.77" not in taken)

    def __enter__(self):
        try:
            ip("link", "add", self.tag, "type", "bridge")
            ip("link", "set", self.tag, "up")
            for m in range(self.machines):
                self._machine(m)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _machine(self, m):
        name, port = f"{self.tag}n{m}", f"{self.tag}v{m}"
        ip("netns", "add", name)
        ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", port, "master", self.tag, "up")
        ip("-n", name, "addr", "add", f"{self.address(m)}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        if self.rates[m]:
            shape = ["root", "tbf", "rate", self.rates[m], "burst", "128kb", "latency", "20ms"]
            subprocess.run(["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "eth0", *shape], check=True)
            subprocess.run(["tc", "qdisc", "add", "dev", port, *shape], check=True)

    def address(self, m):
        return f"{self.subnet}.{m + 1}"

    def command(self, m, words):
        return ["ip", "netns", "exec", f"{self.tag}n{m}", *words]

    def __exit__(self, *_):
        for m in range(self.machines):
            ip("netns", "del", f"{self.tag}n{m}", check=False)
        ip("link", "del", self.tag, check=False)
