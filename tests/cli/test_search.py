"""``calligram search``: in this process, which has everything imported, and once on a terminal."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from calligram.cli.main import app
from calligram.errors import UserError
from calligram.features.images.pixels import PixelInput
from calligram.features.inputs import Inputs
from calligram.features.texts.vocabulary import Vocabulary
from calligram.models import catalog
from calligram.models.catalog import INPUTS_FOLDER, MATCHER_FILE, RUN_FILE, WEIGHTS_FILE, load_matcher
from calligram.models.layers.towers import ImageArchitecture, TextArchitecture
from calligram.models.vse import VSE, VSESettings
from calligram.search.indexing.run import index_source
from calligram.search.library.matchers import LibraryMatchers


def search(*arguments: str | Path) -> str:
    """What is printed on the standard output."""
    done = CliRunner().invoke(app, ["search", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


@pytest.fixture(scope="module")
def libraries(tiny, tmp_path_factory) -> Path:
    """The tiny pictures as a folder without captions, and as a collection, in two libraries."""
    folder = tmp_path_factory.mktemp("searched")
    run = folder / "run"
    run.mkdir()
    words = Vocabulary.build(tiny.sentences("train").texts.strings, min_count=1)
    torch.manual_seed(0)
    matcher = VSE(
        VSESettings(
            ImageArchitecture("cnn", channels=(4, 8)),
            TextArchitecture(vocabulary=len(words), word_dim=6, hidden=8, pooling="last"),
            8,
        )
    )
    (run / RUN_FILE).write_text("{}\n")
    catalog.save(matcher, run / MATCHER_FILE, run / WEIGHTS_FILE)
    Inputs(PixelInput(16), words).save(run / INPUTS_FOLDER)
    models = LibraryMatchers(load_matcher(run))
    index_source(models, tiny.folder.parent / "pictures", folder / "photos")
    index_source(models, tiny.folder, folder / "collection")
    return folder


@pytest.fixture(scope="module")
def pictures(tiny) -> Path:
    return tiny.folder.parent / "pictures"


def test_json_has_ids_scores_ranks_and_paths(libraries):
    hits = json.loads(search(libraries / "photos", "a red disc", "-k", "4", "--json"))["hits"]
    assert [list(hit) for hit in hits] == [["id", "score", "rank", "path"]] * 4
    assert [hit["rank"] for hit in hits] == [1, 2, 3, 4]
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    assert all(Path(hit["path"]).is_file() for hit in hits)


def test_only_paths_are_printed(libraries, pictures):
    lines = search(libraries / "photos", "--image", pictures / "test-2.png", "--paths", "-k", "3").splitlines()
    assert {Path(line).name for line in lines} == {"train-2.png", "dev-2.png", "test-2.png"}
    assert len(lines) == 3


def test_paths_with_line_breaks_are_separated_by_zero_bytes(libraries, pictures, tmp_path):
    for name in ("two\nlines.png", "plain.png"):
        (tmp_path / "odd").mkdir(exist_ok=True)
        shutil.copy(pictures / f"test-{len(name) % 3}.png", tmp_path / "odd" / name)
    index_source(LibraryMatchers(load_matcher(libraries / "run")), tmp_path / "odd", tmp_path / "library")
    asked = ["search", str(tmp_path / "library"), "a red disc", "--all"]
    apart = CliRunner().invoke(app, [*asked, "-0"], catch_exceptions=False)
    assert sorted(apart.stdout.split("\0")) == ["", *sorted(str(file) for file in (tmp_path / "odd").iterdir())]
    assert apart.stderr == ""
    torn = CliRunner().invoke(app, [*asked, "--paths"], catch_exceptions=False)
    assert len(torn.stdout.splitlines()) == 3
    assert "1 of the paths contain a line break" in torn.stderr


def test_the_number_of_hidden_paths_goes_to_stderr(libraries, monkeypatch):
    import calligram.search.query.searcher as module
    from calligram.search.query.cutoff import ScoreScale, ScoreScales

    asked = ["search", str(libraries / "photos"), "a red disc"]
    hits = json.loads(search(*asked[1:], "--json", "--all"))["hits"]
    between = (hits[2]["score"] + hits[3]["score"]) / 2
    scale = ScoreScale(0.0, 0.1, between)
    monkeypatch.setattr(module, "library_scales", lambda *_: ScoreScales(across=scale, short_texts=scale, images=scale))
    done = CliRunner().invoke(app, [*asked, "--paths"], catch_exceptions=False)
    assert done.stdout.splitlines() == [hit["path"] for hit in hits[:3]]
    assert done.stderr.strip() == "7 of the nearest 10 are not a good match; --all shows them"


def test_a_table_shows_scores_and_a_path_given_as_the_query_is_a_picture(libraries, pictures, monkeypatch):
    monkeypatch.chdir(pictures)
    heading, row = search(libraries / "photos", "test-2.png", "-k", "1").splitlines()[:2]
    assert heading.split() == ["rank", "score", "image"]
    assert row.split()[:2] == ["1", "1.000"]


def test_terms_are_added_and_subtracted_with_weights(libraries, pictures):
    def scores(*arguments: str | Path) -> dict[str, float]:
        hits = json.loads(search(libraries / "photos", *arguments, "--json", "-k", "18"))["hits"]
        return {hit["id"]: hit["score"] for hit in hits}

    plain, snow = scores("a red disc"), scores("snow")
    expected = {id: (2 * plain[id] + snow[id]) / 3 for id in plain}
    assert scores("2:a red disc", "--plus", "snow") == pytest.approx(expected, abs=1e-5)
    assert scores("a red disc", "--weight", "2", "--plus", "snow") == pytest.approx(expected, abs=1e-5)
    expected = {id: (plain[id] - 3 * snow[id]) / 4 for id in plain}
    assert scores("a red disc", "--minus", "3:snow") == pytest.approx(expected, abs=1e-5)
    picture = pictures / "test-0.png"
    assert scores("a red disc", "--minus", picture) == pytest.approx(scores("a red disc", "--minus", f"1:{picture}"))
    assert scores("--image", picture, "--plus", "a red disc") == pytest.approx(scores("a red disc", "--plus", picture))


def test_captions_are_found_and_conditions_are_applied(libraries):
    assert search(libraries / "collection", "snow", "--captions", "-k", "2").count("snow") == 2
    assert json.loads(search(libraries / "collection", "snow", "--captions", "--json"))["hits"][0]["text"] == "snow"
    printed = search(libraries / "collection", "a red disc", "--where", "split = 'test' and n < 2", "--json")
    assert sorted(Path(hit["path"]).stem for hit in json.loads(printed)["hits"]) == ["test-0", "test-1"]
    assert "satisfies the condition" in search(libraries / "collection", "a red disc", "--where", "n > 1000")
    assert "the library has no captions" in search(libraries / "photos", "a red disc", "--captions")


def test_truncated_words_are_counted(libraries):
    asked = ["search", str(libraries / "photos"), "snow " * 70, "--plus", "a red disc", "--json"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert done.stderr.strip() == "the last 10 words were not used: the text is longer than the matcher reads"
    assert json.loads(done.stdout)["hits"]


def test_unknown_words_are_named_next_to_hits(libraries):
    asked = ["search", str(libraries / "photos"), "a red treasury disc", "--all", "--paths"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert done.stderr.strip() == "the matcher does not know: treasury"
    assert done.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["no-such.png"], "no-such.png cannot be used: no such file"),
        ([], "the query is empty; give a text"),
        (["--minus", "snow"], "the query is empty; give a text"),
        (["snow", "--minus", "snow"], "cancel each other"),
        (["snow", "--where", "splat = 1"], "did you mean 'split'"),
        (["snow", "--json", "--paths"], "--json cannot be combined with --paths or --null"),
        (["snow", "--json", "-0"], "--json cannot be combined with --paths or --null"),
        (["snow", "--captions", "--paths"], "captions have no paths"),
        (["snow", "--captions", "--null"], "captions have no paths"),
        (["--plus", "snow", "--weight", "2"], "--weight needs a query"),
        (["snow", "--depth", "5"], "has no second stage: hits are ordered by vectors; leave out --depth and"),
        (["snow", "--budget-ms", "100"], "has no second stage"),
    ],
)
def test_invalid_queries_are_reported(libraries, arguments, message):
    with pytest.raises(UserError, match=message):
        search(libraries / "collection", *arguments)


def test_a_query_before_the_library_is_noticed(libraries):
    with pytest.raises(UserError, match=r"the library comes first: .*/photos 'a dog'"):
        search("a dog", libraries / "photos")


def test_options_that_contradict_the_manifest_are_refused_before_imports(libraries):
    """In a process of its own, where what was imported can be seen."""
    wrong = {
        "has no second stage: hits are ordered by vectors; leave out --depth": ["--depth", "5"],
        "has no second stage": ["--budget-ms", "100"],
        "did you mean 'split'": ["--where", "splat = 1"],
        "at the end": ["--where", "n >"],
    }
    script = """
