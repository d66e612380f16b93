PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ECOSYSTEM := .venv-ecosystem
CONSTRAINED := .venv-constrained
RELEASE := .venv-release

.DEFAULT_GOAL := help

.PHONY: help
help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

# what README's installation gives on the day, so that a release that breaks something is seen here; only torch is
# pinned, since a bare one may be gigabytes for other devices
NEWEST := --upgrade --upgrade-strategy eager '$(shell grep ^torch== constraints.txt)'

# a second call finds the stamp newer than what it was made from
$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(NEWEST) --editable '.[train,bench,test]'
	@touch $@

.PHONY: install
install: $(VENV)/.installed  ## make the environment in .venv

.PHONY: demo
demo: $(VENV)/.installed  ## train two small language models and a small BERT, compare them, try them
	$(BIN)/sublayers demo

PYTEST := pytest --numprocesses 2 --dist worksteal

# the environment
define lint
	$(1)/bin/ruff check .
	$(1)/bin/ruff format --check .
	$(1)/bin/codespell
	$(1)/bin/mypy
endef

# a worker that has run thousands of tests dies without a word where it forks, so each room has workers of its own
ROOMS := ecosystem modeling training/commands training/lab training
# those of a room are not run again with the rooms around it
define rooms
	@failed=0; ignored=; for room in $(addprefix tests/,$(ROOMS)) tests; do \
		$(ECOSYSTEM)/bin/$(PYTEST) $$room $$ignored || failed=1; \
		ignored="$$ignored --ignore=$$room"; \
	done; exit $$failed
endef

.PHONY: quick
quick: $(VENV)/.installed  ## lint, check the types, run the tests that find most mistakes
	$(call lint,$(VENV))
	$(VENV)/bin/$(PYTEST) --quick -m 'not slow' $(patsubst %,--ignore=tests/%,ecosystem convert training/lab training/metrics)

# transformers imports what it finds of other people's tools, which slows every command down: users' is without them
$(ECOSYSTEM)/.installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ECOSYSTEM)
	$(ECOSYSTEM)/bin/python -m pip install --quiet $(NEWEST) --editable '.[train,onnx,openvino,bench,test,ecosystem,docs]'
	@touch $@

# the last release that setup.cfg no longer admits, which has to be refused; what it needs is that of the newest
OLDER := build/transformers-older
$(OLDER)/.installed: $(ECOSYSTEM)/.installed Makefile
	rm -rf $(OLDER)
	$(ECOSYSTEM)/bin/python -m pip install --quiet --no-deps --target $(OLDER) transformers==5.23.0
	@touch $@

.PHONY: test
test: $(VENV)/.installed  ## lint, check the types, run the tests, of many alike the first ones
	$(call lint,$(VENV))
	$(VENV)/bin/$(PYTEST) -m 'not full' --ignore=tests/ecosystem tests

.PHONY: test-full
test-full: $(ECOSYSTEM)/.installed $(OLDER)/.installed  ## lint, check the types, run all tests: every case, kills at every write, old folders
	$(call lint,$(ECOSYSTEM))
	$(call rooms)

# its source distribution has the common tests of models, but not the mixins of generation and of exporters
UPSTREAM := build/transformers_tests
$(UPSTREAM)/.unpacked: $(ECOSYSTEM)/.installed
	rm -rf $(UPSTREAM) build/transformers-*.tar.gz && mkdir -p $(UPSTREAM)/generation $(UPSTREAM)/exporters
	$(ECOSYSTEM)/bin/python -m pip install --quiet parameterized
	$(ECOSYSTEM)/bin/python -m pip download --quiet --no-deps --no-binary :all: --dest build \
		transformers==$$($(ECOSYSTEM)/bin/python -c 'from importlib.metadata import version; print(version("transformers"))')
	tar --extract --gzip --file build/transformers-*.tar.gz --directory $(UPSTREAM) --strip-components 2 --wildcards '*/tests/*'
	echo 'class GenerationTesterMixin: ...' > $(UPSTREAM)/generation/test_utils.py
	echo 'class ExportTesterMixin: ...' > $(UPSTREAM)/exporters/test_export.py
	touch $(UPSTREAM)/__init__.py $(UPSTREAM)/generation/__init__.py $(UPSTREAM)/exporters/__init__.py $@

.PHONY: test-transformers
test-transformers: $(UPSTREAM)/.unpacked  ## run transformers' own tests of models on every family
	PYTHONPATH=build $(ECOSYSTEM)/bin/pytest --numprocesses 2 -o addopts=--import-mode=importlib tests/upstream

