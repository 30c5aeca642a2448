#!/usr/bin/env bash
# One of the processes that torchrun starts on CPUs: fairseq takes its rank from torchrun only if it finds GPUs.
exec fairseq-train "$@" --distributed-rank "$RANK"
