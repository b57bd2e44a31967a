"""The page of a server that asks for a token."""

from __future__ import annotations


def tiles(page):
    return page.locator("#results .tile[data-id]")


def enter(page, word):
    page.fill("#token", word)
    page.press("#token", "Enter")


def test_the_page_shows_pictures_after_a_login(browser, guarded, token, until):
    page = browser.new_page()
    page.goto(f"{guarded}/?q=a+dog&all=1")
    enter(page, "wrong wrong wrong")
    page.wait_for_selector("text=this is not the token")
    enter(page, token)
    tiles(page).first.wait_for()
    until(page, "document.querySelector('#results img').naturalWidth > 0")
    page.reload()
    tiles(page).first.wait_for()
    page.close()


def test_a_login_in_one_tab_is_valid_in_another(browser, guarded, token):
    context = browser.new_context()
    one, two = context.new_page(), context.new_page()
    for tab in (one, two):
        tab.goto(f"{guarded}/?q=a+dog&all=1")
        tab.wait_for_selector("#login[open]")
    enter(one, "wrong")
    one.wait_for_selector("#login-error:has-text('not the token')")
    enter(one, token)
    tiles(one).first.wait_for()
    assert one.locator("#login-error").text_content() == ""
    two.evaluate("dispatchEvent(new Event('focus'))")
    tiles(two).first.wait_for()
    assert not two.locator("#login").is_visible()
    context.close()


def test_the_caption_page_needs_a_login(browser, guarded, token):
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{guarded}/caption.html")
    enter(page, "wrong wrong")
    page.wait_for_selector("#login-error:has-text('not the token')")
    enter(page, token)
    page.wait_for_selector(".todo input", timeout=60_000)
    context.close()
