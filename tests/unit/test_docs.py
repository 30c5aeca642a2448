"""The Markdown pages: links lead somewhere, tables hold figures, and user_dir's pages name what the code has."""

import ast
import dataclasses
import pathlib
import pkgutil
import re

import pytest
from fairseq.models.transformer import TransformerConfig
from fairseq.optim.adam import FairseqAdamConfig
from fairseq.tasks.translation import TranslationConfig

from user_dir.config import VariantConfig
from user_dir.families import FAMILIES, SIZES
from user_dir.task import CheckedTranslationConfig
from user_dir.training.optimizer import FusedAdamConfig

from support import PROJECT

FOLDERS = [PROJECT / name for name in ("user_dir", "data-prep", "examples", "tests")]
PAGES = sorted([*PROJECT.glob("[A-Z]*.md"), *(page for folder in FOLDERS for page in folder.rglob("*.md"))])
LINK = re.compile(r"\[([^\[\]]+)\]\(([^)\s]+)\)")
MODELS, PAPERS = PROJECT / "user_dir/README.md", PROJECT / "user_dir/papers.md"

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))


def text_of(page: pathlib.Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def links(page: pathlib.Path) -> list[tuple[str, pathlib.Path, str]]:
    """Text, file and anchor of each link within the project."""
    found = [(text, *target.partition("#")[::2]) for text, target in LINK.findall(text_of(page)) if "://" not in target]
    return [(text, (page.parent / file).resolve() if file else page, anchor) for text, file, anchor in found]


def anchors(page: pathlib.Path) -> list[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ +(.*)$", LINK.sub(r"\1", text_of(page)), flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def names(file: pathlib.Path) -> set[str]:
    """Functions, classes, their methods (Class.method) and constants of a Python file."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            members = node.body if isinstance(node, ast.ClassDef) else []
            found |= {node.name, *(f"{node.name}.{x.name}" for x in members if isinstance(x, ast.FunctionDef))}
    return found


def added_options(ours: type, fairseqs: type) -> list[str]:
    """Options of a configuration that fairseq's does not have, but for those that are looked up in another group."""
    known = {field.name for field in dataclasses.fields(fairseqs)}
    new = [field for field in dataclasses.fields(ours) if field.name not in known]
    return [f"--{field.name.replace('_', '-')}" for field in new if not str(field.default).startswith("${")]


@every_page
def test_links_lead_somewhere(page):
    missing = [str(file) for _, file, _ in links(page) if not file.exists()]
    assert not missing
    assert not [anchor for _, file, anchor in links(page) if anchor and anchor not in anchors(file)]


@every_page
def test_code_that_is_linked_by_name_is_there(page):
    """`name` as the text of a link to a Python file."""
    named = [(text.strip("`"), file) for text, file, _ in links(page) if text[0] == "`" and file.suffix == ".py"]
    assert not [(name, file.name) for name, file in named if file.exists() and name not in names(file)]


@every_page
def test_no_cell_is_a_paragraph(page):
    rows = [line for line in LINK.sub(r"\1", text_of(page)).splitlines() if line.lstrip().startswith("|")]
    assert not [cell for row in rows for cell in re.split(r"(?<!\\)\|", row) if len(cell.strip()) > 120]


def test_the_front_page_is_short():
    page = (PROJECT / "README.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 120 and len(page.split()) <= 700


def test_every_option_is_explained():
    configs = {VariantConfig: TransformerConfig, FusedAdamConfig: FairseqAdamConfig}
    configs[CheckedTranslationConfig] = TranslationConfig
    options = [option for config in configs.items() for option in added_options(*config)]
    assert len(options) > 10
    page = text_of(MODELS)
    assert not [option for option in options if f"| `{option}` |" not in page]


def test_options_have_the_values_of_the_page():
    """The first one is the default."""
    rows = dict(re.findall(r"^\| `--([\w-]+)` \| ([^|]+) \|", text_of(MODELS), re.MULTILINE))
    seen = 0
    for config in (VariantConfig, FusedAdamConfig, CheckedTranslationConfig):
        for field in dataclasses.fields(config):
            values = rows.get(field.name.replace("_", "-"), "").strip()
            if choices := re.findall("`(.*?)`", values):
                assert choices[0] == field.default and {*choices} == {one.value for one in field.type}
            elif number := re.fullmatch(r"[\d,]+", values):
                assert float(number[0].replace(",", "")) == field.default
            seen += bool(choices or number)
    assert seen > 10


def test_every_family_and_size_has_its_row():
    page = text_of(MODELS)
    assert not [family for family in FAMILIES if f"| `{family}` |" not in page]
    for size, (layers, d_model, d_ff, heads, dropout) in SIZES.items():
        assert f"| `_{size}` | {layers} + {layers} | {d_model} | {d_ff} | {heads} | {dropout} |" in page


def test_fairseqs_functions_exist():
    named = re.findall(r"`(fairseq\.[\w.]+)`", text_of(PAPERS))
    assert named and all(pkgutil.resolve_name(name) for name in named)
