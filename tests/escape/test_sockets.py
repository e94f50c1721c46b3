"""No socket reaches further than the sandbox."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from support_sandbox import Person, all_three

# family, type, protocol
OTHERS = {
    "icmp": (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP),
    "raw": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP),
    "mptcp": (socket.AF_INET, socket.SOCK_STREAM, 262),
    "sctp": (socket.AF_INET, socket.SOCK_STREAM, 132),
    "udplite": (socket.AF_INET, socket.SOCK_DGRAM, 136),
    "raw6": (socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_TCP),
    "packet": (socket.AF_PACKET, socket.SOCK_RAW, 0),
    "netlink": (socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "alg": (38, socket.SOCK_SEQPACKET, 0),
    "vsock": (40, socket.SOCK_STREAM, 0),
    "bluetooth": (31, socket.SOCK_STREAM, 3),
    "xdp": (44, socket.SOCK_RAW, 0),
}
INTERNET = {
    "tcp": (socket.AF_INET, socket.SOCK_STREAM, 0),
    "udp": (socket.AF_INET, socket.SOCK_DGRAM, 17),
    "tcp6": (socket.AF_INET6, socket.SOCK_STREAM, 6),
    "udp6": (socket.AF_INET6, socket.SOCK_DGRAM, 0),
}


def _open_each(kinds: dict[str, tuple[int, int, int]]) -> str:
    return f"""
    def act():
        results = {{}}
        for name, (family, kind, protocol) in { ({k: tuple(map(int, v)) for k, v in kinds.items()})!r}.items():
            descriptor = libc.socket(family, kind | os.O_CLOEXEC, protocol)
            if descriptor == -1:
                results[name] = errno.errorcode[ctypes.get_errno()]
            else:
                os.close(descriptor)
                results[name] = "opened"
        return results
    """


@pytest.mark.parametrize("network", ["none", "loopback", "host"])
def test_other_families_are_refused(who: Person, workspace: Path, network: str) -> None:
    """Every family and protocol but TCP, UDP and unix sockets is refused, whatever the network."""
    expected = dict.fromkeys(OTHERS, "EPERM")
    if network == "host":
        expected["netlink"] = "opened"
    act = _open_each(OTHERS)
    assert who.act_freely(act, cwd=workspace)["netlink"] == "opened"
    assert who.act(act, "--network", network, cwd=workspace) == all_three(expected)


def test_internet_sockets_need_a_network(who: Person, workspace: Path) -> None:
    """TCP and UDP are there with a loopback, and refused without any network."""
    act = _open_each(INTERNET)
    opened, refused = dict.fromkeys(INTERNET, "opened"), dict.fromkeys(INTERNET, "EPERM")
    assert who.act(act, cwd=workspace) == all_three(opened)
    assert who.act(act, "--network", "none", cwd=workspace) == all_three(refused)


def test_the_hosts_loopback_is_out_of_reach(who: Person, workspace: Path) -> None:
    """A server of the host on 127.0.0.1 is not the one that the sandbox finds there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        act = f"""
        import socket
        def act():
            socket.create_connection(("127.0.0.1", {port}), timeout=2).close()
            return "connected"
        """
        assert who.act_freely(act, cwd=workspace) == "connected"
        assert who.act(act, cwd=workspace) == all_three("ECONNREFUSED")
        assert who.act(act, "--network", "host", cwd=workspace) == all_three("connected")


def test_no_packet_leaves(who: Person, workspace: Path) -> None:
    """There is no route to any address but the sandbox's own."""
    act = """
    import socket
    def act():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            return sender.sendto(b"x", ("192.0.2.1", 53))
    """
    assert who.act(act, cwd=workspace) == all_three("ENETUNREACH", "EPERM")


def test_the_own_loopback_works(who: Person, workspace: Path) -> None:
    """A test suite can bind and connect on 127.0.0.1 and ::1."""
    act = """
    import socket
    def act():
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family) as server:
                server.bind((address, 0))
                server.listen()
                with socket.create_connection(server.getsockname()[:2], timeout=5) as client:
                    client.sendall(b"x")
                    with server.accept()[0] as peer:
                        assert peer.recv(1) == b"x"
        return "spoken"
    """
    assert who.act(act, cwd=workspace) == all_three("spoken")


@pytest.mark.parametrize("network", ["none", "loopback", "host"])
def test_unix_sockets_of_the_host_are_out_of_reach(
    who: Person, workspace: Path, outside: Path, network: str
) -> None:
    """Neither a socket in a directory of the host nor an abstract one can be connected to."""
    abstract = f"\0forkrun-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as unnamed:
        named.bind(str(outside / "s"))
        os.chmod(outside / "s", 0o777)
        unnamed.bind(abstract)
        named.listen()
        unnamed.listen()
        for address in (str(outside / "s"), abstract):
            act = f"""
            import socket
            def act():
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect({address!r})
                return "connected"
            """
            assert who.act_freely(act, cwd=workspace) == "connected"
            refused = all_three("ENOENT", "ECONNREFUSED", "EPERM")
            assert who.act(act, "--network", network, cwd=workspace) == refused


def test_unix_sockets_of_its_own_work(who: Person, workspace: Path) -> None:
    """socketpair, named and abstract unix sockets serve inside."""
    act = """
    import socket
    def act():
        one, other = socket.socketpair()
        one.sendall(b"x")
        assert other.recv(1) == b"x"
        for name in (f"s{os.getpid()}", f"\\0a{os.getpid()}"):
            with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
                server.bind(name)
                server.listen()
                client.connect(name)
        return "spoken"
    """
    assert who.act(act, "--network", "none", cwd=workspace) == all_three("spoken")
