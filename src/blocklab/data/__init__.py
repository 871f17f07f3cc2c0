"""Which tokens make which batch: corpora, tokenizers, the split, windows. Knows no model."""
