#!/usr/bin/env bash
# One of the processes that torchrun starts on CPUs: fairseq takes its rank from torchrun only where it counts GPUs.
exec fairseq-train "$@" --distributed-rank "$RANK"
