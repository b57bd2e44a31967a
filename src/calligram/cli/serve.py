"""``calligram serve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calligram.cli.screen import console, waiting
from calligram.errors import UserError

if TYPE_CHECKING:  # importing it takes seconds, and help should not
    from calligram.serve.server import LibraryServer
    from calligram.serve.settings import Address, ServerSettings


def serve(
    library: Annotated[Path, typer.Argument(help='Folder of a library, made by "calligram index".')],
    host: Annotated[str, typer.Option(help="Address to listen on; another than loopback needs --token or --open.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="CALLIGRAM_TOKEN", help="Asked of everyone; better given in the environment.", metavar="TOKEN"
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Let everyone in who can reach the address.")] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name that this machine goes by; may be repeated.", metavar="NAME")
    ] = None,
    collection: Annotated[
        Path | None,
        typer.Option(help="Propose images of this collection on a page of its own, and write their captions into it."),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget-ms", help="Let a second stage order as many candidates as this many milliseconds allow."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where queries are encoded: cpu, cuda or cuda:1.")] = "cpu",
) -> None:
    """Serve a library: the search page, and JSON under /api. Ctrl-C ends it."""
    from calligram.serve.settings import Address, ServerSettings

    address = Address(host, port)
    if not (address.loopback or token or open_):
        raise UserError(
            f"{host} can be reached by others; protect it with --token, or let everyone in with --open, "
            "or leave --host at 127.0.0.1"
        )
    if collection is not None and not (address.loopback or token):
        raise UserError(
            "with --collection whoever reaches the server may write into the collection; protect it with --token"
        )
    settings = ServerSettings(
        token=token,
        hosts=address.names(allow_host or []),
        anywhere=not address.loopback,
        collection=collection,
        budget_ms=budget,
    )
    with open_server(library, address, settings, device) as server:
        note = ", and asks for the token" if token else ""
        console.print(f"[bold]{server.address.url}[/] serves the page{note}; Ctrl-C ends it", soft_wrap=True)
        if collection is not None:
            console.print(f"{server.address.url}/caption.html takes captions for {collection}", soft_wrap=True)
        server.run()


def open_server(library: Path, address: Address, settings: ServerSettings, device: str = "cpu") -> LibraryServer:
    """Open a library at an address.

    Raises:
        UserError: when that cannot be done, or the server is not installed.
    """
    with waiting(f"opening {library}"):
        try:
            import fastapi  # noqa: F401
            import python_multipart  # noqa: F401
            import uvicorn  # noqa: F401
        except ImportError as error:
            raise UserError(
                f'the server needs {error.name}; install it with: pip install "calligram[serve]"'
            ) from error
        from calligram.recipes.parts.run import device_named
        from calligram.serve.server import LibraryServer

        return LibraryServer.open(library, address, settings, device=device_named(device))
