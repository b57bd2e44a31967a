"""Generate a collection of scenes: pictures, captions, boxes, identities, and all true pairs.

Images are generated in blocks. A block has its own cast and is in one split, so that no person is in two splits.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import random
import signal
import tarfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal

from calligram.data.collection import MANIFEST, Collection
from calligram.data.draft import CaptionRecord, Draft, ImageRecord, MetadataValue, PhraseRecord, RegionRecord, TarMember
from calligram.data.pictures import core_share
from calligram.data.write_collection import write_draft
from calligram.errors import UserError, unknown
from calligram.files import scratch_folder
from calligram.progress import Track, silent
from calligram.scenes.captions import write_captions
from calligram.scenes.drawing.paint import encode_png, paint_scene, picture_size
from calligram.scenes.layout import CastMember, compose_portrait, compose_scene, write_portrait_captions
from calligram.scenes.nouns import ANIMALS, GENERAL_NOUNS, TREES
from calligram.scenes.people import PERSON_KINDS, Appearance, sample_cast
from calligram.scenes.phrases import SceneCaption
from calligram.scenes.truth import SceneQuery, SceneView, find_true_pairs
from calligram.scenes.world import Scene, find_relations

SceneKind = Literal["scenes", "people"]


PICTURES_PER_SHARD = 5000
_JOBS_PER_CHUNK = 25
_MIN_IMAGES_FOR_WORKERS = 400
"""fewer images are generated in one process, because the start of workers would take longer"""


_BLOCK_SIZES: dict[str, tuple[int, int]] = {"scenes": (10, 4), "people": (7, 2)}
"""number of images in a block, and number of people in its cast"""


@dataclass(frozen=True)
class SceneJob:
    """The description of one image to generate: image ``index`` of a seed, with the people who can be in it."""

    kind: SceneKind
    seed: int
    index: int
    cast: tuple[CastMember, ...]
    size: int
    captions: int


@dataclass(frozen=True)
class GeneratedImage:
    """A generated image: its scene, its captions, and the picture as PNG."""

    scene: Scene
    captions: tuple[SceneCaption, ...]
    picture: bytes


def generate_scenes(
    folder: Path,
    *,
    images: int = 2000,
    seed: int = 0,
    size: int = 128,
    kind: SceneKind = "scenes",
    captions: int | None = None,
    splits: tuple[float, float, float] = (0.8, 0.1, 0.1),
    overwrite: bool = False,
    track: Track = silent,
    report: Callable[[str], None] = lambda line: None,
    workers: int | None = None,
) -> Collection:
    """Generate scenes and store them as a collection.

    Image i of a seed does not depend on the number of images, the size or the number of processes. Only its split
    depends on ``images``.

    Args:
        size: height of the pictures in pixels; scenes are square, portraits of people are 5:8.
        kind: ``scenes`` with several things each, or ``people`` with one large person each, for person search.
        captions: captions per image; when None, 5 for scenes and 2 for people.
        splits: shares of train, dev and test.
        report: called with lines about captions and regions that were added to a replaced collection.
        workers: number of processes; the number of cores when None.

    Raises:
        UserError: when an argument is out of range or the destination exists.
    """
    folder = Path(folder)
    captions = captions if captions is not None else (2 if kind == "people" else 5)
    _check_arguments(folder, images, size, kind, captions, splits, overwrite)
    workers = workers if workers is not None else (1 if images < _MIN_IMAGES_FOR_WORKERS else core_share())
    if workers < 1:
        raise UserError(f"workers must be at least 1, got {workers}")
    cast = sample_collection_cast(kind, seed, images)
    jobs = [SceneJob(kind, seed, i, cast_of_image(kind, i, cast), size, captions) for i in range(images)]
    with (
        scratch_folder(folder) as scratch,  # next to the destination, so that the tars can be hard-linked
        contextlib.closing(generate_images(jobs, workers)) as generated,  # drops waiting jobs after an error
    ):
        drawn = track(generated, "drawing scenes", images)
        draft = build_draft(drawn, scratch, jobs, split_by_block(kind, images, splits))
        draft.about["captions"] = captions
        return write_draft(draft, folder, overwrite=overwrite, track=track, report=report)


def _check_arguments(
    folder: Path, images: int, size: int, kind: str, captions: int, splits: tuple[float, float, float], overwrite: bool
) -> None:
    """Check the arguments before the generation starts."""
    if kind not in ("scenes", "people"):
        raise unknown("kind of scenes", kind, ["scenes", "people"])
    if images < 1:
        raise UserError(f"images must be at least 1, got {images}")
    if not 16 <= size <= 4096:
        raise UserError(f"size must lie in 16..4096 pixels, got {size}")
    if not 1 <= captions <= 20:
        raise UserError(f"captions must lie in 1..20, got {captions}")
    if len(splits) != 3 or min(splits) < 0 or abs(sum(splits) - 1) > 1e-6:
        raise UserError(f"splits must be three shares that add up to 1, got {splits}")
    if (folder / MANIFEST).is_file() and not overwrite:
        raise UserError(f"{folder} already holds a collection; choose another destination or give --overwrite")


def generate_images(jobs: Sequence[SceneJob], workers: int) -> Generator[GeneratedImage, None, None]:
    """Generate images in order, in this process or in several worker processes."""
    if workers <= 1:
        yield from map(generate_image, jobs)
        return
    with ProcessPoolExecutor(workers, initializer=_follow_parent) as pool:
        yield from pool.map(generate_image, jobs, chunksize=_JOBS_PER_CHUNK)


def _follow_parent() -> None:
    """End this worker with its parent only.

    A worker whose parent is killed would wait forever, and hold the lock of the scratch folder. A terminal sends Ctrl-C
    to workers too; if one ended while it held the lock of the jobs, the others and the parent would wait forever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def generate_image(job: SceneJob) -> GeneratedImage:
    """Generate the scene, the captions and the picture of one image. Equal jobs give equal bytes."""
    rng = random.Random(f"{job.seed}/captions/{job.index}")
    if job.kind == "people":
        scene = compose_portrait(job.seed, job.index, job.cast[0])
        captions = write_portrait_captions(rng, SceneView.of(scene), job.captions)
    else:
        scene = compose_scene(job.seed, job.index, job.cast)
        captions = write_captions(rng, SceneView.of(scene), job.captions)
    picture = encode_png(paint_scene(scene, job.size))
    # The figures are large and no longer needed, and the result is sent between processes.
    return GeneratedImage(replace(scene, figures=()), tuple(captions), picture)


