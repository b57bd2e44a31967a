"""``calligram forget``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calligram.cli.screen import bars, console


def forget(
    library: Annotated[Path, typer.Argument(help="Folder of a library.")],
    what: Annotated[list[str] | None, typer.Argument(help="Ids, or paths of pictures or of folders.")] = None,
    where: Annotated[str | None, typer.Option(help="A condition, such as 'year < 2010'.")] = None,
    gone: Annotated[bool, typer.Option(help="Pictures whose file is no longer there.")] = False,
) -> None:
    """Delete items from a library, with everything of theirs; the picture files stay.

    Of several, --where and --gone among them, all must hold.

    A later "calligram index" leaves them out, also under another name, until their content changes or --again is given.
    """
    from calligram.search.forgetting import forget as forget_items

    count = forget_items(library, what or [], where=where, gone=gone, track=bars)
    console.print(f"{count:,} pictures forgotten")
