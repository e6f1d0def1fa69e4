"""Programs that must run under `microbench watch` as they do alone: in Python, sh and C, made of parts at random.

Each runs twice, as a shell would run it: alone, and watched. Its status, output, files, stops, and what it sees of its
signals, files and limits must be the same; nothing may remain of microbench; and what it did on the made-up GPU must be
recorded, or one line says why not. The supervisor at the end of this file is run by itself, without packages.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import pty
import random
import resource
import select
import shutil
import signal
import stat
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from campaign_faults import Place
    from watched import Place as Stage

ROOT = Path(__file__).resolve().parent.parent
LONGEST_S = 120.0
MARK = b"@\n"  # the program prints it when it waits for what happens next
NUMBERS = [
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGVTALRM, signal.SIGPROF, signal.SIGXCPU, signal.SIGIO, signal.SIGPWR, signal.SIGTRAP, signal.SIGSYS,
    signal.SIGWINCH, signal.SIGURG, signal.SIGRTMIN, signal.SIGRTMIN + 5,
]  # fmt: skip
STOPS = [signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU]
IGNORABLE = [
    signal.SIGPIPE,
    signal.SIGCHLD,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
]
OURS = "MICROBENCH_WATCH|CUDA_INJECTION64_PATH|PYTHONPATH|^_$|^SHLVL$"


class Spec:
    """A program that grows part by part: its text, what is done to it, and the conditions that it runs under."""

    def __init__(self, chosen: random.Random) -> None:
        self.chosen, self.lines, self.actions = chosen, list[str](), list[list[Any]]()
        self.heads = list[str]()  # of C: functions
        self.steps = 0  # on the GPU
        self.terminal = chosen.random() < 0.4
        self.told = False  # GPU work of a process that cannot be recorded
        self.parts = list[str]()
        self.variables: dict[str, str] = {}
        self.ignored: list[int] = []
        self.blocked: list[int] = []
        self.closed: list[int] = []
        self.umask, self.nice, self.files = 0o022, 0, 1024

    def word(self) -> str:
        return "".join(self.chosen.choices("abcdefghijk", k=self.chosen.randrange(1, 9)))

    def number(self) -> int:
        return self.chosen.randrange(1, 100)

    def text(self) -> str:
        return self.chosen.choice(
            ["plain", "no newline", "ümläut ✓", "%s %d \\\\n", "tab\there", "x" * 5000, "a 'quote'"]
        )

    def signalled(self, *how: str) -> int:
        """Have one of the signals sent, to microbench or to its whole group; not one that the caller ignores."""
        number = int(self.chosen.choice([one for one in NUMBERS if one not in self.ignored]))
        sent = self.chosen.choice(how or ("kill", "kill", "killpg"))
        if any(".late" in line for line in self.lines):  # one to the group may end what works in the background, or not
            sent = "kill"
        self.actions.append([sent, number])
        return number

    def stopped(self) -> int:
        """Have the program stop by itself, and let it go on as a shell or somebody else does."""
        number = int(self.chosen.choice(STOPS))
        self.actions.append(["stopped", self.chosen.choice(["killpg", "killpg", "kill"])])
        return number


# Parts of a program in Python


def py_prints(spec: Spec) -> str:
    stream = spec.chosen.choice(["sys.stdout", "sys.stderr"])
    return f"{stream}.write({spec.text()!r}); {stream}.flush()"


def py_sees_itself(spec: Spec) -> str:
    return spec.chosen.choice([
        "print(re.findall('Sig(?:Ign|Blk):.*', open('/proc/self/status').read()))",
        "print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGPIPE), signal.pthread_sigmask(0, ()))",
        "print(sorted(n for n in os.environ if not re.search(OURS, n)), os.environ.get('LC_CTYPE'))",
        "print(sys.argv, sys.flags, sys.stdout and sys.stdout.encoding, os.getcwd() == os.environ['HERE'])",
        "print([os.isatty(n) for n in range(3) if n not in CLOSED], os.nice(0), oct(os.umask(0o77)))",
        "print([resource.getrlimit(n) for n in range(10)], os.sched_getaffinity(0) == os.sched_getaffinity(1))",
        "print(sorted(n for n in os.listdir('/proc/self/fd') if int(n) < 200))",
        "print(os.getsid(0) == os.getsid(os.getppid()), os.getpgrp() == os.getpgid(0))",
        "print(sorted(m for m in ('torch', 'numpy', 'threading', 'asyncio') if m in sys.modules))",
        "print([p for p in sys.path if 'inject' in p], sys.meta_path[-1:])",
    ])  # fmt: skip


def py_files(spec: Spec) -> str:
    name = spec.word()
    return spec.chosen.choice([
        f"open('{name}.txt', 'a').write('x' * {spec.number()})", f"os.makedirs('{name}/deep', exist_ok=True)",
        f"os.path.lexists('{name}.l') or os.symlink('gone', '{name}.l')", f"os.chmod(open('{name}.m', 'w').name, 0o{spec.chosen.choice(['600', '755'])})",
        f"import tempfile; tempfile.NamedTemporaryFile('w', prefix='{name}').write('x')",
    ])  # fmt: skip


def py_children(spec: Spec) -> str:
    number, name = spec.number(), spec.word()
    return spec.chosen.choice([
        f"print(subprocess.run([sys.executable, '-c', 'import sys; print(sys.flags.inspect); sys.exit({number})']).returncode)",
        f"print(subprocess.run('kill -9 $$', shell=True).returncode, subprocess.getoutput('echo {name}'))",
        f"p = os.fork()\nif not p:\n    os.write(2, b'child\\n'); os._exit({number})\nprint(reap(p))",
        f"os.system('(sleep 0.{number % 5 + 1}; echo late > {name}.late) &')",
        "import multiprocessing as mp\nwith mp.get_context('fork').Pool(2) as pool:\n    print(pool.map(abs, [-1, -2]))"
        if not spec.ignored else "pass",
        "import threading\nt = [threading.Thread(target=print, args=(n,)) for n in range(3)]\n[(x.start(), x.join()) for x in t]",
        "import asyncio\nasync def f():\n    p = await asyncio.create_subprocess_exec('true'); print(await p.wait())\nasyncio.run(f())"
        if not spec.ignored else "pass",
        f"print(subprocess.run('yes | head -n {number} | wc -l', shell=True, capture_output=True).stdout)",
        f"os.mkdir('{name}.d'); os.chdir('{name}.d'); os.rmdir('../{name}.d'); os.chdir(os.environ['HERE'])",
        "from concurrent.futures import ProcessPoolExecutor as P; import multiprocessing as mp\n"
        "with P(1, mp_context=mp.get_context('fork')) as pool:\n    print(list(pool.map(abs, [-1])))"
        if not spec.ignored and not spec.closed else "pass",
        "seen_files = set()\nsys.settrace(lambda f, e, a: seen_files.add(f.f_code.co_filename))\nimport colorsys\nsys.settrace(None)\n"
        "print(sorted(n for n in seen_files if os.path.isfile(n)))",
    ])  # fmt: skip


def py_signalled(spec: Spec) -> str:
    return f"seen.clear(); signal.signal({spec.signalled()}, lambda n, f: seen.append(n)); wait_for_it()"


def py_stops(spec: Spec) -> str:
    return f"flush(); os.kill(os.getpid(), {spec.stopped()}); print('goes on', flush=True)"


def py_gpu(spec: Spec) -> str:
    part = spec.chosen.randrange(9)
    if part == 6:  # a package that cannot be imported raises its own traceback
        return (
            "os.makedirs('b/cupy', exist_ok=True); open('b/cupy/__init__.py', 'w').write('1 / 0'); sys.path.insert(0, 'b')\n"
            "try:\n    import cupy\nexcept ZeroDivisionError:\n    import traceback; traceback.print_exc()\nsys.path.remove('b')"
        )
    if part == 7 and "py_gpu" not in spec.parts and not spec.ignored and not spec.closed:  # it ends by os._exit
        spec.steps += 30
        return (
            "def work():\n    import torch; torch.steps(30)\n"
            "import multiprocessing as mp\nq = mp.get_context('fork').Process(target=work); q.start(); q.join(); print(q.exitcode)"
        )
    if part == 0:
        return "import importlib.util; print(importlib.util.find_spec('torch') is not None)"
    if part == 1:
        spec.told = True
        return "import torch\np = os.fork()\nif not p:\n    torch.steps(3); os._exit(0)\nprint(reap(p))"
    spec.steps += 30
    if part == 2:
        return "print(subprocess.run([sys.executable, '-c', 'import torch; torch.steps(30)']).returncode)"
    return "import torch; torch.steps(30)"


def py_reads(spec: Spec) -> str:
    return "print(repr(sys.stdin and sys.stdin.readline()))"


def py_ends(spec: Spec) -> str:
    number = int(spec.chosen.choice([one for one in NUMBERS if one not in (*spec.ignored, *spec.blocked)]))
    return spec.chosen.choice([
        f"sys.exit({spec.number()})", f"sys.exit({spec.number()})", "sys.exit('words')", "1 / 0", "raise KeyboardInterrupt",
        f"flush(); os._exit({spec.number()})", "flush(); os.abort()", f"flush(); os.kill(os.getpid(), {number})", "pass",
        "flush(); os.kill(os.getpid(), 9)", "import ctypes; flush(); ctypes.string_at(0)",
        "flush(); os.execvp('sh', ['sh', '-c', 'echo executed; exit 6'])", "import atexit; atexit.register(print, 'last')",
    ])  # fmt: skip


PYTHON = """
import os, re, resource, signal, subprocess, sys, time
OURS, CLOSED, seen = {ours!r}, {closed!r}, []
def flush():
    for stream in (sys.stdout, sys.stderr):
        stream and stream.flush()