$(RELEASE)/.installed:
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet build twine
	@touch $@

# the wheel is built from the source distribution
.PHONY: dist
dist: $(RELEASE)/.installed  ## build wheel and source distribution in dist/, and check them
	rm -rf dist
	$(RELEASE)/bin/python -m build
	$(RELEASE)/bin/twine check --strict dist/*

# autodoc and the pictures of orders import the package
.PHONY: docs
docs: $(ECOSYSTEM)/.installed  ## build the documentation: build/site/docs/index.html
	$(ECOSYSTEM)/bin/python -m sphinx -W --keep-going -c docs . build/site

# the versions with which figures were measured; contract, generation, conversion and commands
$(CONSTRAINED)/.installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CONSTRAINED)
	$(CONSTRAINED)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[train,bench,test]'
	@touch $@

.PHONY: test-pinned
test-pinned: $(CONSTRAINED)/.installed
	$(CONSTRAINED)/bin/$(PYTEST) --quick -m 'not slow' \
		tests/modeling tests/convert tests/hub tests/training

# packages of setup.cfg, as `pip list` writes them
NAMED := $(shell sed -n 's/^    \([a-zA-Z0-9-]\+\)[>=].*/\1/p' setup.cfg | sed 's/-/[-_.]/g' | paste -s -d '|')

# on a day when these are the newest releases, test-full has run them; builds of torch have a name behind the version
.PHONY: test-constrained
test-constrained: $(ECOSYSTEM)/.installed  ## run what finds most mistakes with the versions of constraints.txt, if they are others
	@if $(ECOSYSTEM)/bin/python -m pip freeze | sed 's/+.*//' | grep --ignore-case --extended-regexp '^($(NAMED))==' \
		| grep --invert-match --line-regexp --fixed-strings --file constraints.txt; \
	then $(MAKE) test-pinned; else echo 'the releases of today are those of constraints.txt'; fi

.PHONY: outdated
outdated: $(ECOSYSTEM)/.installed  ## list what the registry has newer than setup.cfg admits
	@$(ECOSYSTEM)/bin/python -m pip list --outdated 2> /dev/null \
		| grep --ignore-case --extended-regexp '^($(NAMED)) ' || echo 'nothing newer was found, or the registry was not reached'

