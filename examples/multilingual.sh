#!/usr/bin/env bash
# One model for several languages: TED talks in Galician and Azerbaijani into English, or English into both. Each source
# sentence begins with a word that says its target language (<2gl>; Johnson et al. 2017, arxiv.org/abs/1611.04558).
#
#   TARGET=en FAMILY=vaswani_transformer examples/multilingual.sh [--dry-run] [options of fairseq-train]
#
# TARGET is en, or mul (several languages) for English into both. MERGES=8000 sets BPE's merges for all languages.
# recipe.sh explains the other variables; the model and its settings are those of ted.sh for one pair.
set -euo pipefail

target=${TARGET:-en} MERGES=${MERGES:-8000} languages="gl az"
case $target in
  en) source=mul ;;
  mul) source=en ;;
  *) echo "multilingual.sh: TARGET=$target: choose en or mul" >&2; exit 1 ;;
esac
. "$(dirname "$0")/shared/ted.sh"
. "$(dirname "$0")/recipe.sh"

join() {  # source and target language, folder to write to, languages
  local part language
  (
    set -e
    lock "$3"
    for part in train valid test; do
      for language in "${@:4}"; do
        sed "s/^/<2${2/mul/$language}> /" "$3/$language-en/raw/$part.${1/mul/$language}"
      done > "$3/$part.$1.partial"
      for language in "${@:4}"; do cat "$3/$language-en/raw/$part.${2/mul/$language}"; done > "$3/$part.$2.partial"
      mv "$3/$part.$1.partial" "$3/$part.$1"  # another run may be reading the same text
      mv "$3/$part.$2.partial" "$3/$part.$2"
    done
  ) 9<> "$3.lock"
}

prepare() {
  local language texts=$data.texts options=()
  for language in $languages; do
    run python data-prep/prepare.py "$corpus" --source-lang "$language" --target-lang en --pretokenised \
      --bpe-operations 1 --output "$texts/$language-en" ${MIRROR:+--mirror "$MIRROR"}
  done
  run join "$source" "$target" "$texts" $languages
  for part in train valid test; do options+=("--$part" "$texts/$part.$source" "$texts/$part.$target"); done
  # These texts have been cleaned; the default of --max-ratio would drop 446 pairs more (631 into both languages).
  run python data-prep/prepare.py "${options[@]}" --source-lang "$source" --target-lang "$target" --output "$data" \
    --max-ratio 100 "${preparation[@]}"
}

score_languages() {  # target language, folder of the texts, translations, languages
  local language first=1 lines scored head="" marks="" cells="" signatures=""
  for language in "${@:4}"; do
    lines=$(wc -l < "$2/$language-en/raw/test.en") || return  # in show_and_keep the shell ignores `set -e`
    scored=$(sacrebleu "$2/$language-en/raw/test.${1/mul/$language}" --tokenize none --smooth-method none --force \
      --format text --width 2 < <(tail -n "+$first" "$3" | head -n "$lines")) || return
    head+=" BLEU of tokens, $language |" marks+=" ---: |" cells+=" $(cut -d ' ' -f 3 <<< "$scored") |"
    signatures+="- BLEU of tokens, $language: \`${scored%% = *}\`"$'\n'
    first=$((first + lines))
  done
  printf '| |%s\n| --- |%s\n| %s |%s\n\n%s' "$head" "$marks" "$3" "$cells" "$signatures"
}
helpers+=(lock join score_languages)

score() {
  run show_and_keep "$run/score.txt" score_languages "$target" "$data.texts" "$run/translations.$target" $languages
}

follow_plan "one model for each pair: examples/ted.md"