def reap(p):
    try:
        return os.waitpid(p, 0)[1]
    except ChildProcessError:
        return 'gone'
def wait_for_it():
    print('@', flush=True)
    until = time.monotonic() + 20
    while not seen and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.3)
    print(seen, flush=True)
"""


# Parts of one in sh


def sh_prints(spec: Spec) -> str:
    word = spec.word()
    return spec.chosen.choice([
        f"echo {word}", f"echo {word} >&2", f"printf '\\377\\000{word}'", "cat", "yes 2>/dev/null | head -n 2000 | tail -n 1",
        f"printf '%s' {word}", "yes 2>/dev/null | head -n 1; echo $?", "ls -1 | grep -v recording-",
    ])  # fmt: skip


def sh_sees_itself(spec: Spec) -> str:
    return spec.chosen.choice([
        "grep -E 'Sig(Ign|Blk|Cgt)' /proc/self/status", "umask; ulimit -n; nice", f"env | cut -d= -f1 | grep -Ev '{OURS}' | sort",
        "ls /proc/self/fd | tr '\\n' ' '", "test -t 0 && echo tty; test -t 1 && echo tty", "pwd | wc -c; echo $LC_CTYPE",
        "ps -o pgid= -p $$ | tr -d ' ' | grep -c .", "trap", "echo $PYTHONINSPECT $PYTHONHOME",
    ])  # fmt: skip


def sh_files(spec: Spec) -> str:
    name = spec.word()
    return spec.chosen.choice([
        f"echo x >> {name}.txt", f"mkdir -p {name}; touch {name}/f; chmod 640 {name}/f", f"ln -sf gone {name}.l",
        f"exec 3>{name}.3; echo x >&3; exec 3>&-", f"rm -rf {name}*", "mktemp -u | wc -c",
    ])  # fmt: skip


def sh_children(spec: Spec) -> str:
    name, number = spec.word(), spec.number()
    return spec.chosen.choice([
        f"(exit {number}); echo $?", f"(sleep 0.{number % 5 + 1}; echo late > {name}.late) &", "sleep 0.1 & wait $!; echo $?",
        "sh -c 'kill -9 $$'; echo $?", f"python3 -c 'import sys; sys.exit({number})'; echo $?", "false || echo or",
        "echo $(echo inner)", "sh -c 'trap \"\" PIPE; grep SigIgn /proc/self/status'",
    ])  # fmt: skip


def sh_signalled(spec: Spec) -> str:
    number = spec.signalled("kill")  # one to the group ends the commands of the shell too, at another moment each time
    wait = 'n=; i=0; echo @; while [ -z "$n" ] && [ $i -lt 400 ]; do sleep 0.05; i=$((i+1)); done; sleep 0.4'
    return f"trap 'n=x$n' {number}; {wait}; echo $n; trap - {number}"


def sh_stops(spec: Spec) -> str:
    return f"kill -{spec.stopped()} $$; echo goes on"


def sh_ends(spec: Spec) -> str:
    number = int(spec.chosen.choice([one for one in NUMBERS if one not in (*spec.ignored, *spec.blocked)]))
    return spec.chosen.choice([
        f"exit {spec.number()}", f"exit {spec.number()}", "kill -9 $$", f"kill -{number} $$", "set -e; false", "not-a-command",
        f"exec python3 -c 'import sys; sys.exit({spec.number()})'", ":", "exec sh -c 'echo executed'", "echo ${unset?}",
    ])  # fmt: skip


# Parts of one in C


def c_prints(spec: Spec) -> str:
    return spec.chosen.choice([
        f'puts("{spec.word()}"); fflush(stdout);', f'fprintf(stderr, "{spec.word()}\\n");', f'printf("{spec.word()}");',
        f'write(1, "\\377\\0{spec.word()}", {spec.number() % 6 + 1});',
        "{ char b[99]; ssize_t n = read(0, b, sizeof b); printf(\"%zd\\n\", n); }",
    ])  # fmt: skip


def c_sees_itself(spec: Spec) -> str:
    return spec.chosen.choice([
        "for (int n = 1; n < 65; n++) { struct sigaction a; if (!sigaction(n, NULL, &a) && a.sa_handler) printf(\"%d \", n); } puts(\"\");",
        "{ sigset_t s; sigprocmask(0, NULL, &s); for (int n = 1; n < 65; n++) if (sigismember(&s, n)) printf(\"%d \", n); puts(\"\"); }",
        "for (int n = 0; n < 99; n++) if (fcntl(n, F_GETFD) >= 0) printf(\"%d:%d \", n, fcntl(n, F_GETFL) & O_ACCMODE); puts(\"\");",
        "printf(\"%o %d %d\\n\", umask(077), isatty(0), isatty(1));",
        "for (int n = 0; n < 10; n++) { struct rlimit r; getrlimit(n, &r); printf(\"%llu \", (unsigned long long)r.rlim_cur); } puts(\"\");",
        "printf(\"%s %s\\n\", getenv(\"LC_CTYPE\") ? getenv(\"LC_CTYPE\") : \"none\", getenv(\"PYTHONINSPECT\") ? \"set\" : \"unset\");",
        "printf(\"%d\\n\", getsid(0) == getsid(getppid()));", "printf(\"%d\\n\", getpriority(PRIO_PROCESS, 0));",
    ])  # fmt: skip


def c_files(spec: Spec) -> str:
    name = spec.word()
    return spec.chosen.choice([
        f'close(open("{name}.c", O_CREAT | O_WRONLY, 0666));', f'mkdir("{name}", 0777);', f'symlink("gone", "{name}.l");',
        f'{{ FILE *f = fopen("{name}.f", "a"); if (f) {{ fputs("{name}", f); fclose(f); }} }}',
    ])  # fmt: skip


def c_children(spec: Spec) -> str:
    name, number = spec.word(), spec.number()
    return spec.chosen.choice([
        f'{{ int s = 0; pid_t p = fork(); if (!p) _exit({number}); waitpid(p, &s, 0); printf("%d\\n", s); }}',
        f'printf("%d\\n", system("exit {number}"));', 'printf("%d\\n", system("kill -9 $$"));',
        f'if (!fork()) {{ usleep(200000); close(open("{name}.late", O_CREAT | O_WRONLY, 0666)); _exit(0); }}',
        '{ FILE *p = popen("echo piped", "r"); char b[99]; if (p && fgets(b, 99, p)) fputs(b, stdout); if (p) pclose(p); }',
    ])  # fmt: skip


def c_signalled(spec: Spec) -> str:
    number = spec.signalled()
    return (
        f'seen = 0; signal({number}, note); puts("@"); fflush(stdout);'
        ' for (int i = 0; i < 2000 && !seen; i++) usleep(10000); for (int i = 0; i < 30; i++) usleep(10000);'
        f' printf("%d\\n", seen); fflush(stdout); signal({number}, SIG_DFL);'
    )  # fmt: skip


def c_stops(spec: Spec) -> str:
    return f'fflush(NULL); raise({spec.stopped()}); puts("goes on"); fflush(stdout);'


def c_gpu(spec: Spec) -> str:
    spec.steps += 30
    return "gpu(30);"


def c_ends(spec: Spec) -> str:
    number = int(spec.chosen.choice([one for one in NUMBERS if one not in (*spec.ignored, *spec.blocked)]))
    return spec.chosen.choice([
        f"return {spec.number()};", f"exit({spec.number()});", f"fflush(NULL); _exit({spec.number()});", "fflush(NULL); abort();",
        f"fflush(NULL); raise({number});", "fflush(NULL); raise(9);", "fflush(NULL); *(volatile int *)0 = 1;", ";",
        'fflush(NULL); execlp("sh", "sh", "-c", "echo executed; exit 6", NULL);',
    ])  # fmt: skip


C = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int seen;
static void note(int number) { seen++; }
static void gpu(int count) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *cupti = dlopen(getenv("STAND_IN"), RTLD_NOW);
    if (!driver || !cupti || ((int (*)(unsigned))dlsym(driver, "cuInit"))(0)) _exit(92);
    ((void (*)(int, int))dlsym(cupti, "stand_in_steps"))(count, 20);
}
int main(void) {
"""
Part = Callable[[Spec], str]
PARTS: dict[str, tuple[Part, ...]] = {
    "python": (
        py_prints, py_prints, py_sees_itself, py_sees_itself, py_files, py_children, py_signalled, py_stops, py_gpu, py_gpu,
        py_reads,
    ),
    "sh": (sh_prints, sh_prints, sh_sees_itself, sh_sees_itself, sh_files, sh_children, sh_signalled, sh_stops),
    "c": (c_prints, c_sees_itself, c_sees_itself, c_files, c_children, c_signalled, c_stops, c_gpu),
}  # fmt: skip
ENDS: dict[str, Part] = {"python": py_ends, "sh": sh_ends, "c": c_ends}


