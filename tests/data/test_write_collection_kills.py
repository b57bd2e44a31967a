"""``import --overwrite`` killed before every step that changes a file: the collection is whole, and nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from calligram.data.add_captions import NewCaption, add_new_captions, caption_revisions
from calligram.data.caption_file import read_captions
from calligram.data.collection import MANIFEST, Collection
from calligram.data.draft import Problems
from calligram.data.readers.catalog import import_collection
from calligram.errors import UserError

SERVER = """
import os, signal, sys
from pathlib import Path
import filelock, pyarrow
pyarrow.array([1])  # imports pandas, which would take seconds in each child
from calligram import files
from calligram.data import collection, pictures, write_collection
from calligram.data.readers import catalog, folder

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate", "ctypes.dlsym"}
left = None

def count(event, given):
    global left
    writes = event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR) and not str(given[0]).endswith(".lock")
    if left is not None and (writes or (event in CHANGES)):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
if sys.argv[1] == "journal":
    files.exchange_names = lambda first, second: False
for line in sys.stdin:
    number, place = line.rstrip().split(" ", 1)
    if not (child := os.fork()):
        left = int(number)
        catalog.import_collection("folder", Path(place, "in"), Path(place, "c"), overwrite=True)
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""
"""imports in a child of its own for each line "NUMBER FOLDER", and kills it before its change number NUMBER"""

Kill = Callable[[int, Path], bool]


@pytest.fixture(params=["exchange", "journal"])
def kill(request: pytest.FixtureRequest, preloaded) -> Iterator[Kill]:
    """``kill(number, folder)`` imports again and returns whether the import was killed before it ended."""
    with preloaded.start(SERVER, request.param) as server:

        def run(number: int, folder: Path) -> bool:
            print(number, folder, file=server.stdin, flush=True)
            status = int(server.stdout.readline())
            assert status in (0, 9)
            return status == 9

        yield run
        server.stdin.close()


@pytest.fixture
def captioned(tmp_path: Path) -> Path:
    """Two pictures with captions by hand and an old list; the source has another picture since."""
    made = tmp_path / "made"
    (made / "in").mkdir(parents=True)
    for name in ("a.png", "b.png"):
        Image.new("RGB", (20, 20)).save(made / "in" / name)
    import_collection("folder", made / "in", made / "c")
    add_new_captions(made / "c", [NewCaption("a.png", "by hand"), NewCaption("b.png", "by hand too")])
    (made / "c/taken-back.1.csv").write_text("image,caption\na.png,taken back\n")
    Image.new("RGB", (20, 20)).save(made / "in/new.png")
    return made


def captions_by_hand(collection: Collection) -> set[str]:
    """Captions that people added, in the collection or in its lists."""
    listed = [file for file in collection.folder.glob("added-by-hand.*.csv")]
    assert len(listed) <= 1
    found = [one for file in listed for one in read_captions(collection, file, Problems()).captions]
    return {one.text for one in [*found, *(one for round in caption_revisions(collection) for one in round.captions)]}


def rounds(kill: Kill, made: Path, tmp_path: Path) -> Iterator[Path]:
    """The folder after a kill before each change, until an import ends."""
    for number in range(500):
        place = tmp_path / f"{number}"
        shutil.copytree(made, place)
        if not kill(number, place):
            assert number > 20
            return
        yield place
        shutil.rmtree(place)


def test_a_killed_import_leaves_the_old_collection_or_the_new_one(
    kill: Kill, captioned: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sizes = set()
    for place in rounds(kill, captioned, tmp_path):
        if "exchange" in request.node.name:
            assert (place / "c" / MANIFEST).is_file()
        found = Collection.open(place / "c")
        assert captions_by_hand(found) == {"by hand", "by hand too"}
        assert (place / "c/taken-back.1.csv").is_file()
        images = found.column("images", "id")
        assert [found.pictures.open(row).size for row in range(len(images))] == [(20, 20)] * len(images)
        sizes.add(len(images))
        add_new_captions(place / "c", [NewCaption("a.png", "after")])
        assert sorted(file.name for file in place.iterdir()) == ["c", "in"]
    assert sizes == {2, 3}


def test_an_unreadable_collection_is_there_after_each_kill(kill: Kill, captioned: Path, tmp_path: Path) -> None:
    next((captioned / "c").glob("captions.*.parquet")).write_bytes(b"damaged")
    for place in rounds(kill, captioned, tmp_path):
        import_collection("folder", place / "in", place / "c", overwrite=True)
        kept = [folder.name for folder in place.iterdir() if folder.name not in ("c", "in")]
        assert kept == ["c.unreadable.1"]
        with pytest.raises(UserError, match="damaged"):
            caption_revisions(Collection.open(place / "c.unreadable.1"))
        assert len(Collection.open(place / "c").column("images", "id")) == 3
