"""Albums on the page: pictures are selected and added, an album is opened and changed, and it suggests pictures."""

from __future__ import annotations

import io
import shutil
import zipfile
from pathlib import Path

import pytest

from calligram.search.query.albums import change_album, find_album, read_albums


@pytest.fixture(scope="module")
def own(library_folder, tmp_path_factory) -> Path:
    """A library of this module's own: albums are written into it."""
    return Path(shutil.copytree(library_folder, tmp_path_factory.mktemp("albums") / "library"))


@pytest.fixture(scope="module")
def url(own, serving):
    with serving(own) as address:
        yield address


@pytest.fixture
def page(url, watched):
    with watched(url) as opened:
        yield opened


@pytest.fixture(scope="module")
def ids(url, client) -> list[str]:
    with client(url) as opened:
        return [hit["id"] for hit in opened.get("/api/browse", params={"k": 20}).json()["hits"]]


def tiles(page):
    return page.locator("#results .tile[data-id]")


def shown(page) -> list[str]:
    return [tile.get_attribute("data-id") for tile in tiles(page).all()]


def select(page, *places: int) -> list[str]:
    for place in places:
        page.locator("#results li").nth(place).hover()
        page.locator(".select").nth(place).click()
    return [shown(page)[place] for place in places]


def test_selected_pictures_are_added_to_an_album_that_is_then_opened_and_searched(page, url, own):
    page.goto(f"{url}/?q=a+boat&all=1")
    tiles(page).first.wait_for()
    chosen = select(page, 0, 2)
    page.click("#to-album")
    page.wait_for_selector("#album-dialog[open]")
    page.fill("#album-name", "By the sea")
    page.keyboard.press("Enter")
    page.wait_for_selector("#status:has-text('Added 2 pictures to “By the sea”.')")
    assert find_album(own, "By the sea").pictures == tuple(chosen)
    assert page.is_hidden("#to-album")
    page.click(".wordmark")
    page.click("#albums a:has-text('By the sea')")
    page.wait_for_selector("#status:text-is('2 pictures')")
    assert shown(page) == chosen
    assert page.inner_text("#album-heading") == "By the sea"
    page.fill("#query", "a dog")
    page.press("#query", "Enter")
    page.wait_for_selector(".chip:has-text('album: By the sea')")
    page.wait_for_selector("#status:has-text(' ms')")
    assert set(shown(page)) <= set(chosen)
    page.click("[aria-label='Remove: album: By the sea']")
    page.wait_for_url(lambda address: "album" not in address)


def test_an_album_is_chosen_from_the_list_and_pictures_are_removed_and_downloaded(page, url, own, ids):
    change_album(own, "Chosen", add=ids[:3])
    page.goto(f"{url}/?album=Chosen")
    page.wait_for_selector("#status:text-is('3 pictures')")
    select(page, 1)
    page.click("#from-album")
    page.wait_for_selector("#status:has-text('Removed 1 picture. 2 pictures')")
    assert shown(page) == [ids[0], ids[2]]
    assert find_album(own, "Chosen").pictures == (ids[0], ids[2])
    with page.expect_download() as saved:
        page.click("#album-download")
    assert saved.value.suggested_filename == "Chosen.zip"
    with zipfile.ZipFile(io.BytesIO(saved.value.path().read_bytes())) as archive:
        assert sum(name.endswith(".png") for name in archive.namelist()) == 2
    page.goto(f"{url}/?q=a+dog&all=1")
    tiles(page).first.wait_for()
    (added,) = select(page, 0)
    page.click("#to-album")
    page.click("#album-choices button:has-text('Chosen')")
    page.wait_for_selector("#status:has-text('Added 1 picture to “Chosen”.')")
    assert find_album(own, "Chosen").pictures == tuple(dict.fromkeys((ids[0], ids[2], added)))


def test_albums_that_arrive_late_are_in_the_open_dialog_and_replace_no_newer_list(page, url, own, ids):
    change_album(own, "Late", add=ids[:1])
    held: list = []

    def hold(route) -> None:
        held.append(route) if route.request.method == "GET" else route.continue_()

    page.route("**/api/albums", hold)
    page.goto(f"{url}/?q=a+boat&all=1")
    tiles(page).first.wait_for()
    select(page, 0)
    page.click("#to-album")
    page.wait_for_selector("#album-dialog[open]")
    assert page.locator("#album-choices button").count() == 0
    held.pop().continue_()
    page.click("#album-choices button:has-text('Late')")
    page.wait_for_selector("#status:has-text('Added 1 picture to “Late”.')")
    page.goto(f"{url}/?album=Late")
    tiles(page).first.wait_for()
    before = find_album(own, "Late").pictures
    while not held:
        page.wait_for_timeout(20)
    answer = held[-1].fetch()  # the list before the change
    page.locator("#results li").first.hover()
    page.locator(".select").first.click()
    page.click("#from-album")
    page.wait_for_selector("#status:has-text('Removed 1 picture.')")
    assert len(find_album(own, "Late").pictures) == len(before) - 1
    held[-1].fulfill(response=answer)
    page.wait_for_timeout(100)
    count = page.locator("#albums a:has-text('Late') small")
    assert count.text_content() == str(len(before) - 1)


