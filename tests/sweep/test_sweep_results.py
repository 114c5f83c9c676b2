"""Rows, means, tables and figures of sweeps that were not trained but written down."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from synthetic import finished_sweep, scores, write_run

from relatum.report.records import load_records
from relatum.sweep import verb
from relatum.sweep.convergence import accuracy_curve, averaged, draw_convergence, loss_curve
from relatum.sweep.figures import _panels, draw_values
from relatum.sweep.grid import Point
from relatum.sweep.results import METRICS, collect, failed_before, mean, spread, summarise
from relatum.sweep.table import cell, state, terminal_table
from relatum.sweep.tell import tell

TAUS = "objective.tau=0,1,2"


def _rare(values):
    return 1.2 * values["objective.tau"]


@pytest.fixture(scope="module")
def taus(tmp_path_factory):
    """Three values of tau with three seeds, all finished; do not write to it."""
    return finished_sweep(tmp_path_factory.mktemp("taus"), (TAUS,), (0, 1, 2), _rare)


def test_rows_say_what_the_runs_scored(taus):
    sweep, jobs = taus
    rows = collect(sweep, ())
    assert len(rows) == 9
    for row, job in zip(rows, jobs, strict=True):
        true = scores(job.seed, _rare(job.point.values))
        assert row["run"] == job.name and row["values"] == dict(job.point.values) and row["seed"] == job.seed
        assert row["All"] == true["top1"] and row["Few"] == true["groups"]["few"]["accuracy"]
        assert (row["ECE"], row["MCE"], row["NLL"]) == (true["ece"], true["mce"], true["nll"])
        assert (row["seconds"], row["steps"], row["status"]) == (60.0 + job.seed, 96, "finished")
        assert (row["split"], row["selection"]) == ("test", "last epoch")


def test_means_and_spreads_are_those_of_numpy(taus):
    rows = collect(taus[0], ())
    summaries = summarise(rows)
    assert [summary.values["objective.tau"] for summary in summaries] == [0.0, 1.0, 2.0]
    for summary in summaries:
        mine = [row for row in rows if row["values"] == summary.values]
        assert summary.seeds == (0, 1, 2) and summary.states == {"finished": 3}
        for metric in METRICS:
            values = np.array([row[metric] for row in mine])
            assert summary.means[metric] == pytest.approx(values.mean(), rel=1e-12)
            assert summary.spreads[metric] == pytest.approx(values.std(ddof=1), rel=1e-12)
            assert summary.spreads[metric] != pytest.approx(values.std(), rel=1e-3)


def test_what_is_not_defined_stays_so():
    assert mean([]) is None and mean([0.5, None]) is None and mean([0.25, 0.75]) == 0.5
    assert spread([0.5]) is None and spread([0.5, None, 0.1]) is None
    assert spread([0.0, 1.0]) == pytest.approx(math.sqrt(0.5))


def _row(seed, status="finished", **values):
    return {"point": "p", "values": {}, "seed": seed, "status": status, **dict.fromkeys(METRICS), **values}


def test_cells_with_many_one_and_no_seed():
    (many,) = summarise([_row(0, All=0.5, NLL=1.0), _row(1, All=0.6, NLL=2.0), _row(2, "failed")])
    assert cell(many, "All") == "55.0 ± 7.1" and cell(many, "NLL") == "1.500 ± 0.707" and cell(many, "Few") == "n/a"
    assert state(many) == "2, 1 failed"
    (one,) = summarise([_row(0, All=0.51234)])
    assert cell(one, "All") == "51.2" and state(one) == "1"
    (none,) = summarise([_row(0, "failed"), _row(1, "waiting")])
    assert cell(none, "All") == "" and state(none) == "1 failed, 1 waiting"


def _shown(table) -> str:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(table)
    return console.export_text()


def test_failed_runs_are_in_the_table_and_remembered(tmp_path):
    sweep, jobs = finished_sweep(tmp_path, ("objective.tau=0,1",), (0, 1), _rare)
    (jobs[1].path / "scores.json").unlink()
    (jobs[1].path / "manifest.json").unlink()
    tell(sweep, {jobs[1].name}, Console(quiet=True))
    rows = collect(sweep, failed_before(sweep.folder))  # a later look, which starts nothing
    assert [row["status"] for row in rows] == ["finished", "failed", "finished", "finished"]
    assert "1, 1 failed" in _shown(terminal_table(sweep, summarise(rows), rows))
    write_run(jobs[1], scores(0, 1.0))
    assert {row["status"] for row in collect(sweep, failed_before(sweep.folder))} == {"finished"}


def test_everything_is_written_and_agrees(taus, capsys):
    sweep, _ = taus
    assert verb.sweep([str(sweep.folder)]) == 0
    shown = capsys.readouterr().out
    for name in ("results.jsonl", "table.md", "table.csv", "objective.tau.png", "objective.tau.svg", "report.html"):
        assert (sweep.folder / name).stat().st_size and name in shown
    rows = [json.loads(line) for line in (sweep.folder / "results.jsonl").read_text().splitlines()]
    assert rows == collect(sweep, ())
    with (sweep.folder / "table.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [line["objective.tau"] for line in table] == ["0", "1", "2"] and table[0]["seeds"] == "0 1 2"
    few = [100 * row["Few"] for row in rows if row["values"]["objective.tau"] == 2.0]
    assert float(table[2]["Few"]) == pytest.approx(np.mean(few), rel=1e-4)
    assert float(table[2]["Few std"]) == pytest.approx(np.std(few, ddof=1), rel=1e-4)
    written = f"{np.mean(few):.1f} ± {np.std(few, ddof=1):.1f}"
    assert written in (sweep.folder / "table.md").read_text() and written.replace(" ", "") in shown
    assert (
        "(n - 1) over the seeds" in shown.replace("\n", " ")
        and "Seeds: 0, 1, 2." in (sweep.folder / "table.md").read_text()
    )
    assert "tau-2" in (sweep.folder / "report.html").read_text()


def test_an_existing_sweep_takes_no_options(taus):
    with pytest.raises(verb.ConfigError, match="name its recipe: relatum sweep shapes-lt --out"):
        verb.sweep([str(taus[0].folder), "--over", "objective.tau=1"])


def test_figures_are_drawn_for_numbers_with_three_values(taus, tmp_path):
    summaries = summarise(collect(taus[0], ()))
    png, svg = draw_values(tmp_path, ["objective.tau"], summaries)
    with Image.open(png) as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    assert {(0x00, 0x72, 0xB2), (0xC2, 0x57, 0x1A), (0xA8, 0x47, 0x8A)} <= colours  # many, few, ECE
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert draw_values(tmp_path, ["objective.tau"], summaries[:2]) == []
    assert draw_values(tmp_path, [], summaries) == []


def test_other_swept_settings_get_a_panel_each(tmp_path):
    sweep, _ = finished_sweep(tmp_path, ("objective.name=bce,balanced-bce", TAUS), (0,), _rare)
    panels = _panels(summarise(collect(sweep, ())), "objective.tau", ["objective.name"])
    assert list(panels) == ["objective.name bce", "objective.name balanced-bce"]
    assert [[s.values["objective.tau"] for s in group] for group in panels.values()] == [[0.0, 1.0, 2.0]] * 2
    assert [path.name for path in draw_values(tmp_path, sweep.keys, summarise(collect(sweep, ())))] == [
        "objective.tau.png", "objective.tau.svg",
    ]  # fmt: skip


def test_losses_of_different_scale_begin_at_one(tmp_path):
    _, jobs = finished_sweep(tmp_path, (TAUS,), (0,), _rare)
    low, _, high = (load_records([job.path])[0] for job in jobs)
    assert high.training()[0]["loss"] > 5 * low.training()[0]["loss"]
    for record in (low, high):
        curve = loss_curve(record)
        first = record.training()[0]["loss"]
        assert curve[1.0] == 1.0 and curve[12.0] == pytest.approx(record.training()[-1]["loss"] / first)
    assert accuracy_curve(low) == {row["epoch"]: row["top1"] for row in low.evaluations("test")}
    assert averaged([{1.0: 2.0, 2.0: 4.0}, {1.0: 4.0}]) == {1.0: 3.0} and averaged([]) == {}
    assert [p.name for p in draw_convergence(tmp_path, {"a": [low], "b": [high]})] == [
        "convergence.png", "convergence.svg",
    ]  # fmt: skip
    assert draw_convergence(tmp_path, {}) == []


def test_many_keys_share_a_column_that_breaks_between_values(taus):
    sweep, more = taus[0], {"objective.name": "balanced-bce", "pretrain.method": "mae"}
    summaries = summarise(collect(sweep, ()))
    three = replace(sweep, entries=tuple(replace(e, point=Point({**e.point.values, **more})) for e in sweep.entries))
    wide = [replace(summary, values={**summary.values, **more}) for summary in summaries]
    table = terminal_table(three, wide, collect(sweep, ()))
    assert str(table.columns[0].header) == "tau, objective, method"
    assert str(next(iter(table.columns[0].cells))).endswith(", balanced-bce, mae")
