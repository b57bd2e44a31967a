"""The page in a real browser, against a real server."""

from __future__ import annotations

import re

import pytest

DROP = """([name, bytes]) => {
  const carried = new DataTransfer();
  carried.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
  return carried;
}"""


SAME_BOX = """(() => {
  const [one, other] = [".picture img", "#overlay"].map((name) => document.querySelector(name).getBoundingClientRect());
  return one.width > 0 && ["x", "y", "width", "height"].every((side) => one[side] === other[side]);
})()"""


def answered(page) -> None:
    page.wait_for_selector("#status:has-text(' ms')")


def tiles(page):
    return page.locator("#results .tile[data-id]")


def held_back(page, pattern: str):
    """Hold requests back; returns a function that waits for the first of them."""
    held: list = []
    page.route(pattern, lambda route: held.append(route))

    def first():
        for _ in range(3000):
            if held:
                return held[0]
            page.wait_for_timeout(20)
        raise TimeoutError(pattern)

    return first


def search(page, served, words: str) -> None:
    page.goto(served.url)
    page.fill("#query", words)
    page.press("#query", "Enter")
    answered(page)
    tiles(page).first.wait_for()


def test_the_start_page_shows_pictures_and_example_queries(page, served, until):
    page.goto(served.url)
    tiles(page).first.wait_for()
    assert "60 pictures" in page.inner_text("#tagline")
    until(page, "document.querySelector('#results img').naturalWidth > 0")
    example = page.locator("#examples a").first
    words = example.inner_text()
    example.click()
    answered(page)
    assert page.input_value("#query") == words
    assert "q=" in page.url


def test_a_search_is_in_the_address_and_in_the_history(page, served, until):
    search(page, served, "a boat")
    assert "?q=a+boat" in page.url
    page.fill("#query", "a dog at night")
    page.press("#query", "Enter")
    page.wait_for_url("**/?q=a+dog+at+night")
    page.go_back()
    page.wait_for_url("**/?q=a+boat")
    until(page, "document.querySelector('#query').value === 'a boat'")
    page.reload()
    tiles(page).first.wait_for()
    assert page.input_value("#query") == "a boat"
    assert page.title() == "a boat · Calligram"


def test_the_page_says_that_a_search_is_approximate_and_can_compare_all(approximate_page, approximate_served):
    page = approximate_page
    measured = approximate_served.client.get("/api/search", params={"q": "a boat"}).json()["recall"]
    search(page, approximate_served, "a boat")
    assert f"approximate: finds {100 * measured:.1f}% of the ten nearest" in page.inner_text("#status")
    page.click("#exactness")
    page.wait_for_url("**exact=1*")
    page.wait_for_selector("#status:has-text('all compared')")
    page.reload()
    page.wait_for_selector("#status:has-text('all compared')")
    page.click("#exactness")
    page.wait_for_selector("#status:has-text('approximate')")
    assert "exact" not in page.url


def test_the_page_of_a_small_library_says_nothing_of_it(page, served):
    search(page, served, "a boat")
    assert "approximate" not in page.inner_text("#status")
    assert page.locator("#exactness").count() == 0


def test_text_typed_before_the_page_is_ready_stays(page, served):
    held = held_back(page, "**/api/stats")
    page.goto(served.url)
    page.fill("#query", "a boat")
    held().continue_()
    tiles(page).first.wait_for()
    assert page.input_value("#query") == "a boat"


def test_a_search_before_the_page_is_ready_is_sent_once(page, served):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/search?" in request.url else None)
    held = held_back(page, "**/api/stats")
    page.goto(served.url)
    page.fill("#query", "a boat")
    page.press("#query", "Enter")
    page.wait_for_url("**/?q=a+boat")
    held().continue_()
    answered(page)
    tiles(page).first.wait_for()
    assert len(asked) == 1


def test_a_page_that_could_not_begin_can_try_again(page, served):
    page.route("**/api/stats", lambda route: route.abort())
    page.goto(f"{served.url}/?q=a+boat")
    page.wait_for_selector("text=The server does not answer.")
    page.unroute("**/api/stats")
    page.click("text=Try again")
    tiles(page).first.wait_for()
    assert "60 pictures" in page.text_content("#tagline")
    page.complaints.clear()  # the browser notes the request that failed


