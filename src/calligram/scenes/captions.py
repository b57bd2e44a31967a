"""Captions of a scene: sentences with a query that is true of the scene."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from calligram.scenes.people import PERSON_KINDS
from calligram.scenes.phrases import NounPhrase, SceneCaption, SentenceBuilder, name_things, write_distinct
from calligram.scenes.truth import SceneView, is_true

OUTDOOR_SETTINGS = ("park", "beach", "street", "snow", "desert", "farm", "lake", "forest")

PLACE_PHRASES: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "park": (
        ("in the park", ("park",)),
        ("in a park", ("park",)),
        ("in a green park", ("park",)),
        ("on the grass", ("park", "farm", "lake")),
    ),
    "beach": (
        ("on the beach", ("beach",)),
        ("at the beach", ("beach",)),
        ("by the sea", ("beach",)),
        ("by the water", ("beach", "lake")),
    ),
    "street": (("on the street", ("street",)), ("in the city", ("street",)), ("on a city street", ("street",))),
    "snow": (("in the snow", ("snow",)), ("on a snowy field", ("snow",)), ("in a snowy landscape", ("snow",))),
    "desert": (("in the desert", ("desert",)), ("in a desert", ("desert",)), ("on the sand", ("desert", "beach"))),
    "farm": (("on a farm", ("farm",)), ("on the farm", ("farm",)), ("in a farm field", ("farm",))),
    "lake": (
        ("by the lake", ("lake",)),
        ("at a lake", ("lake",)),
        ("at a mountain lake", ("lake",)),
        ("by the water", ("beach", "lake")),
    ),
    "forest": (("in the forest", ("forest",)), ("in the woods", ("forest",)), ("in a forest", ("forest",))),
    "room": (
        ("in the living room", ("room",)),
        ("in a room", ("room",)),
        ("indoors", ("room",)),
        ("inside", ("room",)),
    ),
}
"""phrases for each setting, with all settings that the phrase is true of"""

OUTDOOR_PHRASES = (("outdoors", OUTDOOR_SETTINGS), ("outside", OUTDOOR_SETTINGS))

SCENE_NAMES: Mapping[str, str] = {
    "park": "park scene",
    "beach": "beach scene",
    "street": "street scene",
    "snow": "snowy scene",
    "desert": "desert scene",
    "farm": "farm scene",
    "lake": "lake scene",
    "forest": "forest scene",
    "room": "scene in a living room",
}

TIME_PHRASES: Mapping[str, tuple[str, ...]] = {
    "day": ("on a sunny day", "during the day", "in daylight"),
    "sunset": ("at sunset", "at dusk", "as the sun sets"),
    "night": ("at night", "in the moonlight", "under the moon"),
}

VERB_FORMS: Mapping[str, tuple[str, str, str]] = {
    "standing": ("standing", "stands", "stand"),
    "walking": ("walking", "walks", "walk"),
    "running": ("running", "runs", "run"),
    "jumping": ("jumping", "jumps", "jump"),
    "waving": ("waving", "waves", "wave"),
    "sitting": ("sitting", "sits", "sit"),
    "flying": ("flying", "flies", "fly"),
    "swimming": ("swimming", "swims", "swim"),
    "riding": ("riding", "rides", "ride"),
    "holding": ("holding", "holds", "hold"),
}
"""verb forms: progressive, third person singular, plural"""

RELATION_PHRASES: Mapping[str, tuple[str, ...]] = {
    "left of": ("to the left of", "on the left of", "left of"),
    "right of": ("to the right of", "on the right of", "right of"),
    "next to": ("next to", "beside", "close to"),
    "in front of": ("in front of",),
    "behind": ("behind",),
    "under": ("under", "beneath"),
    "on": ("on",),
}

EXTRA_PHRASES = ("nearby", "in the picture", "in view")


def write_captions(rng: random.Random, view: SceneView, count: int) -> list[SceneCaption]:
    """Write ``count`` different captions that are true of the scene."""

    def write() -> SceneCaption | None:
        caption = write_caption(rng, view)
        return caption if is_true(caption.query, view) else None

    return write_distinct(write, count)


def write_caption(rng: random.Random, view: SceneView) -> SceneCaption:
    """Write one caption. Its query can be false if a general noun covers more things than its number; check it."""
    groups = _group_things(rng, view)
    wanted = rng.choice((1, 1, 2, 2, 2, 3)) if len(groups) > 1 else 1
    detail = rng.choice((0.0, 0.3, 0.6)) if wanted > 1 else rng.choice((0.2, 0.6, 1.0))
    phrases = [name_things(rng, view.facts, group, detail) for group in groups[:wanted]]
    sentence = SentenceBuilder()
    place, when = _place_phrase(rng, view, sentence, 0.75), _time_phrase(rng, view, sentence)
    form = rng.random()
    if form < 0.12:
        _write_scene(sentence, phrases, view, when)
        return sentence.finish()
    if place and form < 0.22:
        sentence.pieces += [place, ","]
        place = ""
    if form < 0.36 and len(phrases) > 1:
        _write_list(sentence, phrases)
    else:
        _write_action(rng, sentence, phrases, view)
    sentence.pieces += [words for words in (place, when) if words]
    return sentence.finish()


def _group_things(rng: random.Random, view: SceneView) -> list[tuple[int, ...]]:
    """Groups of things that one phrase names: people mostly one by one, other things mostly by kind."""
    by_kind: dict[str, list[int]] = {}
    for i, facts in enumerate(view.facts):
        by_kind.setdefault(facts["kind"], []).append(i)
    groups: list[tuple[int, ...]] = []
    for kind, things in by_kind.items():
        alone = rng.random() < (0.75 if kind in PERSON_KINDS else 0.15)
        groups += [(i,) for i in things] if alone else [tuple(things)]
    rng.shuffle(groups)
    # In most sentences people come first, as in real captions.
    if rng.random() < 0.75:
        groups.sort(key=lambda group: view.facts[group[0]]["kind"] not in PERSON_KINDS)
    return groups


def _place_phrase(rng: random.Random, view: SceneView, sentence: SentenceBuilder, probability: float) -> str:
    if rng.random() > probability:
        return ""
    choices = OUTDOOR_PHRASES if view.setting != "room" and rng.random() < 0.06 else PLACE_PHRASES[view.setting]
    words, sentence.settings = rng.choice(choices)
    return words


def _time_phrase(rng: random.Random, view: SceneView, sentence: SentenceBuilder) -> str:
    if rng.random() > (0.3 if view.time == "day" else 0.6):
        return ""
    sentence.times = (view.time,)
    return rng.choice(TIME_PHRASES[view.time])


def _write_scene(sentence: SentenceBuilder, phrases: Sequence[NounPhrase], view: SceneView, when: str) -> None:
    """Write a sentence such as "a park scene at night with a man and a dog"."""
    sentence.settings = (view.setting,)
    sentence.pieces += [words for words in (f"a {SCENE_NAMES[view.setting]}", when, "with") if words]
    _write_list(sentence, phrases)


def _write_list(sentence: SentenceBuilder, phrases: Sequence[NounPhrase]) -> None:
    """Write a list such as "a man, a dog and a tree"; "along with" replaces "and" if a phrase contains "and"."""
    nested = any(" and " in phrase.text for phrase in phrases[:-1])
    for k, phrase in enumerate(phrases):
        if k and k == len(phrases) - 1:
            sentence.pieces.append(", along with" if nested else "and")
        elif k:
            sentence.pieces.append(",")
        sentence.name(phrase)


def _write_action(
    rng: random.Random, sentence: SentenceBuilder, phrases: Sequence[NounPhrase], view: SceneView
) -> None:
    """Write a subject with an action, a second phrase with its relation to the subject, and further phrases."""
    subject, *others = phrases
    there = rng.random() < 0.12
    if there:
        sentence.pieces.append("there are" if subject.plural else "there is")
    sentence.name(subject)
    plain = there or rng.random() < 0.3
    link = _choose_relation(rng, view, subject, others[0]) if others else ""
    if link in ("holding", "riding"):
        _add_verb(sentence, subject, link, plain)
    elif not _add_pose(rng, sentence, view, plain) and link and not plain:
        sentence.pieces.append("are" if subject.plural else "is")
    if others:
        _add_second_phrase(rng, sentence, others[0], link, plain)
    for phrase in others[1:]:
        _add_extra_phrase(rng, sentence, phrase)


def _add_pose(rng: random.Random, sentence: SentenceBuilder, view: SceneView, plain: bool) -> bool:
    """Add the common pose of the subject in about half of the sentences; returns whether it was added."""
    subject = sentence.phrases[0]
    pose = _common_pose(view, subject)
    if not pose or pose == "riding" or rng.random() > 0.5:
        return False
    sentence.claim(0, "pose", pose)
    _add_verb(sentence, subject, pose, plain)
    return True


def _add_second_phrase(
    rng: random.Random, sentence: SentenceBuilder, other: NounPhrase, link: str, plain: bool
) -> None:
    """Add the second phrase, with its relation to the subject if there is one."""
    if not link and not plain:
        _add_extra_phrase(rng, sentence, other)
        return
    if link in RELATION_PHRASES:
        sentence.pieces.append(rng.choice(RELATION_PHRASES[link]))
    elif not link:
        sentence.pieces.append("with")
    number = sentence.name(other)
    if link:
        sentence.links.append((0, link, number))


def _add_extra_phrase(rng: random.Random, sentence: SentenceBuilder, phrase: NounPhrase) -> None:
    sentence.pieces.append(", with")
    sentence.name(phrase)
    sentence.pieces.append(rng.choice(EXTRA_PHRASES))


def _add_verb(sentence: SentenceBuilder, subject: NounPhrase, action: str, plain: bool) -> None:
    """Add a verb: "a man running" if ``plain``, otherwise "a man is running" or "a man runs"."""
    progressive, one, many = VERB_FORMS[action]
    if plain:
        sentence.pieces.append(progressive)
    elif len(subject.text) % 2:
        sentence.pieces.append(("are " if subject.plural else "is ") + progressive)
    else:
        sentence.pieces.append(many if subject.plural else one)


def _common_pose(view: SceneView, phrase: NounPhrase) -> str:
    poses = {view.facts[i].get("pose", "") for i in phrase.things}
    return poses.pop() if len(poses) == 1 else ""


def _choose_relation(rng: random.Random, view: SceneView, subject: NounPhrase, other: NounPhrase) -> str:
    """A relation between all things of both phrases; staged relations have priority. Empty if there is none."""
    common = set(VERB_FORMS) | set(RELATION_PHRASES)
    for i in subject.things:
        for j in other.things:
            common &= {name for a, name, b in view.relations if (a, b) == (i, j)}
    for staged in ("holding", "riding", "on"):
        if staged in common:
            return staged
    return rng.choice(sorted(common)) if common and rng.random() < 0.5 else ""
