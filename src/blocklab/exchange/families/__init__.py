"""One small file for each family of checkpoints, and the order in which export tries them."""

from blocklab.errors import BlocklabError, nearest
from blocklab.exchange.families.gemma import Gemma
from blocklab.exchange.families.gemma2 import Gemma2
from blocklab.exchange.families.gemma3 import Gemma3Text
from blocklab.exchange.families.gpt2 import GPT2
from blocklab.exchange.families.gpt_neox import GPTNeoX
from blocklab.exchange.families.llama import Llama
from blocklab.exchange.families.mistral import Mistral
from blocklab.exchange.families.mixtral import Mixtral
from blocklab.exchange.families.olmo2 import Olmo2
from blocklab.exchange.families.opt import OPT
from blocklab.exchange.families.phi3 import Phi3
from blocklab.exchange.families.qwen2 import Qwen2
from blocklab.exchange.families.qwen3 import Qwen3
from blocklab.exchange.families.qwen3_moe import Qwen3Moe
from blocklab.exchange.families.smollm3 import SmolLM3
from blocklab.exchange.family import Family

# The most widely read come first: what two families can say is written as the earlier one, unless
# it came as the later.
FAMILIES: tuple[Family, ...] = (
    GPT2(),
    Llama(),
    Mistral(),
    Qwen2(),
    Qwen3(),
    Mixtral(),
    Qwen3Moe(),
    Gemma(),
    Gemma2(),
    Gemma3Text(),
    GPTNeoX(),
    Olmo2(),
    OPT(),
    Phi3(),
    SmolLM3(),
)


def family_of(model_type: str, at: str) -> Family:
    """The family that config.json's `model_type` names. Raises BlocklabError for any other."""
    found = {family.model_type: family for family in FAMILIES}
    if model_type not in found:
        raise BlocklabError(
            f"{at}: model_type '{model_type[:80]}' is not implemented; {nearest(model_type, found)}"
        )
    return found[model_type]
