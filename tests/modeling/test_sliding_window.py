"""The names by which transformers reads and sets what caches and masks keep, as its own tests of models do."""

import pytest
import torch
from common import tokens
from families import LOCAL, build, every_family_and_todays_parts, inputs
from transformers import AutoConfig, AutoModel

WINDOWED = [("sandwich_lm", LOCAL), ("par_transformer_xl", {"same_length": True}), ("sandwich_char_lm", {})]
every_window = pytest.mark.parametrize(("family", "options"), WINDOWED, ids=[family for family, _ in WINDOWED])


@every_family_and_todays_parts
def test_a_window_may_be_set_where_there_is_one_and_kinds_of_layers_where_they_are_the_orders(family, options):
    config, kind = build(family, **options).config, "full_attention"
    if hasattr(config, "sliding_window"):
        config.sliding_window, kind = 2, "sliding_attention"
        assert config.sliding_window == 2
    config.layer_types = getattr(config, "layer_types", [kind] * config.num_hidden_layers)
    with pytest.raises(ValueError, match=r"^layer_types=\['conv'\] contradicts the order '.*', which makes it \["):
        config.layer_types = ["conv"]
    model = AutoModel.from_config(config)
    assert model(**inputs(model))[0].isfinite().all()


@every_window
def test_a_token_sees_no_further_than_the_window_that_was_set(family, options):
    model = build(family, AutoModel, **options).eval()
    config = model.config
    config.sliding_window = 3
    model = AutoModel.from_config(config).eval()
    # so many sublayers see, the first of them only the ids
    attentions = config.num_hidden_layers
    ids = tokens(1, 12)
    other = ids.clone()
    other[0, 0] = 60 - ids[0, 0]
    if family == "sandwich_lm":
        config.sublayer_order = "wfwf"
        attentions = 2
        model = AutoModel.from_config(config).eval()
    with torch.no_grad():
        changed = (model(ids)[0] != model(other)[0]).any(-1)[0]
    assert changed[: 2 * attentions + 1].any()
    assert not changed[2 * attentions + 1 :].any()


@pytest.mark.parametrize("family", ["sandwich_lm", "par_bert", "sandwich_seq2seq"])
def test_without_local_attention_there_is_no_window(family):
    config = build(family).config
    assert not hasattr(config, "sliding_window")
    config.sliding_window = None
    AutoModel.from_config(config)
    config.sliding_window = 2
    with pytest.raises(ValueError, match=r"^attention_window=2, but the order has no sublayer w; leave it out$"):
        AutoModel.from_config(config)


@every_window
def test_a_window_is_checked_and_saved_under_its_own_name(family, options, tmp_path):
    model = build(family, **options)
    for value in (0, -1, "3", 2.5, None) if family != "sandwich_lm" else (0, -1, "3", 2.5):
        with pytest.raises(ValueError, match=r"is out of range; give|does not fit; give"):
            model.config.sliding_window = value
    model.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path, sliding_window=7)
    assert loaded.sliding_window == 7
    assert "sliding_window" not in loaded.to_dict()
