from dataclasses import make_dataclass

import pytest

from sublayers import IOTSeq2SeqConfig, PARBertConfig, SandwichLMConfig, par
from sublayers.training.flags import config_flags, expand_settings_file, given_flags, parse_flags
from sublayers.training.trainers.start import check_unchanged, load_config

NoFlags = make_dataclass("NoFlags", [])


def read(config_class, argv):
    """The fields that a command line gives a configuration."""
    (flags,) = parse_flags(argv, [config_flags(config_class, NoFlags)], "usage")
    return given_flags(flags)


def test_patterns_are_read_from_flags_and_files_and_stored_as_orders(tmp_path):
    (tmp_path / "settings.yaml").write_text("sublayer_order: par(24, 5)\n")
    for argv in (["--sublayer_order", "par(24,5)"], [str(tmp_path / "settings.yaml")]):
        flags = read(PARBertConfig, expand_settings_file(argv, "pretrain"))
        new = load_config(None, PARBertConfig, flags)
        assert new.sublayer_order == par(24, 5)
        PARBertConfig(sublayer_order="sf").save_pretrained(tmp_path / "old")
        config = load_config(str(tmp_path / "old"), PARBertConfig, flags)
        assert config.sublayer_order == par(24, 5)
        # as a run that goes on does
        new.save_pretrained(tmp_path / "run")
        check_unchanged(config, flags, str(tmp_path / "run"))


def test_patterns_are_read_in_lists_of_orders(tmp_path):
    (tmp_path / "settings.yaml").write_text("decoder_orders: ['interleaved(1, decoder=True)', FCS]\n")
    flags = read(IOTSeq2SeqConfig, expand_settings_file([str(tmp_path / "settings.yaml")], "seq2seq"))
    assert load_config(None, IOTSeq2SeqConfig, flags).decoder_orders == ["scf", "fcs"]


def test_rope_parameters_are_read_as_json(tmp_path):
    (tmp_path / "settings.yaml").write_text(
        "position_embedding_type: rotary\nrope_parameters: {rope_theta: 500000.0}\n"
    )
    (tmp_path / "linear.json").write_text('{"rope_parameters": {"rope_type": "linear", "factor": 2}}')
    argv = expand_settings_file([str(tmp_path / "settings.yaml")], "pretrain")
    flags = read(SandwichLMConfig, argv)
    config = load_config(None, SandwichLMConfig, flags)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 500_000}
    # as a run that goes on does
    config.save_pretrained(tmp_path / "run")
    check_unchanged(config, flags, str(tmp_path / "run"))
    others = read(SandwichLMConfig, expand_settings_file([str(tmp_path / "linear.json")], "pretrain"))
    found = load_config(str(tmp_path / "run"), SandwichLMConfig, others).rope_parameters
    assert found == {"rope_type": "linear", "factor": 2, "rope_theta": 10_000}
    with pytest.raises(ValueError, match="argument --rope_parameters"):
        read(SandwichLMConfig, ["--rope_parameters", "{"])


BAD = {
    "--num_attention_heads=0": "num_attention_heads=0 is out of range; give a number from 1 to 1000000000",
    "--num_attention_heads=3": "hidden_size=1024 is not a multiple of num_attention_heads=3",
    "--feed_forward_scale=-1": "feed_forward_scale=-1.0 is out of range; give a number from 0 to 1000000000",
    "--feed_forward_scale=nan": "argument --feed_forward_scale: 'nan' is not a finite number",
    "--feed_forward_scale=x": "argument --feed_forward_scale: 'x' is not a finite number",
    "--hidden_act=nope": "hidden_act='nope' is unknown; choose from ",
    "--sublayer_order=sc": r"sandwich_lm has no sublayers c \(cross-attention\) in its sublayer_order, here 'sc'; use",
    "--sublayer_order=par(24)": r"'par\(24\)' has too few numbers or too many; write par\(num_sublayers, p\)",
}


@pytest.mark.parametrize(("flag", "sentence"), BAD.items())
def test_a_bad_value_is_one_sentence_for_new_and_for_loaded_models(flag, sentence, tmp_path):
    SandwichLMConfig().save_pretrained(tmp_path)
    for model in (None, str(tmp_path)):
        with pytest.raises(ValueError, match=f"^{sentence}"):
            load_config(model, SandwichLMConfig, read(SandwichLMConfig, [flag]))
