"""What the reference implementation's generate() decides, for a model that is a hash: vectors.jsonl.

    python make_vectors.py > vectors.jsonl        (torch 2.13 CPU, transformers 4.57.6)

The model's logits after a sequence of ids are made of a hash of the ids (`logits` below), so that a test can have them
without a model. Each line has `seed`, `vocab`, `levels` (how many values a logit can have: few make many equal), and the
settings as generate() takes them, and then
    sequences, sequences_scores        of greedy search or beam search; ids without the start token, end token kept
or  ids, probabilities                 of one row after `history`: the ids that a sampler can draw, and how likely
"""
import json, random, sys
import numpy as np, torch, transformers
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

torch.set_grad_enabled(False); torch.set_num_threads(1); transformers.logging.set_verbosity_error()
MASK = (1 << 64) - 1; START = 0

def logits(seed, ids, vocab, levels):
    h = seed
    for i in ids: h = ((h ^ i) * 0x100000001b3 + 1) & MASK
    x = np.uint64(h) + np.arange(1, vocab + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = (x ^ (x >> np.uint64(31))) >> np.uint64(40)
    x = x * np.uint64(levels) >> np.uint64(24)
    return x.astype(np.float32) * np.float32(10 / levels) - np.float32(5)

class Config(PretrainedConfig): model_type = "hash"

class Hash(PreTrainedModel, GenerationMixin):
    config_class = Config
    def __init__(self, config): super().__init__(config); self.one = torch.nn.Parameter(torch.ones(1))
    def forward(self, input_ids=None, attention_mask=None, **kw):
        c = self.config
        rows = [logits(c.seed, r, c.vocab_size, c.levels) for r in input_ids.tolist()]
        return CausalLMOutput(logits=torch.from_numpy(np.stack(rows))[:, None, :])
    def prepare_inputs_for_generation(self, input_ids, **kw): return {"input_ids": input_ids}
    def _validate_model_kwargs(self, kw): pass

def run(seed, vocab, levels, settings):
    m = Hash(Config(seed=seed, vocab_size=vocab, levels=levels)).eval()
    kw = dict(settings); kw.pop("stop_after", None)
    r = m.generate(torch.tensor([[START]]), use_cache=False,
                   pad_token_id=vocab - 1, return_dict_in_generate=True, output_scores=True, **kw)
    eos = settings["eos_token_id"]; out = []
    for q in r.sequences.tolist():
        q = q[1:]; ends = [i for i, t in enumerate(q) if t in eos]
        out.append(q[:ends[0] + 1] if ends else q)
    line = dict(seed=seed, vocab=vocab, levels=levels, **settings, sequences=out)
    if settings["num_beams"] > 1: line["sequences_scores"] = [float(x) for x in r.sequences_scores]
    return line

def draw_settings(rng, vocab):
    pick = lambda n: rng.sample(range(1, vocab - 1), n)
    s = dict(num_beams=rng.choice([1, 2, 3, 4, 6]), eos_token_id=pick(rng.choice([1, 1, 1, 2, 3])))
    if s["num_beams"] > 1:
        s["num_return_sequences"] = rng.randint(1, s["num_beams"])
        s["length_penalty"] = rng.choice([1.0, 1.0, 0.0, 2.0, 0.6, -1.0, 1.7])
        s["early_stopping"] = rng.choice([False, True, "never"])
    s[rng.choice(["max_length", "max_new_tokens"])] = rng.choice([2, 3, 6, 12, 19])
    if rng.random() < .3: s["repetition_penalty"] = rng.choice([1.3, 2.0, 0.8])
    if rng.random() < .3: s["no_repeat_ngram_size"] = rng.choice([1, 2, 3])
    if rng.random() < .3: s[rng.choice(["min_length", "min_new_tokens"])] = rng.choice([1, 2, 5])
    if rng.random() < .3: s["bad_words_ids"] = [[rng.randrange(vocab) for _ in range(rng.choice([1, 2, 3]))] for _ in range(vocab)]
    if rng.random() < .1: s["bad_words_ids"] = s.get("bad_words_ids", []) + [[s["eos_token_id"][0]], [5]]
    if rng.random() < .2: s["forced_bos_token_id"] = pick(1)[0]
    if rng.random() < .2: s["forced_eos_token_id"] = rng.choice([s["eos_token_id"][0], s["eos_token_id"][:1]])
    if rng.random() < .2: s["suppress_tokens"] = pick(vocab // 4)
    if rng.random() < .2: s["begin_suppress_tokens"] = pick(vocab // 3)
    return s

def warp(seed, vocab, levels, history, settings):
    m = Hash(Config(seed=seed, vocab_size=vocab, levels=levels)).eval()
    g = GenerationConfig(do_sample=True, num_beams=1, pad_token_id=0, max_length=100, **settings)
    ids = torch.tensor([history]); m._prepare_special_tokens(g, device="cpu")
    p = m._get_logits_processor(generation_config=g, input_ids_seq_length=1, encoder_input_ids=ids, logits_processor=LogitsProcessorList(), device="cpu", model_kwargs={})
    row = p(ids, torch.from_numpy(logits(seed, history, vocab, levels))[None])
    prob = torch.softmax(row, -1)[0]
    kept = [i for i in range(vocab) if float(prob[i]) > 0]
    return dict(seed=seed, vocab=vocab, levels=levels, history=history, **settings, ids=kept, probabilities=[round(float(prob[i]), 8) for i in kept])

def warp_settings(rng, vocab):
    s = dict(eos_token_id=[1])
    if rng.random() < .7: s["temperature"] = rng.choice([0.3, 0.7, 1.5, 4.0])
    s["top_k"] = rng.choice([0, 1, 5, 10, 50, vocab + 5])
    if rng.random() < .6: s["top_p"] = rng.choice([0.05, 0.5, 0.9, 0.95, 0.999])
    if rng.random() < .5: s["min_p"] = rng.choice([0.0, 0.02, 0.1, 0.5, 1.0])
    if rng.random() < .2: s["repetition_penalty"] = 1.2
    return s

if __name__ == "__main__":
    rng = random.Random(1); count = int(sys.argv[1]) if len(sys.argv) > 1 else 160
    for i in range(count):
        vocab = rng.choice([9, 12, 20, 40])
        print(json.dumps(run(rng.getrandbits(53), vocab, 1 << 24, draw_settings(rng, vocab)), separators=(",", ":")))
    for i in range(count):
        vocab = rng.choice([7, 20, 60]); levels = rng.choice([1 << 24, 40, 8, 3])
        history = [START] + [rng.randrange(1, vocab) for _ in range(rng.choice([0, 3, 9]))]
        settings = warp_settings(rng, vocab)
        if "top_p" in settings: levels = 1 << 24    # torch.sort leaves the order of equal values open
        print(json.dumps(warp(rng.getrandbits(53), vocab, levels, history, settings), separators=(",", ":")))
