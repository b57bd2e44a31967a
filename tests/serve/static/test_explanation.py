"""The weight of words on the page, in a real browser."""

from __future__ import annotations

import json

import pytest


def weights(page) -> list[float]:
    return [float(word.get_attribute("title").replace("−", "-")) for word in page.locator("#weighed .weighs").all()]


def test_the_words_of_a_query_are_explained(page, served):
    query = "a brown dog near a little girl"
    id = served.hits(q=query, all=True)[0]["id"]
    found = served.client.get("/api/explain", params={"id": id, "text": query}).json()
    page.goto(f"{served.url}/?q={query.replace(' ', '+')}&all=1&item={id}")
    page.wait_for_selector("#explanation:not([hidden]) .weighs")
    assert weights(page) == pytest.approx([word["weight"] for word in found["words"]], abs=6e-4)
    assert f"Score {found['score']:.3f}" in page.inner_text("#explanation-status")
    for place, word in enumerate(found["words"]):
        shown = page.locator("#weighed .weighs").nth(place)
        assert shown.evaluate("e => e.firstChild.textContent") == word["word"]
        assert shown.evaluate("e => getComputedStyle(e).display") == "inline"
        assert ("against" in shown.get_attribute("class").split()) == (word["weight"] < 0)
    most = max(range(len(found["words"])), key=lambda place: abs(found["words"][place]["weight"]))
    assert page.locator("#weighed .weighs").nth(most).evaluate("e => e.style.getPropertyValue('--weight')") == "1.000"
    risen = sum(word["weight"] > 0 for word in found["words"])
    assert page.locator("#weighed .telling").count() == min(3, risen)


def test_the_button_of_a_caption_explains_it_and_one_word_is_not_explained(page, served, item):
    captions = served.client.get("/api/item", params={"id": item}).json()["captions"]
    page.goto(f"{served.url}/?q=dog&all=1&item={item}")
    page.wait_for_selector(".captions")
    assert page.locator("#explanation").is_hidden()
    page.click(f".weigh[aria-label={json.dumps('Explain the words: ' + captions[1])}]")
    page.wait_for_selector("#explanation:not([hidden]) .weighs")
    page.locator("#weighed").evaluate("e => e.querySelectorAll('.visually-hidden').forEach(told => told.remove())")
    assert page.locator("#weighed").evaluate("e => e.textContent") == captions[1]


def test_a_refused_explanation_shows_the_reason(page, served, item):
    page.route("**/api/explain?*", lambda route: route.fulfill(status=503, json={"error": "too many", "id": None}))
    page.goto(f"{served.url}/?item={item}")
    page.wait_for_selector(".weigh")
    page.locator(".weigh").first.click()
    page.wait_for_selector("#explanation-status.error")
    assert page.inner_text("#explanation-status") == "too many"
    page.complaints.clear()  # the browser's own, of the answer above
