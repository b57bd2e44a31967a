"""Kill verbs of every kind with signal 9 at random moments, several at a time, and see what they leave.

A batch restores a workspace, starts several verbs side by side, and kills each at a random moment. Then each verb runs
once more to its end. What a killed verb made must be whole or absent; afterwards all folders must be undamaged, every
verb must have done its work, and nothing of the killed processes may be left behind.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from verbs import Ending
from workspace import VERBS, Child, Workspace, in_child, wanted

from calligram.files import remove_leftovers

BATCH_VERBS = 6
"""that run at the same time"""
ALLOWED = ("is being written to by", "has changed since it was opened", "has no item with the id or path")
"""in errors of a verb that meets others at work, or that had done its work when it was killed"""


class Kills:
    """Counts of kills by verb."""

    def __init__(self, work: Path, seed: int, verbs: Sequence[str] = tuple(VERBS)) -> None:
        self.workspace, self.draw, self.verbs = Workspace(work, verbs), random.Random(seed), verbs
        self.kills, self.done = Counter[str](), Counter[str]()
        self.seconds: dict[str, float] = {}
        self.whole: dict[str, object] = {}
        for name in verbs:
            self._measure(name)

    def _measure(self, name: str) -> None:
        """Run a verb undisturbed, for its time and for what it makes."""
        self.workspace.restore()
        started = time.monotonic()
        wanted(Ending(*in_child(name, lambda: list(self.workspace.run(name)))))
        self.seconds[name] = time.monotonic() - started
        if VERBS[name].makes:
            self.whole[name] = self._made(name)

    def _made(self, name: str) -> object:
        """What a verb has made: names of files in a folder, or the bytes of a file; None if there is nothing."""
        made = self.workspace.folder / VERBS[name].makes
        if made.is_dir():
            return sorted(str(file.relative_to(made)) for file in made.rglob("*") if ".lock" not in file.name)
        return len(made.read_bytes()) if made.is_file() else None

    def batch(self) -> None:
        """Kill some verbs, those with the fewest kills first, and compare."""
        self.workspace.restore()
        chosen = sorted(self.verbs, key=lambda name: (self.kills[name], self.draw.random()))[:BATCH_VERBS]
        self.draw.shuffle(chosen)
        children = {name: self._start(name) for name in chosen}
        for name, child in children.items():
            answer = child.wait()
            self.kills[name] += answer is None
            self.done[name] += answer is not None
            if answer is not None:
                self.seconds[name] = (self.seconds[name] + answer["seconds"]) / 2
                self._judge(name, answer.get("answer") or [str(answer), "", ""])
            if (made := VERBS[name].makes) and self._made(name) not in (None, self.whole[name]):
                raise AssertionError(f"{name} was killed, and {made} is half there: {self._made(name)}")
        problems = in_child("again", lambda: self._again(chosen))
        if problems:
            raise AssertionError(f"after kills of {', '.join(chosen)}: {problems}")

    def _start(self, name: str) -> Child:
        after = self.draw.uniform(0, 1.3 * self.seconds[name])  # more, so that kills also fall on the last moments
        return Child(name, lambda: list(self.workspace.run(name)), after)

    def _judge(self, name: str, ending: Sequence[object]) -> None:
        code, _, err = ending
        if code != 0 and not any(words in str(err) for words in ALLOWED):
            raise AssertionError(f"{name}: {code} {err}")

    def _again(self, names: Sequence[str]) -> list[str]:
        """Run verbs to their end, one after the other; returns what is wrong then."""
        found = []
        for name in names:
            there = VERBS[name].makes and self._made(name) is not None
            if there:  # it was done before it could be killed; the next command that writes there begins with this
                remove_leftovers(self.workspace.folder / VERBS[name].makes)
                continue
            ended = self.workspace.run(name, again=(self.workspace.folder / f"new_{name}").exists())
            if ended.code != 0 and not any(words in ended.err for words in ALLOWED):
                found.append(f"{name}: {ended.code} {ended.err[-500:]}")
            elif VERBS[name].makes and self._made(name) != self.whole[name]:
                found.append(f"{name} makes something else than undisturbed: {self._made(name)}")
        wanted(self.workspace.run("index"))  # it removes what killed processes left in the library
        found += self.workspace.damage()
        left = [path for path in self.workspace.folder.rglob(".*") if "partial" in path.name or "writing" in path.name]
        return [*found, *(f"left behind: {path}" for path in left)]

    def table(self) -> list[str]:
        """Lines with the kills of each verb."""
        return [f"{name:20} {self.kills[name]:4} kills {self.done[name]:5} to the end" for name in self.verbs]
