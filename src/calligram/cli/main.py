"""The command ``calligram``: its verbs, imported on use, and the printing of errors."""

from __future__ import annotations

import errno
import gc
import io
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import calligram
from calligram.errors import UserError, disk_error_number, is_memory_error, unknown
from calligram.lazy import import_code

COMPLETION_VARIABLE = "_CALLIGRAM_COMPLETE"
"""environment variable by which a shell asks for completions, or for the code that asks for them"""
HELP_NAMES = {"help_option_names": ["-h", "--help"]}
LANCE_ERROR = re.compile(r"(?i)\s*(lance ?error|lancedb|encountered internal error|external error|io error)")
"""how errors of the tables of a library begin"""
LANCE_NAMESPACE_PACKAGES = ("lance_namespace", "lance_namespace_urllib3_client")
VERBS = {
    "Try everything": {
        "demo": ("serve:demo", "Generate scenes, train and measure a matcher, serve a page"),
    },
    "Data": {
        "import": ("data:import_", "Read captioned images into a collection"),
        "scenes": ("data:scenes", "Generate scenes with captions, boxes and every true pair"),
        "info": ("data:info", "Show what a collection contains"),
        "regions": ("regions:regions", "Find regions in images and store their features"),
        "suggest": ("caption:suggest", "Suggest images to caption next"),
        "caption": ("caption:caption", "Add captions to a collection"),
        "semantics": ("caption:semantics", "Show pseudo-sentences of uncaptioned images"),
        "words": ("caption:words", "Train word vectors on captions"),
    },
    "Training": {
        "list": ("train:list_", "List presets, matchers, terms, data formats and papers"),
        "show": ("train:show", "Show the settings of a preset"),
        "copy": ("train:copy", "Copy a preset into a TOML file"),
        "train": ("train:train", "Train a matcher with a preset"),
        "mine": ("mine:mine", "Store the hardest negatives of a split"),
        "export": ("library:export", "Write a matcher as ONNX files, or pictures of a library"),
        "push": ("train:push", "Upload a run to the Hugging Face hub, with a model card"),
        "pull": ("train:pull", "Download a run from the Hugging Face hub"),
    },
    "Evaluation": {
        "evaluate": ("evaluate:evaluate", "Measure retrieval or localization"),
        "compare": ("compare:compare", "Compare two runs query by query"),
        "reproduce": ("evaluate:reproduce", "Run and judge the claims of a paper"),
        "report": ("evaluate:report", "Write the pages of docs/results from the recorded results"),
    },
    "Search": {
        "index": ("index:index", "Put pictures into a library, or update it"),
        "models": ("index:models", "List models that search photographs without training"),
        "forget": ("index:forget", "Delete items from a library"),
        "search": ("search:search", "Find images or captions in a library"),
        "clusters": ("library:clusters", "Group the pictures of a library, and name the groups"),
        "searches": ("library:searches", "List or delete saved searches of a library"),
        "albums": ("albums:albums", "List, print or change albums of a library"),
        "duplicates": ("library:duplicates", "List copies of pictures in a library"),
        "check": ("check:check", "Find damage in a collection, run or library, and mend it"),
        "serve": ("serve:serve", "Serve the search page and a JSON API"),
        "mcp": ("serve:mcp", "Let an assistant search a library (Model Context Protocol)"),
        "localize": ("explain:localize", "Find the boxes of a phrase in a picture"),
        "explain": ("explain:explain", "Show which words a score relies on"),
    },
}
"""For each section of the help, the verbs: their function in ``calligram.cli`` and a summary of at most a line."""


class VerbCommands(Mapping[str, Any]):
    """The commands of typer by name; a verb's module is imported when its command is looked up."""

    def __init__(self) -> None:
        self._references = {name: verb for section in VERBS.values() for name, (verb, _) in section.items()}

    def __getitem__(self, name: str) -> Any:
        module, _, function = self._references[name].partition(":")
        single = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=HELP_NAMES)
        single.command(name)(getattr(import_module(f"calligram.cli.{module}"), function))
        return typer.main.get_command(single)

    def __contains__(self, name: object) -> bool:
        return name in self._references

    def __iter__(self) -> Iterator[str]:
        return iter(self._references)

    def __len__(self) -> int:
        return len(self._references)


class VerbGroup(TyperGroup):
    """The group of verbs: lists them by section, and suggests the nearest verb for a misspelt one."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands: Mapping[str, Any] = VerbCommands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the verbs, without importing them."""
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb, or raise a ``UserError`` that names the nearest one."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise unknown("command", args[0], self.commands)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section of the help for each section of ``VERBS``."""
        width = max(map(len, self.commands))
        for section, verbs in VERBS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in verbs.items()])


# Typer's own layout imports a Markdown parser, which takes longer than everything else that the help needs.
app = typer.Typer(
    cls=VerbGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
    help="Train models that match images and texts, measure them, and search pictures with them.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(calligram.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
    imports: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE|FILE.py",
            help="Import a module or file with matchers, terms, inputs or readers. This runs its code. Repeatable.",
        ),
    ] = None,
) -> None:
    """Options of the command itself."""
    for name in imports or ():
        import_code(name)


