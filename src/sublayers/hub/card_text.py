"""How values stand in the Markdown of a card."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template
from markupsafe import Markup

# Markdown syntax: special characters, addresses, underscores around words, marks of lists and headings
MARKUP = re.compile(
    r"[\\`*\[\]<>|~&$#@]|:(?=//)|(?<=www)\.|(?<![^\W_])_|_(?![^\W_])|^\d+(?=[.)]\s)|^[-+=](?=[-+=\s]|$)",
    re.IGNORECASE,
)


# every save of a model writes a card
@cache
def template(**filters: Callable[..., str]) -> Template:
    """Open the template of cards, with filters for its values."""
    environment = Environment(finalize=_as_text)
    environment.filters |= filters | {"code": _as_code}
    return environment.from_string(Path(__file__).with_name("model_card_template.md").read_text(encoding="utf-8"))


def plain(value: Any) -> Any:
    """Make one line of valid UTF-8 of names of files and of other values of a run."""
    if isinstance(value, str):
        return re.sub(r"[\s\0-\x1f\x7f-\x9f]+", " ", value).strip().encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {plain(name): plain(part) for name, part in value.items()}
    return value


def _as_text(value: Any) -> Any:
    # the template escapes all values that it does not mark as safe
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return MARKUP.sub(lambda found: "".join(f"&#{ord(character)};" for character in found[0]), value)


def _as_code(value: Any) -> Markup:
    # inside a fenced block, only another fence has a meaning
    return Markup(str(value).replace("```", " "))
