"""The tasks whose pipelines transformers 5 removed; `sublayers.pipelines` brings them back."""
