"""Where words look, and the words of a region, on the page, in a real browser."""

from __future__ import annotations

import re

import pytest

QUERY = "a brown dog near a little girl"


@pytest.fixture
def opened(attending_page, attending):
    """The page with a picture whose words are weighed, and what the server says of it."""
    id = attending.hits(q=QUERY, all=True)[0]["id"]
    found = attending.client.get("/api/explain", params={"id": id, "text": QUERY}).json()
    attending_page.goto(f"{attending.url}/?q={QUERY.replace(' ', '+')}&all=1&item={id}")
    attending_page.wait_for_selector("#weighed .looks")
    return attending_page, found["attention"]


def lights(page) -> dict[int, float]:
    """How bright each region is drawn."""
    rects = page.locator("#attention mask#lit rect[data-region]").all()
    return {
        int(rect.get_attribute("data-region")): float(rect.evaluate("e => e.style.getPropertyValue('--light')"))
        for rect in rects
    }


def test_pointing_at_a_word_shows_its_attention(opened):
    page, looks = opened
    assert page.locator("#weighed .looks").count() == 7
    assert page.locator("#attention > *").count() == 0
    page.locator("#weighed .looks").nth(2).hover()
    shares = looks["words"][2]
    largest = max(*shares, 3 / 16)
    assert lights(page) == pytest.approx({n: share / largest for n, share in enumerate(shares)}, abs=6e-4)
    assert f"{100 * max(shares):.0f}%" in page.inner_text("#looks-at")
    page.locator("#detail-name").hover()
    assert page.locator("#attention > *").count() == 0
    assert page.inner_text("#looks-at") == ""


def test_regions_are_drawn_at_their_boxes(opened):
    page, looks = opened
    page.locator("#weighed .looks").nth(2).click()
    picture = page.locator(".picture").bounding_box()
    for place in (0, 5, 15):
        left, top, right, bottom = looks["boxes"][place]
        button = page.locator(".part").nth(place).bounding_box()
        assert button["x"] == pytest.approx(picture["x"] + left * picture["width"], abs=1.5)
        assert button["y"] == pytest.approx(picture["y"] + top * picture["height"], abs=1.5)
        assert button["width"] == pytest.approx((right - left) * picture["width"], abs=1.5)
        assert button["height"] == pytest.approx((bottom - top) * picture["height"], abs=1.5)
        drawn = page.locator(f"#attention mask#lit rect[data-region='{place}']")
        sides = [float(drawn.get_attribute(side).removesuffix("%")) / 100 for side in ("x", "y", "width", "height")]
        assert sides == pytest.approx([left, top, right - left, bottom - top], abs=1e-6)


def test_the_selected_region_is_brighter_in_a_screenshot(opened, until):
    """Pixels of a screenshot: with one region chosen, it is brighter than without the veil elsewhere."""
    import io

    import numpy as np
    from PIL import Image

    page, looks = opened

    def pixels() -> np.ndarray:
        shot = Image.open(io.BytesIO(page.locator(".picture").screenshot())).convert("L")
        return np.asarray(shot.resize((64, 64), Image.Resampling.BOX), dtype=float)

    page.wait_for_selector(".picture img[src*='api/image']")
    until(page, "document.querySelector('.picture img').complete")
    before = pixels()
    page.locator(".part").nth(6).click()
    page.mouse.move(3, 3)
    after = pixels()
    darker = (before - after > 8).reshape(4, 16, 4, 16).mean((1, 3)).ravel()
    others = np.delete(darker, 6)
    assert darker[6] < 0.25
    assert others.mean() > 0.8
    assert len(looks["boxes"]) == 16


