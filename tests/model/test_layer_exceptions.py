"""Who wins where a model and an exception state the same path, and that it can be said."""

import blocklab as bl

BASE = bl.presets.modern(d_model=32, n_heads=2, n_layers=4, vocab_size=7, context_length=16)
WINDOW = "block.attention.window"


def windows(config: bl.ModelConfig) -> list[int | None]:
    return [config.layer(i).block.attention.window for i in range(config.n_layers)]


def test_an_exception_wins_whichever_was_set_first() -> None:
    before = BASE.with_changes({"layers": [{"at": "::2", WINDOW: 3}]}).with_changes({WINDOW: 8})
    after = BASE.with_changes({WINDOW: 8}).with_changes({"layers": [{"at": "::2", WINDOW: 3}]})
    assert windows(before) == windows(after) == [3, 8, 3, 8]
    assert before.overridden(WINDOW) == after.overridden(WINDOW) == (0, 2)
    one = after.with_changes({"blocks.-2.attention.window": 5})
    assert windows(one) == [3, 8, 5, 8]


def test_layers_that_a_change_does_not_reach_are_named_by_what_they_have() -> None:
    config = BASE.with_changes(
        {
            "blocks.1.feed_forward": {"kind": "mlp"},
            "blocks.2.attention.window": 8,
            "layers": [
                {"at": "0", "block.feed_forward.d_ff": 64},
                {"at": "1", "block.feed_forward": {"kind": "mlp", "activation": "relu"}},
                {"at": "2", WINDOW: 8},
                {"at": "3", "positions.base": 500.0},
            ],
        }
    )
    assert config.overridden("block.feed_forward.activation") == (1,)
    assert config.overridden("block.feed_forward.d_ff") == (0,)
    assert config.overridden("block.feed_forward") == (0, 1)
    assert config.overridden("positions.base") == (3,)
    assert config.overridden("block.norm.eps") == ()
    assert config.overridden("n_layers") == ()
    # An exception that says what the model says by now hides nothing.
    assert config.overridden(WINDOW) == (2,)
    assert config.with_changes({WINDOW: 8}).overridden(WINDOW) == ()
    assert BASE.overridden(WINDOW) == ()
