"""What training commands refuse, in one sentence and before anything is in the way of the corrected command."""

import shlex

import pytest
import torch
from common_fairseq import fairseq_stack
from common_transformer_xl import authors_names, transformer_xl
from safetensors.torch import save_file
from tiny_runs import make_commands, write_rows
from tiny_teachers import make_sentence_encoder, save_decoder, save_teacher, write_texts

from sublayers import PARTransformerXLConfig, SandwichCharLMConfig, SandwichLMConfig
from sublayers.training.data.tokenizers import train_tokenizer
from sublayers.training.distill.objectives import Logits

pytestmark = pytest.mark.slow

FILES = {"empty.jsonl": "", "broken.jsonl": '{"a": 1', "notes.txt": "a", "list.json": "[]", "words.txt": "a\n"}
XL = "pretrain --model_type par_transformer_xl --memory_length 20"
SPANS = "pretrain --model_type sandwich_char_lm --attention_span 100 --span_ramp_size 8"
MASKED = "pretrain --objective mlm+nsp --tokenizer_model wordpiece"
DECAY = "pretrain --max_steps 30 --lr_scheduler_type warmup_stable_decay"
# which command needs other words, and what these are behind it
OTHERS = {"lm": "convert lm.safetensors OUT", "old": "convert old OUT --verify", "xl": "convert xl.pt OUT --verify"}
OTHERS |= {"convert": "convert teacher OUT", "export": "export spans OUT", "prune": "prune teacher --output_dir OUT"}
OTHERS["prune"] += " --train_file texts.txt --texts 24 --max_length 16 --whole_rows true"
OTHERS["frontier"] = "study frontier encoder --train_file texts.txt --sts_file sts.jsonl --output_dir OUT"
OTHERS["next"] = "distill decoder --objective next --train_file texts.txt --max_length 16 --use_cpu --output_dir OUT"
NO_ORIGINAL = "nothing that works with this Python runs its original; leave it out"
# flags behind those of a tiny run, and what is said of them
REFUSED = {
    "pretrain --blok_size 8": "unknown option 'blok_size', did you mean 'block_size'?",
    "pretrain --model_type gpt2": "unknown model_type 'gpt2'; choose from sandwich_lm",
    "pretrain --lr_scheduler_type cosin": "cosin is not a valid SchedulerType",
    "pretrain --max_position_embeddings 8": "block_size=16 is more than the model has room for",
    "pretrain --context_window 16": "context_window=16 should be at least 0 and less than block_size=16",
    "pretrain --streaming --max_steps -1": "give --max_steps with --streaming",
    "pretrain --resume_from_checkpoint nowhere": "nowhere is no complete checkpoint",
    "pretrain --do_eval --resume_from_checkpoint": "there is no model to evaluate; give --model_name_or_path",
    "pretrain --objective nsp": "unknown objective 'nsp'; choose from clm, mlm, mlm+nsp",
    "pretrain --objective mlm --model_type sandwich_lm": "no head for --objective mlm; choose from clm",
    f"{MASKED} --model_name_or_path causal": "sandwich_lm has no head for --objective mlm+nsp; choose from clm",
    "pretrain --objective mlm": "--tokenizer_model byte has no [MASK] for --objective mlm; choose wordpiece",
    f"{MASKED} --tokenizer_name_or_path causal": "has no cls_token and no sep_token",
    f"{MASKED} --streaming": "--streaming is for --objective clm; choose that or leave it out",
    f"{MASKED} --context_window 8": "--context_window is for --objective clm; choose that or leave it out",
    f"{MASKED} --block_size 4": "block_size=4 has no room for two segments and [CLS], [SEP]",
    "pretrain --whole_word_mask": "--whole_word_mask is for --objective mlm or mlm+nsp; choose that or leave it out",
    "pretrain --tokenizer_model bpe --vocab_size 9": "vocab_size=9 is less than the 256",
    "pretrain --vocabulary_file words.txt": "--vocabulary_file is for --tokenizer_model word; choose that",
    "pretrain --max_tensor_grad_norm 1": "--max_tensor_grad_norm is for --optimizer adagrad; choose that",
    "pretrain --evaluation_length 8": "sandwich_lm has no memory to evaluate with; leave --evaluation_length out",
    f"{XL} --context_window 8": "reads one stream in rows that never change; leave --context_window out",
    f"{XL} --streaming": "leave --streaming out",
    f"{SPANS} --label_smoothing_factor 0.1": "leave --label_smoothing_factor out",
    f"{XL} --auto_find_batch_size": "leave --auto_find_batch_size out",
    f"""{XL} --accelerator_config '{{"split_batches": true}}'""": "leave --accelerator_config out",
    f"{XL} --per_device_train_batch_size 90": "too few for 90 rows with segments of 16; give more",
    f"{XL} --evaluation_length 0": "not evaluation_length=0; give a larger --evaluation_length",
    f"{SPANS} --evaluation_memory_length 8": "learns how far back it looks; leave --evaluation_memory_length out",
    f"{SPANS} --evaluation_clamp_length 8": "leave --evaluation_clamp_length out",
    f"{SPANS} --tokenizer_model char --vocab_size 9": "has not all characters of",
    "seq2seq --max_token 9": "unknown option 'max_token', did you mean 'max_tokens'?",
    "seq2seq --label_smoothing 0.1": "did you mean 'label_smoothing_factor'?",
    "seq2seq --model_type t5": "unknown model_type 't5'; choose from ",
    "seq2seq --max_position_embeddings 20": "max_source_length=24 is more than the model has room",
    "seq2seq --generation_max_length 26": "generation_max_length=26 is more than the model has room",
    "seq2seq --max_tokens 20": "--max_tokens=20 should be at least 24",
    "seq2seq --num_beams 0": "--generation_num_beams=0 should be at least 1",
    "seq2seq --do_predict": "there is no model to evaluate; give --model_name_or_path",
    "seq2seq --model_name_or_path causal": "causal is a sandwich_lm, no encoder-decoder",
    "seq2seq --target_tokenizer_name_or_path x": "give --tokenizer_name_or_path, too",
    "seq2seq --separate_vocabularies --tokenizer_name_or_path x": "trains two tokenizers for a new model",
    "seq2seq --task code --tokenized": "--tokenized is for --task translation; leave it out for code",
    "seq2seq --separate_vocabularies --share_encoder_decoder_embeddings": "two vocabularies cannot share embeddings",
    "seq2seq --average_checkpoints 5": "there will be 4 checkpoints, fewer than --average_checkpoints 5",
    "seq2seq --load_best_model_at_end --eval_steps 2": "exclude each other; give one of them",
    "seq2seq --vocab_size 9": "vocab_size=9 is less than the 256",
    "seq2seq --source fr": "pairs.jsonl has no 'fr'; choose --source from source, target",
    "seq2seq --resume_from_checkpoint nowhere": "nowhere is no complete checkpoint",
    "seq2seq --test_file pairs.jsonl --validation_file": "there are no validation data; give --validation_file, or",
    "seq2seq --train_file --validation_file": "there are no data for --task translation; give --train_file",
    "glue --model_name_or_path spans": "spans is a sandwich_char_lm, which has no classifier; give another",
    "glue --model_name_or_path recurrent --max_length 1": "max_length=1 is not between 2 and the model's 1000000",
    "squad --model_name_or_path causal": "causal cannot be opened as AutoModelForQuestionAnswering, which <class 'subl",
    "pretrain --tokenizer_name_or_path no_tokenizer": "no_tokenizer has no tokenizer that can be read; give a folder",
    "pretrain --max_steps 30 --warmup_steps 31": "with warmup_steps=31 does not fit into a training of 30 steps",
    "glue --task_name sst-2": "invalid choice: 'sst-2'",
    "glue --task_name mrpc": "the train data of mrpc have no column 'sentence1', only sentence",
    "glue --validation_file empty.jsonl": "empty.jsonl is empty",
    "glue --max_eval_samples 0": "the validation data of sst2 are empty",
    "glue --jobs 0": "--jobs=0 is not a positive number",
    "glue --train_file notes.txt": "notes.txt has none of the known endings .json",
    "glue --train_file broken.jsonl": "broken.jsonl cannot be read: ",
    "glue --train_file ''": "there are no train data for sst2, only validation",
    "glue --data_dir .": "--dataset_name, --data_dir and files exclude each other",
    "glue --task_name all": "files hold one task; give its --task_name, or for all a --data_dir",
    "glue --max_length 33": "max_length=33 is not between 5 and the model's 32; give another",
    "glue --max_length 4": "max_length=4 is not between 5 and the model's 32; give another",
    "glue --batch_sizes 8 0": "--batch_sizes 0 is not a positive number",
    "glue --seeds 1 1": "--seeds 1 1 has a value twice",
    "glue --resume_from_checkpoint x": "several runs cannot go on from x; they do from where",
    "glue --do_eval": "has the labels LABEL_0, LABEL_1, but sst2 has negative, positive; fine-tune it",
    "squad --do_train --train_file ''": "there are no train data; give --train_file, or --do_eval to evaluate only",
    "squad --dataset_name x": "--dataset_name and files exclude each other",
    "squad --doc_stride 20": "no more than the doc_stride=20 that they share",
    "squad --max_seq_length 33": "max_seq_length=33 is not between 1 and the model's 32; give another",
    "squad --doc_stride -1": "--doc_stride=-1 should be at least 0",
    "squad --n_best_size 0": "--n_best_size=0 should be at least 1",
    "squad --max_answer_length 0": "--max_answer_length=0 should be at least 1",
    "squad --model_name_or_path ''": "there is no model; give --model_name_or_path, or --predictions_file",
    "squad --predictions_file list.json": "list.json should map ids of questions to answers",
    "distill --max_length=33": "max_length=33 is not between 3 and the model's 32; give another",
    "distill --pooling=cls": "learns logits does not pool; leave --pooling cls out",
    "distill --objective=states --tail_query=mean": "states are learned of every token; leave --tail_query mean out",
    "distill --objective=embeddings --tail_query=mean --pooling=mean": "take the mean twice; leave one of them out",
    "distill --streaming --max_steps=-1": "a stream has no length; give --max_steps with --streaming",
    "distill --streaming --only_answers --answers=a": "not kept; leave --streaming or --only_answers out",
    "distill --only_answers": "answers without a student need a folder; name one with --answers",
    "distill --sublayers s0 f0 --layers 0": "leave layers, moves and sizes out",
    "distill --sublayers s0 f9": "there is no sublayer f9 among s0 f0 s1 f1 s2 f2; choose some of these",
    "distill --moves_every=-1": "--moves_every -1 is no number of steps",
    "distill --temperature=0": "--temperature 0.0 is not positive",
    "distill --dropout=1": "--dropout 1 is no share of what is dropped; give 0 or more",
    "distill --dataloader_num_workers=2": "leave --dataloader_num_workers out",
    "distill --sublayer_order=s4f4": "the order s4f4 has 4 s, more than the 3 of the teacher",
    "distill --moves_every=7": "3 moves, one every 7 steps, take more than 21 steps",
    "glue --train_file '' --validation_file '' --data_dir . --task_name cola": "neither a folder cola nor glue_cola in",
    "glue --train_file '' --validation_file '' --data_dir . --task_name all": "there is no folder of any task in",
    f"{DECAY} --warmup_steps=31": "warmup_steps=31 does not fit into a training of 30 steps; train longer",
    f"""{DECAY} --warmup_steps=10 --lr_scheduler_kwargs '{{"num_decay_steps": 21}}'""": "num_decay_steps=21 does not",
    f"""{DECAY} --lr_scheduler_kwargs '{{"num_stable_steps": 5}}'""": "num_stable_steps follow from the others",
    f"""{DECAY} --lr_scheduler_kwargs '{{"num_decay_steps": "x"}}'""": "a flag of the Trainer does not fit",
    "next --sublayer_order=s2f2": "is made of its teacher's sublayers; give --sublayers or --student",
    "next --student=teacher --sublayer_order=s2f2": "the student in teacher has its sublayers; leave --sub",
    "next --student=teacher": "has other tokens than",
    "next --student=decoder": "has layers of its own; give what sublayers convert makes of it",
    "prune --budget=1.5": "--budget 1.5 is no share of the whole price; give numbers between 0 and 1",
    "prune": "--budget nothing is no share",
    "prune --budget=0.5 --texts=0": "--texts 0 is too small; give 1 or more",
    "prune --budget=0.5 --objective=words": "a classifier has no words; choose from logits",
    "prune --budget=0.5 --shape=x3": "'x3' is no shape",
    "prune --budget=0.5 --read=next": "a classifier generates no tokens; give --read all, masked or one",
    "prune --budget=0.5 --streaming=true": "leave --streaming out",
    "prune --budget=0.5 --max_length=33": "max_length=33 is not between 3 and the model's 32; give another",
    "frontier --students s3f3 sssfff": "--students s3f3 and s3f3 would share a folder",
    "frontier --students saf": "'a' is not a sublayer",
    "frontier --students sf --seeds 0 0": "sf 0 is given twice",
    "frontier --students sf --rounds 0": "0 is not a positive number",
    "frontier --students sf --sts_file none.jsonl": "there is no file none.jsonl",
    "frontier --students sf --sts_file other.jsonl": "has no column 'label', only sentence1, sentence2",
    "convert --sublayer_order=sc": "par_bert has no sublayers c (cross-attention) in its sublayer_order, here 'sc'",
    "convert --sublayer_order='par(24)'": "'par(24)' has too few numbers or too many; write par(num_sublayers, p)",
    "convert --sublayer_order='s(f'": "this parenthesis is never closed",
    f"convert --sublayer_order='{' ' * 10_000}'": "an order of 10000 characters is too long",
    "convert --verify --sublayer_order=ssff": "compares with the source, which runs only in its own order; leave",
    "lm --num_attention_heads=0": "0 is not a positive number",
    "lm --num_attention_heads=-4": "-4 is not a positive number",
    "lm --num_attention_heads=5": "hidden_size=16 is not a multiple of num_attention_heads=5",
    "lm --verify": NO_ORIGINAL,
    "old": NO_ORIGINAL,
    "xl": NO_ORIGINAL,
    "export --int8": "add --format onnx or --format openvino",
    "export --int8 --format torch_export": "add --format onnx or --format openvino",
    "export --format onnx --texts texts.txt": "add --int8",
    "export --format openvino --calibration_file texts.txt": "add --int8",
    "export": "spans holds no architecture of type 'sandwich_char_lm', no model of this package",
}
# what leaves a tokenizer, with which the corrected command goes on
LATE = [f"{XL} --per_device_train_batch_size 90", f"{SPANS} --tokenizer_model char --vocab_size 9"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what commands read, and the words of a tiny run of each."""
    folder = tmp_path_factory.mktemp("place")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    train_tokenizer([], "byte", 0).save_pretrained(folder / "causal")
    SandwichLMConfig().save_pretrained(folder / "causal")
    for name, config in (("recurrent", PARTransformerXLConfig()), ("spans", SandwichCharLMConfig())):
        train_tokenizer([], "byte", 0).save_pretrained(folder / name)
        config.save_pretrained(folder / name)
    SandwichLMConfig().save_pretrained(folder / "no_tokenizer")
    save_teacher(folder / "teacher", labels=3)
    save_teacher(folder / "encoder")
    make_sentence_encoder(folder / "encoder")
    save_decoder(folder / "decoder")
    write_rows(folder / "sts.jsonl", [{"sentence1": "a", "sentence2": "b", "label": 1}])
    write_rows(folder / "other.jsonl", [{"sentence1": "a", "sentence2": "b"}])
    save_file(fairseq_stack("decoder"), folder / "lm.safetensors")
    (folder / "old").mkdir()
    (folder / "old" / "config.json").write_text('{"model_type": "transfo-xl"}')
    torch.save(authors_names(transformer_xl()), folder / "xl.pt")
    flags = ["--objective=logits", "--sublayer_order=s3f3", "--max_length=16", "--max_steps=20", "--use_cpu"]
    words = ["distill", "teacher", f"--train_file={write_texts(folder / 'texts.txt')}", *flags]
    commands = make_commands(folder) | {"distill": words}
    commands = {name: [*words, "--output_dir", "OUT"] for name, words in commands.items()}
    return folder, commands | {name: line.split() for name, line in OTHERS.items()}


def words_of(line, place, out):
    """The words of a tiny run of the command that a line begins with, and then its flags."""
    name, *flags = shlex.split(line)
    return [str(out) if word == "OUT" else word for word in place[1][name]] + flags


@pytest.mark.parametrize("line", REFUSED, ids=lambda line: line[:90])
def test_bad_input_is_one_sentence(line, place, tmp_path, refusal, monkeypatch):
    monkeypatch.chdir(place[0])
    # that takes long
    monkeypatch.setattr(Logits, "ask_teacher", None)
    assert REFUSED[line] in refusal(*words_of(line, place, tmp_path / "out"))
    assert (tmp_path / "out").exists() == (line in LATE)
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize("line", ["pretrain", "seq2seq", "squad", "glue", "distill", "prune --budget=0.5", "export"])
def test_a_full_folder_is_refused_and_left_alone(line, place, tmp_path, refusal, monkeypatch):
    monkeypatch.chdir(place[0])
    (tmp_path / "thesis.txt").write_text("years of work")
    assert "is not empty" in refusal(*words_of(line, place, tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
