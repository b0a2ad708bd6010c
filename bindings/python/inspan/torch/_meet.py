"""How the ranks of a group find each other: by c10d's store alone.

Each rank binds a data port and publishes, under its rank, the port, its node and its addresses; rank 0 also the job's key.
All read all, and each then picks for every other rank the address by which it reaches it:

    all on one machine                            loopback
    an address in a subnet of an own interface    the LAN, also where a VPN has the default route
    else                                          an address that the kernel has a route to, not by loopback

The addresses of an interface that INSPAN_SOCKET_IFNAME (or GLOO_SOCKET_IFNAME) names are the only ones that a rank
publishes.
"""

from __future__ import annotations

import ctypes
import functools
import ipaddress
import json
import os
import secrets
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Sequence

import torch.distributed as dist

from inspan._lib import CommError, Status

_UP, _LOOPBACK = 0x1, 0x8  # of interface flags


@dataclass(frozen=True)
class Interface:
    """One address of one interface of this machine."""

    name: str
    network: ipaddress.IPv4Interface | ipaddress.IPv6Interface

    @property
    def address(self) -> str:
        return str(self.network.ip)


@dataclass(frozen=True)
class Place:
    """What a rank publishes."""

    node: str  # for people
    machine: str  # the same for ranks that share loopback
    addresses: tuple[str, ...]  # best first
    port: int
    incarnation: int


class _Sockaddr(ctypes.Structure):
    _fields_ = [("family", ctypes.c_uint16), ("data", ctypes.c_uint8 * 26)]


class _Ifaddrs(ctypes.Structure):
    pass


_Ifaddrs._fields_ = [("next", ctypes.POINTER(_Ifaddrs)), ("name", ctypes.c_char_p), ("flags", ctypes.c_uint),
                     ("address", ctypes.POINTER(_Sockaddr)), ("netmask", ctypes.POINTER(_Sockaddr))]


def _ip_bytes(address: _Sockaddr) -> bytes:
    data = bytes(address.data)
    return data[2:6] if address.family == socket.AF_INET else data[6:22]


def interfaces() -> list[Interface]:
    """Addresses of the interfaces that are up, but for loopback; in the kernel's order."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise CommError(Status.IO, f"the interfaces of this machine cannot be listed: {os.strerror(ctypes.get_errno())}")
    found = []
    node = first
    while node:
        entry = node.contents
        usable = entry.flags & _UP and not entry.flags & _LOOPBACK and entry.address and entry.netmask
        if usable and entry.address.contents.family in (socket.AF_INET, socket.AF_INET6):
            ip = ipaddress.ip_address(_ip_bytes(entry.address.contents))
            bits = bin(int.from_bytes(_ip_bytes(entry.netmask.contents), "big")).count("1")
            found.append(Interface(entry.name.decode(), ipaddress.ip_interface(f"{ip}/{bits}")))
        node = entry.next
    libc.freeifaddrs(first)
    return found


def own_interfaces(known: Sequence[Interface]) -> list[Interface]:
    """Those that may be used: all, or what a variable names. Link-local ones only where there is nothing better."""
    for variable in ("INSPAN_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        names = [name for name in os.environ.get(variable, "").split(",") if name]
        if not names or (variable == "GLOO_SOCKET_IFNAME" and names == ["lo"]):
            continue
        known = [interface for interface in known if interface.name in names]
        if not known:
            there = ", ".join(sorted({interface.name for interface in interfaces()})) or "none"
            raise CommError(Status.NOT_FOUND, f"{variable}={','.join(names)}: no such interface is up with an address; "
                                              f"there are: {there}")
        break
    better = [interface for interface in known if not interface.network.ip.is_link_local]
    return better or [interface for interface in known if interface.network.version == 4]


def source_towards(host: str) -> str | None:
    """The address from which this machine's packets to host leave; None: host is not known, or has no route."""
    try:
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing
            return str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return None


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _store_host(store: dist.Store) -> str | None:
    """The host of the TCPStore that is inside; None where there is none."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "host", None) or os.environ.get("MASTER_ADDR")


def own_addresses(store: dist.Store) -> tuple[str, ...]:
    """This machine's, best first: the one that leads to the store's host, then the others."""
    usable = [interface.address for interface in own_interfaces(interfaces())]
    host = _store_host(store)
    towards = source_towards(host) if host else None
    if towards in usable:
        usable.remove(towards)
        usable.insert(0, towards)
    return tuple(usable)


def address_of(peer: Place, own: Sequence[Interface]) -> str | None:
    """The address by which this machine reaches the peer, which is on another one; None: there is no way."""
    for address in peer.addresses:
        if any(ipaddress.ip_address(address) in interface.network.network for interface in own):
            return address
    for address in peer.addresses:
        source = source_towards(address)
        if source is not None and not _is_loopback(source):
            return address
    return None


@functools.lru_cache(maxsize=None)
def machine() -> str:
    """Ranks with the same one reach each other by loopback: the boot and the network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return f"{socket.gethostname()} {secrets.token_hex(8)}"


