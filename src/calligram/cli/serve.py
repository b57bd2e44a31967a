"""``calligram serve``, ``calligram mcp`` and ``calligram demo``."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.text import Text

from calligram.cli.screen import INTERRUPTED_STATUS, console, print_report, progress_bar, show_spinner, styled
from calligram.errors import UserError
from calligram.extras import install_command, missing_modules, require

if TYPE_CHECKING:  # these imports take seconds, and --help must be fast
    from calligram.data.collection import Collection
    from calligram.data.draft import ImageRecord
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
    from calligram.search.library.defaults import find_library

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
    from calligram.search.library.defaults import find_library
    from calligram.search.query.searcher import Searcher
    from calligram.serve.mcp_server import LibraryTools, mcp_server

    searcher = Searcher.open(find_library(library), measure_costs=False, index=engine, device=device_named(device))
    mcp_server(LibraryTools(searcher, show_places=show_places)).run("stdio")


# The demo.

DEMO_SCENES = 8400
SCENES_SIDE = 88
"""side of the training images in pixels; with it, 2 cores train in less than four minutes"""
LIBRARY_IMAGES, LIBRARY_SIDE = 1000, 256
"""number of images in the library, and the side of drawn ones in pixels"""
PHOTOGRAPHS = {"train": 2000, "dev": 200, "test": 200}
"""of Flickr8k, by split: features of more take longer than the scenes"""
BACKBONE = "models/mobilenet_v2_1.0_224"


class Material(NamedTuple):
    """What the demo trains and searches with."""

    collection: Collection
    settings: tuple[str, ...]
    """settings of ``vse``"""
    shown: str
    """what the pictures are, for messages"""
    query: str
    """a search to try"""
    library: Path
    """collection of other pictures, for the library"""


class Steps:
    """Prints one line for each step, with its time."""

    def __init__(self) -> None:
        self.began = self._last = time.perf_counter()
        self._number = 0

    def done(self, text: str) -> Text:
        """Print a line about the step that has ended."""
        self._number += 1
        now = time.perf_counter()
        line = Text.assemble((f"{self._number}.", "bold"), f" {text}", (f"  ({now - self._last:.0f} s)", "dim"))
        self._last = now
        console.print(line, soft_wrap=True)
        return line


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the collection, the run and the pictures.")] = Path("demo"),
    images: Annotated[
        int, typer.Option(min=500, help="Number of scenes; 200 of them are for dev and 200 for test.")
    ] = DEMO_SCENES,
    seed: Annotated[int, typer.Option(help="Seed of the scenes and of training.")] = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of preset vse, as key=value; may be repeated.")
    ] = None,
    photographs: Annotated[
        Path | None,
        typer.Option(help="Folder with flickr8k/ and models/: real photographs in place of drawn scenes."),
    ] = None,
    serve: Annotated[bool, typer.Option(help="Serve the search page at the end.")] = True,
    port: Annotated[int, typer.Option(help="Port of the page. If it is taken, another one is used.")] = 8000,
) -> None:
    """Generate scenes, train a matcher, compare it with an oracle, index new scenes, and serve the search page."""
    try:
        made = make_demo(out, images, seed, set_ or [], photographs)
    except KeyboardInterrupt:
        console.print("stopped; the same command continues")
        raise typer.Exit(INTERRUPTED_STATUS) from None
    if made and serve:
        serve_locally(made, port)


def make_demo(out: Path, images: int, seed: int, changes: Sequence[str], photographs: Path | None) -> Path | None:
    """Make the demo up to its library, and return the folder of it; None without the packages that a library needs."""
    from calligram.device import device_named
    from calligram.evaluation.figures import draw_sheet
    from calligram.evaluation.retrieval import evaluate_retrieval
    from calligram.recipes.catalog import find_preset
    from calligram.recipes.parts.config import resolve
    from calligram.recipes.parts.run import RunContext, run_preset
    from calligram.training.runs import Run, draw_curves

    if photographs is not None:
        out = out / "flickr8k"  # beside a demo with scenes, whose run has other settings
    steps = Steps()
    made = demo_scenes(out, images, seed) if photographs is None else real_photographs(out, photographs)
    collection = made.collection
    steps.done(f"{sum(collection.splits().values()):,} {made.shown} with captions: {collection.folder}")
    preset = find_preset("vse")
    settings = resolve(preset.defaults, [*made.settings, f"seed={seed}", *changes])
    run_folder = out / "run"
    context = RunContext(device_named(), track=progress_bar)
    with _without_hints("calligram.training.runs"):  # of TensorBoard, for which nobody waits here
        run_preset(preset, settings, collection, run_folder, resume=run_folder.exists(), context=context)
    draw_curves(run_folder)
    steps.done(f"trained: {run_folder} (curves.png, metrics.jsonl)")
    matcher, inputs = Run.open(run_folder).load()
    pairing = collection.sentences("test")
    report = evaluate_retrieval(matcher.to(context.device), inputs, pairing)
    steps.done(f"measured on {report.images} test images")
    print_report(report, "")
    draw_sheet(matcher, inputs, pairing, out / "found.png")
    steps.done(f"captions with their first five images: {out / 'found.png'}")
    if missing := missing_modules("lancedb", "fastapi", "uvicorn"):
        console.print(f"the search page needs {', '.join(missing)}; install it with: {install_command('serve')}")
        return None
    index_library(out, made.library)
    steps.done(f"{LIBRARY_IMAGES:,} new {made.shown} are indexed: {out / 'library'}")
    console.print(f"{time.perf_counter() - steps.began:.0f} seconds")
    print_next_steps(out, made.query)
    return out / "library"


@contextmanager
def _without_hints(module: str) -> Iterator[None]:
    """Show warnings of a module, and nothing less."""
    log = logging.getLogger(module)
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)


def print_next_steps(out: Path, query: str) -> None:
    """Print three things to try, as commands that can be copied."""
    console.print(styled("Three things to try", "bold"), "(after: . .venv/bin/activate)")
    library = out / "library"
    for command, reason in (
        (f'calligram search {library} "{query}"', "a search in the terminal"),
        ("calligram index ~/photos", "your own photographs; a model is downloaded once"),
        (f"calligram clusters {library}", "groups of similar pictures, with names"),
    ):
        console.print(f"  {command}", styled(f"   # {reason}", "dim"), soft_wrap=True)


def demo_scenes(out: Path, images: int, seed: int) -> Material:
    """Draw scenes, or open those of an earlier run."""
    from calligram.data.collection import MANIFEST, Collection
    from calligram.scenes.generate import generate_scenes

    folder, splits = out / "scenes", (1 - 400 / images, 200 / images, 200 / images)
    if (folder / MANIFEST).is_file():
        made = Collection.open(folder)
    else:
        made = generate_scenes(folder, images=images, seed=seed, size=SCENES_SIDE, splits=splits, track=progress_bar)
    settings = ("epochs=6", f"image.size={SCENES_SIDE}")
    return Material(made, settings, "scenes", "a woman with an umbrella at night", new_scenes(out, seed))


def new_scenes(out: Path, seed: int) -> Path:
    """Generate larger scenes with another seed, for the library."""
    from calligram.data.collection import MANIFEST
    from calligram.scenes.generate import generate_scenes

    folder = out / "new-scenes"
    if not (folder / MANIFEST).is_file():
        generate_scenes(folder, images=LIBRARY_IMAGES, seed=seed + 1, size=LIBRARY_SIDE, track=progress_bar)
    return folder


def real_photographs(out: Path, assets: Path) -> Material:
    """Import some photographs of Flickr8k, with a frozen image network for their features."""
    from calligram.data.collection import Collection

    backbone = assets / BACKBONE
    if not backbone.is_dir():
        raise UserError(f"{assets} has no {BACKBONE}; leave out --photographs for drawn scenes")
    folders = import_flickr8k(out, assets)
    settings = ("epochs=8", f"image.backbone={backbone.resolve()}")
    return Material(Collection.open(folders[0]), settings, "photographs", "two dogs on a beach", folders[1])


def import_flickr8k(out: Path, assets: Path) -> tuple[Path, Path]:
    """Import the first images of each split for training, and images of the test split for the library."""
    from calligram.data.collection import MANIFEST
    from calligram.data.draft import Problems
    from calligram.data.readers.flickr8k import read_images_and_captions
    from calligram.data.readers.source import ImportSource
    from calligram.data.write_collection import write_draft

    folders = out / "photographs", out / "new-photographs"
    if all((folder / MANIFEST).is_file() for folder in folders):
        return folders
    if not (assets / "flickr8k").is_dir():
        raise UserError(f"{assets} has no flickr8k; leave out --photographs for drawn scenes")
    whole, _ = read_images_and_captions(ImportSource(assets / "flickr8k"), Problems())
    for folder, wanted in zip(folders, (PHOTOGRAPHS, {"test": LIBRARY_IMAGES}), strict=True):
        images: list[ImageRecord] = []
        for split, count in wanted.items():
            images += [image for image in whole.images if image.split == split][:count]
        ids = {image.id for image in images}
        captions = [caption for caption in whole.captions if ids.issuperset(caption.images)]
        part = replace(whole, images=images, captions=captions)
        write_draft(part, folder, placing="reference", overwrite=folder.exists(), track=progress_bar)
    return folders


def index_library(out: Path, source: Path) -> None:
    """Index the pictures of a collection. After a new training the library is built again with the new matcher."""
    from calligram.search.indexing.run import index_source
    from calligram.search.library.matchers import LibraryMatchers

    library, matchers = out / "library", LibraryMatchers.load(out / "run")
    rebuild = library.exists() and not matchers.indexed(library)
    index_source(matchers, source, library, rebuild=rebuild, track=progress_bar)


def serve_locally(library: Path, port: int) -> None:
    """Serve the page to this machine until Ctrl-C."""
    from calligram.serve.settings import Address, ServerSettings

    with open_server(library, Address("127.0.0.1", port).or_any_port(), ServerSettings()) as server:
        address = styled(server.address.url, "bold")
        console.print("search page:", address, " (Ctrl-C stops it)", soft_wrap=True)
        server.run()
