"""Beam search with fairseq's results and less work.

At every step fairseq's generator makes about eight passes over the probabilities of all words after all hypotheses, and
copies each hypothesis. Here a large search finds the best words among the best of about 6√V groups of words, the first
step is computed once per sentence instead of once for each of its equal beams, and only the last word and the
predecessor of a hypothesis are stored: it is read backwards when it is complete.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from fairseq import search
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from ..errors import InputError
from ..transformer.model import TransformerDecoder

LARGE = 2**19  # For more probabilities groups pay: the best of 4,700,000 are found in 1.4 ms instead of 4.7.


class VaswaniLengthPenalty(float):
    """An α for which `length ** α`, by which fairseq divides a score, is ((5 + length)/6)^α; </s> counts.

    Vaswani et al. 2017, section 6.1, cite Wu et al. 2016, eq. 14. It also works in fairseq's own searches, which do not
    convert it to a float.
    """

    __array_ufunc__ = None  # numpy leaves `lengths ** α` to __rpow__

    def __rpow__(self, length):
        return ((5 + length) / 6) ** float(self)


LENGTH_PENALTIES = {"fairseq": float, "vaswani": VaswaniLengthPenalty}


class BeamSearchGenerator(SequenceGenerator):
    """A SequenceGenerator for plain beam search; everything else falls back to fairseq's.

    That includes prefixes, constraints, language models, n-gram blocking, suppressed words, --match-source-len, other
    decoders than ours, attention weights, and --retain-dropout (each beam has a mask). Hypotheses are on the CPU.
    """

    def _generate(self, sample, prefix_tokens=None, constraints=None, bos_token=None):
        if constraints is None and self.search.supports_constraints:
            raise InputError("--constraints: fairseq-generate reads none: use fairseq-interactive")
        source = sample["net_input"]["src_tokens"]
        longest = min(int(self.max_len_a * source.size(1) + self.max_len_b), self.max_len - 1)
        if self.min_len > longest and not self.match_source_len:
            reason = f"is larger than the longest translation of the batch, {longest} subwords"
            raise InputError(f"--min-len {self.min_len} {reason}: give a smaller one, or a larger --max-len-b")
        if prefix_tokens is not None or constraints is not None or not self.is_plain_beam_search():
            return super()._generate(sample, prefix_tokens, constraints, bos_token)
        encoded = self.model.forward_encoder(sample["net_input"])
        states = [{} for _ in range(self.model.models_size)]
        hypotheses = Hypotheses(len(source), self.beam_size, self.eos)
        last = source.new_full((len(source),), self.eos if bos_token is None else bos_token)
        scores = torch.zeros(len(source), 1, device=source.device)
        for step in range(longest + 1):
            log_probs = self.log_probs(step, longest, last, encoded, states)
            candidates = best_words(log_probs.unflatten(0, scores.shape), scores, 2 * self.beam_size)
            hypotheses.extend(*candidates, final=step == longest)
            if not len(hypotheses.unfinished):
                break
            if step == longest:
                remedy = "omit --fp16 if it is given; else the training diverged: use another model"
                raise InputError(f"the model's probabilities are not finite: {remedy}")
            last, scores, order = (torch.from_numpy(rows).to(source.device) for rows in hypotheses.steps[-1])
            scores = scores.unflatten(0, (-1, self.beam_size))
            self.model.reorder_incremental_state(states, order)
        return hypotheses.complete(self.len_penalty if self.normalize_scores else 0)

    def is_plain_beam_search(self) -> bool:
        extras = (self.lm_model, self.repeat_ngram_blocker, self.token_indices_to_suppress)
        return (
            type(self.search) is search.BeamSearch
            and all(part is None for part in extras)
            and not self.match_source_len
            and 2 * self.beam_size < self.vocab_size
            and all(map(needs_the_last_word, self.model.models))
            and not any(model.decoder.need_attention for model in self.model.models)
            and not any(getattr(part, "apply_during_inference", False) for part in self.model.modules())
        )

    def log_probs(self, step: int, longest: int, last: Tensor, encoded: list, states: list) -> Tensor:
        """[rows, V]: the log-probability of each word after the hypotheses whose last words are `last` [rows]."""
        # The decoder only needs the number of the words before the last one.
        prefix = last[:, None].expand(-1, step + 1)
        log_probs, _ = self.model.forward_decoder(prefix, encoded, states, self.temperature)
        log_probs[:, self.pad] = -math.inf
        if self.unk_penalty:
            log_probs[:, self.unk] -= self.unk_penalty
        if step == longest:
            log_probs[:, : self.eos] = log_probs[:, self.eos + 1 :] = -math.inf
        elif step < self.min_len:
            log_probs[:, self.eos] = -math.inf
        return log_probs


def needs_the_last_word(model) -> bool:
    """Whether its decoder is called as ours, which has cached the keys and values of all words before the last one."""
    kind, calls = type(getattr(model, "decoder", None)), ("forward", "extract_features", "extract_features_scriptable")
    return all(getattr(kind, name, None) is getattr(TransformerDecoder, name) for name in calls)


class Ending:
    """A mixin for those of fairseq's searches that would continue hypotheses after </s>."""

    def step(self, step, lprobs, scores, prev_output_tokens, original_batch_idxs):
        lprobs[(prev_output_tokens[:, 1:] == self.eos).any(1).view(lprobs.shape[:2])] = -math.inf
        return super().step(step, lprobs, scores, prev_output_tokens, original_batch_idxs)


