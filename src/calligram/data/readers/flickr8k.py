"""Reader of Flickr8k: packed as tars with ``captions.tsv``, or the original text files with a folder of images."""

from __future__ import annotations

import csv
from pathlib import Path, PurePosixPath

from calligram.data.draft import CaptionRecord, Draft, ImageRecord, PictureFile, Problems, TarMember
from calligram.data.readers.entities import join_entities, read_entities
from calligram.data.readers.picture_files import find_pictures, is_picture, tar_members
from calligram.data.readers.source import ImportSource, first_file, first_split_of_each
from calligram.data.readers.text_files import read_lines, read_text
from calligram.errors import UserError

CaptionLines = list[tuple[str, str, str]]
"""(image id, number of the caption, text) of each caption"""

SPLIT_FILES = {
    "train": ("train.txt", "Flickr_8k.trainImages.txt"),
    "dev": ("dev.txt", "val.txt", "Flickr_8k.devImages.txt"),
    "test": ("test.txt", "Flickr_8k.testImages.txt"),
}
IMAGE_FOLDERS = ("Flicker8k_Dataset", "Flickr8k_Dataset", "images", "Images")
ENTITIES_FILES = ("entities.tar.gz", "entities.tgz", "entities.tar")


def read_flickr8k(source: ImportSource, problems: Problems) -> Draft:
    """Read either layout, and add Flickr30K Entities if they are in the same folder.

    In both layouts, the id of an image is its file name without suffix.
    """
    draft, captions_of = read_images_and_captions(source, problems)
    entities = first_file([source.folder], *ENTITIES_FILES)
    if entities is None and (source.folder / "Sentences").is_dir():
        entities = source.folder
    if entities is not None:
        join_entities(draft, captions_of, read_entities(entities, problems), problems)
        draft.about["entities"] = "Flickr30K Entities, Plummer et al. (2015)"
    return draft


def read_images_and_captions(source: ImportSource, problems: Problems) -> tuple[Draft, dict[str, list[CaptionRecord]]]:
    """Read either layout without Entities; also returns the captions of each image."""
    folders = [source.folder, source.folder / "Flickr8k_text"]
    rows = _caption_rows(folders, problems)
    pictures = _pictures(source, problems)
    splits = _splits(folders, problems)
    sizes = _sizes(source.folder, problems)
    draft = Draft("flickr8k", about={"source": "Flickr8k, Hodosh, Young and Hockenmaier (2013)"})
    for image in dict.fromkeys([*pictures, *(row[0] for row in rows), *splits]):
        if image in pictures:
            draft.images.append(ImageRecord(image, pictures[image], splits.get(image), size=sizes.get(image)))
        else:
            problems.skip("missing image file", image, "captions or a split name it")
    return draft, _add_captions(draft, rows)


def _add_captions(draft: Draft, rows: CaptionLines) -> dict[str, list[CaptionRecord]]:
    """Add all captions; returns them by image."""
    captions_of: dict[str, list[CaptionRecord]] = {}
    for image, number, text in rows:
        caption = CaptionRecord(f"{image}#{number}", text.strip(), (image,))
        draft.captions.append(caption)
        captions_of.setdefault(image, []).append(caption)
    return captions_of


def _caption_rows(folders: list[Path], problems: Problems) -> CaptionLines:
    file = first_file(folders, "captions.tsv", "Flickr8k.token.txt")
    if file is None:
        raise UserError(
            f"no captions.tsv or Flickr8k.token.txt in {folders[0]}; "
            "for captions in another layout use the format 'folder'"
        )
    rows: CaptionLines = []
    for number, line in enumerate(read_text(file, problems).split("\n"), start=1):
        row = _caption_row(line.rstrip("\r"), file.suffix == ".tsv")
        if row is None and line.strip():
            problems.skip("unreadable caption row", f"{file.name} line {number}", line[:80])
        elif row is not None and row != ("id", "number", "caption"):
            rows.append(row)
    return rows


def _caption_row(line: str, packed: bool) -> tuple[str, str, str] | None:
    cells = line.split("\t")
    if packed:
        return (cells[0], cells[1], cells[2]) if len(cells) == 3 and cells[0] else None
    name, mark, number = cells[0].rpartition("#")
    return (_image_id(name), number, cells[1]) if len(cells) == 2 and mark else None


def _image_id(name: str) -> str:
    """The file name without the suffix of a picture.

    The original captions name one file ``….jpg.1``, which does not exist. Its name must not be shortened, because it
    would then be the name of another picture.
    """
    path = PurePosixPath(name.strip())
    return path.stem if is_picture(Path(path.name)) else path.name


def _pictures(source: ImportSource, problems: Problems) -> dict[str, PictureFile | TarMember]:
    pictures: dict[str, PictureFile | TarMember] = {}
    tars = sorted((source.images or source.folder).glob("images*.tar"))
    for tar in tars:
        for member in tar_members(tar, problems):
            image = _image_id(PurePosixPath(member.name).name)
            if image in pictures:
                problems.skip("image id used twice", image, f"again in {tar.name}")
            pictures.setdefault(image, member)
    if tars:
        return pictures
    found = find_pictures(source.folder, source.images, IMAGE_FOLDERS, problems)
    return {path.stem: PictureFile(path) for path in found.paths.values()}


def _splits(folders: list[Path], problems: Problems) -> dict[str, str]:
    given: list[tuple[str, str]] = []
    for split, names in SPLIT_FILES.items():
        file = first_file(folders, *names)
        if file is None:
            problems.note("no split file", split, f"none of {', '.join(names)} in {folders[0]}")
            continue
        given += [(_image_id(line), split) for line in read_lines(file, problems)]
    return first_split_of_each(given, problems)


def _sizes(folder: Path, problems: Problems) -> dict[str, tuple[int, int]]:
    file = folder / "sizes.csv"
    sizes: dict[str, tuple[int, int]] = {}
    if not file.is_file():
        return sizes
    for row in csv.reader(read_lines(file, problems)[1:]):
        try:
            image, width, height = row[0], int(row[1]), int(row[2])
        except (ValueError, IndexError):
            problems.repair("unreadable size", f"{file.name}: {','.join(row)}")
            continue
        sizes[image] = (width, height)
    return sizes