def spec_of(language: str, chosen: random.Random) -> Spec:
    """A program, and the conditions that it runs under."""
    spec = Spec(chosen)
    if chosen.random() < 0.3:
        spec.ignored = [int(one) for one in chosen.sample(IGNORABLE, chosen.randrange(1, 4))]
    if chosen.random() < 0.1:
        spec.blocked = [int(one) for one in chosen.sample([signal.SIGUSR2, signal.SIGWINCH, signal.SIGRTMIN], 1)]
    if not spec.terminal and chosen.random() < 0.1:
        spec.closed = [chosen.randrange(3)]
    spec.umask, spec.nice = chosen.choice([0o022, 0o022, 0o077, 0o002]), chosen.choice([0, 0, 0, 3])
    spec.files = chosen.choice([1024, 1024, 256, 4096])
    for name, value, share in (
        ("PYTHONINSPECT", "", 0.1), ("PYTHONINSPECT", "1", 0.05), ("PYTHONDONTWRITEBYTECODE", "1", 0.5), ("BROKEN", "1", 0.15),
        ("LANG", "C", 0.3), ("LC_ALL", "C", 0.1), ("PYTHONUNBUFFERED", "1", 0.1), ("PYTHONUTF8", "1", 0.1),
        ("PYTHONSAFEPATH", "1", 0.1), ("PYTHONNOUSERSITE", "1", 0.1), ("COLUMNS", "33", 0.2), ("PYTHONHASHSEED", "0", 0.5),
        ("NO_COLOR", "1", 0.2), ("PYTHONWARNINGS", "error", 0.1),
    ):  # fmt: skip
        if chosen.random() < share and not (
            value and name == "PYTHONINSPECT" and spec.terminal
        ):  # it would ask for more
            spec.variables[name] = value
    for _ in range(chosen.randrange(1, 6)):
        part = chosen.choice(PARTS[language])
        if part in (py_signalled, sh_signalled, c_signalled, py_stops, sh_stops, c_stops) and (
            spec.closed or spec.blocked
        ):
            continue
        if part is py_gpu and "BROKEN" in spec.variables:
            continue
        spec.lines.append(part(spec))
        spec.parts.append(part.__name__)
    spec.lines.append(ENDS[language](spec))
    return spec


