"""The page on settings shows how to add knowledge to the plan `standard`: by a file, and by an option."""

import re
import shlex
from pathlib import Path

from fedbnsl.plan.plan import Plan

_PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "settings.md").read_text(encoding="utf-8")


def test_the_plan_on_the_page_is_standard_with_knowledge(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", _PAGE, re.DOTALL)
    (tmp_path / "heart.toml").write_text(block, encoding="utf-8")
    heart = Plan.load(tmp_path / "heart.toml")
    assert heart.knowledge.tiers
    assert heart.with_settings(name="standard", knowledge={}) == Plan.load("standard")


def test_the_option_on_the_page_adds_tiers_to_standard() -> None:
    (line,) = re.findall(r"fedbnsl simulate standard .*knowledge.*", _PAGE)
    words = shlex.split(line)
    plan = Plan.load("standard", [words[words.index("--set") + 1]])
    assert plan.knowledge.tiers == (("age", "sex"), ("smoking",), ("crp", "pressure"))
    assert plan.preparation == Plan.load("standard").preparation