def test_a_selected_region_shows_its_words_until_it_is_deselected(opened):
    page, looks = opened
    page.locator(".part").nth(9).click()
    shares = looks["regions"][9]
    shown = [
        float(word.evaluate("e => e.style.getPropertyValue('--look')"))
        for word in page.locator("#weighed .looks").all()
    ]
    assert shown == pytest.approx([share / max(shares) for share in shares], abs=6e-4)
    assert page.locator("#weighed .asked").count() == 7
    assert lights(page) == {n: float(n == 9) for n in range(16)}
    best = QUERY.split()[max(range(7), key=shares.__getitem__)]
    shown_text = page.inner_text("#looks-at")
    assert f"attends to {best} {100 * max(shares):.0f}%" in shown_text
    assert f"ends of the text get {100 * looks['rest'][9]:.0f}%" in shown_text
    assert page.locator(".part[aria-pressed='true']").count() == 1
    page.locator("#weighed .looks").nth(0).hover()  # a word has its turn, then the region comes back
    assert page.locator("#weighed .asked").count() == 0
    page.locator("#detail-name").hover()
    assert page.locator("#weighed .asked").count() == 7
    page.keyboard.press("Escape")
    assert page.locator("#weighed .asked").count() == page.locator("#attention > *").count() == 0
    assert page.is_visible("#detail")
    page.keyboard.press("Escape")
    page.wait_for_selector("#detail", state="hidden")


def test_attention_can_be_used_by_keyboard(opened):
    page, looks = opened
    page.locator("#weighed .looks").first.focus()
    assert len(lights(page)) == 16
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.firstChild.textContent") == "brown"
    page.keyboard.press("Enter")
    assert page.get_attribute("#weighed .looks >> nth=1", "aria-pressed") == "true"
    assert "attends most to" in page.locator("#weighed .looks").nth(1).inner_text()
    # One stop for all regions, and arrows between them.
    assert page.locator(".part[tabindex='0']").count() == 1
    page.locator(".part[tabindex='0']").focus()
    address = page.url
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.url == address  # the picture is still the same
    assert page.evaluate("[...document.querySelectorAll('.part')].indexOf(document.activeElement)") == 8
    page.keyboard.press("Enter")
    assert lights(page)[8] == 1
    name = page.evaluate("document.activeElement.getAttribute('aria-label')")
    best = QUERY.split()[max(range(7), key=looks["regions"][8].__getitem__)]
    assert name.startswith("Region in the left part: ") or name.startswith("Region in the lower left part: ")
    assert f": {best} " in name
    assert page.locator(".part[tabindex='0']").count() == 1


def test_overlapping_boxes_are_outlined_with_small_ones_on_top(attending_page, attending):
    """Cells of the real answer put over each other, as boxes of stored features are."""
    page, id = attending_page, attending.hits(q=QUERY, all=True)[0]["id"]

    def moved(route):
        answer = route.fetch().json()
        answer["attention"]["boxes"] = [[0.03 * n, 0.03 * n, 1 - 0.03 * n, 1 - 0.03 * n] for n in range(16)]
        route.fulfill(json=answer)

    page.route("**/api/explain?*", moved)
    page.goto(f"{attending.url}/?q={QUERY.replace(' ', '+')}&all=1&item={id}")
    page.wait_for_selector("#weighed .looks")
    page.locator("#weighed .looks").first.hover()
    shares = lights(page)
    lines = page.locator("#attention .outlined").all()
    best = sorted(shares, key=shares.__getitem__)[-3:]
    assert [int(line.get_attribute("data-region")) for line in lines] == best
    page.locator(".picture").click()  # its middle
    assert lights(page)[15] == 1
    page.keyboard.press("PageUp")  # all have one middle, so no region is to the right
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert lights(page)[14] == 1


def test_a_matcher_of_single_vectors_shows_word_importance_only(page, served):
    id = served.hits(q=QUERY, all=True)[0]["id"]
    page.goto(f"{served.url}/?q={QUERY.replace(' ', '+')}&all=1&item={id}")
    page.wait_for_selector("#weighed .weighs")
    assert page.locator("#weighed .looks").count() == page.locator(".part").count() == 0
    assert page.locator(".parts").is_hidden()
    assert "Point at a word" not in page.inner_text("#explanation-status")


@pytest.mark.parametrize(
    ("opened", "server", "shown_text"),
    [("attending_page", "attending", ", 60 of 60 reranked"), ("page", "served", "")],
)
def test_the_page_shows_how_many_candidates_were_reranked(opened, server, shown_text, request):
    page, url = request.getfixturevalue(opened), request.getfixturevalue(server).url
    page.goto(f"{url}/?q={QUERY.replace(' ', '+')}&all=1")
    page.wait_for_selector("#status:has-text(' ms')")
    assert re.search(rf"pictures in \d+ ms{shown_text}(, unknown: .+)?$", page.inner_text("#status"))