def source_of(language: str, spec: Spec) -> str:
    if language == "python":
        return PYTHON.format(ours=OURS, closed=spec.closed) + "\n".join(spec.lines) + "\n"
    if language == "sh":
        return "\n".join(spec.lines) + "\n"
    return C + "\n".join(spec.lines) + "\n}\n"


# What both runs share


class Grounds:
    """The stand-ins, the command as scripts/microbench starts it, and the folder that all of that is in."""

    def __init__(self, folder: Path) -> None:
        from watched import NotPython
        from watched import Place as Stage

        folder.mkdir()
        self.stage: Stage = Stage(folder)
        self.linked = NotPython(self.stage).variables
        self.lay_out(folder)

    def lay_out(self, folder: Path) -> None:
        """Make the checkout, which is this one, and packages that break whoever imports them."""
        checkout = folder / "checkout"
        (checkout / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "microbench", checkout / "scripts")
        (checkout / "scripts" / "set_up").write_text("#!/bin/sh\n")
        (checkout / "scripts" / "set_up").chmod(0o755)
        (checkout / ".venv").symlink_to(sys.prefix)
        (checkout / "microbench").symlink_to(ROOT / "microbench")
        self.command = str(checkout / "scripts" / "microbench")
        self.broken = folder / "broken"
        for name in ("json", "numpy", "rich", "typer", "msgspec", "platformdirs", "numba", "click"):
            (self.broken / name).mkdir(parents=True)
            (self.broken / name / "__init__.py").write_text(f"raise ImportError('the {name} of the program')\n")

    def found(self, language: str) -> dict[str, str]:
        """The variables by which a program finds the stand-ins."""
        return self.linked if language == "c" else {"LD_LIBRARY_PATH": str(self.stage.drivers)}


