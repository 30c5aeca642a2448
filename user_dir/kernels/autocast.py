"""--autocast: matrix products in bfloat16 on any device, while parameters and optimizer stay float32."""

import functools

import torch


def autocast(forward):
    """Decorates `forward` of a module with a `cfg`: runs it in the precision of `cfg.autocast`.

    Encoder, decoder and every layer need it: the generator calls encoder and decoder separately, and activation
    checkpointing runs a layer again in the backward pass, without the modules around it.

    The cache of casts is disabled. It would keep the casts of leaves, and a layer's input is a leaf when the layer is
    run again; then the gradients of all products with it would be added in bfloat16. None of our weights is cast twice
    in a pass.

    A model whose parameters are not float32 (fairseq-generate --fp16) computes in their type: torch's autocast to
    bfloat16 fails on float16.
    """

    @functools.wraps(forward)
    def in_precision(module, *args, **kwargs):
        if module.cfg.autocast == "off":
            return forward(module, *args, **kwargs)
        parameter = next(module.parameters())
        if parameter.dtype != torch.float32:
            return forward(module, *args, **kwargs)
        with torch.autocast(parameter.device.type, dtype=torch.bfloat16, cache_enabled=False):
            return forward(module, *args, **kwargs)

    return in_precision
