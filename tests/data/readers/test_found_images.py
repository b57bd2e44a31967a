from __future__ import annotations

import pytest

from calligram.data.draft import Problems
from calligram.data.readers.picture_files import PictureIndex
from calligram.errors import UserError

KIND = "picture found by its name alone"


@pytest.fixture
def root(tmp_path, pictures):
    pictures(tmp_path / "in", "ok0.jpg", "deep/er/d.png", "one/same.png", "two/same.png")
    return tmp_path / "in"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("ok0.jpg", "ok0.jpg"),
        ("./ok0", "ok0.jpg"),
        ("d.png", "deep/er/d.png"),
        ("d", "deep/er/d.png"),
        ("deep/er/d", "deep/er/d.png"),
        ("deep\\er\\d.png", "deep/er/d.png"),
        ("in/deep/er/d.png", "deep/er/d.png"),
        ("two/same", "two/same.png"),
    ],
)
def test_bare_names_and_true_paths_are_found_without_a_word(root, name: str, path: str) -> None:
    problems = Problems(strict=True)
    assert PictureIndex(root, problems).find(name) == root / path
    assert PictureIndex(root, problems).find(str(root / path)) == root / path


def test_a_path_that_leads_nowhere_is_mended_by_its_name_and_reported_once(root) -> None:
    problems = Problems()
    found = PictureIndex(root, problems)
    assert [found.find("elsewhere/ok0.jpg") for _ in range(5)] == [root / "ok0.jpg"] * 5
    assert [(p.kind, p.item, p.skipped) for p in problems.found] == [(KIND, "elsewhere/ok0.jpg", False)]
    assert "ok0.jpg is taken for it" in problems.found[0].detail


def test_strict_refuses_a_path_that_leads_nowhere(root) -> None:
    with pytest.raises(UserError, match=rf"{KIND}: elsewhere/ok0\.jpg"):
        PictureIndex(root, Problems(strict=True)).find("elsewhere/ok0.jpg")


@pytest.mark.parametrize("name", ["same.png", "three/same.png", "elsewhere/none.jpg"])
def test_a_name_of_several_pictures_or_none_is_not_guessed(root, name: str) -> None:
    problems = Problems()
    assert PictureIndex(root, problems).find(name) is None
    assert not problems.found
