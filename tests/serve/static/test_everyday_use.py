"""What people do on the page beside a search: look through everything, select, zoom, sort by date, use the keyboard."""

from __future__ import annotations

import io
import zipfile

import pytest


def tiles(page):
    return page.locator("#results .tile[data-id]")


def search(page, served, words: str) -> None:
    page.goto(served.url)
    page.fill("#query", words)
    page.press("#query", "Enter")
    page.wait_for_selector("#status:has-text(' ms')")


def test_all_pictures_can_be_reached_from_the_start_page_and_counts_are_counts(page, served):
    page.goto(served.url)
    page.wait_for_selector("#status:has-text('48 of 60 pictures')")
    page.click("#show-more")
    page.wait_for_selector("#status:text-is('60 pictures')")
    assert len({tile.get_attribute("data-id") for tile in tiles(page).all()}) == 60
    assert page.locator("#show-more").count() == 0
    page.goto(f"{served.url}/?where=time+%3D+%27night%27")
    count = len(served.client.get("/api/browse", params={"where": "time = 'night'", "k": 500}).json()["hits"])
    page.wait_for_selector(f"#status:has-text('{count} pictures that satisfy the filters')")
    page.goto(f"{served.url}/?q=a+boat&all=1")
    page.wait_for_selector("#status:has-text('First 48 pictures')")
    page.click("#show-more")
    page.wait_for_selector("#status b:text-is('60 pictures')")


def test_a_query_of_leave_outs_alone_shows_the_pictures_that_are_least_like_them(page, served):
    search(page, served, "-night")
    assert page.locator(".chip.minus span").inner_text() == "− night"
    tiles(page).first.wait_for()
    assert tiles(page).first.get_attribute("data-id") == served.hits(minus=["night"])[0]["id"]


def test_words_that_the_model_does_not_know_are_named(page, served):
    search(page, served, "a zyzzyva")
    assert "The model does not know: zyzzyva" in page.inner_text("#notice")
    page.click("#anyway")
    page.wait_for_selector("#unknown:has-text('unknown: zyzzyva')")


def test_a_hit_that_words_have_raised_is_marked(page, served):
    def raised(words: str) -> int:
        scores = [hit["score"] for hit in served.hits(q=words)]
        return sum(any(later > score + 0.005 for later in scores[place:]) for place, score in enumerate(scores))

    ids = [hit["id"] for hit in served.hits(q="a boat", k=20, all=True)]
    captions = [served.client.get("/api/item", params={"id": id}).json()["captions"][0] for id in ids]
    words = next(text for text in captions if raised(text))
    search(page, served, words)
    tiles(page).first.wait_for()
    assert page.locator(".raised").count() == raised(words)


def test_the_first_result_is_near_by_keyboard_and_arrow_keys_move_after_a_search(page, served):
    search(page, served, "a boat")
    tiles(page).first.wait_for()
    page.keyboard.press("ArrowDown")
    first = page.evaluate("document.activeElement.dataset.id")
    assert first == tiles(page).first.get_attribute("data-id")
    page.goto(f"{served.url}/?q=a+boat")
    tiles(page).first.wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.dataset.id") == first


def test_alternative_texts_are_captions_where_there_are_any(page, served, copies_page, copies_served):
    page.goto(served.url)
    tiles(page).first.wait_for()
    id = tiles(page).first.get_attribute("data-id")
    caption = served.client.get("/api/item", params={"id": id}).json()["captions"][0]
    assert tiles(page).first.locator("img").get_attribute("alt") == caption
    copies_page.goto(copies_served.url)
    tiles(copies_page).first.wait_for()
    assert tiles(copies_page).first.locator("img").get_attribute("alt").endswith(".jpg")
    assert not copies_page.is_visible("#kinds")  # a library without captions has no tab for them


def test_copies_are_shown_once_and_dates_are_readable_and_sort(copies_page, copies_served):
    page = copies_page
    page.goto(copies_served.url)
    page.wait_for_selector("#status:has-text('1 copy hidden')")
    assert tiles(page).count() == 7
    assert page.locator(".times").inner_text() == "2×"
    page.click("#copies")
    page.wait_for_selector("#copies:has-text('Hide copies')")
    assert tiles(page).count() == 8
    page.select_option("#order", "newest")
    page.wait_for_url("**order=newest*")
    page.wait_for_selector("#results li:first-child .tile[title='5.jpg, 15 June 2020, 12:30']")
    tiles(page).first.click()
    page.wait_for_selector(".facts dd:text-is('15 June 2020, 12:30')")


def test_selected_pictures_are_downloaded_as_a_zip(page, served):
    search(page, served, "a boat")
    tiles(page).first.wait_for()
    page.locator("#results li").nth(1).hover()
    page.locator(".select").nth(1).click()
    page.keyboard.press("/")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("x")
    assert page.inner_text("#download") == "Download 2"
    page.fill("#query", "a dog")  # a selection is kept for the next search
    page.press("#query", "Enter")
    page.wait_for_url("**q=a+dog*")
    with page.expect_download() as saved:
        page.click("#download")
    with zipfile.ZipFile(io.BytesIO(saved.value.path().read_bytes())) as archive:
        assert sum(name.endswith(".png") for name in archive.namelist()) == 2
    page.click("#unselect")
    assert page.locator('.select[aria-pressed="true"]').count() == 0


def test_a_picture_can_be_zoomed(page, served):
    search(page, served, "a boat")
    tiles(page).first.click()
    page.wait_for_selector("#like")
    before = page.locator(".picture").bounding_box()["width"]
    page.keyboard.press("z")
    assert page.locator(".picture").bounding_box()["width"] >= 2 * before - 1
    assert page.evaluate("document.activeElement.className").startswith("fit")
    page.keyboard.press("Escape")
    assert page.locator(".picture").bounding_box()["width"] == pytest.approx(before)
    page.click(".picture img")
    assert page.locator(".picture").bounding_box()["width"] >= 2 * before - 1


def test_suggestions_appear_while_typing_and_can_be_chosen_by_keyboard(page, served):
    page.goto(served.url)
    tiles(page).first.wait_for()
    page.fill("#query", "a do")  # at once: a slow machine would ask for completions after each letter
    page.wait_for_selector("#suggestions li")
    words = page.locator("#suggestions li").first.inner_text()
    page.keyboard.press("ArrowDown")
    assert page.get_attribute("#query", "aria-activedescendant") == "suggestion-0"
    page.keyboard.press("Enter")
    page.wait_for_selector("#status:has-text(' ms')")
    assert page.input_value("#query") == words
    assert not page.is_visible("#suggestions")
    page.fill("#query", "a bo")
    page.wait_for_selector("#suggestions li")
    page.keyboard.press("Escape")
    assert not page.is_visible("#suggestions")
    assert page.input_value("#query") == "a bo"


def test_other_machines_do_not_see_where_files_are(copies, copies_served, client):
    other = {"X-Forwarded-For": "1.2.3.4"}
    folder = str(copies)
    with client(copies_served.url, **other) as stranger:
        id = stranger.get("/api/browse").json()["hits"][0]["id"]
        for path, terms in (
            ("/api/browse", {}),
            ("/api/search", {"q": "a dog", "all": True}),
            ("/api/item", {"id": id}),
            ("/api/stats", {}),
            ("/api/duplicates", {}),
        ):
            assert folder in copies_served.client.get(path, params=terms).text or path == "/api/duplicates"
            assert folder not in stranger.get(path, params=terms).text, path
