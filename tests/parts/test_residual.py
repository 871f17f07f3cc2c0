"""The three ways back to the stream."""

import torch

import blocklab as bl

STREAM, BRANCH = torch.randn(2, 3, 4), torch.randn(2, 3, 4)


def test_add_and_none_are_what_they_say() -> None:
    assert torch.equal(bl.parts.Add.Config().build(4)(STREAM, BRANCH), STREAM + BRANCH)
    assert torch.equal(bl.parts.NoResidual.Config().build(4)(STREAM, BRANCH), BRANCH)


def test_scaled_multiplies_the_branch_only() -> None:
    fixed = bl.parts.Scaled.Config(scale=0.5).build(4)
    assert torch.equal(fixed(STREAM, BRANCH), STREAM + 0.5 * BRANCH)
    assert not list(fixed.parameters())


def test_a_learned_scale_of_zero_starts_as_the_identity_and_learns() -> None:
    rezero = bl.parts.Scaled.Config(scale=0.0, learned=True).build(4)
    assert torch.equal(rezero(STREAM, BRANCH), STREAM)
    rezero(STREAM, BRANCH).sum().backward()
    torch.testing.assert_close(rezero.scale.grad, BRANCH.sum().reshape(1))
