# Sourced by the recipes for TED talks, before recipe.sh: the settings that they share. They set MERGES before.

corpus=ted dataset=ted.$source-$target.$MERGES
size=iwslt_de_en
preparation=(--pretokenised --bpe-operations "$MERGES")
training=(--share-all-embeddings --dropout 0.3 --weight-decay 1e-4 --patience 10)
batch=4096 rate=5e-4 warmup=4000 updates=20000
checkpoints=epoch average=5
generation=(--beam 5)