def test_dates_that_come_late_remove_no_error_message(copies_page, copies_served):
    page = copies_page
    held = held_back(page, "**/api/timeline")
    search(page, copies_served, "a dog")
    page.click("#filter")
    page.fill("#where", "yaer > 3")
    page.press("#where", "Enter")
    page.wait_for_selector("#where[aria-invalid=true]")
    held().continue_()
    page.wait_for_selector(".bars button")
    assert "unknown column 'yaer'" in page.inner_text("#where-says")
    page.complaints.clear()  # the browser notes every 400 in the console


def test_the_page_can_be_used_by_keyboard(page, served):
    search(page, served, "a boat")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "query"
    page.keyboard.press("ArrowDown")
    first = page.evaluate("document.activeElement.dataset.id")
    page.keyboard.press("ArrowRight")
    second = page.evaluate("document.activeElement.dataset.id")
    assert first
    assert second
    assert first != second
    page.keyboard.press("Enter")
    page.wait_for_selector("#detail[open] #like")
    assert f"item={second}" in page.url
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(f"**item={first}")
    page.keyboard.press("ArrowRight")
    page.wait_for_url(f"**item={second}")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(f"**item={first}")
    page.keyboard.press("Escape")
    page.wait_for_selector("#detail", state="hidden")
    assert "item=" not in page.url
    assert page.evaluate("document.activeElement.dataset.id") == first
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.id") == "query"


def test_a_picture_is_shown_large_with_captions_and_metadata(page, served, until):
    search(page, served, "a boat")
    tiles(page).nth(1).click()
    page.wait_for_selector("#like")
    assert page.locator(".captions li").count() == 5
    assert "setting" in page.inner_text(".facts")
    until(page, "document.querySelector('.picture img').src.includes('api/image')")
    assert page.get_attribute("#overlay", "viewBox") == "0 0 64 64"
    until(page, SAME_BOX)
    with page.expect_download() as saved:
        page.click("#detail >> text=Download")
    assert saved.value.suggested_filename.endswith(".png")
    page.go_back()
    page.wait_for_selector("#detail", state="hidden")


def test_more_like_this_searches_by_an_item(page, served):
    search(page, served, "a boat")
    tiles(page).first.click()
    page.click("#like")
    page.wait_for_url("**/?like=*")
    page.wait_for_selector("#detail", state="hidden")
    answered(page)
    assert page.locator("#held img").count() == 1
    page.click("#held button")
    page.wait_for_selector("body.home")


def test_a_dropped_picture_is_the_query(page, served):
    picture = served.client.get("/api/image", params={"id": served.hits(q="a dog", all=True)[0]["id"]}).content
    page.goto(served.url)
    tiles(page).first.wait_for()
    carried = page.evaluate_handle(DROP, ["a.png", list(picture)])
    page.dispatch_event("body", "dragenter", {"dataTransfer": carried})
    assert page.is_visible("#drop")
    page.dispatch_event("body", "dragover", {"dataTransfer": carried})
    page.dispatch_event("body", "drop", {"dataTransfer": carried})
    answered(page)
    assert not page.is_visible("#drop")
    assert page.locator("#held img").count() == 1
    page.reload()
    page.wait_for_selector("text=The picture of this search is not available")


def test_a_pasted_picture_is_the_query(page, served):
    picture = served.client.get("/api/thumbnail", params={"id": served.hits(q="a dog", all=True)[0]["id"]}).content
    page.goto(served.url)
    tiles(page).first.wait_for()
    carried = page.evaluate_handle(DROP, ["a.png", list(picture)])
    page.evaluate(
        "(clipboardData) => dispatchEvent(new ClipboardEvent('paste', { clipboardData, cancelable: true }))", carried
    )
    answered(page)
    assert "picture=" in page.url


@pytest.mark.parametrize(("content", "message"), [(b"hello", "this is not a picture"), (None, None)])
def test_a_file_without_a_known_type_is_sent_to_the_server(page, served, content, message):
    page.goto(served.url)
    tiles(page).first.wait_for()
    picture = served.client.get("/api/thumbnail", params={"id": tiles(page).first.get_attribute("data-id")}).content
    carried = page.evaluate_handle(
        """(bytes) => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(bytes)], "without-suffix", { type: "" }));
            return data;
        }""",
        list(content or picture),
    )
    page.dispatch_event("body", "drop", {"dataTransfer": carried})
    page.wait_for_url("**picture=*")
    if message:
        page.wait_for_selector(f"#notice:has-text('{message}')")
        page.complaints.clear()  # the browser notes every 415 in the console
        page.go_back()
    else:
        answered(page)
    tiles(page).first.wait_for()