.PHONY: results
results: $(VENV)/.installed  ## write the tables of figures again, from results/
	$(BIN)/sublayers results README.md model_cards/*.md $(shell find docs -name '*.md' 2> /dev/null)

# what the checkpoints learn from and their runs, as docs/checkpoints.md says; what was interrupted goes on
DATA ?= data
TRAIN := cd $(DATA) && $(abspath $(BIN))/sublayers
GO_ON := --resume_from_checkpoint true
# with the recipe $(1)
TRANSLATION = seq2seq $(1) --train_file multi30k/train.jsonl.gz --validation_file multi30k/validation.jsonl.gz \
	--test_file multi30k/test.jsonl.gz --do_train --do_eval --do_predict
TRANSLATIONS := translation-transformer translation-macaron translation-iot
LANGUAGE := pretrain small_sandwich --train_file wikipedia.txt --validation_file wikipedia_valid.txt --tokenizer_name_or_path bpe \
	--position_embedding_type rotary --block_size 256 --per_device_train_batch_size 8 --dropout 0 --attention_dropout 0 \
	--activation_dropout 0 --do_train --do_eval
LANGUAGES := lm-transformer lm-sandwich lm-par lm-hybrid
# with feed-forwards $(1) wide
BERT = pretrain --objective mlm --train_file wikipedia.txt --validation_file wikipedia_valid.txt --tokenizer_name_or_path wordpiece \
	--hidden_size 128 --intermediate_size $(1) --num_attention_heads 4 --norm_position pre --final_norm true --embedding_norm false \
	--position_embedding_type rotary --scale_embedding true --block_size 64 --max_position_embeddings 512 \
	--per_device_train_batch_size 16 --max_steps 4800 --learning_rate 2e-3 --weight_decay 0.01 --dropout 0 --attention_dropout 0 \
	--activation_dropout 0 --max_eval_samples 2000 --per_device_eval_batch_size 64 --eval_strategy no --save_steps 1200 \
	--logging_steps 100 --report_to none --do_train --do_eval
BERTS := bert-transformer bert-par bert-macaron
# stands beside them in their cards, and is no folder
CONTROL := bert-transformer-4-layers
# fine-tuned on the task $(1) from the model $(2), in $(3) epochs
GLUE = glue --task_name $(1) --data_dir glue --model_name_or_path $(2) --max_length 64 --learning_rate 5e-4 \
	--per_device_train_batch_size 32 --report_to none --num_train_epochs $(3) --output_dir $(2)-$(1)
STUDENT := --train_file texts.txt --validation_file texts_valid.txt --answers answers --per_device_train_batch_size 32 \
	--logging_steps 20 --report_to none --sts_file stsb/test.jsonl.gz --squad_file squad/validation.parquet --do_train --do_eval

# the run $(1) as a folder, with others beside it in its card
define put
	$(BIN)/sublayers export $(DATA)/$(1) model_cards/checkpoints/$(firstword $(subst /, ,$(1))) --weights bfloat16 \
		$(if $(2),--beside $(addprefix $(DATA)/,$(2)))

endef
beside = $(foreach run,$(1),$(call put,$(run),$(filter-out $(run),$(1) $(2))))
define fine_tuned
	$(TRAIN) $(call GLUE,sst2,$(1),2)
	$(TRAIN) $(call GLUE,stsb,$(1),5)

endef

.PHONY: checkpoints
checkpoints: $(VENV)/.installed  ## train the models in model_cards/checkpoints again, which takes hours
	$(TRAIN) $(call TRANSLATION,multi30k) --output_dir translation-transformer $(GO_ON)
	$(TRAIN) $(call TRANSLATION,multi30k) --model_type macaron_seq2seq --encoder_sublayer_order "(fsf)3" \
		--decoder_sublayer_order "(fscf)3" --intermediate_size 384 --output_dir translation-macaron $(GO_ON)
	$(TRAIN) $(call TRANSLATION,multi30k_iot) --output_dir translation-iot $(GO_ON)
	$(TRAIN) tokenizer --vocab_size 4096 --train_file wikipedia.txt --validation_file wikipedia_valid.txt --output_dir bpe
	$(TRAIN) $(LANGUAGE) --sublayer_order "(sf)8" --output_dir lm-transformer $(GO_ON)
	$(TRAIN) $(LANGUAGE) --sublayer_order "s3(sf)5f3" --output_dir lm-sandwich $(GO_ON)
	$(TRAIN) $(LANGUAGE) --sublayer_order "(sff)4f2" --output_dir lm-par $(GO_ON)
	$(TRAIN) $(LANGUAGE) --sublayer_order "(rf)4sf" --recurrence gated_delta --output_dir lm-hybrid $(GO_ON)
	$(TRAIN) distill all-MiniLM-L6-v2 mixed_texts --sublayer_order "(sf)4" --layers 0 2 4 5 $(STUDENT) --output_dir minilm-4-layers $(GO_ON)
	$(TRAIN) distill all-MiniLM-L6-v2 mixed_texts --sublayer_order "(sf)3" --layers 0 1 5 $(STUDENT) --output_dir minilm-3-layers $(GO_ON)
	$(TRAIN) tokenizer --model wordpiece --vocab_size 8192 --train_file wikipedia.txt --validation_file wikipedia_valid.txt --output_dir wordpiece
	$(TRAIN) $(call BERT,512) --model_type par_bert --sublayer_order "(sf)6" --output_dir bert-transformer $(GO_ON)
	$(TRAIN) $(call BERT,512) --model_type par_bert --sublayer_order "(sf)4" --output_dir $(CONTROL) $(GO_ON)
	$(TRAIN) $(call BERT,512) --model_type par_bert --sublayer_order "(sf)4f3" --output_dir bert-par $(GO_ON)
	$(TRAIN) $(call BERT,256) --model_type macaron_bert --sublayer_order "(fsf)6" --output_dir bert-macaron $(GO_ON)
	$(foreach run,$(BERTS) $(CONTROL),$(call fine_tuned,$(run)))
	rm -rf model_cards/checkpoints/*
	$(call beside,$(TRANSLATIONS))
	$(call beside,$(LANGUAGES))
	$(call put,minilm-4-layers,minilm-3-layers)
	$(call beside,$(BERTS),$(CONTROL))
	$(call beside,$(foreach run,$(BERTS),$(run)-sst2/sst2),$(CONTROL)-sst2/sst2)

.PHONY: stub
stub: $(VENV)/.installed  ## write the type stub of the package again, from the table of families
	$(BIN)/python -c 'from sublayers.families import stub; print(stub(), end="")' > src/sublayers/__init__.pyi

.PHONY: clean
clean:  ## remove the environments and the caches
	rm -rf $(VENV) $(ECOSYSTEM) $(CONSTRAINED) $(RELEASE) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
