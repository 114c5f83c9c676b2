"""Every file in examples/ runs as a person would run it, prints something, and stays short."""

import runpy
import sys
import warnings
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
LONGEST = 80

# A fragment that only a run to the end prints.
LAST_WORDS = {
    "analyse_gradients": "through the batch",
    "fit_and_report": "report.html",
    "long_tail_data": "same (seed, epoch), same order: True; next epoch, another: True",
    "losses": "after it every class with 10%",
    "own_dataset": "grey",
    "own_loop": "'Few'",
    "own_objective": "'Few'",
    "pretrain_and_finetune": "sigmoids are off",
    "timm_model": "detached: keys as before True",
    "vision_transformer": "detached: plain output as before True",
}


def test_all_examples_are_found() -> None:
    assert len(EXAMPLES) >= 8
    assert {path.stem for path in EXAMPLES} == set(LAST_WORDS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < LONGEST
    assert f"Run: python examples/{path.name}" in text


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path)])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # an example must not trip over our own warnings
        runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) >= 4
    assert LAST_WORDS[path.stem] in printed[-400:]


def test_the_report_of_the_example_is_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(FOLDER / "fit_and_report.py"))["main"]
    main(tmp_path / "runs")
    page = Path(capsys.readouterr().out.splitlines()[-1])
    assert page == tmp_path / "runs" / "report.html"
    text = page.read_text(encoding="utf-8")
    assert "balanced+batchformer" in text and "</html>" in text
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")}
    assert before
    main(tmp_path / "runs")  # finished runs are read, not trained again
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.safetensors")} == before