def test_an_album_is_renamed_and_deleted(page, url, own, ids):
    change_album(own, "First name", add=ids[:1])
    change_album(own, "Taken name", add=ids[:1])
    page.goto(f"{url}/?album=First+name")
    page.wait_for_selector("#status:text-is('1 picture')")
    page.click("#album-rename")
    page.fill("#album-name", "Taken name")
    with page.expect_response("**/api/album-name") as answered:
        page.click("#album-save")
    assert answered.value.status == 409
    page.wait_for_selector("#album-error:has-text('already')")
    page.complaints.clear()  # the browser reports the refused request
    page.fill("#album-name", "Second name")
    page.click("#album-save")
    page.wait_for_selector("#album-heading:text-is('Second name')")
    page.wait_for_url("**album=Second+name*")
    page.click("#album-remove")
    page.click("#album-keep")
    page.wait_for_selector("#album-delete:not([open])", state="attached")
    page.click("#album-remove")
    page.click("#album-delete button[type=submit]")
    page.wait_for_selector("body.home")
    assert {album.name for album in read_albums(own)} & {"First name", "Second name"} == set()
    assert page.locator("#albums a:has-text('Second name')").count() == 0


def test_suggestions_are_answered_by_buttons_and_by_keys_and_an_answer_is_taken_back(page, url, own):
    change_album(own, "a boat")
    page.goto(f"{url}/?album=a+boat")
    page.wait_for_selector("#notice h2:text-is('This album is empty')")
    page.click("#album-suggest")
    page.wait_for_selector("#album-note:has-text('Found by the name of the album')")
    tiles(page).first.wait_for()
    first, second, third, fourth = shown(page)[:4]
    page.locator("[data-answer=add]").first.click()
    page.wait_for_selector("#status:has-text('Added. Undo 1 picture in the album, 0 rejected')")
    assert page.evaluate("document.activeElement.dataset.id") == second
    page.keyboard.press("n")
    page.wait_for_selector("#status:has-text('1 picture in the album, 1 rejected')")
    assert page.evaluate("document.activeElement.dataset.id") == third
    page.keyboard.press("y")
    page.wait_for_selector("#status:has-text('2 pictures in the album, 1 rejected')")
    page.click("#undo")
    page.wait_for_selector("#status:has-text('Taken back. 1 picture in the album, 1 rejected')")
    assert shown(page)[:2] == [third, fourth]
    album = find_album(own, "a boat")
    assert (album.pictures, album.rejected) == ((first,), (second,))
    page.click("#suggest-more")
    page.wait_for_selector("#album-note:has-text('Learnt from 1 picture of the album and 1 that do not belong')")
    assert not {first, second} & set(shown(page))
    page.click("#album-suggest")
    page.wait_for_selector("#status:text-is('1 picture')")
    assert shown(page) == [first]


def test_the_last_answer_of_a_page_brings_new_suggestions(copies, tmp_path, serving, watched):
    own = shutil.copytree(copies / "library", tmp_path / "library")
    change_album(own, "boats")
    with serving(own) as address, watched(address) as page:
        page.goto(f"{address}/?album=boats&suggest=1")
        tiles(page).first.wait_for()
        for count in range(1, 9):  # of eight pictures two are the same, and the first page shows one of them
            tiles(page).first.wait_for()
            answered = shown(page)[0]
            page.locator("[data-answer=add]").first.click()
            page.locator(f".tile[data-id='{answered}']").wait_for(state="detached")
            page.wait_for_selector(f"#status:has-text('{count} picture')")
        page.wait_for_selector("#notice h2:text-is('No more suggestions')")
        assert len(find_album(own, "boats").pictures) == 8


def test_nobody_answers_where_nothing_can_be_saved(own, serving, watched, ids):
    change_album(own, "Looked at", add=ids[:2])
    with serving(own, any_address=True) as address, watched(address) as page:
        page.goto(f"{address}/?album=Looked+at&suggest=1")
        tiles(page).first.wait_for()
        assert page.locator("[data-answer]").count() == 0
        assert page.is_hidden("#album-rename")
        assert page.is_hidden("#album-remove")
        page.goto(f"{address}/?album=Looked+at")
        page.wait_for_selector("#status:text-is('2 pictures')")
        select(page, 0)
        assert page.is_hidden("#to-album")
        assert page.is_hidden("#from-album")


def test_an_album_that_was_deleted_is_named(page, url):
    page.goto(f"{url}/?album=No+such")
    page.wait_for_selector("#notice h2:text-is('No such album')")
    page.complaints.clear()  # the browser reports the refused request
