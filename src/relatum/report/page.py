"""The page: one self-contained HTML file for one or several runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from relatum.errors import CheckpointError
from relatum.prior import GROUPS
from relatum.report import compare
from relatum.report.class_tables import confused_pairs, rarest_classes
from relatum.report.format import RULE_WORDS, percent_sign, plural, setting
from relatum.report.headline import headline
from relatum.report.pretraining import pretraining_section
from relatum.report.records import RunRecord, load_records
from relatum.report.seeds import averaged, flatten, repeated
from relatum.report.set_aside import KEY, set_aside_section

_HERE = Path(__file__).parent
_LONG_LISTS = ("class_names", "class_counts", "data", KEY)


def report(run_dirs: Sequence[Path | str], out: Path | str | None = None) -> Path:
    """Write one self-contained HTML page about one or several runs.

    Args:
        run_dirs: run directories, or folders that hold them. The first run is the baseline of the headline.
        out: file to write. Default: report.html in the run directory, or in the runs' common parent.

    Returns:
        The path of the page.

    Raises:
        CheckpointError: a directory is no run, or the page cannot be written.
    """
    given = [run_dirs] if isinstance(run_dirs, str | Path) else run_dirs
    try:
        records = load_records(given)
        target = _target(records, out)
        page = render(records)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        # Files of a run are edited, merged and received; what they hold need not have the form that we write.
        names = ", ".join(map(str, given))
        raise CheckpointError(
            f"the records of {names} do not have the form that relatum writes ({type(error).__name__}: {error}); "
            "run `relatum evaluate` again, or leave that run out."
        ) from error
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.part")
        unfinished.write_text(page, encoding="utf-8")
        unfinished.replace(target)
    except OSError as error:
        raise CheckpointError(f"cannot write {target} ({error}); choose another file with --out.") from error
    return target


def render(records: Sequence[RunRecord]) -> str:
    """Return the page as text; everything that comes from the runs is escaped."""
    loader = FileSystemLoader(_HERE)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    title, sentences = headline(records)
    columns = compare.columns(records)
    rows = compare.rows(records, columns)
    groups = repeated(records)
    means = compare.seed_rows(groups, columns)
    series = averaged(records)
    return environment.get_template("template.html").render(
        css=Markup((_HERE / "style.css").read_text(encoding="utf-8")),
        title=title,
        sentences=sentences,
        runs=_runs(records),
        series=_runs(series),
        classified=not all(record.only_pretrained for record in records),
        facts=_facts(records),
        notes=_notes(records),
        columns=columns,
        rows=rows,
        marked=any(cell.best for cells in [*rows, *means] for cell in cells),
        seeds=list(zip(groups, means, strict=True)),
        rarest=rarest_classes(series),
        differing=compare.setting_differences(series),
        details=[entry for record in records for entry in _details(record)],
        version=setting(_version(records[-1])),
        pretraining=pretraining_section(series),
        set_aside=set_aside_section(records),
        **_figures(series),
    )


def _target(records: Sequence[RunRecord], out: Path | str | None) -> Path:
    if out is not None:
        return Path(out) / "report.html" if Path(out).is_dir() else Path(out)
    if len(records) == 1:
        return records[0].path / "report.html"
    return Path(os.path.commonpath([record.path.resolve().parent for record in records])) / "report.html"


def _runs(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    return [{"name": record.name, "index": i, "state": record.state()} for i, record in enumerate(records)]


def _facts(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """What the numbers stand on, each aspect once where the runs agree."""
    shown = [record for record in records if record.primary]
    aspects = {
        "Split": [str(record.split) for record in shown],
        "Images": [f"{n:,}" for record in shown if (n := record.primary.get("samples")) is not None],
        "Classes": [f"{len(record.counts):,}" for record in shown if record.counts],
        "Shot rule": [f"{record.rule}: {RULE_WORDS.get(record.rule, record.rule)}" for record in shown],
        "Selection": [str(found) for record in records if (found := record.manifest.get("selection"))],
        "Confidence": _confidences(shown),
        "Post-hoc adjustment": [str(record.primary.get("adjustment", "none")) for record in shown],
    }
    return [(name, " / ".join(dict.fromkeys(values))) for name, values in aspects.items() if values]


def _confidences(records: Sequence[RunRecord]) -> list[str]:
    """Say on what calibration stands, and for how many runs."""
    scored = [record for record in records if record.primary.get("reliability")]
    sigmoid = sum(bool(record.primary.get("sigmoid")) for record in scored)
    if not sigmoid:
        return ["softmax"] if scored else []
    return [
        "softmax, and sigmoid" if sigmoid == len(scored) else f"softmax; sigmoid for {sigmoid} of {len(scored)} runs"
    ]


def _notes(records: Sequence[RunRecord]) -> list[str]:
    notes = [f"{record.name} is not finished ({state})." for record in records if (state := record.state())]
    for record in records:
        skipped = record.skipped_lines + (record.pretrain.skipped_lines if record.pretrain else 0)
        if skipped:
            lines = plural(skipped, "line")
            notes.append(f"{record.name}: {lines} of metrics.jsonl could not be read (left by a crash) and skipped.")
    return notes


def _version(record: RunRecord) -> Any:
    manifests = [record.manifest, record.pretrain.manifest if record.pretrain else {}]
    return next((found for manifest in manifests if (found := manifest.get("relatum"))), None)


def _figures(records: Sequence[RunRecord]) -> dict[str, Any]:
    # Imported here: matplotlib is slow to load, and the terminal table of this room does without.
    from relatum.report import curves, figures, reliability
    from relatum.report.svg import marker_path

    scored = [(i, record) for i, record in enumerate(records) if record.has_scores]
    primary = scored[-1][1] if scored else records[-1]
    splits = list(dict.fromkeys(found for r in records if (found := curves.evaluated_split(r))))
    evaluations = [("top1", "accuracy, all classes"), ("few", "accuracy, few-shot classes")]
    drawn = [curves.training_loss(records), *(curves.evaluation(records, key, words) for key, words in evaluations)]
    streams = [curves.stream_gap(records), curves.stream_agreement(records)]
    return {
        "shapes": [marker_path(i) for i in range(len(records))],
        "bars": _mark(figures.group_bars(records)) if any(record.primary for record in records) else None,
        "classes": _mark(figures.class_accuracy(records)) if any(record.per_class for record in records) else None,
        "intervals": any(record.primary.get("interval") for record in records),
        "points_are_means": figures.points_are_means(records),
        "curves": [Markup(svg) for svg in drawn if svg],
        "streams": [Markup(svg) for svg in streams if svg],
        "evaluated": " and ".join(splits),
        "calibration": _calibration(records),
        "by_group": [{**panel, "svg": _mark(panel["svg"])} for panel in reliability.group_panels(records)],
        "calibration_table": reliability.calibration_table(records),
        "counts": _counts(records),
        "group_names": GROUPS,
        "confusion": _confusion(primary),
    }


def _mark(svg: str) -> Markup:
    """Mark SVG as safe: matplotlib escapes the text in it, `draw_svg` the label."""
    return Markup(svg)


def _calibration(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    from relatum.report import figures

    return [
        {
            "name": record.name,
            "ece": percent_sign(record.primary.get("ece")),
            "svg": _mark(figures.reliability(record, i)),
        }
        for i, record in enumerate(records)
        if record.primary.get("reliability")
    ]


def _counts(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """One figure for each set of training counts: runs on the same data share it."""
    from relatum.report import figures

    distinct: dict[tuple[Any, ...], list[RunRecord]] = {}
    for record in records:
        if record.counts:
            distinct.setdefault((tuple(record.counts), record.rule), []).append(record)
    return [
        {
            "names": ", ".join(record.name for record in sharing) if len(distinct) > 1 else "",
            "total": sum(sharing[0].counts),
            "empty": sum(count == 0 for count in sharing[0].counts),
            "svg": _mark(figures.class_counts(sharing[0], f"counts{i}")),
        }
        for i, sharing in enumerate(distinct.values())
    ]


def _confusion(record: RunRecord) -> dict[str, Any] | None:
    from relatum.report import figures

    if not record.primary.get("confusion") or not record.per_class:
        return None
    small = len(record.per_class) <= figures.LARGEST_HEAT_MAP
    return {
        "name": record.name,
        "svg": _mark(figures.confusion_map(record)) if small else None,
        "pairs": [] if small else confused_pairs(record),
    }


def _details(record: RunRecord) -> list[dict[str, Any]]:
    stage = record.pretrain
    if stage is None:
        return [_entry(record.name, record.config, record.manifest)]
    # Both stages are written with the settings of the whole recipe, so that one table often does for both.
    config = {} if stage.config == record.config else stage.config
    first = _entry(f"the pretraining of {record.name}", config, stage.manifest)
    return [first, _entry(record.name, record.config, record.manifest)]


def _entry(name: str, config: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    short = {key: value for key, value in manifest.items() if key not in _LONG_LISTS}
    return {
        "name": name,
        "config": [(key, setting(value)) for key, value in flatten(config).items()],
        "manifest": [(key, setting(value)) for key, value in flatten(short).items()],
    }
