"""setup.py makes a command of every tool: the targets exist, and each command explains itself."""

import importlib
import runpy

import pytest
import setuptools

from support import PROJECT

TOOLS = sorted(path.stem for path in (PROJECT / "user_dir/tools").glob("*.py") if 'if __name__ == "__main__":' in path.read_text())


@pytest.fixture
def scripts(monkeypatch):
    """Command to "module:function"."""
    given = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    runpy.run_path(str(PROJECT / "setup.py"))
    return dict(line.split(" = ") for line in given["entry_points"]["console_scripts"])


def test_every_tool_has_one(scripts):
    assert scripts == {f"nmt-{tool.replace('_', '-')}": f"user_dir.tools.{tool}:main" for tool in TOOLS} and len(TOOLS) >= 10


@pytest.mark.parametrize("tool", TOOLS)
def test_help(tool, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["nmt-" + tool, "--help"])  # the installed command calls main()
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(f"user_dir.tools.{tool}").main()
    assert stop.value.code == 0 and capsys.readouterr().out.startswith(f"usage: {tool} ")