def data_ports() -> tuple[int, int]:
    """The range that INSPAN_DATA_PORTS gives ("7500-7599"); (0, 0): any."""
    text = os.environ.get("INSPAN_DATA_PORTS", "")
    if not text:
        return 0, 0
    first, _, last = text.partition("-")
    if not (first.isdigit() and (last or first).isdigit() and 0 < int(first) <= int(last or first) < 65536):
        raise ValueError(f"INSPAN_DATA_PORTS={text}: expected a range of ports such as 7500-7599")
    return int(first), int(last or first)


@dataclass(frozen=True)
class Meeting:
    """What all ranks know of each other. addresses: as this rank reaches them, by rank."""

    job: int
    key: bytes
    places: tuple[Place, ...]
    addresses: tuple[str, ...]


def _collect(store: dist.Store, prefix: str, numbers: Sequence[int], timeout: timedelta) -> list[dict[str, Any]]:
    keys = [f"{prefix}/{rank}" for rank in range(len(numbers))]
    try:
        store.wait(keys, timeout)
    except Exception as error:
        missing = [number for number, key in zip(numbers, keys) if not _is_there(store, key)]
        if not missing:
            raise
        names = ", ".join(map(str, missing))
        raise CommError(Status.TIMEOUT, f"rank {names} of the group's {len(numbers)} did not come to the meeting within "
                                        f"{timeout.total_seconds():.1f} s: not started, ended, or busy elsewhere; look at its "
                                        "output", missing[0]) from error
    return [json.loads(store.get(key)) for key in keys]


def _is_there(store: dist.Store, key: str) -> bool:
    try:
        return bool(store.check([key]))
    except Exception:  # the store's host may be gone: then nobody can say
        return False


def _addresses(places: Sequence[Place], rank: int, numbers: Sequence[int]) -> tuple[str, ...]:
    if len({place.machine for place in places}) == 1:
        return ("127.0.0.1",) * len(places)
    own = own_interfaces(interfaces())
    chosen = []
    for other, place in enumerate(places):
        if other == rank and not place.addresses:
            raise CommError(Status.UNREACHABLE, f"rank {numbers[rank]} (node {place.node}) has no address but loopback, and "
                                                "the group has ranks on other machines: connect it to their network")
        address = place.addresses[0] if other == rank else address_of(place, own)
        if address is None:
            known = ", ".join(place.addresses) or "none but loopback"
            mine = ", ".join(f"{interface.address} ({interface.name})" for interface in own) or "none but loopback"
            raise CommError(Status.UNREACHABLE, f"rank {numbers[rank]} (node {places[rank].node}) has no way to rank "
                                                f"{numbers[other]} (node {place.node}): its addresses are {known}, here there "
                                                f"are {mine}; connect both to one network, or name the interface in "
                                                "INSPAN_SOCKET_IFNAME", numbers[other])
        chosen.append(address)
    return tuple(chosen)


def meet(store: dist.Store, rank: int, numbers: Sequence[int], port: int, timeout: timedelta) -> Meeting:
    """Publish this rank and learn of all others.

    numbers: (world) what people call the ranks. port: the data port. Blocks for timeout at most. CommError: TIMEOUT naming
    the ranks that did not come, UNREACHABLE naming the one to which there is no way.
    """
    # The same store may serve one group after another: each rank counts its own.
    prefix = f"inspan/{store.add(f'inspan/count/{rank}', 1)}"
    own: dict[str, Any] = {"node": socket.gethostname()[:63], "machine": machine(), "addresses": own_addresses(store),
                           "port": port, "incarnation": secrets.randbits(63)}
    if rank == 0:
        own |= {"job": secrets.randbits(63), "key": secrets.token_hex(32)}
    store.set(f"{prefix}/{rank}", json.dumps(own))
    all_of_them = _collect(store, prefix, numbers, timeout)
    places = tuple(Place(one["node"], one["machine"], tuple(one["addresses"]), one["port"], one["incarnation"])
                   for one in all_of_them)
    return Meeting(all_of_them[0]["job"], bytes.fromhex(all_of_them[0]["key"]), places, _addresses(places, rank, numbers))
