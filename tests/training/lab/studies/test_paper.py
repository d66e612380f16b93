import json

import pytest
from transformers import AutoModelForCausalLM

from sublayers.training.commands import pretrain, seq2seq
from sublayers.training.lab.studies.paper import PaperStudy, main, papers
from sublayers.training.results import read

COMMANDS = {"pretrain": pretrain, "seq2seq": seq2seq}
# how many of what a command parses make the configuration
CONFIGURED_BY = {"pretrain": 2, "seq2seq": 3}
TINY = """
    --hidden_size=16 --intermediate_size=32 --num_attention_heads=2 --vocab_size=280 --block_size=16 --max_steps=2
    --warmup_steps=0 --max_eval_samples=4 --eval_steps=1 --save_strategy=no --disable_tqdm=true
"""


@pytest.mark.parametrize("size", [[], ["--full"]], ids=["small", "full"])
@pytest.mark.parametrize("name", papers())
def test_every_model_is_one_that_the_command_knows(name, size):
    study = PaperStudy.read([name, *size, "--train_file=train.txt", "--validation_file=dev.txt"])
    assert len(study.args.models) > 1
    assert study.args.seeds == [0, 1, 2]
    configs = []
    for words in study.args.arms.values():
        command = COMMANDS[study.args.command]
        parsed = command.parse([*words, *study.args.flags])
        configs.append(command.make_config(*parsed[: CONFIGURED_BY[study.args.command]]))
    assert len({str(config) for config in configs}) == len(configs)


@pytest.mark.slow
def test_trains_the_models_of_a_figure_once_and_reports_on_them(tmp_path):
    text = "\n".join(f"{i} sheep and {i + 1} goats are {2 * i + 1} animals." for i in range(300))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    flags = [f"--{split}_file={tmp_path / 'text.txt'}" for split in ("train", "validation")]
    flags += [*TINY.split(), f"--output_dir={tmp_path / 'study'}"]
    main(["sandwich_figure5", *flags, "--models", "k = 0", "--seeds", "0", "1"])
    found = main(["sandwich_figure5", *flags, "--models", "k = 3", "--seeds", "0"])
    assert {name: [*by_seed] for name, by_seed in found.items()} == {"k = 0": ["0", "1"], "k = 3": ["0"]}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "study" / "k_3_0")
    assert model.config.sublayer_order == found["k = 3"]["0"]["orders"] == "s3(sf)5f3"
    assert model.num_parameters() == found["k = 3"]["0"]["parameters"]
    first, second = read(tmp_path / "study" / "results.csv")
    losses = [run["metrics"]["eval_loss"] for run in found["k = 0"].values()]
    assert first["validation loss (nats per token)"] == f"{sum(losses) / 2:.3f}"
    assert (first["seeds"], second["seeds"], first["parameters"]) == ("0, 1", "0", second["parameters"])
    curve = json.loads((tmp_path / "study" / "k_3_0" / "loss_curve.json").read_text())["eval_loss"]
    assert second["update of the lowest validation loss"] == f"{min(curve, key=lambda point: point[1])[0]}"
    assert "<svg" in (tmp_path / "study" / "learning_curves.svg").read_text()


def test_names_an_unknown_figure_and_an_unknown_model():
    with pytest.raises(ValueError, match=r"'figure5' is no table or figure of a paper; choose from .*sandwich_figure5"):
        main(["figure5"])
    with pytest.raises(ValueError, match="unknown model 'k = 9'; choose from k = 0, k = 1"):
        main(["sandwich_figure5", "--models", "k = 9"])
