"""Model, encoder and decoder: fairseq's, with layers chosen from the configuration."""

import dataclasses
import functools

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase, TransformerModelBase
from fairseq.modules import FairseqDropout
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import nn

from ..attention.cache import ONE_ORDER
from ..attention.multihead import MultiheadAttention
from ..config import UNSUPPORTED, VariantConfig, own_options, refuse_options
from ..errors import InputError
from ..kernels.autocast import autocast
from ..kernels.dropout import Dropout
from ..kernels.products import Linear
from ..weighted.heads import branched_blocks
from ..weighted.log import BranchLog
from ..weighted.training import BranchTraining, refuse_training
from .layers import build_layer

# Modules that fairseq and torch put into a model, and our replacements.
COMPUTED_BY = {FairseqDropout: Dropout, nn.Linear: Linear}


class TransformerModel(TransformerModelBase):
    """Encoder–decoder Transformer (Vaswani et al. 2017) and its variants, selected by its configuration."""

    config = VariantConfig  # a subclass for variants with additional options
    branch_training = None  # how to train κ and α (Ahmed et al. 2017)
    branch_log = None
    counting = False  # whether fairseq has called set_num_updates
    __jit_unused_properties__ = ["full_context_alignment"]  # torch.jit.trace compiles all others

    @classmethod
    def add_args(cls, parser):
        # No defaults here: architectures.py sets those of each architecture.
        gen_parser_from_dataclass(parser, cls.config(), delete_default=True, with_prefix="")

    @classmethod
    def build_model(cls, args, task):
        """Builds the model that `args` (a Namespace or hydra's DictConfig) describes.

        Raises:
            InputError: for options that are not supported, impossible sizes, an architecture that is not made of a
                family's, and a training that could not train κ and α as the paper does
        """
        if not all(hasattr(args, name) for name in own_options(cls.config)):
            call = 'ARCH_CONFIG_REGISTRY["relative_transformer_base"](args)'
            raise InputError(f"this --arch does not set our options: let its function end with a family's: {call}")
        cfg = cls.config.from_namespace(args)
        task_cfg = getattr(task, "cfg", None) or getattr(task, "args", None)  # which fairseq's older tasks have
        refuse_options(cfg)
        if cfg.relative_attention == "all" and getattr(task_cfg, "left_pad_target", False):
            reason = "distances would count the padding, which decoding does not have"
            raise InputError(f"--left-pad-target cannot be combined with --relative-attention all: {reason}: omit it")
        learned = cfg.branched_attention != "none" and cfg.branch_weights != "random"
        if learned:
            refuse_training(args)
        model = super().build_model(cfg, task)
        model.decoder.learns_alignment = getattr(task_cfg, "load_alignments", False)
        use_our_modules(model)
        for name, parameter in model.named_parameters():
            parameter.name_in_model = name  # for the optimizer's messages
        if learned:
            lr_scale = (cfg.encoder.embed_dim / cfg.encoder.layers) ** -0.5
            model.branch_training = BranchTraining(lr_scale, simplex=cfg.branch_weights == "simplex")
            model.mark_branch_weights()
            model.branch_log = BranchLog(model)
        return model

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens):
        return TransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens):
        return TransformerDecoder(cfg, tgt_dict, embed_tokens)

    def __setstate__(self, state: dict) -> None:
        """Called for a copy, which has no optimizer yet; torch's copies of parameters have no `param_group`."""
        super().__setstate__(state)
        if self.branch_training is not None:
            self.branch_training = dataclasses.replace(self.branch_training, adopted=False)
            self.mark_branch_weights()

    def mark_branch_weights(self) -> None:
        """Tells the optimizer which parameters are κ and α (weighted/training.py)."""
        for block in branched_blocks(self).values():
            block.kappa.param_group = block.alpha.param_group = self.branch_training

    def upgrade_state_dict(self, state_dict: dict) -> None:
        """As fairseq's, which takes a state without versions, as in --store-ema, for one without final LayerNorms."""
        for side in ("encoder", "decoder"):
            if f"{side}.layer_norm.weight" in state_dict:
                state_dict.setdefault(f"{side}.version", torch.tensor([3.0]))
        super().upgrade_state_dict(state_dict)

    def set_num_updates(self, num_updates: int) -> None:
        """Called by fairseq before each update.

        Raises:
            InputError: unless an optimizer trains κ and α as in the paper
        """
        super().set_num_updates(num_updates)
        # The first number is 0, or that of a checkpoint that has just been loaded, when there is no optimizer yet.
        loaded = num_updates > 0 and not self.counting
        self.counting = True
        if self.training and self.branch_training is not None and not loaded:
            self.branch_training.require_adopted()
            self.branch_log.follow()

    @property
    def full_context_alignment(self) -> bool:
        """Whether fairseq's generator must run the decoder on whole hypotheses to print alignments.

        It must if decoding keeps no attention weights: fairseq's hub interface asks for alignments only after
        `make_generation_fast_` has decided that.
        """
        return not self.decoder.need_attention

    def __prepare_scriptable__(self):
        """Called by torch.jit.script."""
        raise InputError(UNSUPPORTED["export"])

    def set_beam_size(self, beam_size: int) -> None:
        """Called by fairseq's generator, so that the beams of a sentence can share its encoder–decoder keys."""
        self.decoder.set_beam_size(beam_size)


class TransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder with our layers."""

    def build_encoder_layer(self, cfg):
        return wrap(build_layer("encoder", cfg), cfg)

    forward = autocast(TransformerEncoderBase.forward)


class TransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder with our layers."""

    need_attention = True  # whether step-by-step decoding keeps the attention weights
    learns_alignment = False  # whether the loss reads them (label_smoothed_cross_entropy_with_alignment)

    def build_decoder_layer(self, cfg, no_encoder_attn=False):
        return wrap(build_layer("decoder", cfg), cfg)

    forward = autocast(TransformerDecoderBase.forward)

    def extract_features(self, prev_output_tokens, encoder_out=None, incremental_state=None, **options):
        """As fairseq's, which always returns the last layer's attention weights; this does only if they may be read.

        They cost a product and a softmax outside the fused attention at every step of training and of beam search.
        """
        weights_read = self.learns_alignment if self.training else self.need_attention or incremental_state is None
        if options.get("alignment_layer") is None and not weights_read:
            options["alignment_layer"] = -1  # no layer
        return super().extract_features(prev_output_tokens, encoder_out, incremental_state, **options)

    def buffered_future_mask(self, tensor):
        with torch.inference_mode(False):  # it is kept, and training, which may follow, saves it
            return super().buffered_future_mask(tensor)

    @functools.cached_property
    def attentions(self) -> list[MultiheadAttention]:
        """The modules that have a cache; fairseq would search for them at every step."""
        return [module for module in self.modules() if isinstance(module, MultiheadAttention)]

    def reorder_incremental_state_scripting(self, incremental_state, new_order):
        incremental_state[ONE_ORDER] = {}
        for attention in self.attentions:
            attention.reorder_incremental_state(incremental_state, new_order)
        del incremental_state[ONE_ORDER]

    def make_generation_fast_(self, need_attn: bool = False, **kwargs) -> None:
        """Called by fairseq before it generates; `need_attn` is its --print-alignment."""
        self.need_attention = bool(need_attn)


def use_our_modules(model: nn.Module) -> None:
    """Gives each module of `model` whose class is exactly a key of COMPUTED_BY, not a subclass, our class instead.

    Each Dropout gets the name of the class that has it in fairseq, by which --retain-dropout-modules selects it.
    """
    for name, module in model.named_modules():
        module.__class__ = COMPUTED_BY.get(type(module), type(module))
        if isinstance(module, Dropout) and ".layers." in name:
            side = "Encoder" if name.startswith("encoder") else "Decoder"
            of_weights = name.endswith("attn.dropout_module")
            module.module_name = "MultiheadAttention" if of_weights else f"Transformer{side}LayerBase"


def wrap(layer, cfg: VariantConfig):
    """`layer` with activation checkpointing and FSDP's sharding if `cfg` selects them.

    A checkpointed layer is always a separate FSDP unit, as in fairseq, because it must gather its weights again itself.
    """
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)
