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
from calligram.cli import (
    caption_verb,
    data_verbs,
    demo_verb,
    evaluate_verb,
    explain_verb,
    export_verb,
    forget_verb,
    index_verb,
    list_verb,
    localize_verb,
    mine_verb,
    regions_verb,
    results_verbs,
    search_verb,
    semantics_verb,
    serve_verb,
    suggest_verb,
    train_verb,
    words_verb,
)
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
app.command("demo")(demo_verb.demo)
app.command("scenes")(data_verbs.scenes)
app.command("import")(data_verbs.import_)
app.command("info")(data_verbs.info)
app.command("regions")(regions_verb.regions)
app.command("semantics")(semantics_verb.semantics)
app.command("caption")(caption_verb.caption)
app.command("list")(list_verb.list_)
app.command("words")(words_verb.words)
app.command("train")(train_verb.train)
app.command("mine")(mine_verb.mine)
app.command("suggest")(suggest_verb.suggest)
app.command("evaluate")(evaluate_verb.evaluate)
app.command("explain")(explain_verb.explain)
app.command("export")(export_verb.export)
app.command("index")(index_verb.index)
app.command("forget")(forget_verb.forget)
app.command("search")(search_verb.search)
app.command("localize")(localize_verb.localize)
app.command("reproduce")(results_verbs.reproduce)
app.command("serve")(serve_verb.serve)
app.command("report")(results_verbs.report)


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
