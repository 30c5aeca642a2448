# Sourced by recipe.sh.

# The batch is the paper's on any number of processes: as few passes per update as the memory allows, all of equal size.
# fairseq counts the longer side of a batch, so this limits both its source and its target tokens.
share_batch() {  # tokens of a batch, tokens that fit into a process, processes: sets update_freq and max_tokens
  update_freq=$((($1 + $3 * $2 - 1) / ($3 * $2)))
  max_tokens=$((($1 + $3 * update_freq / 2) / ($3 * update_freq)))
}
