"""When a caption is true of a scene, and every scene that each caption is true of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from calligram.scenes.world import Facts, Scene, find_relations

# What a caption claims, apart from its words.

Constraint = tuple[str, tuple[str, ...]]
"""a fact's name, and the values it may have; a general word such as "vehicle" allows several"""


@dataclass(frozen=True)
class ThingPattern:
    """What one noun phrase says of what it names."""

    constraints: tuple[Constraint, ...]
    count: int | None = None
    """exactly so many things are like this; None: at least one is"""


@dataclass(frozen=True)
class SceneQuery:
    """The claims of a caption: things that are there, how they lie to each other, where and when."""

    patterns: tuple[ThingPattern, ...]
    links: tuple[tuple[int, str, int], ...] = ()
    """(pattern, relation, pattern); with a count, the relation holds for each thing of the group"""
    settings: tuple[str, ...] = ()
    times: tuple[str, ...] = ()

    def to_json(self) -> str:
        """For the captions table."""
        return json.dumps(
            {
                "things": [
                    {"is": dict(p.constraints), **({"count": p.count} if p.count else {})} for p in self.patterns
                ],
                "links": self.links,
                "settings": self.settings,
                "times": self.times,
            },
            ensure_ascii=False,
        )


Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SceneView:
    """A scene as truth sees it: facts and relations, no drawing."""

    setting: str
    time: str
    facts: tuple[Facts, ...]
    relations: frozenset[tuple[int, str, int]]

    @classmethod
    def of(cls, scene: Scene) -> SceneView:
        """What captions can speak of in a scene."""
        facts = tuple(thing.facts for thing in scene.things)
        return cls(scene.setting, scene.time, facts, frozenset(find_relations(scene)))


def fits_pattern(facts: Facts, pattern: ThingPattern) -> bool:
    """Whether a thing is as the pattern says, its number aside."""
    return all(facts.get(name) in allowed for name, allowed in pattern.constraints)


def is_true(query: SceneQuery, view: SceneView) -> bool:
    """Whether the scene has distinct things for every pattern, in the relations claimed."""
    if query.settings and view.setting not in query.settings:
        return False
    if query.times and view.time not in query.times:
        return False
    options: list[list[tuple[int, ...]]] = []
    for pattern in query.patterns:
        like = [i for i, facts in enumerate(view.facts) if fits_pattern(facts, pattern)]
        if pattern.count is None:
            options.append([(i,) for i in like])
        elif len(like) == pattern.count:
            options.append([tuple(like)])
        else:
            return False
    return _assign(query, view, options, [])


def _assign(
    query: SceneQuery, view: SceneView, options: list[list[tuple[int, ...]]], chosen: list[tuple[int, ...]]
) -> bool:
    """Search for distinct things, pattern by pattern."""
    if len(chosen) == len(options):
        return all((i, name, j) in view.relations for a, name, b in query.links for i in chosen[a] for j in chosen[b])
    taken = {i for group in chosen for i in group}
    return any(
        taken.isdisjoint(group) and _assign(query, view, options, [*chosen, group]) for group in options[len(chosen)]
    )


class TruePairFinder:
    """Finds the scenes a caption is true of, among many, without trying each.

    Facts are held as columns of codes over all things; a pattern is a few comparisons of whole columns. Only scenes
    that have a thing for every pattern are then searched exactly.
    """

    def __init__(self, views: Sequence[SceneView]) -> None:
        self._views = views
        self._scene_of = np.repeat(np.arange(len(views)), [len(v.facts) for v in views])
        self._settings = np.array([v.setting for v in views])
        self._times = np.array([v.time for v in views])
        self._known: dict[ThingPattern, Bools] = {}
        self._columns: dict[Constraint, Bools] = {}

    @cached_property
    def _facts(self) -> list[Facts]:
        return [facts for view in self._views for facts in view.facts]

    def scenes_of(self, query: SceneQuery) -> Ints:
        """Rows of the scenes that the query is true of, ascending."""
        likely = np.ones(len(self._views), dtype=bool)
        if query.settings:
            likely &= np.isin(self._settings, query.settings)
        if query.times:
            likely &= np.isin(self._times, query.times)
        for pattern in query.patterns:
            likely &= self._having(pattern)
        rows = np.flatnonzero(likely)
        if len(query.patterns) == 1 and not query.links:
            return rows
        return np.array([row for row in rows.tolist() if is_true(query, self._views[row])], dtype=np.int64)

    def _having(self, pattern: ThingPattern) -> Bools:
        if pattern not in self._known:
            like = np.ones(len(self._scene_of), dtype=bool)
            for constraint in pattern.constraints:
                like &= self._allowed(constraint)
            counts = np.bincount(self._scene_of[like], minlength=len(self._views))
            self._known[pattern] = counts > 0 if pattern.count is None else counts == pattern.count
        return self._known[pattern]

    def _allowed(self, constraint: Constraint) -> Bools:
        if constraint not in self._columns:
            name, values = constraint
            wanted = set(values)
            self._columns[constraint] = np.array([facts.get(name) in wanted for facts in self._facts], dtype=bool)
        return self._columns[constraint]


def find_true_pairs(views: Sequence[SceneView], queries: Sequence[SceneQuery]) -> Ints:
    """Every true pair as (N, 2) rows of scene and caption, by scene and then by caption."""
    finder = TruePairFinder(views)
    found = [finder.scenes_of(query) for query in queries]
    captions = np.repeat(np.arange(len(queries)), [len(rows) for rows in found])
    scenes = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
    order = np.lexsort((captions, scenes))
    return np.stack([scenes[order], captions[order]], axis=1).astype(np.int64)
