"""Which processes a grid needs, which of them are done, and which share a first stage."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from synthetic import base, scores, write_run

from relatum.config import ModelConfig, PretrainConfig
from relatum.config_files import differences, to_dict
from relatum.errors import ConfigError
from relatum.sweep.grid import parse_points
from relatum.sweep.plan import plan_jobs, stage_hash
from relatum.sweep.record import joined, locked, read_sweep
from relatum.sweep.state import is_finished, status_of
from relatum.sweep.verb import parse_words, pending, prepare

MAE = {"pretrain": PretrainConfig(method="mae"), "model": ModelConfig(name="vit-nano-p4")}


def _plan(start, *over, seeds=(0,)):
    return plan_jobs(start, parse_points(over, start.config), seeds)


def test_one_process_per_point_and_seed(tmp_path):
    jobs = _plan(base(tmp_path), "objective.tau=0,1", seeds=(0, 3))
    assert [job.name for job in jobs] == ["tau-0-s0", "tau-1-s0", "tau-0-s3", "tau-1-s3"]
    words = ["train", "shapes-lt", "--objective.tau=1.0", "--train.seed=3", f"--out={tmp_path}/tau-1-s3"]
    assert list(jobs[3].words) == words
    assert jobs[3].config.train.seed == 3 and jobs[3].config.objective.tau == 1.0 and jobs[3].needs is None


def test_points_that_agree_in_the_first_stage_share_it(tmp_path):
    jobs = _plan(base(tmp_path, **MAE), "objective.tau=0,1", "pretrain.subset=same,balanced", seeds=(0, 1))
    first = [job for job in jobs if job.point is None]
    runs = [job for job in jobs if job.point is not None]
    assert len(first) == 4 and len(runs) == 8
    assert len({job.name.rpartition("-s")[0] for job in first}) == 2  # the hash does not depend on the seed
    for run in runs:
        (stage,) = [job for job in first if job.name == run.needs]
        assert stage.seed == run.seed and jobs.index(stage) < jobs.index(run)
        assert stage.config.pretrain.subset == run.config.pretrain.subset
        assert run.words[-3:] == ("--stages", "finetune", f"--model.encoder={tmp_path / stage.name}")
        assert run.config.stages == ("finetune",) and run.config.model.encoder == str(tmp_path / stage.name)
        assert stage.words[-2:] == ("--stages", "pretrain") and "tau" not in " ".join(stage.words)
        assert f"--pretrain.subset={run.config.pretrain.subset}" in stage.words or run.config.pretrain.subset == "same"


def test_the_hash_follows_the_settings_of_the_first_stage_alone(tmp_path):
    config = base(tmp_path, **MAE).config
    same = stage_hash(config)
    assert stage_hash(replace(config, pretrain=replace(config.pretrain, ratio=0.6))) != same
    assert stage_hash(replace(config, model=ModelConfig(name="vit-micro-p4"))) != same
    assert stage_hash(replace(config, out="elsewhere", train=replace(config.train, seed=5, lr=0.5))) == same
    assert stage_hash(replace(config, objective=replace(config.objective, tau=0.0))) == same


def test_no_first_stage_is_shared_where_there_is_none(tmp_path):
    start = base(tmp_path, **MAE)
    assert any(job.point is None for job in _plan(start))
    assert all(job.point is not None for job in _plan(base(tmp_path, model=MAE["model"])))
    tuned = replace(start, config=replace(start.config, stages=("finetune",)))
    assert [job.needs for job in _plan(tuned)] == [None]
    jobs = _plan(start, "pretrain.method=none,mae")
    assert [job.needs is None for job in jobs if job.point is not None] == [True, False]
    encoder = replace(start, config=replace(start.config, model=replace(start.config.model, encoder="x")))
    with pytest.raises(ConfigError, match="--stages finetune"):
        _plan(encoder)


def test_a_finished_run_is_skipped_and_one_with_other_settings_is_not(tmp_path):
    job, other = _plan(base(tmp_path), "objective.tau=0,1")
    assert not is_finished(job) and status_of(job.path) == "waiting"
    write_run(job, scores(0, 1.0), status="interrupted")
    assert not is_finished(job) and status_of(job.path) == "interrupted"
    write_run(job, scores(0, 1.0))
    assert is_finished(job) and status_of(job.path) == "finished" and pending([job, other]) == [other]

    config = json.loads((job.path / "config.json").read_text())
    config["train"]["device"], config["data"]["workers"] = "cuda", 7
    (job.path / "config.json").write_text(json.dumps(config))
    assert is_finished(job)
    config["train"]["max_steps"] = 3
    (job.path / "config.json").write_text(json.dumps(config))
    assert not is_finished(job)

    write_run(job, scores(0, 1.0))
    (job.path / "scores.json").unlink()
    assert not is_finished(job)
    write_run(job, scores(0, 1.0))
    (job.path / "manifest.json").write_text("{half")
    assert not is_finished(job)
    assert status_of(job.path, failed=True) == "failed"


def test_a_first_stage_is_needed_until_its_runs_are_finished(tmp_path):
    stage, one, two = jobs = _plan(base(tmp_path, **MAE), "objective.tau=0,1")
    assert pending(jobs) == jobs
    write_run(stage, {"top1": 0.0})
    assert stage in pending(jobs)  # no encoder yet: it was killed just before its last file
    (stage.result / "encoder.safetensors").write_text("")
    assert pending(jobs) == [one, two]
    (stage.result / "encoder.safetensors").unlink()
    write_run(one, scores(0, 1.0))
    assert pending(jobs) == [stage, two]
    write_run(two, scores(0, 1.0))
    assert pending(jobs) == []


def test_points_may_be_added_and_all_else_must_stay(tmp_path):
    start = base(tmp_path)
    jobs = _plan(start, "objective.tau=0,1,2")
    joined(start, jobs, "first").write()
    write_run(jobs[0], scores(0, 1.0))
    more = joined(start, _plan(start, "objective.tau=1", "objective.gamma=1,2", seeds=(1,)), "second")
    more.write()
    found = read_sweep(tmp_path)
    # tau 1 and 2 of the first command were never begun, so they are not asked for any more
    assert [entry.name for entry in found.entries] == ["tau-0-s0", "tau-1_gamma-1-s1", "tau-1_gamma-2-s1"]
    assert found.command == "second" and found.keys == ["objective.tau", "objective.gamma"]
    assert found.values(found.entries[0].point) == {"objective.tau": 0.0, "objective.gamma": -1.0}
    assert not differences(to_dict(found.base), to_dict(start.config)) and found == more

    threads = replace(start, config=replace(start.config, train=replace(start.config.train, threads=3)))
    joined(threads, jobs, "threads do not matter")
    longer = replace(start, config=replace(start.config, train=replace(start.config.train, epochs=77)))
    with pytest.raises(ConfigError, match=r"other settings \(train\.epochs was 20, now 77\)\. Give another --out"):
        joined(longer, jobs, "third")
    with pytest.raises(ConfigError, match="a sweep of shapes-lt, not of long-tail"):
        joined(replace(start, recipe="long-tail"), jobs, "fourth")


def test_two_sweeps_in_one_directory_are_refused(tmp_path):
    with locked(tmp_path), pytest.raises(ConfigError, match="another sweep"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_words_of_the_sweep_and_of_its_runs(tmp_path):
    words = parse_words(
        ["--over", "objective.tau=0,1", "--train.epochs", "3", "--jobs=2", "--seeds", "1-2", "--dry-run"]
    )
    assert (words.over, words.seeds, words.jobs, words.dry_run) == (["objective.tau=0,1"], "1-2", 2, True)
    assert words.rest == ["--train.epochs", "3"] and words.out == ""
    start, jobs = prepare("shapes-lt/cross-entropy", words)
    assert str(start.folder) == "runs/sweep-shapes-lt-cross-entropy" and len(jobs) == 4
    assert jobs[0].words[:4] == ("train", "shapes-lt/cross-entropy", "--train.epochs", "3")
    assert jobs[0].config.train.epochs == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "nothing to sweep"),
        ("--over", "--over needs a value"),
        ("--over --seeds 0", "--over needs a value"),
        ("--over objective.tau=1 --jobs 0", "--jobs is '0'"),
        ("--over objective.tau=1 --jobs two", "--jobs is 'two'"),
        ("--seeds 0 --seeds 1", "--seeds is there twice"),
        ("--seeds x", "--seeds is 'x'"),
        ("--seeds 0-1 --train.seed 3", "--train.seed cannot be given here"),
        ("--over objective.tau=1 --objective.tau=2", "both swept (--over) and set (--objective.tau)"),
        ("--over relation.share=true --relation.no-share", "both swept"),
        ("--over objective.tau=1 --train.epoch 2", "did you mean '--train.epochs'?"),
        ("--over objective.tau=1 --stages pretrain", "leaves nothing to compare"),
    ],
)
def test_mistakes_of_the_command_line(line, words):
    with pytest.raises(ConfigError) as error:
        prepare("shapes-lt", parse_words(line.split()))
    assert words in str(error.value)
