from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

from calligram import files
from calligram.data.add_captions import NewCaption, add_new_captions, remove_last_captions
from calligram.data.caption_file import read_captions
from calligram.data.collection import MANIFEST, Collection
from calligram.data.draft import Problems
from calligram.data.readers.catalog import import_collection
from calligram.data.revision import NewRegions, store_regions, write_lock
from calligram.data.write_tables import REGION_TYPES
from calligram.files import NEW_FOLDER


def source(folder: Path, *names: str) -> Path:
    """A folder of pictures."""
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(names):
        Image.new("RGB", (40, 30), (40 * number % 256, 90, 120)).save(folder / name)
    return folder


def again(folder: Path) -> tuple[Collection, list[str]]:
    """Import the pictures again; returns what is there then, and what was said."""
    said: list[str] = []
    made, _ = import_collection("folder", folder / "in", folder / "c", overwrite=True, report=said.append)
    return made, said


@pytest.fixture
def captioned(tmp_path: Path) -> Path:
    """Four pictures without captions, three of which people captioned in two rounds."""
    import_collection("folder", source(tmp_path / "in", "a.png", "b.png", "c.png", "d.png"), tmp_path / "c")
    add_new_captions(tmp_path / "c", [NewCaption("a.png", 'a "quoted", disc'), NewCaption("b.png", "bee", "test")])
    add_new_captions(tmp_path / "c", [NewCaption("a.png", "another"), NewCaption("c.png", "sea", "dev")])
    return tmp_path


def described(collection: Collection) -> list[tuple[object, object]]:
    texts, ids = collection.column("captions", "text"), collection.column("images", "id")
    pairs = zip(collection.numbers("matches", "image"), collection.numbers("matches", "caption"), strict=True)
    return [(ids[int(image)], texts[int(caption)]) for image, caption in pairs]


def splits_of(collection: Collection) -> dict[object, object]:
    return dict(zip(collection.column("images", "id"), collection.column("images", "split"), strict=True))


def test_captions_that_people_added_can_be_added_again_with_their_splits(captioned: Path) -> None:
    before = Collection.open(captioned / "c")
    texts, wanted = described(before), splits_of(before)
    source(captioned / "in", "new.png")
    made, said = again(captioned)
    file = captioned / "c/added-by-hand.3.csv"
    assert len(made.column("images", "id")) == 5
    assert described(made) == []
    assert said == [
        f"4 captions added since the last import kept in {file}; "
        f'"calligram caption {captioned}/c {file}" adds them again'
    ]
    after = add_new_captions(made.folder, read_captions(made, file, Problems()).captions).collection
    assert described(after) == texts
    assert splits_of(after) == {**wanted, "new.png": None}


def test_captions_of_missing_pictures_are_kept_in_another_list(captioned: Path) -> None:
    (captioned / "in/c.png").unlink()
    made, said = again(captioned)
    assert said[1] == f"1 caption of images that are no longer there kept in {captioned}/c/added-by-hand.3.gone.csv"
    assert "c.png,sea,dev," in (captioned / "c/added-by-hand.3.gone.csv").read_text()
    assert len(read_captions(made, captioned / "c/added-by-hand.3.csv", Problems()).captions) == 3


def test_captions_that_the_source_now_has_are_not_kept_and_its_splits_win(captioned: Path) -> None:
    (captioned / "in/captions.csv").write_text("file,caption,split\nb.png,bee,train\na.png,other,dev\n")
    made, said = again(captioned)
    assert said[0].startswith("3 captions added")
    file = captioned / "c/added-by-hand.3.csv"
    assert "bee" not in file.read_text()
    added = add_new_captions(made.folder, read_captions(made, file, Problems()).captions)
    assert (added.captions, added.duplicates) == (3, 0)


def test_lists_are_copied_and_never_overwritten(captioned: Path) -> None:
    (captioned / "c/taken-back.9.csv").write_text("image,caption\nd.png,taken back\n")
    again(captioned)
    first = (captioned / "c/added-by-hand.3.csv").read_text()
    assert again(captioned)[1] == []
    add_new_captions(captioned / "c", [NewCaption("d.png", "dee")])
    assert again(captioned)[1][0].startswith("1 caption added")
    assert (captioned / "c/added-by-hand.3.csv").read_text() == first
    assert "taken back" in (captioned / "c/taken-back.9.csv").read_text()
    assert sorted(f.name for f in captioned.iterdir()) == ["c", "in"]


def test_removed_captions_are_not_kept(captioned: Path) -> None:
    remove_last_captions(captioned / "c")
    assert again(captioned)[1][0].startswith("2 captions added")


def test_a_failed_replacement_keeps_the_old_collection(captioned: Path, monkeypatch) -> None:
    before, rename = described(Collection.open(captioned / "c")), Path.rename

    def fails(path: Path, target: Path) -> Path:
        if path.name == NEW_FOLDER:
            raise OSError("no space")
        return rename(path, target)

    monkeypatch.setattr(files, "exchange_names", lambda first, second: False)
    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="no space"):
        again(captioned)
    assert described(Collection.open(captioned / "c")) == before
    assert sorted(f.name for f in captioned.iterdir()) == ["c", "in"]


def test_an_unreadable_collection_is_renamed_and_kept(captioned: Path) -> None:
    for table in (captioned / "c").glob("captions*.parquet"):
        table.write_bytes(b"damaged")
    made, said = again(captioned)
    assert len(made.column("images", "id")) == 4
    assert said[0].endswith(f"it is kept in {captioned}/c.unreadable.1")
    assert (captioned / "c.unreadable.1" / MANIFEST).is_file()


def test_added_regions_are_reported_as_lost(tmp_path: Path) -> None:
    import_collection("folder", source(tmp_path / "in", "a.png"), tmp_path / "c")
    row = {"id": "r", "image": 0, **dict.fromkeys(("x0", "y0"), 0.0), "x1": 9.0, "y1": 9.0, "source": "grid"}
    rows = pa.table({name: pa.array([row.get(name)], type_) for name, type_ in REGION_TYPES.items()})
    looked = pa.array([0]).to_numpy()
    store_regions(tmp_path / "c", NewRegions("grid", {}, rows, looked, looked + 1))
    made, said = again(tmp_path)
    assert not made.has("regions")
    assert said == [
        f'the regions that were added (grid) are lost; run "calligram regions {tmp_path}/c --proposals METHOD" again'
    ]


def test_a_writer_that_waited_gets_the_lock_of_the_new_collection(captioned: Path) -> None:
    """As when the page adds a caption just while the collection is replaced."""
    held: list[bool] = []

    def write() -> None:
        with write_lock(captioned / "c"):
            held.append((captioned / "c/.lock").exists())

    waiting = threading.Thread(target=write)
    with write_lock(captioned / "c"):
        shutil.copytree(captioned / "c", captioned / "next", ignore=shutil.ignore_patterns(".lock"))
        waiting.start()
        time.sleep(0.1)  # so that it waits for the lock of the collection that is about to go
        (captioned / "c").rename(captioned / "old")
        (captioned / "next").rename(captioned / "c")
    waiting.join(60)
    assert held == [True]
