"""``calligram``: the verbs, and how errors are shown."""

from __future__ import annotations

import errno
import logging
import sys
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

import calligram
from calligram.cli import caption, data, evaluate, explain, index, mine, regions, search, semantics, serve, train
from calligram.cli.screen import console, errors
from calligram.errors import UserError, unknown


class Verbs(TyperGroup):
    """Suggests the nearest verb for a misspelt one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the verb."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise unknown("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Learn which image and which text belong together: train matchers and prove how good they are.",
)
app.command("demo")(data.demo)
app.command("scenes")(data.scenes)
app.command("import")(data.import_)
app.command("info")(data.info)
app.command("regions")(regions.regions)
app.command("semantics")(semantics.semantics)
app.command("caption")(caption.caption)
app.command("list")(train.list_)
app.command("words")(semantics.words)
app.command("train")(train.train)
app.command("mine")(mine.mine)
app.command("suggest")(caption.suggest)
app.command("evaluate")(evaluate.evaluate)
app.command("explain")(explain.explain)
app.command("export")(train.export)
app.command("index")(index.index)
app.command("forget")(index.forget)
app.command("search")(search.search)
app.command("localize")(explain.localize)
app.command("reproduce")(evaluate.reproduce)
app.command("serve")(serve.serve)
app.command("report")(evaluate.report)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(calligram.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    """Options of the command itself."""


class _Lines(logging.Handler):
    """Prints what is logged above a bar or a spinner, not into it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line."""
        errors.print(self.format(record), markup=False, emoji=False, highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command line; what a user can mend is said in a line, without a traceback."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[_Lines()])
    logging.getLogger("calligram").setLevel(logging.INFO)
    warnings.filterwarnings("ignore", module="PIL")
    try:
        app()
    except UserError as error:
        errors.print(f"[bold red]error:[/] {_escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except (PermissionError, NotADirectoryError, IsADirectoryError, FileNotFoundError, FileExistsError) as error:
        errors.print(f"[bold red]error:[/] {_escape(f'{error.filename}: {error.strerror}')}", soft_wrap=True)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.ENOSPC, errno.EDQUOT):
            raise
        where = f"{error.filename}: " if error.filename else ""
        errors.print(f"[bold red]error:[/] {_escape(f'{where}{error.strerror}')}", soft_wrap=True)
        sys.exit(2)
    finally:
        console.show_cursor(True)


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
