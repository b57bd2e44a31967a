"""``calligram serve`` and ``calligram mcp``."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calligram.cli.screen import console, show_spinner, styled
from calligram.errors import UserError
from calligram.extras import require

if TYPE_CHECKING:  # these imports take seconds, and --help must be fast
    from calligram.serve.server import LibraryServer, ServerProcesses
    from calligram.serve.settings import Address, ServerSettings


class ServerLog(StrEnum):
    """What a server logs of each request."""

    none = "none"
    requests = "requests"
    queries = "queries"


def serve(
    library: Annotated[
        Path | None, typer.Argument(help='Folder of a library; the default is that of "calligram index FOLDER".')
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Addresses other than loopback need --token or --without-token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes any free port.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="CALLIGRAM_TOKEN",
            help="Token of 8 or more characters that every client must give. The environment variable is safer.",
            metavar="TOKEN",
        ),
    ] = None,
    open_: Annotated[
        bool,
        typer.Option("--without-token", "--open", help="Give access to everyone who can reach the address."),
    ] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another name of this machine; may be repeated.", metavar="NAME")
    ] = None,
    collection: Annotated[
        Path | None,
        typer.Option(
            help="Suggest images of this collection on the page /caption.html, and store their captions in it."
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget-ms", help="Time limit in milliseconds: the second stage compares as many candidates as fit."
        ),
    ] = None,
    remember: Annotated[
        int, typer.Option(min=0, help="Hits of earlier searches to keep in memory for equal requests; 0 keeps none.")
    ] = 100_000,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that serve at the same address; each opens the library.")
    ] = 1,
    memory: Annotated[
        float | None,
        typer.Option(
            "--memory-gb",
            min=0.01,
            help="Gigabytes of the vectors of a large library that stay in memory; the default is 1 for each index.",
        ),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(
            min=0, help="Requests a second of each client on another machine; costly ones count more. 0: no limit."
        ),
    ] = 50,
    show_places: Annotated[
        bool, typer.Option("--show-places", help="Show other machines where pictures were taken.")
    ] = False,
    log: Annotated[
        ServerLog, typer.Option(help="A line for each request: none, requests, or queries with their texts.")
    ] = ServerLog.none,
    engine: Annotated[
        str | None, typer.Option("--index", help="Address of the library's vectors, if they are not in its folder.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where queries are encoded: cpu, cuda or cuda:1.")] = "cpu",
) -> None:
    """Serve the search page of a library, and a JSON API under /api. Ctrl-C stops it."""
    from calligram.serve.settings import Address, ServerSettings

    address = Address(host, port)
    if not (address.is_loopback or token or open_):
        raise UserError(
            f"other machines can reach {host}; protect it with --token, give everyone access with --without-token, "
            "or leave --host at 127.0.0.1"
        )
    if collection is not None and not (address.is_loopback or token):
        raise UserError(
            "with --collection, everyone who can reach the server could write into the collection; protect it with "
            "--token"
        )
    settings = ServerSettings(
        token=token,
        hosts=address.host_names(allow_host or []),
        any_address=not address.is_loopback,
        collection=collection,
        budget_ms=budget,
        remembered_hits=remember,
        processes=workers,
        memory_bytes=None if memory is None else int(memory * 1e9),
        requests_per_second=rate,
        show_places=show_places,
        log=log.value,
    )
    from calligram.search.library.default_libraries import find_library

    with open_server(find_library(library), address, settings, device, engine) as server:
        note = " and asks for the token" if token else ""
        console.print(styled(server.address.url, "bold"), f"serves the page{note}; Ctrl-C stops it", soft_wrap=True)
        if collection is not None:
            console.print(f"{server.address.url}/caption.html takes captions for {collection}", soft_wrap=True)
        server.run()
    if server.abandoned:
        os._exit(0)  # Python would wait for work that nobody asks for any more; what it writes is whole or absent


def open_server(
    library: Path, address: Address, settings: ServerSettings, device: str = "cpu", engine: str | None = None
) -> LibraryServer | ServerProcesses:
    """Open a library and a socket at an address.

    Raises:
        UserError: if either cannot be opened, or the packages of the server are not installed.
    """
    with show_spinner(f"opening {library}"):
        for module in ("fastapi", "python_multipart", "uvicorn"):
            require(module, extra="serve", purpose="the server")
        from calligram.device import device_named
        from calligram.serve.server import LibraryServer, ServerProcesses

        kind = LibraryServer if settings.processes == 1 else ServerProcesses
        return kind.open(library, address, settings, device=device_named(device), index=engine)


def mcp(
    library: Annotated[
        Path | None, typer.Argument(help='Folder of a library; the default is that of "calligram index FOLDER".')
    ] = None,
    show_places: Annotated[
        bool, typer.Option("--show-places", help="Also tell the assistant where pictures were taken.")
    ] = False,
    engine: Annotated[
        str | None, typer.Option("--index", help="Address of the library's vectors, if they are not in its folder.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where queries are encoded: cpu, cuda or cuda:1.")] = "cpu",
) -> None:
    """Let an assistant search a library: a server of the Model Context Protocol on standard input and output.

    The assistant starts this command itself. It can search, look at pictures and explain scores, and change nothing.
    """
    require("mcp.server.mcpserver", extra="mcp", purpose="the server for assistants", package="mcp")
    from calligram.device import device_named
    from calligram.search.library.default_libraries import find_library
    from calligram.search.query.searcher import Searcher
    from calligram.serve.mcp_server import LibraryTools, mcp_server

    searcher = Searcher.open(find_library(library), measure_costs=False, index=engine, device=device_named(device))
    mcp_server(LibraryTools(searcher, show_places=show_places)).run("stdio")