class AllowedWords(Ending, search.PrefixConstrainedBeamSearch):
    """fairseq's search with `prefix_allowed_tokens_fn`."""


class DiverseBeams(Ending, search.DiverseBeamSearch):
    """fairseq's search takes the sentences' numbers for rows of the batch."""

    def step(self, step, lprobs, scores, prev_output_tokens, original_batch_idxs):
        if step == 0:
            self.numbers = original_batch_idxs
        rows = (original_batch_idxs[:, None] == self.numbers).int().argmax(1)
        return super().step(step, lprobs, scores, prev_output_tokens, rows)


SEARCHES = {search.DiverseBeamSearch: DiverseBeams, search.PrefixConstrainedBeamSearch: AllowedWords}


def block_n_grams(size: int, tokens: Tensor, log_probs: Tensor, batch: int, beam: int, step: int) -> Tensor:
    """log_probs [rows, V], with -inf for words that would repeat `size` words of tokens[:, 1 : step + 1].

    The words of a forced prefix may repeat.
    """
    written = tokens[:, 1 : step + 1]
    if step < size:
        return log_probs
    n_grams = written.unfold(1, size, 1)  # [rows, n-grams, size]
    repeated = (n_grams[..., :-1] == written[:, None, step - size + 1 :]).all(2)
    row, n_gram = repeated.nonzero(as_tuple=True)
    rows, of_row = row.unique(return_inverse=True)  # a row may have many
    forced = (log_probs[rows].isfinite().count_nonzero(1) == 1)[of_row]
    log_probs[row[~forced], n_grams[row, n_gram, -1][~forced]] = -math.inf
    return log_probs