lock, grounds = threading.Lock(), dict[Path, Grounds]()


def grounds_in(folder: Path) -> Grounds:
    with lock:
        if folder not in grounds:
            grounds[folder] = Grounds(folder / "grounds")
        return grounds[folder]


def run_one(place: Place, chosen: random.Random, language: str) -> str | None:
    """Run one program alone and watched, and compare."""
    shared = grounds_in(place.bench.folder)
    spec = spec_of(language, chosen)
    source = source_of(language, spec)
    if language == "c":
        (place.root / "program.c").write_text(source)
        command = ["./program"]
        compiler = ["cc", "-w", "-O0", "-o", place.root / "program", place.root / "program.c", "-ldl"]
        subprocess.run(compiler, check=True, stdin=subprocess.DEVNULL)
    else:
        (place.root / "program").write_text(source)
        command = [sys.executable, "program"] if language == "python" else ["sh", "program"]
    exact = bool(chosen.randrange(3)) or not {13, 25}.isdisjoint(spec.ignored)
    if signal.SIGCHLD in spec.ignored:  # sh forgets that
        exact, spec.ignored = False, [one for one in spec.ignored if one not in (13, 25)]
    watch = [shared.command] if exact else [sys.executable, "-m", "microbench"]
    both = []
    for name, line in (("alone", command), ("watched", [*watch, "watch", "--", *command])):
        both.append(supervised(place.root / "run", line, spec, shared, language, exact))
        (place.root / "run").rename(place.root / name)  # a program may print where it is
    faults = list(differences(spec, *both))
    (place.root / "report.txt").write_text("\n".join([*faults, "", json.dumps(spec.parts), source, repr(vars(spec))]))
    assert not faults, "; ".join(faults)[:600]
    return None


