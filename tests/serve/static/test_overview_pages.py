"""The map of a library and its groups of copies, in a real browser against a real server."""

from __future__ import annotations

import zipfile

SCALE = "Number(document.querySelector('#clusters').getAttribute('transform').match(/scale\\(([^)]+)/)[1])"


def test_the_map_shows_clusters_and_their_pictures(page, served, until):
    page.goto(f"{served.url}/map.html")
    page.wait_for_selector(".cluster")
    found = served.client.get("/api/clusters").json()
    circles = page.locator(".cluster")
    assert circles.count() == len(found["clusters"])
    assert "60 pictures" in page.inner_text("#status")
    assert page.locator("#cluster").is_hidden()
    circles.nth(1).click()
    page.wait_for_selector("#results .tile")
    second = found["clusters"][1]
    assert page.inner_text("#cluster-name") == second["name"]
    assert page.locator("#results .tile").count() == second["size"]
    assert page.locator("#results .tile").first.get_attribute("data-id") == second["examples"][0]
    until(page, "document.querySelector('.cluster[aria-current=true] .pictures image') !== null")
    assert page.url.endswith("?cluster=2")
    page.go_back()
    until(page, "document.querySelector('#cluster').hidden")
    page.goto(f"{served.url}/map.html?cluster=2")
    page.wait_for_selector("#results .tile")
    page.click("#cluster-like")
    page.wait_for_selector("#status:has-text(' ms')")
    assert page.url.count("like=") == 3


def test_the_map_zooms_by_wheel_button_and_key_and_moves(page, served, until):
    page.goto(f"{served.url}/map.html")
    page.wait_for_selector(".cluster")
    whole = page.evaluate(SCALE)
    page.click("#zoom-in")
    assert page.evaluate(SCALE) > 1.4 * whole
    page.keyboard.press("0")
    assert abs(page.evaluate(SCALE) - whole) < 1e-6
    box = page.locator("#drawing").bounding_box()
    page.mouse.move(box["x"] + 300, box["y"] + 200)
    page.mouse.wheel(0, -500)
    until(page, f"{SCALE} > 1.5 * {whole}")
    before = page.locator("#clusters").get_attribute("transform")
    page.mouse.down()
    page.mouse.move(box["x"] + 380, box["y"] + 260)
    page.mouse.up()
    until(page, f"document.querySelector('#clusters').getAttribute('transform') !== '{before}'")
    assert "cluster=" not in page.url  # a movement is not a click


def test_a_cluster_opens_by_keyboard(page, served):
    page.goto(f"{served.url}/map.html")
    page.wait_for_selector(".cluster")
    page.locator(".cluster").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#results .tile")
    assert page.url.endswith("?cluster=1")


def test_copies_are_grouped_and_open_in_the_search_page(copies_page, copies_served):
    page = copies_page
    page.goto(f"{copies_served.url}/copies.html")
    page.wait_for_selector("#groups li li")
    kinds = [text.split()[0] for text in page.locator("#groups .under").all_inner_texts()]
    assert kinds == ["largest", "same", "copy"]
    assert "small <b>.jpg" in page.inner_text("#groups")
    assert page.inner_text("#status").startswith("1 group of copies")
    page.locator("#groups .tile").last.click()
    page.wait_for_selector("#detail[open]")
    page.wait_for_selector("h2:has-text('small <b>.jpg')")


def test_a_library_without_copies_says_so(page, served):
    page.goto(f"{served.url}/copies.html")
    page.wait_for_selector("#notice h2")
    assert page.inner_text("#notice h2") == "No copies"


def test_the_search_page_links_to_both(page, served):
    page.goto(served.url)
    page.click("text=Map")
    page.wait_for_selector(".cluster")
    page.click("text=Copies")
    page.wait_for_selector("#notice h2")


def test_a_search_is_saved_and_found_on_the_start_page(copies_page, copies_served):
    page = copies_page
    page.goto(f"{copies_served.url}/?q=a+boat&minus=snow&f.year=2019")
    page.wait_for_selector("#save-search:not([hidden])")
    page.click("#save-search")
    assert page.input_value("#save-name") == "a boat − snow"
    page.fill("#save-name", "Boats <i> 2019")
    page.keyboard.press("Enter")
    page.wait_for_selector("#status:has-text('Saved as')")
    page.goto(copies_served.url)
    link = page.locator("#saved a", has_text="Boats <i> 2019")
    link.click()
    page.wait_for_selector("#status:has-text(' ms')")
    assert page.input_value("#query") == "a boat"
    assert "`year` = 2019" in page.inner_text("#chips")
    page.click("#save-search")
    page.fill("#save-name", "Boats <i> 2019")
    assert "taken" in page.inner_text("#save-error")
    page.click("#save-cancel")
    page.goto(copies_served.url)
    page.get_by_label("Delete the saved search Boats <i> 2019").click()
    link.wait_for(state="detached")


