"""--autocast: matrix products in bfloat16 on any device, while parameters and optimizer stay float32."""

import functools

import torch


def autocast(forward):
    """Decorates `forward` of a module with a `cfg`: runs it in the precision that `cfg.autocast` names.

    Encoder, decoder and every layer have it: the generator calls encoder and decoder by themselves, and activation
    checkpointing runs a layer again in the backward pass, where nothing around it is entered anew.

    Casts are not kept: autocast keeps those of leaves, which a layer's input is when the layer is run again, and then
    the gradients of all products with it are added in bfloat16. Of our weights none is cast twice in a pass.
    """

    @functools.wraps(forward)
    def in_precision(module, *args, **kwargs):
        if module.cfg.autocast == "off":
            return forward(module, *args, **kwargs)
        device = next(module.parameters()).device.type
        with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False):
            return forward(module, *args, **kwargs)

    return in_precision