def supervised(
    root: Path, command: list[str], spec: Spec, shared: Grounds, language: str, exact: bool
) -> dict[str, Any]:
    """Run a command in a fresh folder, as a shell would, and say how it went."""
    here, temporary = root / "here", root / "tmp"
    for folder in (here, temporary):
        folder.mkdir(parents=True)
    shutil.copy(root.parent / "program", here)
    path = [str(shared.stage.site)] if "BROKEN" not in spec.variables else [str(shared.broken)]
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(root), "HERE": str(here), "TMPDIR": str(temporary), "TERM": "dumb",
        "MICROBENCH_DATA": str(root / "data"), **shared.found(language), **spec.variables,
        "XDG_CACHE_HOME": str(shared.stage.folder / "cache"),
        "PYTHONPATH": os.pathsep.join([*path, *([] if exact else [str(ROOT)])]),
    }  # fmt: skip
    (here / "stdin").write_bytes(b"one\ntwo\nthree")
    asked = {
        "command": command, "environment": environment, "here": str(here), "terminal": spec.terminal,
        "ignored": spec.ignored, "blocked": spec.blocked, "closed": spec.closed, "umask": spec.umask, "nice": spec.nice,
        "files": spec.files, "actions": spec.actions, "longest_s": LONGEST_S,
    }  # fmt: skip
    (root / "asked.json").write_text(json.dumps(asked))
    said = subprocess.run(
        [sys.executable, "-I", "-S", __file__, str(root / "asked.json")], capture_output=True, check=False,
        start_new_session=True, stdin=subprocess.DEVNULL, env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert said.returncode == 0, f"the supervisor failed: {said.stderr.decode()[-400:]}"
    result: dict[str, Any] = json.loads(said.stdout)
    result["files"] = dict(sorted(found_in(here)))
    result["temporary"] = sorted(path.name for path in temporary.rglob("*"))
    (root / "result.json").write_text(json.dumps(result, indent=1))
    return result


def found_in(folder: Path) -> Any:
    for path in folder.rglob("*"):
        name, about = str(path.relative_to(folder)), path.lstat()
        if not name.startswith("recording-") and "__pycache__" not in name:
            content = path.read_bytes().hex() if stat.S_ISREG(about.st_mode) else ""
            yield name, [oct(about.st_mode), content]


def differences(spec: Spec, alone: dict[str, Any], watched: dict[str, Any]) -> Any:
    """What is not the same, in words."""
    if alone["status"] is None:
        yield "the program does not end by itself"
        return
    for key in ("status", "events", "files", "temporary", "left"):
        if alone[key] != watched[key]:
            yield f"{key}: {str(alone[key])[:200]} alone, {str(watched[key])[:200]} watched"
    if not spec.terminal and alone["out"] != watched["out"]:
        yield f"output: {alone['out'][-200:]!r} alone, {watched['out'][-200:]!r} watched"
    errors = "out" if spec.terminal else "err"
    if not watched[errors].startswith(alone[errors]):
        yield f"errors: {alone[errors][-200:]!r} alone, {watched[errors][:400]!r} watched"
    more = watched[errors][len(alone[errors]) :]
    if "Traceback" in more or "Exception" in more or "Error:" in more:
        yield f"a traceback of microbench: {more[-300:]!r}"
    if 2 in spec.closed or (watched["status"] or 0) < 0 or watched["status"] in (92, 134):
        return
    if spec.steps and "py_ends" not in spec.parts and "recorded" not in more:
        yield f"{spec.steps} steps are not recorded: {more[-300:]!r}"
    if not spec.steps and "not recorded: " not in more:
        yield f"no reason is said: {more[-300:]!r}"
    if spec.told and not spec.steps and "forked" not in more and "Traceback" not in str(alone["err"]):
        yield f"the fork is not said: {more[-300:]!r}"


PROGRAMS = {f"watched_{language}": partial(run_one, language=language) for language in PARTS}


# The supervisor: what a shell does. It is a process of its own, without packages.


def supervise(asked: dict[str, Any]) -> dict[str, Any]:
    """Run a command in a process group of its own, in front of a terminal or with pipes, and do what is asked to it."""
    os.chdir(asked["here"])
    front = asked["terminal"]
    if front:
        ours, theirs = pty.openpty()
        modes = termios.tcgetattr(theirs)
        modes[3] &= ~termios.ECHO
        modes[1] &= ~termios.OPOST
        termios.tcsetattr(theirs, termios.TCSANOW, modes)
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, b"\x18\x00\x50\x00\x00\x00\x00\x00")
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        streams, reading = [theirs] * 3, {ours: "out"}
        os.write(ours, b"one\ntwo\n" + 9 * b"\x04")  # each who reads further gets an end
    else:
        (out_r, out_w), (err_r, err_w) = os.pipe(), os.pipe()
        streams, reading = [os.open("stdin", os.O_RDONLY), out_w, err_w], {out_r: "out", err_r: "err"}
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans are seen
    process = os.fork()
    if not process:
        begin(asked, streams, front)
    with suppress(OSError):
        os.setpgid(process, process)
    if front:
        os.tcsetpgrp(ours, process)
    for one in set(streams):
        os.close(one)
    got, events, actions, status = {"out": b"", "err": b""}, list[str](), list(asked["actions"]), None
    until_s, marks = time.monotonic() + asked["longest_s"], 0
    while reading or status is None:
        if time.monotonic() > until_s:
            events.append("hung")
            with suppress(OSError):
                os.killpg(process, signal.SIGKILL)
            break
        for one in select.select(list(reading), [], [], 0.02)[0]:
            data = b""
            with suppress(OSError):  # the other end of a terminal is closed
                data = os.read(one, 1 << 16)
            if data:
                got[reading[one]] += data
            else:
                del reading[one]
        if status is None:
            ended, found = os.waitpid(process, os.WNOHANG | os.WUNTRACED)
            if ended and os.WIFSTOPPED(found):
                events.append(f"stopped by {os.WSTOPSIG(found)}")
                how = actions.pop(0)[1] if actions and actions[0][0] == "stopped" else "killpg"
                time.sleep(0.1)
                if front:
                    os.tcsetpgrp(ours, process)
                if how != "nobody":
                    (os.killpg if how == "killpg" else os.kill)(process, signal.SIGCONT)
            elif ended:
                status = os.waitstatus_to_exitcode(found)
        while got["out"].replace(b"\r", b"").count(MARK) > marks and status is None:
            marks += 1
            if not actions or actions[0][0] == "stopped":
                break
            how, number = actions.pop(0)
            with suppress(OSError):
                (os.killpg if how == "killpg" else os.kill)(process, number)
    left = remaining(asked["longest_s"] if status is None else 10)
    said = {name: data.decode("latin-1") for name, data in got.items()}
    return {"status": status, "events": events, "left": left, **said}


