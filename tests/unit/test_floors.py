"""The rooms of user_dir form floors: a room imports from rooms below it only."""

import ast
import graphlib
import importlib.util

from support import PROJECT


def room(module: str) -> str:
    """The folder of user_dir in which a module is, else the module itself."""
    return ".".join(module.split(".")[:2])


def test_no_imports_in_a_circle():
    below = {}
    for path in (PROJECT / "user_dir").rglob("*.py"):
        module = path.relative_to(PROJECT).with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                source = importlib.util.resolve_name("." * node.level + (node.module or ""), ".".join(module[:-1]))
                names = [source] if source != "user_dir" else [f"user_dir.{alias.name}" for alias in node.names]
                below.setdefault(room(".".join(module)), set()).update(map(room, names))
    below = {above: rooms - {above} for above, rooms in below.items()}
    order = [*graphlib.TopologicalSorter(below).static_order()]  # raises CycleError
    assert order.index("user_dir.search") < order.index("user_dir.task") < order.index("user_dir.serving")
