"""The tutorial on a study of one's own: its size; `test_snippets` runs it as written."""

from __future__ import annotations

from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "tutorials" / "own-study.md"


def test_the_study_is_short() -> None:
    """Own data, own algorithm, three baselines: at most 25 lines of YAML, and no Python but those two."""
    found = list(blocks(PAGE))
    yaml = [block.text for block in found if block.language == "yaml"]
    assert sum(len(text.strip().splitlines()) for text in yaml) <= 25 and "mine:HeavyBall" in "".join(yaml)
    assert [block.argument for block in found if block.language == "python"] == ["make_data.py", "mine.py"]
    assert "19 lines of YAML" in PAGE.read_text(encoding="utf-8")
    assert sum(len(text.strip().splitlines()) for text in yaml) == 19