def begin(asked: dict[str, Any], streams: list[int], front: bool) -> None:
    """Become the command, under the conditions that are asked."""
    try:
        os.setpgid(0, 0)
        if front:
            os.tcsetpgrp(streams[0], os.getpid())
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN if number in asked["ignored"] else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, asked["blocked"])
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (asked["files"], asked["files"]))
        os.umask(asked["umask"])
        os.nice(asked["nice"])
        copies = [fcntl.fcntl(one, fcntl.F_DUPFD, 50) for one in streams]
        for number, one in enumerate(copies):
            os.dup2(one, number)
        for number in asked["closed"]:
            os.close(number)
        os.closerange(3, 256)
        os.execvpe(asked["command"][0], asked["command"], asked["environment"])
    finally:
        os._exit(77)


def remaining(longest_s: float) -> int:
    """Wait for all other processes of the session, and say how many did not end."""
    until_s, own = time.monotonic() + longest_s, os.getpid()
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        found = []
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError):
                if int(name) != own and os.getsid(int(name)) == own:
                    found.append(int(name))
        if not found:
            return 0
        if time.monotonic() > until_s:
            for one in found:
                with suppress(OSError):
                    os.kill(one, signal.SIGKILL)
            return len(found)
        time.sleep(0.02)


if __name__ == "__main__":
    json.dump(supervise(json.loads(Path(sys.argv[1]).read_text())), sys.stdout)