import json, sys
from calligram.cli.main import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["calligram", "search", *arguments]
    try:
        main()
    except SystemExit as end:
        print(end.code, [m for m in ("torch", "numpy", "pyarrow", "lancedb") if m in sys.modules])
"""
    calls = [[str(libraries / "collection"), "snow", *arguments] for arguments in wrong.values()]
    asked = [sys.executable, "-c", script, json.dumps(calls)]
    done = subprocess.run(asked, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"})
    assert done.stdout.splitlines() == ["2 []"] * 4
    messages = done.stderr.split("error:")[1:]
    assert len(messages) == 4
    for message, expected in zip(messages, wrong, strict=True):
        assert expected in message


def test_the_spinner_goes_to_the_terminal_and_only_json_to_the_pipe(libraries, on_terminal):
    command = "from calligram.cli.main import main; main()"
    printed, shown = on_terminal(command, "search", libraries / "photos", "a red disc", "-k", "2", "--json")
    assert len(json.loads(printed)["hits"]) == 2
    assert "loading" in shown
    assert "searching" in shown


def test_without_a_good_match_the_option_all_is_named(libraries, monkeypatch):
    import calligram.search.query.searcher as module
    from calligram.search.query.cutoff import ScoreScale, ScoreScales

    high = ScoreScale(0.0, 0.1, 2.0)
    strict = ScoreScales(across=high, short_texts=high, images=high)
    monkeypatch.setattr(module, "library_scales", lambda *_: strict)
    assert search(libraries / "photos", "a red disc").strip() == "no good match; --all shows the nearest 10"
    assert search(libraries / "photos", "a red disc", "--paths") == ""
    expected = "no good match (unknown words: treasury); --all shows the nearest 10"
    assert search(libraries / "photos", "treasury").strip() == expected
    assert len(search(libraries / "photos", "a red disc", "--all", "--paths", "-k", "3").splitlines()) == 3


def test_dates_in_words_and_folders_with_their_subfolders(libraries, tmp_path, calligram):
    files = (("trips/2018/a.jpg", "2018:03:04"), ("trips/2019/b.jpg", "2019:07:01"), ("c.jpg", "2021:01:01"))
    for name, taken in files:
        exif = Image.Exif()
        exif.get_ifd(0x8769)[0x9003] = f"{taken} 10:00:00"
        (tmp_path / "dated" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 24), (len(name), int(taken[-2:]), 90)).save(tmp_path / "dated" / name, exif=exif)
    index_source(LibraryMatchers(load_matcher(libraries / "run")), tmp_path / "dated", tmp_path / "lib")
    folder = tmp_path

    def names(*options: str) -> list[str]:
        done = calligram("search", "lib", "a", "--all", "--paths", *options, cwd=folder)
        assert done.returncode == 0, done.stderr
        return sorted(Path(line).name for line in done.stdout.splitlines())

    assert names("--when", "summer 2019") == ["b.jpg"]
    assert names("--when", "2018 to 2019") == ["a.jpg", "b.jpg"]
    assert names("--when", "2018 to 2019", "--where", "folder = 'trips'") == []
    assert names("--where", "folder under 'trips'") == ["a.jpg", "b.jpg"]
    assert names("--where", "folder under 'trips/2018' and taken <= 2018") == ["a.jpg"]
    assert names("--where", "folder under 'trip'") == []
    done = calligram("search", "lib", "a", "--when", "sometime", cwd=folder)
    assert "'sometime' is not a date; give one such as 2019" in done.stderr
    assert "columns for --where: bytes (number), camera (text)," in calligram("info", folder / "lib").stdout
