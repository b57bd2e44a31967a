"""Run all verbs on a machine that fails: full disk, read-only disk, wrong permissions, little memory, wrong clock.

    python tests/hostile/machine.py [TRIALS] [SEED] [CONDITION|VERB ...]

Each trial restores a workspace, makes the machine hostile, and runs one verb. It must end with its answer, or with one
line of error and exit code 2. Afterwards all folders must be undamaged, what the verb makes must be whole or absent,
and the same verb must succeed on a machine that is well. Disks are small file systems in memory (as root), else limits
of the size of files. Permissions are tried as the user ``nobody``, because root may do everything. The clock jumps if
``faketime`` is installed.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from verbs import Ending
from workspace import CHECKED, LONGEST_SECONDS, VERBS, Child, Workspace, in_child

NOBODY = 65534
PAGE_BYTES, DISK_BYTES = 4096, 128 << 20
FILLER = ".filler"
MEMORY_LIMITS = (700_000_000, 1_200_000_000, 1_700_000_000, 2_200_000_000, 2_600_000_000)
"""most verbs need 2.3 to 3 GB of address space, and 0.4 GB of memory"""
CLOCK_JUMPS = ("-20000d", "-3650d", "-2h", "+2h", "+3650d", "+36500d")
"""for the program ``faketime``, where it is installed"""
DATES = (0.0, 1.0, 946_684_800.0, time.time() - 7200, time.time() + 7200, 4_102_444_800.0, 16_725_225_600.0)
"""1970, 2000, two hours ago, in two hours, 2100, 2500"""


class Trial(NamedTuple):
    """How a verb ended on a hostile machine."""

    condition: str
    verb: str
    what: str
    ending: Ending
    problem: str = ""

    @property
    def is_fine(self) -> bool:
        """Whether it ended as it should, and everything was well afterwards."""
        return self.ending.is_fine and not self.problem


Condition = Callable[[str], contextlib.AbstractContextManager[tuple[str, Ending]]]


class Machine:
    """A workspace and the ways in which its machine fails.

    A condition runs a verb, makes the machine well again, and gives what failed and how the verb ended.
    """

    def __init__(self, work: Path, draw: random.Random, verbs: Sequence[str]) -> None:
        self.workspace, self.draw = Workspace(work, verbs), draw
        self.folder = self.workspace.folder
        self.written: dict[str, int] = {}
        self.mounts = self._can_mount()
        self.conditions: dict[str, Condition] = {
            "full disk": self._full_disk if self.mounts else self._small_files,
            **({"read-only disk": self._read_only_disk} if self.mounts else {}),
            **({"permissions": self._permissions} if os.getuid() == 0 else {}),
            "little memory": self._little_memory,
            "wrong dates": self._wrong_dates,
            **({"wrong clock": self._wrong_clock} if shutil.which("faketime") else {}),
        }

    def _can_mount(self) -> bool:
        if os.getuid() != 0 or shutil.which("mount") is None:
            return False
        self.folder.mkdir(exist_ok=True)
        with _disk(self.folder, 1 << 20) as mounted:
            return mounted

    def trial(self, condition: str, verb: str) -> Trial:
        """One trial."""
        with self.conditions[condition](verb) as (what, ending):
            return Trial(condition, verb, what, ending, self._problem(verb, ending))

    def _problem(self, verb: str, ending: Ending) -> str:
        """What is wrong after a verb, once the machine is well again."""
        makes = VERBS[verb].makes
        if ending.code != 0 and makes and (self.folder / makes).exists():
            return f"{makes} is there, although the verb failed"
        if damage := in_child("check", self.workspace.damage):
            return f"damage: {damage}"
        if ending.code == 0:
            return ""
        again = self._run(verb, again=True)
        done = again.code == 0 or "has no item with the id or path" in again.err  # it has forgotten, and failed then
        return "" if done else f"a second time, on a machine that is well: {again.code} {again.err[-300:]}"

    def _run(self, verb: str, prepare: Callable[[], object] = lambda: None, *, again: bool = False) -> Ending:
        """Run a verb in a child that first prepares itself."""

        def work() -> list[object]:
            prepare()
            return list(self.workspace.run(verb, again=again))

        with tempfile.TemporaryFile() as stream:
            shown = os.dup(2)
            os.dup2(stream.fileno(), 2)  # what C and Rust print when they give up
            try:
                answer = Child(verb, work).wait()
            finally:
                os.dup2(shown, 2)
                os.close(shown)
            stream.seek(0)
            printed = stream.read().decode("utf-8", "replace")
        assert answer is not None
        if "answer" not in answer:
            return Ending(str(answer["error"]), "", printed[-500:])
        return Ending(*answer["answer"])

    # Conditions.

    @contextlib.contextmanager
    def _full_disk(self, verb: str) -> Iterator[tuple[str, Ending]]:
        if verb not in self.written:
            self.written[verb] = self._measured(verb)
        free = self.draw.randrange(1 + self.written[verb] // PAGE_BYTES) * PAGE_BYTES
        with _disk(self.folder, DISK_BYTES):
            self.workspace.restore()
            _leave_free(self.folder, free)
            ending = self._run(verb)
            (self.folder / FILLER).unlink()
            yield f"{free} of {self.written[verb]} bytes are free", ending

    def _measured(self, verb: str) -> int:
        """Bytes that a verb takes from a disk."""
        with _disk(self.folder, DISK_BYTES):
            self.workspace.restore()
            before = least = shutil.disk_usage(self.folder).free
            child = Child(verb, lambda: list(self.workspace.run(verb)))
            while os.waitid(os.P_PID, child.process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                least = min(least, shutil.disk_usage(self.folder).free)
                time.sleep(0.002)
            child.wait()
            return before - min(least, shutil.disk_usage(self.folder).free)

    @contextlib.contextmanager
    def _small_files(self, verb: str) -> Iterator[tuple[str, Ending]]:
        self.workspace.restore()
        size = self.draw.choice((0, 1, 500, 4096, 20_000))
        ending = self._run(verb, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
        yield f"files of at most {size} bytes", ending

    @contextlib.contextmanager
    def _read_only_disk(self, verb: str) -> Iterator[tuple[str, Ending]]:
        with _disk(self.folder, DISK_BYTES):
            self.workspace.restore()
            subprocess.run(["mount", "-o", "remount,ro", self.folder], check=True)
            ending = self._run(verb)
            subprocess.run(["mount", "-o", "remount,rw", self.folder], check=True)
            yield "read-only", ending

    @contextlib.contextmanager
    def _permissions(self, verb: str) -> Iterator[tuple[str, Ending]]:
        self.workspace.restore()
        self.folder.parent.chmod(0o755)
        paths = sorted(self.folder.rglob("*"))
        for path in (self.folder, *paths):
            os.chown(path, NOBODY, NOBODY)
        used = {str(word).split("/")[0] for word in VERBS[verb].words}
        near = [path for path in paths if path.relative_to(self.folder).parts[0] in used] or paths
        path, mode = self.draw.choice(near), self.draw.choice((0o000, 0o444, 0o555))
        if self.draw.random() < 0.1:
            path, mode = self.folder, 0o555
        before = path.stat().st_mode & 0o7777
        path.chmod(mode)
        ending = self._run(verb, _become_nobody)
        if path.exists():
            path.chmod(before)
        yield f"{path.relative_to(self.folder.parent)} has the mode {mode:03o}", ending

    @contextlib.contextmanager
    def _little_memory(self, verb: str) -> Iterator[tuple[str, Ending]]:
        """A process of its own, because a verb that gets no memory may end its process."""
        self.workspace.restore()
        limit = self.draw.choice(MEMORY_LIMITS)
        done = subprocess.run(
            [sys.executable, "-m", "calligram", *map(str, VERBS[verb].words)],
            cwd=self.folder, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        )  # fmt: skip
        yield f"{limit / 1e9:g} GB of address space", Ending(done.returncode, done.stdout, done.stderr)

    @contextlib.contextmanager
    def _wrong_clock(self, verb: str) -> Iterator[tuple[str, Ending]]:
        """The clock jumps when the verb starts, and back when it has ended."""
        self.workspace.restore()
        jump = self.draw.choice(CLOCK_JUMPS)
        done = subprocess.run(
            ["faketime", "-m", "-f", jump, sys.executable, "-m", "calligram", *map(str, VERBS[verb].words)],
            cwd=self.folder, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False,
            env={**os.environ, "DONT_FAKE_MONOTONIC": "1"},
        )  # fmt: skip
        yield f"the clock jumps by {jump}", Ending(done.returncode, done.stdout, done.stderr)

    @contextlib.contextmanager
    def _wrong_dates(self, verb: str) -> Iterator[tuple[str, Ending]]:
        """Files with dates far away, as if the clock had jumped since they were written."""
        self.workspace.restore()
        moved = (*self.draw.sample(CHECKED, 2), "photos")
        for path in (path for name in moved for path in (self.folder / name).rglob("*")):
            when = self.draw.choice(DATES)
            os.utime(path, (when, when))
        yield f"other dates in {', '.join(moved)}", self._run(verb)


def _become_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


@contextlib.contextmanager
def _disk(folder: Path, size: int) -> Iterator[bool]:
    """Mount a disk of some bytes over a folder; gives whether the system allows it."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, check=False
    )
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            os.chdir("/")
            subprocess.run(["umount", "--lazy", folder], check=True)


