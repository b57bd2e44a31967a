"""Every verb that prints names, on folders, files and captions with names that break a careless program."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys

import pytest
from PIL import Image

ODD = {
    "closing tag": "[/x] gone",
    "opening tag": "[bold]loud[/bold]",
    "emoji": "a :smile: and a 🐕‍🦺",
    "right to left": "כלב שחור \u202edog",
    "line break": "two\nlines",
    "terminal": "red \x1b[31m bell \x07",
    "quotes": 'it\'s "so" $HOME `ls` %s {0}',
    "long": "ä" * 100,
}
NOT_UTF8 = os.fsdecode(b"not \xff utf-8")


@pytest.fixture(scope="module")
def odd(calligram, small, tmp_path_factory):
    """A folder of pictures with odd names and captions, its collection, a run and a library, all in odd folders."""
    root = tmp_path_factory.mktemp("odd") / "[/root] :dog:"
    for split in ("train", "dev", "test"):
        for number, name in enumerate(ODD.values()):
            picture = Image.effect_noise((24, 20), 30 + number).convert("RGB")
            file = root / "in" / split / f"{name}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            picture.save(file)
            file.with_suffix(".txt").write_text(f"a dog {name}\n")
    (root / "in" / f"{NOT_UTF8}.png").write_bytes(b"?")
    (root / "in" / "[").mkdir()
    (root / "in" / "[/bad].png").write_bytes(b"?")
    (root / "in" / "[/bad].heic").write_bytes(b"?")
    done = [
        calligram("import", "folder", root / "in", root / "[red]collection"),
        calligram("train", "vse", root / "[red]collection", "--out", root / "[/run]", "--set", "epochs=1", *small),
        calligram("index", root / "[/run]", root / "[red]collection", "--out", root / "[/library]"),
        calligram("index", root / "[/run]", root / "in", "--out", root / "[/photos]"),
    ]
    assert [(one.returncode, one.stderr) for one in done if one.returncode] == []
    return root, done


def printed(done) -> str:
    """What was printed; the verb succeeded, and nothing that a terminal obeys is in it."""
    assert done.returncode == 0, done.stderr
    assert not any(character in done.stdout + done.stderr for character in "\x1b\x07\u202e")
    return done.stdout


def test_import_and_index_name_their_folders_as_they_are(odd):
    imported, trained, *indexed = map(printed, odd[1])
    assert "[red]collection" in imported
    assert "not \\udcff utf-8.png" in imported
    assert "[/bad].heic" in imported
    assert "[/run]" in trained
    assert all("[/library]" in one or "[/photos]" in one for one in indexed)


def test_info_shows_every_problem_by_its_name(odd, calligram):
    shown = printed(calligram("info", odd[0] / "[red]collection", "--problems"))
    assert "[/bad].png" in shown
    assert "[red]collection/sheet.png" in shown.replace("\n", "")


def test_index_lists_problems_by_their_names(odd, calligram):
    shown = printed(calligram("index", "--problems", odd[0] / "[/photos]"))
    assert "[/bad].png" in shown
    assert "not \\udcff utf-8.png" in shown


@pytest.mark.parametrize("arguments", [[], ["--captions"]])
def test_search_shows_names_and_captions_as_they_are(odd, calligram, arguments):
    shown = printed(calligram("search", odd[0] / "[/library]", "[/x] [bold]dog", "-k", "50", "--all", *arguments))
    for name in ("[/x] gone", "[bold]loud[/bold]", ":smile:", "red \\x1b[31m bell \\x07", "\\u202edog"):
        assert name in shown


def test_search_gives_paths_and_json_that_name_existing_files(odd, calligram):
    root = odd[0]
    done = calligram("search", root / "[/photos]", "dog", "-k", "50", "--all", "--json")
    hits = json.loads(done.stdout)["hits"]
    assert len(hits) == 3 * len(ODD)
    assert all(os.path.isfile(hit["path"]) for hit in hits)
    listed = calligram("search", root / "[/photos]", "dog", "-k", "50", "--all", "--paths", "--null")
    assert set(listed.stdout.split("\0")[:-1]) == {hit["path"] for hit in hits}


def test_evaluate_and_compare_print_names_of_runs_and_collections(odd, calligram):
    root = odd[0]
    run, collection = root / "[/run]", root / "[red]collection"
    shown = printed(calligram("evaluate", run, collection, "--unknown"))
    assert "[/run] on in, test" in " ".join(shown.split())  # a long path breaks the line
    shutil.copytree(run, root / "[bold]again")
    assert "[bold]again" in printed(calligram("compare", run, root / "[bold]again", collection))


def test_explain_prints_the_words_of_a_sentence(odd, calligram):
    root = odd[0]
    picture = root / "in" / "test" / "[bold]loud[/bold].png"
    assert "dog" in printed(calligram("explain", root / "[/run]", picture, "a [/x] dog \x1b[1m"))


def test_captions_name_images_as_they_are(odd, calligram, tmp_path):
    root = odd[0]
    collection = root / "[red]collection"
    file = tmp_path / "[bold]list.jsonl"
    rows = [{"image": f"train/{name}.png", "caption": f"[/again] {name}"} for name in ODD.values()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert str(len(ODD)) in printed(calligram("caption", collection, file))


def test_a_folder_whose_path_is_not_utf8_is_refused(odd, calligram, tmp_path):
    root = odd[0]
    (tmp_path / NOT_UTF8).mkdir()
    for arguments in (
        ("index", root / "[/run]", tmp_path / NOT_UTF8, "--out", tmp_path / "library"),
        ("import", "folder", tmp_path / NOT_UTF8, tmp_path / "collection"),
        ("import", "folder", root / "in", tmp_path / NOT_UTF8 / "collection"),
    ):
        done = calligram(*arguments)
        assert done.returncode == 2
        assert "is not valid UTF-8; rename it" in done.stderr


@pytest.mark.parametrize("name", ["a\x1b[1mb", "two\nlines", NOT_UTF8])
def test_a_library_is_refused_in_a_folder_that_its_engine_cannot_name(odd, calligram, tmp_path, name):
    root = odd[0]
    done = calligram("index", root / "[/run]", root / "in", "--out", tmp_path / name)
    assert done.returncode == 2
    assert "the path has control characters or is not UTF-8; choose another folder" in done.stderr


def test_errors_name_what_was_given(odd, calligram):
    for given in ("[/nowhere]", "a\x1b[31mb", NOT_UTF8, "two\nlines"):
        done = calligram("info", given)
        assert done.returncode == 2
        assert "\x1b" not in done.stderr
        assert done.stderr.startswith("error:")


def test_a_terminal_without_the_letters_of_a_name_shows_escapes(odd, calligram, tmp_path):
    """In the encoding ASCII, as on a server without a locale."""
    code = "from calligram.cli.main import main; main()"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", code, "info", str(odd[0] / "[red]collection"), "--problems"],
        capture_output=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("seed", range(3))
def test_any_text_is_printed(seed):
    from calligram.cli import screen

    letters = "[]/:\\{}%\n\t\r\x1b\x00\x7f\x9b aé🐕\u202e\u2066\udcff\ud800bold=@click"
    chosen = random.Random(seed)
    with screen.console.capture() as shown:
        for _ in range(200):
            screen.console.print("".join(chosen.choices(letters, k=30)))
    printed = shown.get()
    assert printed.encode()
    assert not {*"\x1b\x00\x9b\u202e\u2066\udcff\ud800"} & {*printed}