class TarShardWriter:
    """Writes pictures to uncompressed tars, so that a collection has few files.

    Owner and time of members are empty, so that equal pictures give equal tars.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tar: tarfile.TarFile | None = None
        self._count = 0

    def add(self, name: str, picture: bytes) -> TarMember:
        """Append a picture; returns its position in the tar."""
        path = self._folder / f"pictures-{self._count // PICTURES_PER_SHARD:03d}.tar"
        if self._count % PICTURES_PER_SHARD == 0:
            self.close()
            self._tar = tarfile.open(path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115  closed by close()
        assert self._tar is not None
        member = tarfile.TarInfo(name)
        member.size = len(picture)
        # The data of a member follow its USTAR header, which is one block.
        start = self._tar.offset + tarfile.BLOCKSIZE
        self._tar.addfile(member, io.BytesIO(picture))
        self._count += 1
        return TarMember(path, name, start, len(picture))

    def close(self) -> None:
        """Close the current tar."""
        if self._tar is not None:
            self._tar.close()

    def __enter__(self) -> TarShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def build_draft(
    generated: Iterable[GeneratedImage], folder: Path, jobs: Sequence[SceneJob], splits: Sequence[str]
) -> Draft:
    """Write the pictures to tars in ``folder``, and return the records of all images as a draft."""
    first = jobs[0]
    draft = Draft(f"{first.kind}-{len(jobs)}-s{first.seed}")
    draft.about = {
        "generator": f"calligram {first.kind}",
        "seed": first.seed,
        "images": len(jobs),
        "size": first.size,
        "licence": "CC0-1.0",
    }
    prefix = "person" if first.kind == "people" else "scene"
    views: list[SceneView] = []
    queries: list[SceneQuery] = []
    with TarShardWriter(folder) as shards:
        for row, one in enumerate(generated):
            name = f"{prefix}-{row:06d}"
            draft.images.append(_image_record(name, one.scene, first.size))
            draft.images[-1].picture = shards.add(f"{name}.png", one.picture)
            draft.images[-1].split = splits[row]
            draft.regions += _region_records(name, one.scene, first.size)
            for number, caption in enumerate(one.captions):
                _add_caption(draft, name, number, caption, one.scene)
            queries += [caption.query for caption in one.captions]
            views.append(SceneView.of(one.scene))
            if first.kind == "people":
                draft.images[-1].identity = one.scene.things[0].identity
    draft.also_true = find_true_pairs(views, queries)
    return draft


def _image_record(name: str, scene: Scene, size: int) -> ImageRecord:
    people = sum(thing.kind in PERSON_KINDS for thing in scene.things)
    metadata: dict[str, MetadataValue] = {
        "setting": scene.setting,
        "time": scene.time,
        "things": len(scene.things),
        "people": people,
        "facts": scene.facts(find_relations(scene)),
    }
    return ImageRecord(name, None, metadata=metadata, size=picture_size(scene, size))


def _region_records(name: str, scene: Scene, size: int) -> Iterator[RegionRecord]:
    width, height = picture_size(scene, size)
    for number, thing in enumerate(scene.things):
        x0, y0, x1, y1 = (edge * size for edge in thing.box)
        box = (max(0.0, x0), max(0.0, y0), min(float(width), x1), min(float(height), y1))
        colour = thing.facts.get("colour") or thing.facts.get("top colour")
        yield RegionRecord(f"{name}/{number}", name, box, "truth", thing.kind, colour, None, thing.identity)


def _add_caption(draft: Draft, name: str, number: int, caption: SceneCaption, scene: Scene) -> None:
    own = f"{name}#{number}"
    draft.captions.append(CaptionRecord(own, caption.text, (name,), {"query": caption.query.to_json()}))
    for place, span in enumerate(caption.spans):
        draft.phrases.append(
            PhraseRecord(
                f"{own}/{place}",
                own,
                span.start,
                span.end,
                _category(scene.things[span.things[0]].kind),
                f"{name}/" + "+".join(str(i) for i in span.things),
                tuple(f"{name}/{i}" for i in span.things),
            )
        )


def _category(kind: str) -> str:
    """The type of entity, with the names of Flickr30K Entities where they exist."""
    if kind in PERSON_KINDS:
        return "people"
    if kind in ANIMALS:
        return "animals"
    if kind in TREES:
        return "plants"
    general = GENERAL_NOUNS.get(kind, ())
    return f"{general[0].singular}s" if general else "other"


def sample_collection_cast(kind: SceneKind, seed: int, images: int) -> list[Appearance]:
    """The people of a whole collection; an identity is a position in this list."""
    length, members = _BLOCK_SIZES[kind]
    return sample_cast(seed, -(-images // length) * members, detailed=kind == "people")


def cast_of_image(kind: SceneKind, index: int, cast: list[Appearance]) -> tuple[CastMember, ...]:
    """The people for one image: the cast of its block, or the one person of a portrait."""
    length, members = _BLOCK_SIZES[kind]
    first = index // length * members
    if kind == "people":
        # The first person of a block has four images, the second has three.
        who = first + (index % length) // 4
        return ((who, cast[who]),)
    return tuple((who, cast[who]) for who in range(first, first + members))


def split_by_block(kind: SceneKind, images: int, splits: tuple[float, float, float]) -> list[str]:
    """The split of each image: first train, then dev, then test, with whole blocks in each split.

    With fewer blocks than splits, blocks are divided, and people can be in several splits.
    """
    length = _BLOCK_SIZES[kind][0]
    blocks = -(-images // length)
    if blocks < sum(share > 0 for share in splits):
        blocks, length = images, 1
    counts = _proportional_counts(blocks, splits)
    names = [name for name, count in zip(("train", "dev", "test"), counts, strict=True) for _ in range(count)]
    return [names[i // length] for i in range(images)]


def _proportional_counts(total: int, shares: tuple[float, float, float]) -> list[int]:
    """Integers in proportion to the shares; a positive share gets at least one if the total is large enough."""
    exact = [share * total for share in shares]
    counts = [int(e + 1e-9) for e in exact]
    for _ in range(total - sum(counts)):
        most = max(range(3), key=lambda k: exact[k] - counts[k])
        counts[most] += 1
    for k in range(3):
        if shares[k] > 0 and counts[k] == 0 and max(counts) > 1:
            counts[counts.index(max(counts))] -= 1
            counts[k] = 1
    return counts
