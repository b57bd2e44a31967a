"""Phrases in pictures on the page, in a real browser."""

from __future__ import annotations

import json
import re

import pytest

SENTENCE = "A little girl in a red hat stands near a brown dog."


def look_at(page, served, id: str, query: str = "") -> None:
    page.goto(f"{served.url}/?item={id}" + (f"&q={query}&all=1" if query else ""))
    page.wait_for_selector("#locate")


def asked(page, text: str) -> None:
    page.fill("#locate-text", text)
    page.press("#locate-text", "Enter")
    page.wait_for_selector("#located:not([hidden])")


def test_phrases_have_the_colours_and_numbers_of_their_boxes(page, served, item):
    found = served.located(item, SENTENCE)
    look_at(page, served, item)
    asked(page, SENTENCE)
    phrases = page.locator("#located .phrase")
    assert phrases.count() == len(found["phrases"]) >= 2
    assert page.inner_text("#located").replace("\n", "") != ""
    assert page.get_attribute("#overlay", "viewBox") == f"0 0 {found['width']} {found['height']}"
    for number, phrase in enumerate(found["phrases"]):
        words = phrases.nth(number)
        assert words.inner_text() == f"{number + 1}{phrase['text']}"
        box = page.locator(f"#boxes .best[data-phrase='{number}'] .line")
        x0, y0, x1, y1 = phrase["boxes"][0]["box"]
        drawn = [float(box.get_attribute(name)) for name in ("x", "y", "width", "height")]
        assert drawn == pytest.approx([x0, y0, x1 - x0, y1 - y0])
        colour = words.locator(".number").evaluate("e => getComputedStyle(e).backgroundColor")
        assert box.evaluate("e => getComputedStyle(e).stroke") == colour
        assert page.locator(".tag").nth(number).evaluate("e => getComputedStyle(e).backgroundColor") == colour
        assert page.locator(".tag").nth(number).inner_text() == str(number + 1)
    colours = {phrases.nth(n).get_attribute("class").split()[1] for n in range(phrases.count())}
    assert len(colours) == phrases.count()


def test_a_phrase_lights_its_box_and_a_box_its_phrase(page, served, item):
    look_at(page, served, item)
    asked(page, SENTENCE)
    first, second = (page.locator("#located .phrase").nth(n) for n in (0, 1))
    boxes = [page.locator(f"#boxes .best[data-phrase='{n}']") for n in (0, 1)]
    lit = re.compile(r"\blit\b")
    second.hover()
    assert lit.search(boxes[1].get_attribute("class"))
    assert "dim" in boxes[0].get_attribute("class")
    assert page.locator("#boxes .next:visible").count() == 2
    page.hover("#detail-name")
    assert not lit.search(boxes[1].get_attribute("class"))
    boxes[0].dispatch_event("pointerenter")
    assert lit.search(first.get_attribute("class"))
    boxes[0].dispatch_event("pointerleave")
    first.focus()
    assert lit.search(boxes[0].get_attribute("class"))
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.hover("#detail-name")
    assert first.get_attribute("aria-pressed") == "true"
    assert lit.search(boxes[0].get_attribute("class"))


def test_the_button_of_a_caption_localizes_it(page, served, item):
    captions = served.client.get("/api/item", params={"id": item}).json()["captions"]
    look_at(page, served, item)
    page.click(f".where-is[aria-label={json.dumps('Show in the picture: ' + captions[1])}]")
    page.wait_for_selector("#located:not([hidden])")
    assert page.input_value("#locate-text") == captions[1]
    shown = page.locator("#located").evaluate("e => e.textContent")
    assert re.sub(r"\d", "", shown) == captions[1]
    assert page.locator("#boxes .best").count() == page.locator("#located .phrase").count()


def test_the_query_is_the_default_text_and_keys_stay_in_the_field(page, served):
    id = served.hits(q="a dog", all=True)[0]["id"]
    look_at(page, served, id, "a+dog")
    assert page.input_value("#locate-text") == "a dog"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "locate-text"
    page.keyboard.type("a man")
    page.keyboard.press("ArrowLeft")
    assert f"item={id}" in page.url
    assert page.input_value("#locate-text") == "a man"
    page.keyboard.press("Enter")
    page.wait_for_selector("#boxes .best")
    page.keyboard.press("Escape")
    assert page.locator("#boxes > *").count() == page.locator(".tag").count() == 0
    assert page.is_visible("#detail")
    page.keyboard.press("Escape")
    page.wait_for_selector("#detail", state="hidden")


def test_a_pending_request_is_shown_and_can_be_cancelled(page, served, item):
    look_at(page, served, item)
    page.route("**/api/locate?*", lambda route: None)
    page.fill("#locate-text", "a dog")
    page.press("#locate-text", "Enter")
    page.wait_for_selector("#locate-status:has-text('Searching')")
    assert "looking" in page.get_attribute("#detail", "class")
    page.keyboard.press("Escape")
    assert page.inner_text("#locate-status") == ""
    assert "looking" not in page.get_attribute("#detail", "class")
    assert page.is_visible("#detail")


def test_errors_are_shown_next_to_the_field(page, served, item):
    look_at(page, served, item)
    asked(page, "a zebra")
    assert "Unknown words: zebra" in page.inner_text("#locate-status")
    assert page.locator("#boxes .found").count() == 0
    page.route("**/api/locate?*", lambda route: route.abort())
    page.press("#locate-text", "Enter")
    page.wait_for_selector("#locate-status.error:has-text('does not answer')")
    page.complaints.clear()  # the browser notes the request that failed


def test_markup_and_letters_outside_the_first_plane_stay_text(page, served, item):
    look_at(page, served, item)
    text = "🐕🐕 <b>x</b> a brown dog 🐈 and a red ball"
    asked(page, text)
    assert page.locator("#located b").count() == 0
    shown = page.locator("#located").evaluate("e => e.textContent")
    assert re.sub(r"\d", "", shown) == text
    words = [p["text"] for p in served.located(item, text)["phrases"]]
    assert [w.split("\n")[-1].lstrip("0123456789") for w in page.locator("#located .phrase").all_inner_texts()] == words


def test_a_phone_keeps_the_picture_in_view(browser, served, item):
    context = browser.new_context(viewport={"width": 375, "height": 700}, has_touch=True, is_mobile=True)
    page = context.new_page()
    look_at(page, served, item)
    page.locator(".where-is").last.tap()
    page.wait_for_selector("#located:not([hidden])")
    assert page.evaluate("document.querySelector('#detail').scrollWidth") <= 375
    picture, words = (page.locator(place).bounding_box() for place in (".picture", "#located"))
    assert picture["y"] >= 0
    assert words["y"] >= picture["y"] + picture["height"]
    assert words["y"] + words["height"] <= 700
    context.close()


def test_without_a_localizer_the_page_has_no_field_for_phrases(page, served, item):
    def without(route):
        answer = route.fetch()
        route.fulfill(json={**answer.json(), "localizer": False})

    page.route("**/api/stats", without)
    page.goto(f"{served.url}/?item={item}")
    page.wait_for_selector("#like")
    page.wait_for_selector(".captions")
    assert page.locator("#locate").count() == page.locator(".where-is").count() == 0
