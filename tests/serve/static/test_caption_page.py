"""The page that takes captions, in a real browser against a real server."""

from __future__ import annotations

import pytest

from calligram.data.add_captions import caption_revisions
from calligram.data.collection import Collection

ACTIVE = "document.activeElement.getAttribute('aria-label')"


def opened(page, served):
    page.goto(f"{served.url}/caption.html")
    page.wait_for_selector(".todo input")
    return page.locator(".todo li")


def written(folder) -> list[tuple[str, str]]:
    return [(c.image, c.text) for addition in caption_revisions(Collection.open(folder)) for c in addition.captions]


def test_pictures_can_be_captioned_by_keyboard(captioning_page, captioning, few_captions, until):
    page, before = captioning_page, written(few_captions)
    items = opened(page, captioning)
    ids = [items.nth(n).get_attribute("data-id") for n in range(3)]
    count = page.locator(".todo input").count()
    assert "stands for" in items.first.inner_text()
    assert page.evaluate(ACTIVE) == "Caption of picture 1"
    page.keyboard.type("a <b>dog</b> on a beach")
    page.keyboard.press("Enter")
    page.wait_for_selector(".saved .written")
    assert page.evaluate(ACTIVE) == "Caption of picture 2"
    page.keyboard.press("ArrowDown")
    assert page.evaluate(ACTIVE) == "Caption of picture 3"
    page.keyboard.type("two boats")
    page.keyboard.press("Enter")
    page.wait_for_selector(".todo li:nth-child(3).saved")
    page.keyboard.press("ArrowUp")
    assert page.evaluate(ACTIVE) in ("Caption of picture 2", "Caption of picture 4")
    assert written(few_captions) == [*before, (ids[0], "a <b>dog</b> on a beach"), (ids[2], "two boats")]
    assert page.locator(".todo b").count() == 0
    assert f"Saved. {count - 2} pictures to caption" in page.inner_text("#status")
    until(page, "document.querySelector('.todo img').naturalWidth === 64")
    page.reload()
    page.wait_for_selector(".todo input")
    assert ids[0] not in [item.get_attribute("data-id") for item in items.all()]


@pytest.mark.parametrize(("text", "message"), [("   ", "the caption is empty"), ("x" * 1001, "at most 1000")])
def test_a_refused_caption_shows_the_reason_and_keeps_the_text(captioning_page, captioning, text, message):
    page = captioning_page
    opened(page, captioning)
    field = page.locator(".todo input").first
    field.fill(text)
    field.press("Enter")
    page.wait_for_selector(f".todo .error:has-text('{message}')")
    assert field.input_value() == text
    assert field.get_attribute("aria-invalid") == "true"
    assert page.locator(".todo .saved").count() == 0
    page.complaints.clear()  # the browser notes the request that was refused


def test_other_images_are_suggested_on_request(captioning_page, captioning):
    page = captioning_page
    items = opened(page, captioning)
    first = items.first.get_attribute("data-id")
    page.locator(".todo input").first.fill("one more")
    page.locator(".todo button").first.click()
    page.wait_for_selector(".todo .saved")
    page.click("#suggest-again")
    page.wait_for_selector(".todo .saved", state="detached")
    page.wait_for_selector(".todo input")
    assert first not in [item.get_attribute("data-id") for item in items.all()]


def test_the_search_page_links_to_the_caption_page(captioning_page, captioning):
    page = captioning_page
    page.goto(captioning.url)
    page.click("#to-captions")
    page.wait_for_selector(".todo input")
    page.click(".wordmark")
    page.wait_for_selector("#results .tile[data-id]")


def test_without_a_collection_the_caption_page_says_how_to_give_one(page, served):
    page.goto(served.url)
    page.wait_for_selector("#results .tile[data-id]")
    assert page.is_hidden("#to-captions")
    page.goto(f"{served.url}/caption.html")
    page.wait_for_selector("#notice:has-text('--collection')")
    page.complaints.clear()  # the browser notes the request that was refused
