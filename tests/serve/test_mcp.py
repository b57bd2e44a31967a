"""The server for assistants, asked by the official client of the protocol, which starts it as a process."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from PIL import Image

import calligram
from calligram.errors import UserError
from calligram.extras import install_command
from calligram.search.query.searcher import Searcher
from calligram.serve.mcp_server import LibraryTools, mcp_server

TOOLS = ["describe_library", "explain", "look", "search", "similar"]


@pytest.fixture(scope="module")
def searcher(library_folder: Path) -> Searcher:
    return Searcher.open(library_folder, measure_costs=False)


def plain(answer: Any) -> dict[str, Any]:
    assert not answer.is_error, answer.content
    return dict(answer.structured_content)


def error(answer: Any) -> str:
    assert answer.is_error
    return str(answer.content[0].text)


def test_the_client_of_the_protocol_searches_looks_and_explains(library_folder, searcher):
    """One process answers everything that an assistant asks, with what the searcher answers."""
    environment = {**os.environ, "PYTHONPATH": str(Path(calligram.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "calligram", "mcp", str(library_folder)], env=environment
    )

    async def ask() -> None:
        async with Client(command) as client:
            listed = (await client.list_tools()).tools
            assert sorted(tool.name for tool in listed) == TOOLS
            assert all(tool.annotations and tool.annotations.read_only_hint for tool in listed)
            about = plain(await client.call_tool("describe_library"))
            assert about["items"] == len(searcher.library)
            assert str(library_folder.parent) not in json.dumps(about), "no path of the machine"
            found = plain(await client.call_tool("search", {"query": "a dog", "k": 3, "all": True}))
            expected = searcher.images("a dog", 3, all=True)
            assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in expected.hits]
            assert [hit["path"] for hit in found["hits"]] == [hit.path for hit in expected.hits]
            id = found["hits"][0]["id"]
            seen = (await client.call_tool("look", {"id": id})).content
            assert json.loads(seen[0].text)["id"] == id
            picture = Image.open(io.BytesIO(base64.b64decode(seen[1].data)))
            assert (seen[1].mime_type, picture.format) == ("image/jpeg", "JPEG")
            words = plain(await client.call_tool("explain", {"id": id, "text": "a red dog"}))["words"]
            assert [word["word"] for word in words] == ["a", "red", "dog"]
            near = plain(await client.call_tool("similar", {"id": id, "k": 2}))
            assert [hit["id"] for hit in near["hits"]] == [hit.id for hit in searcher.like(id, 2).hits]
            assert "has no item 'no'" in error(await client.call_tool("look", {"id": "no"}))
            assert "k must be from 1 to 50" in error(await client.call_tool("search", {"query": "a", "k": 51}))
            wrong = error(await client.call_tool("search", {"query": "a", "where": "colour = 3"}))
            assert "colour" in wrong
            places = error(await client.call_tool("search", {"query": "a", "where": "Latitude > 3"}))
            assert "places are switched off" in places

    with ThreadPoolExecutor(1) as thread:  # the thread of the tests has the event loop of the browser
        thread.submit(asyncio.run, asyncio.wait_for(ask(), 120)).result()


def test_places_are_for_those_who_allow_them(searcher, monkeypatch):
    item = searcher.library.item(searcher.library.sample(1)[0])
    where = {**item.metadata, "latitude": 52.5, "longitude": 13.4}
    object.__setattr__(item, "metadata", where)
    monkeypatch.setattr(type(searcher.library), "item", lambda library, id: item)
    assert "latitude" not in LibraryTools(searcher).picture(item.id)[0]["metadata"]
    assert LibraryTools(searcher, show_places=True).picture(item.id)[0]["metadata"]["latitude"] == 52.5


def test_absolute_paths_are_those_of_hits_only(searcher):
    tools = LibraryTools(searcher, show_places=True)
    about = tools.describe_library()
    assert "source" not in about["columns"]
    assert "source" not in about["frequent_values"]
    assert "source" not in tools.picture(searcher.library.sample(1)[0])[0]["metadata"]
    with pytest.raises(UserError, match="absolute paths are switched off; use folder"):
        tools.search("a dog", where="source ~ 'home'")


def test_what_a_tool_refuses(searcher):
    tools = LibraryTools(searcher)
    with pytest.raises(UserError, match="at most 1,000"):
        tools.search("a" * 1001)
    with pytest.raises(UserError, match="1 words; give 2 to 64"):
        tools.explain(searcher.library.sample(1)[0], "dog")


def test_without_the_package_the_command_says_what_to_install(searcher, library_folder, calligram, monkeypatch):
    for name in [name for name in sys.modules if name == "mcp" or name.startswith("mcp.")]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match="the server for assistants needs mcp"):
        mcp_server(LibraryTools(searcher))
    done = calligram("mcp", library_folder)
    assert install_command("mcp") in done.stderr