def test_the_answer_of_a_slow_search_keeps_the_message_that_it_was_saved(copies_page, copies_served):
    page, held = copies_page, []
    page.route("**/api/search?*", lambda route: held.append(route))
    page.goto(f"{copies_served.url}/?q=a+slow+boat")
    page.click("#save-search")
    page.fill("#save-name", "Slow boats")
    page.keyboard.press("Enter")
    page.wait_for_selector("#status:has-text('Saved as')")
    held[0].continue_()
    page.wait_for_selector("#status:has-text(' ms')")
    assert "Saved as “Slow boats”" in page.inner_text("#status")
    page.unroute("**/api/search?*")
    page.goto(copies_served.url)
    link = page.locator("#saved a", has_text="Slow boats")
    link.wait_for()
    page.get_by_label("Delete the saved search Slow boats").click()
    link.wait_for(state="detached")  # otherwise the page may be closed before the request is sent


def test_the_hits_are_downloaded_as_a_zip(copies_page, copies_served, tmp_path):
    page = copies_page
    page.goto(copies_served.url)
    page.wait_for_selector("#results .tile")
    assert page.locator("#download").is_hidden()
    page.goto(f"{copies_served.url}/?q=a+boat&all=1")
    page.wait_for_selector("#download:not([hidden])")
    shown = page.locator("#results .tile").count()
    with page.expect_download() as waiting:
        page.click("#download")
    waiting.value.save_as(tmp_path / "pictures.zip")
    with zipfile.ZipFile(tmp_path / "pictures.zip") as archive:
        assert len(archive.namelist()) == shown + 2


def test_a_bar_of_the_timeline_narrows_the_pictures(copies_page, copies_served, until):
    page = copies_page
    page.goto(copies_served.url)
    page.wait_for_selector("#results .tile")
    page.click("#filter")
    page.wait_for_selector(".bars button")
    assert page.inner_text(".timeline h3") == "Pictures by month"
    assert page.locator(".bars button").count() == 18  # also months without pictures
    assert "1 without a date" in page.inner_text(".timeline")
    page.fill("#since", "2019-02-01")
    page.fill("#until", "2019-12-31")
    until(page, "document.querySelectorAll('#results .tile').length === 2")
    assert "since=2019-02-01&until=2019-12-31" in page.url
    assert "1 February 2019 to 31 December 2019" in page.inner_text("#chips")
    assert page.inner_text(".timeline h3") == "Pictures by day"
    page.get_by_label("11 February 2019: 1 picture").click()
    until(page, "document.querySelectorAll('#results .tile').length === 1")
    assert "since=2019-02-11&until=2019-02-11" in page.url
    page.click("#any-time")
    until(page, "document.querySelectorAll('#results .tile').length === 7")
    page.goto(f"{copies_served.url}/?since=2019-13-77&until=x")  # an address that was changed by hand
    until(page, "document.querySelectorAll('#results .tile').length === 7")


def test_a_drag_over_bars_chooses_their_range(copies_page, copies_served, until):
    page = copies_page
    page.goto(f"{copies_served.url}/?q=a+boat&all=1")
    page.wait_for_selector("#results .tile")
    page.click("#filter")
    first, third = (page.locator(".bars button").nth(at).bounding_box() for at in (0, 2))
    page.mouse.move(first["x"] + 1, first["y"] + 5)
    page.mouse.down()
    page.mouse.move(third["x"] + 1, third["y"] + 5, steps=4)
    page.mouse.up()
    until(page, "location.search.includes('since=2019-01-01&until=2019-03-31')")
    until(page, "document.querySelectorAll('#results .tile').length === 3")  # and a copy


def test_a_library_without_dates_has_no_timeline(page, served):
    page.goto(served.url)
    page.wait_for_selector("#results .tile")
    page.click("#filter")
    page.wait_for_selector("#where")
    assert page.locator(".timeline").count() == 0
