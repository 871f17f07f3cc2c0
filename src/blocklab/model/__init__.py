"""The model: its config, the block and the whole transformer, presets, counts."""
