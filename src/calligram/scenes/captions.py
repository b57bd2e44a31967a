"""Sentences about a scene, each from a query that the scene fulfils."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from calligram.scenes.people import PEOPLE
from calligram.scenes.phrases import Phrase, SceneCaption, Sentence, name_things, write_different
from calligram.scenes.truth import View, holds

# Ways to say what things do, how they lie, where and when.

OUTDOORS = ("park", "beach", "street", "snow", "desert", "farm", "lake", "forest")

PLACES: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
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
"""for each setting, words and the settings they are true of"""

OUTSIDE = (("outdoors", OUTDOORS), ("outside", OUTDOORS))

SCENES: Mapping[str, str] = {
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

WHEN: Mapping[str, tuple[str, ...]] = {
    "day": ("on a sunny day", "during the day", "in daylight"),
    "sunset": ("at sunset", "at dusk", "as the sun sets"),
    "night": ("at night", "in the moonlight", "under the moon"),
}

DEEDS: Mapping[str, tuple[str, str, str]] = {
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
"""progressive, singular, plural"""

LINKS: Mapping[str, tuple[str, ...]] = {
    "left of": ("to the left of", "on the left of", "left of"),
    "right of": ("to the right of", "on the right of", "right of"),
    "next to": ("next to", "beside", "close to"),
    "in front of": ("in front of",),
    "behind": ("behind",),
    "under": ("under", "beneath"),
    "on": ("on",),
}

EXTRAS = ("nearby", "in the picture", "in view")


def write_captions(rng: random.Random, view: View, count: int) -> list[SceneCaption]:
    """Write ``count`` different captions that are true of the scene."""

    def write() -> SceneCaption | None:
        caption = write_caption(rng, view)
        return caption if holds(caption.query, view) else None

    return write_different(write, count)


def write_caption(rng: random.Random, view: View) -> SceneCaption:
    """Write one caption. It may claim a wrong number where a general word covers more; the caller checks."""
    groups = _groups(rng, view)
    wanted = rng.choice((1, 1, 2, 2, 2, 3)) if len(groups) > 1 else 1
    rich = rng.choice((0.0, 0.3, 0.6)) if wanted > 1 else rng.choice((0.2, 0.6, 1.0))
    told = [name_things(rng, view.facts, group, rich) for group in groups[:wanted]]
    sentence = Sentence()
    place, when = _place(rng, view, sentence, 0.75), _when(rng, view, sentence)
    form = rng.random()
    if form < 0.12:
        _write_scene(sentence, told, view, when)
        return sentence.finish()
    if place and form < 0.22:
        sentence.pieces += [place, ","]
        place = ""
    if form < 0.36 and len(told) > 1:
        _write_list(sentence, told)
    else:
        _write_deed(rng, sentence, told, view)
    sentence.pieces += [words for words in (place, when) if words]
    return sentence.finish()


def _groups(rng: random.Random, view: View) -> list[tuple[int, ...]]:
    """Things to be named together: people mostly alone, other things by kind. The most striking come first."""
    by_kind: dict[str, list[int]] = {}
    for i, facts in enumerate(view.facts):
        by_kind.setdefault(facts["kind"], []).append(i)
    groups: list[tuple[int, ...]] = []
    for kind, things in by_kind.items():
        alone = rng.random() < (0.75 if kind in PEOPLE else 0.15)
        groups += [(i,) for i in things] if alone else [tuple(things)]
    rng.shuffle(groups)
    # People first in most sentences, as in real captions.
    if rng.random() < 0.75:
        groups.sort(key=lambda group: view.facts[group[0]]["kind"] not in PEOPLE)
    return groups


def _place(rng: random.Random, view: View, sentence: Sentence, often: float) -> str:
    if rng.random() > often:
        return ""
    choices = OUTSIDE if view.setting != "room" and rng.random() < 0.06 else PLACES[view.setting]
    words, sentence.settings = rng.choice(choices)
    return words


def _when(rng: random.Random, view: View, sentence: Sentence) -> str:
    if rng.random() > (0.3 if view.time == "day" else 0.6):
        return ""
    sentence.times = (view.time,)
    return rng.choice(WHEN[view.time])


def _write_scene(sentence: Sentence, told: Sequence[Phrase], view: View, when: str) -> None:
    """A park scene at night with a man and a dog."""
    sentence.settings = (view.setting,)
    sentence.pieces += [words for words in (f"a {SCENES[view.setting]}", when, "with") if words]
    _write_list(sentence, told)


def _write_list(sentence: Sentence, told: Sequence[Phrase]) -> None:
    """A man, a dog and a tree. Where a phrase has an "and" of its own, another word keeps them apart."""
    nested = any(" and " in phrase.text for phrase in told[:-1])
    for k, phrase in enumerate(told):
        if k and k == len(told) - 1:
            sentence.pieces.append(", along with" if nested else "and")
        elif k:
            sentence.pieces.append(",")
        sentence.name(phrase)


def _write_deed(rng: random.Random, sentence: Sentence, told: Sequence[Phrase], view: View) -> None:
    """Someone does something, maybe near something else, with a third thing in view."""
    subject, *others = told
    there = rng.random() < 0.12
    if there:
        sentence.pieces.append("there are" if subject.plural else "there is")
    sentence.name(subject)
    plain = there or rng.random() < 0.3
    link = _link(rng, view, subject, others[0]) if others else ""
    if link in ("holding", "riding"):
        _add_deed(sentence, subject, link, plain)
    elif not _tell_pose(rng, sentence, view, plain) and link and not plain:
        sentence.pieces.append("are" if subject.plural else "is")
    if others:
        _tell_other(rng, sentence, others[0], link, plain)
    for phrase in others[1:]:
        _tell_extra(rng, sentence, phrase)


def _tell_pose(rng: random.Random, sentence: Sentence, view: View, plain: bool) -> bool:
    """Mostly say what the subject does, where it does anything."""
    subject = sentence.phrases[0]
    pose = _common_pose(view, subject)
    if not pose or pose == "riding" or rng.random() > 0.5:
        return False
    sentence.claim(0, "pose", pose)
    _add_deed(sentence, subject, pose, plain)
    return True


def _tell_other(rng: random.Random, sentence: Sentence, other: Phrase, link: str, plain: bool) -> None:
    """Name the second thing after its relation to the subject, or merely as being there."""
    if not link and not plain:
        _tell_extra(rng, sentence, other)
        return
    if link in LINKS:
        sentence.pieces.append(rng.choice(LINKS[link]))
    elif not link:
        sentence.pieces.append("with")
    number = sentence.name(other)
    if link:
        sentence.links.append((0, link, number))


def _tell_extra(rng: random.Random, sentence: Sentence, phrase: Phrase) -> None:
    sentence.pieces.append(", with")
    sentence.name(phrase)
    sentence.pieces.append(rng.choice(EXTRAS))


def _add_deed(sentence: Sentence, subject: Phrase, deed: str, plain: bool) -> None:
    """Plain: a man running; otherwise by turns: a man is running, a man runs."""
    progressive, one, many = DEEDS[deed]
    if plain:
        sentence.pieces.append(progressive)
    elif len(subject.text) % 2:
        sentence.pieces.append(("are " if subject.plural else "is ") + progressive)
    else:
        sentence.pieces.append(many if subject.plural else one)


def _common_pose(view: View, phrase: Phrase) -> str:
    poses = {view.facts[i].get("pose", "") for i in phrase.things}
    return poses.pop() if len(poses) == 1 else ""


def _link(rng: random.Random, view: View, subject: Phrase, other: Phrase) -> str:
    """A relation between all of the one and all of the other; what was staged comes first."""
    common = set(DEEDS) | set(LINKS)
    for i in subject.things:
        for j in other.things:
            common &= {name for a, name, b in view.relations if (a, b) == (i, j)}
    for staged in ("holding", "riding", "on"):
        if staged in common:
            return staged
    return rng.choice(sorted(common)) if common and rng.random() < 0.5 else ""
