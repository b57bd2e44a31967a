"""``calligram serve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from calligram.cli.screen import console
from calligram.errors import UserError

if TYPE_CHECKING:  # importing it takes seconds, and help should not
    from calligram.serve.running import Address


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
    device: Annotated[str, typer.Option(help="Where queries are encoded: cpu, cuda or cuda:1.")] = "cpu",
) -> None:
    """Serve a library: the search page, and JSON under /api. Ctrl-C ends it."""
    try:
        from calligram.serve.running import Address, Server
        from calligram.serve.settings import Settings
    except ImportError as error:
        raise UserError(f'the server needs {error.name}; install it with: pip install "calligram[serve]"') from error

    address = Address(host, port)
    if not (address.loopback or token or open_):
        raise UserError(
            f"{host} can be reached by others; protect it with --token, or let everyone in with --open, "
            "or leave --host at 127.0.0.1"
        )
    settings = Settings(token=token, hosts=address.names(allow_host or []), anywhere=not address.loopback)
    with Server.open(library, address, settings, device=device) as server:
        say(server.address, token is not None)
        server.run()


def say(address: Address, guarded: bool) -> None:
    """Print where to look, once it can be reached."""
    note = ", and asks for the token" if guarded else ""
    console.print(f"[bold]{address.url}[/] serves the page{note}; Ctrl-C ends it", soft_wrap=True)
