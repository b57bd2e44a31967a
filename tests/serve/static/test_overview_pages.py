"""The map of a library and its groups of copies, in a real browser against a real server."""

from __future__ import annotations

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


def test_the_map_zooms_by_wheel_button_and_key_and_moves(page, served):
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
    page.wait_for_timeout(50)
    assert page.evaluate(SCALE) > 1.5 * whole
    before = page.locator("#clusters").get_attribute("transform")
    page.mouse.down()
    page.mouse.move(box["x"] + 380, box["y"] + 260)
    page.mouse.up()
    assert page.locator("#clusters").get_attribute("transform") != before
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
