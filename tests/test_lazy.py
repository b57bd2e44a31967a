from __future__ import annotations

import sys

import pytest

from calligram.errors import UserError
from calligram.lazy import Catalog, entry_points_of, reference_to


def installed(folder, group, lines, module=""):
    """Write what an installed package with entry points leaves in site-packages."""
    about = folder / "others-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{lines}\n")
    (folder / "others_module.py").write_text(module)


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("others_module", None)


def test_a_registered_value_is_found_and_listed():
    table = Catalog({"sqrt": "math:sqrt"})
    table.register("print", print)
    assert list(table) == ["sqrt", "print"]
    assert len(table) == 2
    assert table["print"] is print
    assert "print" in table
    assert "no" not in table


def test_a_name_is_registered_once_but_a_definition_may_be_repeated():
    def define():
        def reader():
            """A function that a notebook defines again."""

        return reader

    table = Catalog({"sqrt": "math:sqrt"})
    table.register("mine", define())
    again = define()
    table.register("mine", again)
    assert table["mine"] is again
    with pytest.raises(UserError, match="the name 'mine' is in use already"):
        table.register("mine", print)
    with pytest.raises(UserError, match="the name 'sqrt' is in use already"):
        table.register("sqrt", print)


def test_an_entry_point_of_an_installed_package_is_imported_on_use(site):
    installed(site, "calligram.test", "theirs = others_module : Theirs", "class Theirs: pass")
    table = Catalog({}, "calligram.test")
    assert entry_points_of("calligram.test") == {"theirs": "others_module:Theirs"}
    assert "theirs" in table
    assert "others_module" not in sys.modules
    assert table["theirs"].__name__ == "Theirs"
    assert "others_module" in sys.modules
    with pytest.raises(UserError, match="unknown thing 'their'; did you mean 'theirs'"):
        table.find("their", "thing")


def test_known_names_do_not_read_entry_points(monkeypatch):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **kw: pytest.fail("entry points were read"))
    table = Catalog({"sqrt": "math:sqrt"}, "calligram.test")
    assert "sqrt" in table
    assert table["sqrt"](4) == 2
    assert list(table) == ["sqrt"]


def test_a_broken_package_is_named(site):
    installed(site, "calligram.test", "theirs = others_module:Missing")
    with pytest.raises(UserError, match=r"declares 'theirs' as others_module:Missing .* cannot be imported"):
        Catalog({}, "calligram.test")["theirs"]


def test_a_reference_to_a_class_of_a_script_names_its_file(monkeypatch):
    assert reference_to(Catalog) == "calligram.lazy:Catalog"
    main = type(sys)("__main__")
    main.__file__, main.__spec__ = "/somewhere/train_mine.py", None
    monkeypatch.setitem(sys.modules, "__main__", main)
    mine = type("Mine", (), {"__module__": "__main__"})
    assert reference_to(mine) == "train_mine.py:Mine"
