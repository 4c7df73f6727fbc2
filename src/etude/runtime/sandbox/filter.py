"""A seccomp filter: which calls of the kernel a program in the sandbox may not make.

The walls of the sandbox are its namespaces; this takes away what of the kernel no program needs and many holes were
found in: key rings, io_uring, BPF, tracing, mounting, modules, other kinds of sockets than those of files and the
internet. What is refused fails with EPERM, as if the user were not allowed to.
"""

from __future__ import annotations

import platform
import struct

REFUSED = {  # name: (x86-64, AArch64)
    "ptrace": (101, 117), "personality": (135, 92), "pivot_root": (155, 41), "chroot": (161, 51), "acct": (163, 89),
    "mount": (165, 40), "umount2": (166, 39), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142),
    "sethostname": (170, 161), "setdomainname": (171, 162), "init_module": (175, 105), "delete_module": (176, 106),
    "quotactl": (179, 60), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "migrate_pages": (256, 238), "unshare": (272, 97), "move_pages": (279, 239), "perf_event_open": (298, 241),
    "fanotify_init": (300, 262), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "setns": (308, 268),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272), "finit_module": (313, 273),
    "kexec_file_load": (320, 294), "bpf": (321, 280), "userfaultfd": (323, 282), "kexec_load": (246, 104),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "pidfd_getfd": (438, 438), "mount_setattr": (442, 442),
    "syslog": (103, 116),
}  # fmt: skip
SOCKET = (41, 198)
FAMILIES = (1, 2, 10)
"""AF_UNIX, AF_INET and AF_INET6; the latter two lead nowhere in a network namespace of one's own."""
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables, and what the kernel calls the architecture."""
X32 = 0x40000000
"""From here on x86-64 has other numbers for the same calls."""
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER, ARCHITECTURE, ARGUMENT = 0, 4, 16
"""Where `struct seccomp_data` has the call, the architecture and the lower half of the first argument."""
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | 1


def program(machine: str | None = None) -> bytes | None:
    """The filter as the kernel reads it, 8 bytes for each instruction; None for a machine that it does not know.

    >>> len(program("x86_64")) % 8, program("abacus")
    (0, None)
    """
    known = MACHINES.get(machine or platform.machine())
    if known is None:
        return None
    column, architecture = known
    numbers = [pair[column] for pair in REFUSED.values()]
    # the last three instructions are: allow, refuse, kill; a jump says how many instructions it leaps over
    body: list[tuple[int, int, str, str]] = [
        (LOAD, ARCHITECTURE, "", ""),
        (EQUAL, architecture, "", "kill"),
        (LOAD, NUMBER, "", ""),
        *([(AT_LEAST, X32, "refuse", "")] if column == 0 else []),
        *((EQUAL, number, "refuse", "") for number in numbers),
        (EQUAL, SOCKET[column], "", "allow"),
        (LOAD, ARGUMENT, "", ""),
        *((EQUAL, family, "allow", "") for family in FAMILIES[:-1]),
        (EQUAL, FAMILIES[-1], "allow", "refuse"),
    ]
    ends = {"allow": len(body), "refuse": len(body) + 1, "kill": len(body) + 2}
    lines = []
    for place, (code, value, true, false) in enumerate(body):
        leaps = [ends[name] - place - 1 if name else 0 for name in (true, false)]
        lines.append(struct.pack("=HBBI", code, *leaps, value))
    return b"".join([*lines, *(struct.pack("=HBBI", RETURN, 0, 0, value) for value in (ALLOW, REFUSE, KILL))])
