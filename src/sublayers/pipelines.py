"""Pipelines that transformers 5 removed: importing this module brings them back under their old names.

After `import sublayers.pipelines`, `pipeline("question-answering", model=...)` works as it did in transformers 4, and
so do "summarization", "translation", "translation_xx_to_yy" and "text2text-generation".
"""

from typing import Any

from transformers.pipelines import PIPELINE_REGISTRY, REMOVED_TASKS

from sublayers.configuration.configuration_sublayers import SublayersConfig
from sublayers.tasks.table import PIPELINES
from sublayers.tasks.text2text_generation import TRANSLATION_TASK

T5 = ("google-t5/t5-base", "a9723ea")
DEFAULT_MODELS = {
    "question-answering": ("distilbert/distilbert-base-cased-distilled-squad", "564e9b5"),
    "summarization": ("sshleifer/distilbart-cnn-12-6", "a4f8f3e"),
    "text2text-generation": T5,
    "translation": T5,
}
check_task = PIPELINE_REGISTRY.check_task


def _check_task(task: str) -> tuple[str, dict[str, Any], Any]:
    # the registry of transformers 5 no longer knows that a task may name languages
    if not (languages := TRANSLATION_TASK.fullmatch(task)):
        return check_task(task)
    # the default model serves three pairs of languages; a model that is given serves any pair
    options = None if task.removeprefix("translation_en_to_") in ("fr", "de", "ro") else languages.groups()
    return "translation", PIPELINE_REGISTRY.supported_tasks["translation"], options


for task, (pipeline_class, auto_class) in PIPELINES.items():
    # their names are blocked
    REMOVED_TASKS.pop(task)
    PIPELINE_REGISTRY.register_pipeline(
        task, pipeline_class, pt_model=auto_class, default={"model": DEFAULT_MODELS[task]}, type="text"
    )
PIPELINE_REGISTRY.check_task = _check_task  # type: ignore[method-assign]
# a registered pipeline needs no code from a model's folder, and no trust_remote_code
SublayersConfig.custom_pipelines = property(lambda config: {}, lambda config, value: None)  # type: ignore[attr-defined]