class LogHandler(logging.Handler):
    """Prints log records above a progress bar or a spinner, so that they do not mix."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        from calligram.cli.screen import errors

        errors.print(self.format(record), soft_wrap=True)


def main() -> None:
    """Run the command line. Errors that a user can correct are printed in one line, without a traceback."""
    ended = _watch_child() if memory_limit() is not None else None
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[LogHandler()])
    # Of the processes of torchrun, the first one says what concerns all.
    logging.getLogger("calligram").setLevel(logging.INFO if os.environ.get("RANK", "0") == "0" else logging.ERROR)
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal's encoding does not have is no error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if COMPLETION_VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    try:
        app(prog_name="calligram")
    except UserError as error:
        _fail(str(error))
    except (PermissionError, NotADirectoryError, IsADirectoryError, FileNotFoundError, FileExistsError) as error:
        _fail(f"{error.filename}: {error.strerror}")
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:
        if is_memory_error(error):
            _fail(_memory_message(str(error)))
        if (number := disk_error_number(error)) is not None:
            _fail(_disk_message(error, number))
        if not LANCE_ERROR.match(str(error)):
            raise
        line = str(error).splitlines()[0][:300]
        if "not found" in line.lower():
            _fail(f"the library has changed since it was opened, or lacks a file ({line}); run the command again")
        _fail(f'a table cannot be read ({line}); "calligram check LIBRARY --repair" mends a library')
    finally:
        if screen := sys.modules.get("calligram.cli.screen"):
            screen.console.show_cursor(True)
        if ended is not None:
            os.write(ended, b"1")


def memory_limit() -> int | None:
    """The limit of this process's address space in bytes (``ulimit -v``); None if there is none, as usual."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limits = resource.getrlimit(resource.RLIMIT_AS)[0], resource.getrlimit(resource.RLIMIT_DATA)[0]
    return min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)


def _watch_child() -> int:
    """Return in a child that runs the command; here, wait for its end, and say so if it was for lack of memory.

    Libraries in C++ and Rust end their process when they get no memory, without a word of what to do.

    Returns:
        A pipe into which the child writes if it ends by itself.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        return writing
    os.close(writing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the child too
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (-signal.SIGTERM, -signal.SIGINT) and not os.read(reading, 1):
        _fail(_memory_message(f"the process ended by {f'signal {-code}' if code < 0 else 'itself'}"))
    sys.exit(code if code >= 0 else 128 - code)


def _memory_message(what: str) -> str:
    """What failed, the limit, and what to do."""
    shown, limit = " ".join(what.split())[:120] or "no memory is left", memory_limit()
    if limit is None:
        todo = "close other programs, or use a machine with more memory"
    else:
        todo = (
            f"this process may use {limit / 1e9:.1f} GB of address space; raise the limit to 4 GB or more (ulimit -v)"
        )
    return f"there is not enough memory ({shown}); {todo}"


def _disk_message(error: Exception, number: int) -> str:
    """What failed, how much space there is, and what to do."""
    path, what = None, None
    if isinstance(error, OSError):
        path, what = error.filename2 or error.filename, error.strerror  # of two files, the second one is written
    what = what or os.strerror(number)
    if number == errno.EROFS:
        todo = "choose a folder on another disk, or make this one writable"
    elif number == errno.EIO:
        todo = "the disk may be broken; check it, and choose a folder on another one"
    elif number == errno.EFBIG:
        todo = "choose a folder on a disk that accepts larger files"
    else:
        todo = "free some space, and run the command again"
    return f"{path}: {what}; {todo}" if path else f"{what}; {todo}"


def _fail(message: str) -> None:
    """Print an error and exit with status 2."""
    from calligram.cli.screen import errors, styled

    errors.print(styled("error:", "bold red"), message, soft_wrap=True)
    sys.exit(2)


@contextmanager
def fast_imports() -> Iterator[None]:
    """Suspend garbage collection, which takes a tenth of the time of importing torch and frees nothing meanwhile.

    Objects of that time are exempt from later collections, also from the one at the end of the process. Use it only in
    a process that runs one command.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def import_pyarrow_for_command() -> None:
    """Import pyarrow without pandas. It would import pandas where that is installed, which takes about a second.

    Afterwards pyarrow converts nothing to pandas in this process. Call it therefore only in a process that runs one
    command, never from code that others import.
    """
    if "pandas" in sys.modules:
        return
    hidden = _HiddenPackage("pandas")
    sys.meta_path.insert(0, hidden)
    try:
        import pyarrow

        pyarrow.scalar(0)  # here pyarrow looks for pandas, and remembers what it has found
    finally:
        sys.meta_path.remove(hidden)


def import_lancedb_for_command() -> None:
    """Import lancedb without pandas and without the client of remote servers, in 40% of the time.

    A library on disk needs neither. See ``import_pyarrow_for_command``.
    """
    if "lancedb" in sys.modules or "pandas" in sys.modules or find_spec("lancedb") is None:
        return
    import_pyarrow_for_command()
    client = find_spec("lance_namespace_urllib3_client")
    if client is not None:
        sys.modules[client.name] = module_from_spec(client)  # its modules can be imported; its __init__ does not run
    try:
        import lancedb  # noqa: F401
    except (ImportError, AttributeError):  # a version that needs the client
        for name in [name for name in sys.modules if name.partition(".")[0] in ("lancedb", *LANCE_NAMESPACE_PACKAGES)]:
            del sys.modules[name]


class _HiddenPackage:
    """Raises ImportError for one package while it is in ``sys.meta_path``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == self.name:
            raise ImportError(f"{name} is not imported in this process")