def best_words(log_probs: Tensor, scores: Tensor, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The `count` best continuations of each sentence's hypotheses, best first.

    Args:
        log_probs: [B, k, V], of each word after each of k hypotheses
        scores: [B, k], of the hypotheses

    Returns:
        scores [B, count] (float32), words [B, count], and the indices [B, count] of the hypotheses that they continue
    """
    method = best_of_groups if log_probs.numel() > LARGE else best_of_all
    best, index, doubtful = fetch(*method(log_probs, scores, count))
    if doubtful.any():  # half-precision logits are often equal
        rows = doubtful[:, 0].nonzero()[0]
        again = log_probs[rows]
        again = best_of_all(again.masked_fill_(again.isnan(), -math.inf), scores[rows], count)
        best[rows], index[rows], _ = fetch(*again)
    index = index.astype(np.int64, copy=False)
    return best.astype(np.float32, copy=False), index % log_probs.size(2), index // log_probs.size(2)


def best_of_all(log_probs: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """fairseq's method: scores [B, count], indices into [k · V] [B, count], and whether a score is NaN [B, 1]."""
    best, index = (log_probs + scores[..., None]).flatten(1).topk(count)
    return best, index, best.isnan().any(1, keepdim=True)


def best_of_groups(log_probs: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """As best_of_all, but the last result is also true for two equal scores, where fairseq may choose the other.

    Each of the best count + 1 words is in one of the count + 1 groups with the best maxima.
    """
    beams, vocabulary = log_probs.shape[1:]
    groups = min(vocabulary, max(6 * math.isqrt(vocabulary), count + 1))
    size, rest = divmod(vocabulary, groups)  # group j: the words j, j + groups, j + 2 groups, …
    maxima = log_probs[..., : size * groups].unflatten(2, (size, groups)).amax(2)  # [B, k, groups]
    if rest:
        maxima[..., :rest] = torch.maximum(maxima[..., :rest], log_probs[..., size * groups :])
    taken = (maxima + scores[..., None]).flatten(1).topk(count + 1)[1]
    beam, word = taken // groups, taken % groups
    word = (word[..., None] + groups * torch.arange(size + 1, device=word.device)).flatten(1)  # [B, taken words]
    beam = beam.repeat_interleave(size + 1, dim=1)
    index = beam * vocabulary + word.clamp(max=vocabulary - 1)
    total = log_probs.flatten(1).gather(1, index) + scores.gather(1, beam)
    best, place = total.masked_fill_(word >= vocabulary, -math.inf).topk(count + 1)
    doubtful = (best[:, :-1] == best[:, 1:]) | best[:, :-1].isnan()
    return best[:, :count], index.gather(1, place[:, :count]), doubtful.any(1, keepdim=True)


def fetch(*parts: Tensor) -> list[np.ndarray]:
    """`parts` [B, …]; from a CUDA device in one transfer, as float64, which can represent them all."""
    if parts[0].device.type != "cuda":  # Apple's GPUs (mps) have no float64
        return [part.cpu().numpy() for part in parts]
    together = torch.cat([part.double() for part in parts], dim=1).cpu().numpy()
    return np.split(together, np.cumsum([part.size(1) for part in parts])[:-1], axis=1)


class Step(NamedTuple):
    """The hypotheses with which a search continues after a step, grouped by sentence, best first."""

    words: np.ndarray  # [rows]: the last word of each
    scores: np.ndarray  # [rows]: log-probabilities
    before: np.ndarray  # [rows]: the row of the previous step that each continues


class Ended(NamedTuple):
    """A complete hypothesis: </s> at `step` after the row `before` of the previous step."""

    step: int
    before: int
    score: float


class Hypotheses:
    """All hypotheses of a beam search over some sentences."""

    def __init__(self, sentences: int, beam_size: int, eos: int):
        self.beam_size, self.eos = beam_size, eos
        self.steps: list[Step] = []
        self.ended: list[list[Ended]] = [[] for _ in range(sentences)]
        self.unfinished = np.arange(sentences)  # the sentences that the rows of the last step belong to

    def extend(self, scores: np.ndarray, words: np.ndarray, beams: np.ndarray, final: bool) -> None:
        """Adds a step from the candidates of best_words, all [B, 2k]; `final`: this is the last step.

        The complete ones among the k best are kept. A sentence with k complete ones is finished; the others continue
        with the k best incomplete ones of the 2k.
        """
        width = self.beam_size if self.steps else 1
        before = np.arange(len(scores))[:, None] * width + beams
        complete = (words == self.eos) & (scores > -math.inf)
        finished = np.zeros(len(scores), dtype=bool)
        for row, candidate in zip(*complete[:, : self.beam_size].nonzero(), strict=True):
            ended = self.ended[self.unfinished[row]]
            if len(ended) < self.beam_size:
                ended.append(Ended(len(self.steps), before[row, candidate], scores[row, candidate]))
            finished[row] = final or len(ended) == self.beam_size
        kept = np.argsort(complete[~finished], axis=1, kind="stable")[:, : self.beam_size]
        rows = (~finished).nonzero()[0]
        self.unfinished = self.unfinished[rows]
        self.steps.append(Step(*(part[rows[:, None], kept].ravel() for part in (words, scores, before))))

    def complete(self, len_penalty: float) -> list[list[dict[str, Tensor]]]:
        """The complete hypotheses of each sentence, best first, in the form of fairseq's generator."""
        ended = [(number, *one) for number, sentence in enumerate(self.ended) for one in sentence]
        sentences, steps, rows, scores = (np.array(part) for part in zip(*ended, strict=True))
        tokens = np.full((len(ended), len(self.steps)), self.eos)
        sums = np.zeros(tokens.shape, dtype=np.float32)
        sums[np.arange(len(ended)), steps] = scores
        for number, step in reversed(list(enumerate(self.steps))):
            longer = steps > number
            at = rows[longer]
            tokens[longer, number], sums[longer, number] = step.words[at], step.scores[at]
            rows[longer] = step.before[at]
        by_word = np.diff(sums, axis=1, prepend=np.float32(0))
        scores = scores / ((steps + 1.0) ** len_penalty).astype(np.float32)
        found, nothing = [[] for _ in self.ended], torch.empty(0)
        for best in np.argsort(-scores, kind="stable"):
            written = slice(steps[best] + 1)
            found[sentences[best]].append(
                {
                    "tokens": torch.from_numpy(tokens[best, written]),
                    "score": torch.tensor(scores[best]),
                    "attention": nothing,
                    "alignment": nothing,
                    "positional_scores": torch.from_numpy(by_word[best, written]),
                }
            )
        return found
