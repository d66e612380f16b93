"""How `make docs` builds the site. Sources are all of the repository, so that links work among its files as well."""

import ast
import inspect
import os
import re
from contextlib import redirect_stdout, suppress
from io import StringIO
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

import sublayers
from sublayers.configuration.configuration_sublayers import SublayersConfig
from sublayers.training import cli, results
from sublayers.training.commands import index
from sublayers.training.metrics.pictures import draw_orders

project, release = "sublayers", sublayers.__version__
project_copyright = "2026, the sublayers authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "model_cards/*.md", "CHANGELOG.md", "CONTRIBUTING.md"]
# folders that need not be searched for pages
exclude_patterns = [".*", "build", "runs", "src", "tests", "training"]
nitpicky = True
html_theme, html_title = "furo", f"sublayers {release}"
# the root of the site sends its readers to docs/, from where links lead to the other folders
html_extra_path = ["index.html"]
myst_heading_anchors = 3
autodoc_typehints = "none"


class Orders(Directive):
    """Draws the order in each of its lines."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return a picture as `sublayers order --picture` draws it."""
        orders = {given: sublayers.compact(given) for given in self.content}
        rows = [(given if given == order else f"{given} = {order}", order) for given, order in orders.items()]
        with TemporaryDirectory() as folder:
            draw_orders(rows, picture := Path(folder, "orders.svg"))
            _, _, drawn = picture.read_text(encoding="utf-8").partition("<svg")
        label = ", ".join(title for title, _ in rows)
        svg = f'<svg role="img" aria-label="{label}" style="max-width: 100%; height: auto"{drawn}'
        return [nodes.raw("", svg, format="html")]


class Fields(Directive):
    """Shows the fields of a public configuration that not every one has, or those that every one has."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return their lines in the source, with comments."""
        configs = getattr(sublayers, self.arguments[0]).__mro__ if self.arguments else []
        own = [config for config in reversed(configs) if issubclass(config, SublayersConfig)][1:]
        text = "\n\n".join(map(_field_lines, own or [SublayersConfig]))
        return [nodes.literal_block(text, text, language="python")]


def _field_lines(config: type) -> str:
    source = inspect.getsource(config)
    statements = ast.parse(source).body[0].body
    fields = [
        i
        for i, line in enumerate(statements)
        if isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line)
    ]
    # comments of the first stand above it
    lines = source.splitlines()[statements[fields[0] - 1].end_lineno : statements[fields[-1]].end_lineno]
    return re.sub(r"  # type: .*", "", dedent("\n".join(lines)).strip())


class Commands(Directive):
    """Lists the commands of `sublayers`, each with what its `--help` shows."""

    def run(self) -> list[nodes.Node]:
        """Return a section for each command."""
        sections = []
        for name, (_, purpose) in cli.COMMANDS.items():
            with redirect_stdout(StringIO()) as shown, suppress(SystemExit):
                cli.main([*name.split(), "--help"])
            section = nodes.section(ids=[nodes.make_id(f"sublayers {name}")])
            section += nodes.title(text=f"sublayers {name}")
            section += nodes.paragraph(text=f"{purpose[0].upper()}{purpose[1:]}.")
            section += nodes.literal_block(text=shown.getvalue(), language="text")
            sections.append(section)
        return sections


class Entries(Directive):
    """Lists what `sublayers list` finds."""

    def run(self) -> list[nodes.Node]:
        """Return a table for each kind of thing."""
        sections = []
        for kind, group in groupby(index.entries(), lambda entry: entry.kind):
            # a table marks each order, between which it wants spaces
            lines = results.table(
                [
                    {name: index.cell(entry, name) for name in entry._fields[1:]} | {"orders": " ".join(entry.orders)}
                    for entry in group
                ]
            )
            section = nodes.section(ids=[nodes.make_id(kind)])
            section += nodes.title(text=kind)
            self.state.nested_parse(StringList(lines.splitlines()), self.content_offset, section)
            sections.append(section)
        return sections


def setup(app: Sphinx) -> None:
    """Add the directives, and give help texts the width of a page."""
    os.environ["COLUMNS"] = "100"
    app.add_directive("orders", Orders)
    app.add_directive("fields", Fields)
    app.add_directive("commands", Commands)
    app.add_directive("entries", Entries)
