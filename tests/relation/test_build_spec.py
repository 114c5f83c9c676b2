import pytest

from relatum import BatchFormer, BatchFormerV2
from relatum.config import RelationConfig
from relatum.errors import ConfigError
from relatum.relation.build import build_spec, stream_weights


def test_defaults_of_the_settings_are_those_of_the_specs():
    assert build_spec(RelationConfig()) is None
    assert build_spec(RelationConfig(name="batchformer")) == BatchFormer()
    assert build_spec(RelationConfig(name="batchformer-v2")) == BatchFormerV2()


def test_every_setting_arrives():
    both = {"layers": 2, "dropout": 0.1, "hidden": 24, "related_fraction": 0.5, "heads": 2}
    v1 = RelationConfig(name="batchformer", variant="stable", **both)
    assert build_spec(v1) == BatchFormer(variant="stable", **both)
    assert build_spec(RelationConfig(name="batchformer", shared_classifier=False)) == BatchFormer(
        shared_classifier=False
    )
    places = {"at": ("blocks.1-2", "blocks.4"), "share": True, "tokens": "patch", "variant": "paper"}
    assert build_spec(RelationConfig(name="batchformer-v2", **places, **both)) == BatchFormerV2(**places, **both)
    assert build_spec(RelationConfig(name="batchformer-v2", two_streams=False)) == BatchFormerV2(two_streams=False)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("batchformer", {"at": ("blocks.1",)}),
        ("batchformer", {"share": True}),
        ("batchformer", {"tokens": "class"}),
        ("batchformer", {"two_streams": False}),
        ("batchformer-v2", {"shared_classifier": False}),
    ],
)
def test_a_setting_without_effect_is_refused(name, setting):
    with pytest.raises(ConfigError, match=f"relation.{next(iter(setting))} does nothing"):
        build_spec(RelationConfig(name=name, **setting))


def test_a_single_stream_takes_no_fraction():
    with pytest.raises(ConfigError, match="plain stream"):
        build_spec(RelationConfig(name="batchformer-v2", two_streams=False, related_fraction=0.5))


def test_stream_weights():
    assert stream_weights(RelationConfig()) == "mean"
    assert stream_weights(RelationConfig(streams="released")) == "released"
    assert stream_weights(RelationConfig(related_weight=0.25)) == (0.75, 0.25)
    with pytest.raises(ConfigError, match="related_weight"):
        stream_weights(RelationConfig(streams="released", related_weight=0.25))
    for one in ({"shared_classifier": False, "streams": "released"}, {"two_streams": False, "related_weight": 0.2}):
        with pytest.raises(ConfigError, match="ask for one"):
            stream_weights(RelationConfig(**one))
