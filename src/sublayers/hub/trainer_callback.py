"""What transformers' own Trainer does beside its uploads, so that others can open them without this package."""

from transformers import TrainerCallback

from sublayers.modeling.modeling_sublayers import SublayersPreTrainedModel


class SelfContainedCallback(TrainerCallback):
    """Have a Trainer that publishes a model of this package save and upload its code, too."""

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """Name the code in the checkpoints, whose configuration is uploaded with `push_to_hub`."""
        if args.push_to_hub:
            name_code(model)

    def on_push_begin(self, args, state, control, model=None, **kwargs):
        """Put the code into the folder that is uploaded next."""
        if name_code(model) and args.should_save:
            model.config.save_pretrained(args.output_dir)


def name_code(model: object) -> bool:
    """Ask a model of this package to be saved with its code from now on; say whether it is one, adapters aside."""
    if not isinstance(model, SublayersPreTrainedModel) or model._hf_peft_config_loaded:
        return False
    if package := model.config.package():
        model.config.auto_map = package.auto_map(model.config)
    return package is not None