def _leave_free(folder: Path, free: int) -> None:
    """Fill a disk up to some bytes."""
    with (folder / FILLER).open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, max(1, shutil.disk_usage(folder).free - free))


def trials(
    work: Path, count: int, seed: int = 0, conditions: Sequence[str] = (), verbs: Sequence[str] = tuple(VERBS)
) -> Iterator[Trial]:
    """Trials of all verbs on all machines, in turn."""
    draw = random.Random(seed)
    machine = Machine(work, draw, verbs)
    pairs = [(name, verb) for name in conditions or machine.conditions for verb in verbs]
    for number in range(count):
        if number % len(pairs) == 0:
            draw.shuffle(pairs)
        yield machine.trial(*pairs[number % len(pairs)])


def main() -> None:
    """Run the trials and print their counts; the exit code is 1 if one failed."""
    given = [int(word) for word in sys.argv[1:3]]
    count, seed = (*given, *(640, 0)[len(given) :])
    counts: Counter[tuple[str, str]] = Counter()
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        named, verbs = [word for word in sys.argv[3:] if word not in VERBS], [v for v in VERBS if v in sys.argv[3:]]
        for trial in trials(Path(folder), count, seed, named, verbs or tuple(VERBS)):
            counts[trial.condition, str(trial.ending.code).split(":")[0]] += 1
            if not trial.is_fine:
                failures += 1
                shown = f"{trial.ending.code} {trial.problem} {trial.ending.err[-300:]}"
                print(f"{trial.condition}: {trial.verb}, {trial.what}: {shown}", flush=True)
    for (condition, code), number in sorted(counts.items()):
        print(f"{condition:15} {number:4} with exit code {code}")
    print(f"{sum(counts.values())} trials, {failures} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