def test_terms_after_a_minus_sign_are_subtracted_and_can_be_removed(page, served):
    search(page, served, "a park - a person + 2:a dog")
    assert page.input_value("#query") == "a park"
    assert page.locator(".chip.minus span").inner_text() == "− a person"
    assert "minus=a+person" in page.url
    assert "plus=2%3Aa+dog" in page.url
    page.click(".chip.minus button")
    page.wait_for_url(re.compile("^(?!.*minus)"))
    page.click("text=leave out…")
    assert page.input_value("#query") == "a park - "


def test_filters_narrow_the_results(page, served):
    search(page, served, "a dog")
    page.click("#filter")
    page.click(".facet[aria-label=time] button[title=night]")
    page.wait_for_url("**f.time=night*")
    page.wait_for_selector("#results[aria-busy=false]")
    first = tiles(page).first.get_attribute("data-id")
    assert served.client.get("/api/item", params={"id": first}).json()["metadata"]["time"] == "night"
    page.fill("#where", "setting = 'nowhere'")
    page.press("#where", "Enter")
    page.wait_for_selector("text=Nothing satisfies the filters.")
    page.click("text=Remove the filters")
    tiles(page).first.wait_for()
    assert "f.time" not in page.url


def test_an_invalid_condition_is_reported_next_to_its_field(page, served):
    search(page, served, "a dog")
    page.click("#filter")
    page.fill("#where", "yaer > 3")
    page.press("#where", "Enter")
    page.wait_for_selector("#where[aria-invalid=true]")
    assert "unknown column 'yaer'" in page.inner_text("#where-says")
    page.complaints.clear()  # the browser notes every 400 in the console


def test_results_that_are_not_a_good_match_can_be_shown(page, served):
    """Which query has none depends on the weights, so the server's answer is held back here."""

    def nothing(route):
        if "all=true" in route.request.url:
            return route.continue_()
        return route.fulfill(json={"hits": [], "below": 48, "milliseconds": {}})

    page.route("**/api/search?*", nothing)
    page.goto(f"{served.url}/?q=tax+law")
    page.wait_for_selector("text=No good match")
    page.click("#anyway")
    tiles(page).first.wait_for()
    assert "all=1" in page.url


def test_captions_are_found_and_link_to_pictures(page, served):
    search(page, served, "a dog")
    page.click("[data-find=captions]")
    line = page.locator(".word").first
    line.wait_for()
    line.click()
    tiles(page).first.wait_for()
    assert "find=captions" not in page.url


def test_markup_in_a_query_stays_text(page, served):
    page.goto(f"{served.url}/?q=%3Cimg%20src=x%20onerror=alert(1)%3E&minus=%3Cb%3Ex%3C/b%3E&all=1")
    tiles(page).first.wait_for()
    assert page.locator("#chips b").count() == 0
    assert page.locator(".chip.minus span").inner_text() == "− <b>x</b>"


def test_a_stopped_server_is_reported_and_the_search_can_be_repeated(page, served):
    search(page, served, "a dog")
    page.route("**/api/search?*", lambda route: route.abort())
    page.fill("#query", "a cat")
    page.press("#query", "Enter")
    page.wait_for_selector("text=The server does not answer.")
    page.unroute("**/api/search?*")
    page.click("text=Try again")
    tiles(page).first.wait_for()
    page.complaints.clear()  # the browser notes the request that failed


def test_a_phone_shows_it_without_scrolling_sideways(browser, served):
    context = browser.new_context(
        viewport={"width": 375, "height": 700}, has_touch=True, is_mobile=True, color_scheme="dark"
    )
    page = context.new_page()
    for address in ("", "?q=a+dog&all=1", "?q=a+dog&minus=a+very+long+term+that+goes+on+and+on+and+on&all=1"):
        page.goto(f"{served.url}/{address}")
        tiles(page).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 375
    tiles(page).first.click()
    page.wait_for_selector("#like")
    assert page.evaluate("document.querySelector('#detail').scrollWidth") <= 375
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    context.close()
