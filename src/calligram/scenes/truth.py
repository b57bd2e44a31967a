"""The truth of captions: whether a caption is true of a scene, and all true pairs of a collection."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from calligram.scenes.world import Facts, Scene, find_relations

Constraint = tuple[str, tuple[str, ...]]
"""name of a fact, and its allowed values; a general word such as "vehicle" allows several"""
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ThingPattern:
    """The claim of one noun phrase: constraints on a thing, and the number of such things."""

    constraints: tuple[Constraint, ...]
    count: int | None = None
    """exact number of things that satisfy the constraints; None means at least one"""


@dataclass(frozen=True)
class SceneQuery:
    """All claims of a caption: things, relations between them, settings and times of day."""

    patterns: tuple[ThingPattern, ...]
    links: tuple[tuple[int, str, int], ...] = ()
    """(pattern, relation, pattern); for a pattern with a count, the relation holds for each thing of the group"""
    settings: tuple[str, ...] = ()
    times: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The query as JSON, for the table of captions."""
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


@dataclass(frozen=True)
class SceneView:
    """The facts and relations of a scene, without its drawing."""

    setting: str
    time: str
    facts: tuple[Facts, ...]
    relations: frozenset[tuple[int, str, int]]

    @classmethod
    def of(cls, scene: Scene) -> SceneView:
        """The facts and relations of ``scene``."""
        facts = tuple(thing.facts for thing in scene.things)
        return cls(scene.setting, scene.time, facts, frozenset(find_relations(scene)))


def fits_pattern(facts: Facts, pattern: ThingPattern) -> bool:
    """Whether a thing satisfies the constraints of a pattern, without its count."""
    return all(facts.get(name) in allowed for name, allowed in pattern.constraints)


def is_true(query: SceneQuery, view: SceneView) -> bool:
    """Whether a query is true of a scene: distinct things fit all patterns and have the claimed relations."""
    if query.settings and view.setting not in query.settings:
        return False
    if query.times and view.time not in query.times:
        return False
    options: list[list[tuple[int, ...]]] = []
    for pattern in query.patterns:
        fitting = [i for i, facts in enumerate(view.facts) if fits_pattern(facts, pattern)]
        if pattern.count is None:
            options.append([(i,) for i in fitting])
        elif len(fitting) == pattern.count:
            options.append([tuple(fitting)])
        else:
            return False
    return _assign(query, view, options, [])


def _assign(
    query: SceneQuery, view: SceneView, options: list[list[tuple[int, ...]]], chosen: list[tuple[int, ...]]
) -> bool:
    """Search for an assignment of distinct things to the patterns, one pattern after another."""
    if len(chosen) == len(options):
        return all((i, name, j) in view.relations for a, name, b in query.links for i in chosen[a] for j in chosen[b])
    taken = {i for group in chosen for i in group}
    return any(
        taken.isdisjoint(group) and _assign(query, view, options, [*chosen, group]) for group in options[len(chosen)]
    )


class TruePairFinder:
    """Finds all scenes that a query is true of, without testing each scene.

    Each constraint is a boolean column over all things of all scenes, and a pattern combines columns. Only scenes with
    a fitting thing for every pattern are then tested exactly.
    """

    def __init__(self, views: Sequence[SceneView]) -> None:
        self._views = views
        self._scene_of = np.repeat(np.arange(len(views)), [len(v.facts) for v in views])
        self._settings = np.array([v.setting for v in views])
        self._times = np.array([v.time for v in views])
        self._scenes_with_pattern: dict[ThingPattern, Bools] = {}
        self._columns: dict[Constraint, Bools] = {}

    @cached_property
    def _facts(self) -> list[Facts]:
        return [facts for view in self._views for facts in view.facts]

    def scenes_of(self, query: SceneQuery) -> Ints:
        """Rows of the scenes that the query is true of, in ascending order."""
        candidates = np.ones(len(self._views), dtype=bool)
        if query.settings:
            candidates &= np.isin(self._settings, query.settings)
        if query.times:
            candidates &= np.isin(self._times, query.times)
        for pattern in query.patterns:
            candidates &= self._scenes_with(pattern)
        rows = np.flatnonzero(candidates)
        if len(query.patterns) == 1 and not query.links:
            return rows
        return np.array([row for row in rows.tolist() if is_true(query, self._views[row])], dtype=np.int64)

    def _scenes_with(self, pattern: ThingPattern) -> Bools:
        if pattern not in self._scenes_with_pattern:
            fitting = np.ones(len(self._scene_of), dtype=bool)
            for constraint in pattern.constraints:
                fitting &= self._allowed(constraint)
            counts = np.bincount(self._scene_of[fitting], minlength=len(self._views))
            self._scenes_with_pattern[pattern] = counts > 0 if pattern.count is None else counts == pattern.count
        return self._scenes_with_pattern[pattern]

    def _allowed(self, constraint: Constraint) -> Bools:
        if constraint not in self._columns:
            name, values = constraint
            wanted = set(values)
            self._columns[constraint] = np.array([facts.get(name) in wanted for facts in self._facts], dtype=bool)
        return self._columns[constraint]


def find_true_pairs(views: Sequence[SceneView], queries: Sequence[SceneQuery]) -> Ints:
    """All true pairs as rows (scene, caption), (N, 2), sorted by scene and then by caption."""
    finder = TruePairFinder(views)
    found = [finder.scenes_of(query) for query in queries]
    captions = np.repeat(np.arange(len(queries)), [len(rows) for rows in found])
    scenes = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
    order = np.lexsort((captions, scenes))
    return np.stack([scenes[order], captions[order]], axis=1).astype(np.int64)
