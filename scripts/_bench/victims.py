"""Processes that are hard to end: started as `python victims.py KIND`, marked by an argument.

Each kind keeps its number of processes bounded, so that what survives can be counted and ended.
"""

import os
import signal
import sys
import time

LIFE_S = 60
MANY = 200
BRANCHES = 8


def sleep() -> None:
    time.sleep(LIFE_S)


def child(body: object) -> None:
    if os.fork() == 0:
        body()  # type: ignore[operator]
        os._exit(0)


def own_group() -> None:
    child(lambda: (os.setpgid(0, 0), sleep()))


def setsid() -> None:
    child(lambda: (os.setsid(), sleep()))


def double_fork() -> None:
    child(lambda: (os.setsid(), child(sleep)))


def stopped() -> None:
    child(lambda: (os.setsid(), os.kill(os.getpid(), signal.SIGSTOP), sleep()))


def respawning() -> None:
    """A process that is another one fifty times a second: it forks, and its parent ends."""
    child(chain)


def chain() -> None:
    os.setsid()
    end = time.monotonic() + LIFE_S
    while time.monotonic() < end:
        time.sleep(0.02)
        try:
            if os.fork():
                os._exit(0)
        except BlockingIOError:  # a bound on processes
            continue


def fork_bomb() -> None:
    """Many chains at once."""
    for _ in range(BRANCHES):
        child(chain)


def daemons() -> None:
    for _ in range(MANY):
        child(lambda: (os.setsid(), child(sleep)))


KINDS = {
    "plain": lambda: child(sleep),
    "own group": own_group,
    "setsid": setsid,
    "double fork": double_fork,
    "stopped": stopped,
    "respawning": respawning,
    "fork bomb": fork_bomb,
    f"{MANY} daemons": daemons,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]]()
    open(sys.argv[2], "w").close()
    sleep()
