"""Programs that look for a way out: files, the network, other processes, the kernel."""

from __future__ import annotations

from etude.evaluation.sandbox_check.case import Case, answered, attempt, kernel_refuses

SEEN = """
import os, socket
def variables(): return sorted(set(os.environ) - {"HOME", "LANG", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PWD",
                                                 "PYTHONHASHSEED"})
def root(): return os.getuid() == 0 or os.geteuid() == 0
def name(): return socket.gethostname()
def top(): return sorted(set(os.listdir("/")) - {"bin", "dev", "lib", "lib32", "lib64", "sbin", "tmp", "usr"})
def terminal():
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False
    return True
def descriptors():
    found = []
    for number in range(64):
        try:
            os.fstat(number)
            found.append(number)
        except OSError:
            pass
    return len(found)
def others():
    found = []
    for number in range(1, 2000):
        try:
            os.kill(number, 0)
            found.append(number)
        except PermissionError:
            found.append(number)
        except OSError:
            pass
    return len(found) <= 2
"""
CHANGES = "import os\nopen('/tmp/left', 'w').write('x')\nopen('/dev/shm/left', 'w').write('x')\nprint(1)"
FINDS = "import os\ndef f(): return os.listdir('/tmp') + os.listdir('/dev/shm')"
NEW_USER = 0x10000000
RIGHTS = """
import ctypes, os, platform
kernel = ctypes.CDLL(None, use_errno=True)
def nested():
    made = kernel.syscall((56, 220)[platform.machine() == 'aarch64'], 0x10000000 | 17, 0, 0, 0, 0)
    if made == 0:
        os._exit(0)
    return made
def bounding(): return [n for n in range(41) if kernel.prctl(23, n, 0, 0, 0) == 1]
def gains_nothing(): return kernel.prctl(39, 0, 0, 0, 0)
"""

CASES = (
    attempt("/etc/shadow cannot be read", "open('/etc/shadow')"),
    attempt("/etc/passwd is not there", "open('/etc/passwd')"),
    attempt("What this process was started with cannot be read", "open('/proc/1/environ')"),
    attempt("Home folders are not there", "assert [n for h in ('/root', '/home') for n in os.listdir(h)]"),
    attempt("Programs of the system cannot be changed", "open('/usr/bin/env', 'ab')"),
    attempt("Nothing of the system can be removed", "os.unlink('/usr/bin/env')"),
    attempt("A link leads nowhere else", "os.symlink('/etc/shadow', '/tmp/l'); open('/tmp/l')"),
    attempt("Devices cannot be made", "os.mknod('/tmp/d', 0o60600, os.makedev(8, 0))"),
    Case("The environment is empty but for what it needs", SEEN, answered([]), (("variables", ()),)),
    Case("Its user is not root", SEEN, answered(False), (("root", ()),)),
    Case("The name of this machine is not told", SEEN, answered("sandbox"), (("name", ()),)),
    Case("There are no folders but those that a program needs", SEEN, answered([]), (("top", ()),)),
    Case("There is no terminal to type into", SEEN, answered(False), (("terminal", ()),)),
    Case("No file is open but its own pipes", SEEN, answered(4), (("descriptors", ()),)),
    Case("No other process can be seen", SEEN, answered(True), (("others", ()),)),
    Case("A program leaves files in its own sandbox alone", CHANGES, lambda o: o.stdout == "1\n"),
    Case("No program finds what another left", FINDS, answered([]), (("f", ()),)),
    attempt("There is no network to reach by TCP", "socket.create_connection(('192.0.2.1', 80), timeout=1)"),
    attempt("There is no network to reach by UDP",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))"),
    attempt("Names are not looked up", "socket.getaddrinfo('example.org', 80)"),
    attempt("Sockets of the kernel's own are refused", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)"),
    attempt("Sockets of a virtual machine are refused", "socket.socket(40, socket.SOCK_STREAM)"),
    attempt("Raw sockets are refused", "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)"),
    attempt("It cannot become root", "os.setuid(0)"),
    attempt("It cannot change its root folder", "os.chroot('/tmp')"),
    attempt("It has no right to a higher priority", "os.nice(-5)"),
    Case("A child cannot begin a namespace within", RIGHTS, answered(-1), (("nested", ()),)),
    Case("No right is left that could come back", RIGHTS, answered([]), (("bounding", ()),)),
    Case("No program gives it rights of another user", RIGHTS, answered(1), (("gains_nothing", ()),)),
    kernel_refuses("a namespace within", (272, 97), NEW_USER),
    kernel_refuses("mounting", (165, 40), 0, "b'/tmp'", 0, 0, 0),
    kernel_refuses("tracing", (101, 117), 0, 0, 0, 0),
    kernel_refuses("key rings", (250, 219), 0, -3, 0),
    kernel_refuses("io_uring", (425, 425), 8, 0),
    kernel_refuses("programs of its own (BPF)", (321, 280), 0, 0, 0),
    kernel_refuses("faults of memory in user space", (323, 282), 0),
    kernel_refuses("performance counters", (298, 241), 0, 0, -1, -1, 0),
    kernel_refuses("memory of other processes", (310, 270), 1, 0, 0, 0, 0, 0),
)  # fmt: skip
