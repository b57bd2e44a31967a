from __future__ import annotations

import pytest
from PIL import Image


def test_a_folder_of_pictures_becomes_a_collection_with_problems_counted(calligram, tmp_path):
    source = tmp_path / "photos"
    source.mkdir()
    for name in ("a", "b", "c"):
        Image.new("RGB", (30, 20), "red").save(source / f"{name}.jpg")
        (source / f"{name}.txt").write_text(f"picture {name}\nanother of {name}\n")
    (source / "broken.jpg").write_bytes(b"not a picture")
    done = calligram("import", "folder", source, tmp_path / "collection")
    assert done.returncode == 0, done.stderr
    assert "3 images, 6 captions" in done.stdout
    assert "1 skipped: unusable image (broken.jpg)" in done.stdout
    done = calligram("info", tmp_path / "collection", "--problems")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "collection" / "sheet.png").is_file()
    assert "broken.jpg" in done.stdout
    done = calligram("import", "folder", source, tmp_path / "strict", "--strict")
    assert done.returncode == 2
    assert "--strict" in done.stderr
    assert not (tmp_path / "strict").exists()


def test_a_second_import_keeps_added_captions_and_reports_contradictions(calligram, tmp_path):
    source, made = tmp_path / "in", tmp_path / "collection"
    source.mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (20, 20)).save(source / name)
    (source / "captions.csv").write_text("file,caption,place\na.png,one,Oslo\na.png,two,Rome\nb.png,,Oslo\n")
    done = calligram("import", "folder", source, made)
    assert "1 skipped: contradictory place (captions.csv line 3)" in done.stdout
    assert "metadata of images (how many have a value): place 2" in calligram("info", made).stdout
    (tmp_path / "list.csv").write_text("image,caption\nb.png,three\n")
    assert calligram("caption", made, tmp_path / "list.csv").returncode == 0
    done = calligram("import", "folder", source, made, "--overwrite")
    assert done.returncode == 0, done.stderr
    kept = made / "added-by-hand.2.csv"
    assert f'1 caption added since the last import kept in {kept}; "calligram caption {made} {kept}"' in done.stdout
    assert "1 caption added" in calligram("caption", made, kept).stdout


@pytest.mark.parametrize("format", ["webdataset", "datasets"])
def test_a_collection_is_exported_and_imported_again(calligram, tiny, tmp_path, format):
    if format == "datasets":
        pytest.importorskip("datasets")
    done = calligram("export", tiny.folder, f"--{format}", tmp_path / "out")
    images, captions = tiny.manifest["counts"]["images"], tiny.manifest["counts"]["captions"]
    assert f"{images} images and {captions} captions in {tmp_path / 'out'}" in done.stdout, done.stderr
    done = calligram("import", format, tmp_path / "out", tmp_path / "back")
    assert f"{images} images, {captions} captions" in done.stdout, done.stderr
    refused = calligram("export", tiny.folder, f"--{format}", tmp_path / "out")
    assert refused.returncode == 2
    assert "exists" in refused.stderr
    other = calligram("export", tmp_path, f"--{format}", tmp_path / "other")
    assert other.returncode == 2
    assert "is not a collection" in other.stderr


def test_scenes_are_generated(calligram, tmp_path):
    done = calligram("scenes", tmp_path / "scenes", "--images", "30", "--size", "32")
    assert done.returncode == 0, done.stderr
    assert "30 images and 150 captions" in done.stdout
