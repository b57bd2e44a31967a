"""``calligram check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from calligram.cli.main import fast_imports, import_lancedb_for_command
from calligram.cli.screen import console, progress_bar, show_spinner
from calligram.errors import UserError, command


def check(
    path: Annotated[Path, typer.Argument(help="Folder of a collection, a run or a library.")],
    repair: Annotated[bool, typer.Option(help="Mend what can be made again.")] = False,
    engine: Annotated[
        str | None, typer.Option("--index", help="Address of a library's vectors, if they are not in its folder.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where pictures are encoded: cpu, cuda, cuda:1 or auto.")] = "auto",
) -> None:
    """Compare all files of a collection, a run or a library with their checksums, and list damage.

    The exit code is 1 if there is damage that was not mended, else 0. With --repair, damaged items of a library are
    encoded again, damaged caches are dropped, and weights are copied from the state of the run if it holds them.
    """
    with show_spinner(f"checking {path}"), fast_imports():
        found, done = _checked(path, repair=repair, engine=engine, device=device)
    for line in done:
        console.print(line, soft_wrap=True)
    for path_, why, cost in found:
        console.print(f"damaged: {path_}: {why}; {cost}", soft_wrap=True)
    if not found:
        console.print("no damage")
        return
    if not repair and not any(path_.name == "library.json" for path_, _, _ in found):  # nothing can be read without it
        console.print(f"{command('calligram', 'check', path, '--repair')} mends what can be made again", soft_wrap=True)
    raise typer.Exit(1)


def _checked(
    path: Path, *, repair: bool, engine: str | None, device: str
) -> tuple[list[tuple[Path, str, str]], list[str]]:
    """Damage that is left, and what was mended."""
    if (path / "library.json").is_file() or (path / "rebuilt.json").is_file():
        return _checked_library(path, repair=repair, engine=engine, device=device)
    from calligram.models.damage import collection_damage, run_damage

    if (path / "collection.json").is_file():
        find = collection_damage
    elif (path / "run.json").is_file():
        find = run_damage
    else:
        raise UserError(
            f"{path} is none of a collection, a run and a library (it has no collection.json, run.json or library.json)"
        )
    found, done = find(path), []
    for damage in found if repair else ():
        if damage.mend is not None:
            damage.mend()
            done.append(f"mended: {damage.path}: {damage.why}; {damage.cost}")
    return [damage[:3] for damage in (find(path) if done else found)], done


def _checked_library(
    path: Path, *, repair: bool, engine: str | None, device: str
) -> tuple[list[tuple[Path, str, str]], list[str]]:
    import_lancedb_for_command()
    from calligram.device import device_named
    from calligram.search.indexing.repair import library_damage, mend_library, remove_killed_files

    found, done = library_damage(path, engine), list[str]()
    for damage in found if repair else ():
        if damage.mend is not None:
            damage.mend()
            done.append(f"mended: {damage.path}: {damage.why}; {damage.cost}")
    found = [damage for damage in found if not repair or damage.mend is None]
    if found and repair:
        mended = mend_library(path, index=engine, device=device_named(device), track=progress_bar)
        done += [*(f"mended: {damage.path}: {damage.why}" for damage in found), mended]
        found = library_damage(path, engine)
    if repair and not found:
        remove_killed_files(path)
    return [damage[:3] for damage in found], done
