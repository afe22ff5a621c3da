"""What all configs share: the model, where it comes from, the data, the mesh, the optimiser.

`get_config(arg)` of each config takes `tiny` (a laptop, minutes), the name of a model preset
such as `qwen3-0.6b`, or the name of a pod such as `v5p-128`: Qwen3-32B laid out for it, as
docs/pods.md compares. Without an argument it is Qwen3-32B on whatever devices there are.
"""

import ml_collections

from configs import pods
from her_jax.models.config import PRESETS

TINY = "tiny"
DEFAULT = "qwen3-32b"


def base(task: str, arg: str | None) -> ml_collections.ConfigDict:
  """The shared part of a config for `task`.

  Raises:
    ValueError: `arg` names no preset.
  """
  pod = pods.TRAINING.get(task, {}).get(arg or "")
  preset = DEFAULT if pod else arg or DEFAULT
  if preset not in PRESETS:
    names = [*PRESETS, *pods.TRAINING.get(task, ())]
    raise ValueError(f"no preset {preset!r}; there are {', '.join(names)}")
  tiny = preset == TINY
  config = ml_collections.ConfigDict()
  config.task = task
  config.seed = 0
  # A preset of her_jax.models.config; gives the shape where init_from brings none.
  config.model = preset
  # What the backward pass computes again: full, attention, projections, minimal or none, see
  # her_jax.models.config; empty: as the model's preset has it.
  config.remat = pod.remat if pod else ""
  # A Hugging Face folder, a GGUF file, or the workdir of an earlier stage. Empty: random weights.
  config.init_from = ""
  # A Hugging Face folder or a GGUF file. Empty: the tokenizer of init_from, or, where there is
  # none, one trained on the scenes with `tokenizer_vocab` rows.
  config.tokenizer = ""
  config.tokenizer_vocab = 2560
  # How scenes are put to a model that starts from no earlier stage, see roleplay.prompts:
  # style full, natural, structured, brief or name; notation her, coser or think; plan full,
  # short or off.
  config.prompt = ml_collections.ConfigDict(
    {"style": "brief" if tiny else "full", "notation": "her", "plan": "full"}
  )

  config.data = ml_collections.ConfigDict()
  # JSON Lines of scenes, and of judge pairs; "samples" is the corpus in the package. Also a folder
  # of split files or of built data sets, of which the task reads its own purpose. SFT and the judge
  # mix several, each with its share of the tokens: scenes=out/built:0.7,samples:0.3, and
  # pairs=built_pairs.jsonl,samples in the same order.
  config.data.scenes = "samples"
  config.data.pairs = "samples"
  # JSON Lines of what a teacher said of the pairs, which the judge is then taught; empty: what
  # follows from the principles that the pairs say are broken.
  config.data.judgements = ""
  # Tokens of a row into which trees are packed.
  config.data.length = pod.length if pod else 384 if tiny else 8192
  # The same for the held-out loss, alike in all stages, and the rows measured together.
  config.data.eval_length = config.data.length
  config.data.eval_batch_size = 1 if tiny else 32
  # Share of the input words replaced by others in training. A corpus of a few dozen scenes needs it.
  config.data.word_dropout = 0.25 if tiny else 0.0

  # JAX devices to make of a CPU; several stand in for those of a pod.
  config.cpu_devices = 1
  # Ways to split over the devices; -1 takes what the others leave.
  config.mesh = ml_collections.ConfigDict({"data": 1, "fsdp": -1, "context": 1, "tensor": 1})
  # The pod this is laid out for, as launch_tpu.aot names it; empty: any.
  config.pod = arg if pod else ""
  if pod:
    config.mesh.update(data=pod.data, context=pod.context)
  config.engine = engine(tiny, config.pod)

  config.optimizer = ml_collections.ConfigDict()
  config.optimizer.name = "muon" if tiny else "adamw"
  config.optimizer.muon_scale = 3.0  # rate of the layers' matrices, as a multiple
  config.optimizer.learning_rate = 2e-5
  config.optimizer.warmup_steps = 20
  config.optimizer.final_scale = 0.1  # of the peak, at the end of the cosine
  config.optimizer.b1 = 0.9
  config.optimizer.b2 = 0.95
  config.optimizer.weight_decay = 0.1
  config.optimizer.clip_norm = 1.0
  # Decay of a running mean of the weights, saved at the end as workdir/ema; 0: none is kept.
  config.optimizer.ema = 0.0

  # Parts in which a batch is worked through; the result is the same.
  config.micro_batches = pod.micro_batches if pod else 1
  config.log_every = 20
  # Steps from one measure of the held-out loss to the next; the best model is kept in
  # workdir/best. 0: only before the first step and after the last.
  config.eval_every = 0
  # The profiler watches `steps` steps from `step` on (0: none) and writes workdir/profile, which
  # TensorBoard and xprof show.
  config.profile = ml_collections.ConfigDict({"step": 0, "steps": 3})
  return config


def resumable(config: ml_collections.ConfigDict) -> None:
  """Adds what SFT and the judge have beside: how they read their data, and save themselves."""
  tiny = config.model == TINY
  # Processes on each host that prepare batches; 0: the one that trains does.
  config.data.workers = 0
  # Whether several trees share a row. Without it each row is one tree and padding.
  config.data.packing = True
  # Adapters of `rank` beside the matrices of `targets` are trained and nothing else, see
  # her_jax.training.lora; 0: all weights are. alpha / rank scales them. targets: attention, mlp, or
  # both with a comma between.
  config.lora = ml_collections.ConfigDict(
    {"rank": 0, "alpha": 32.0, "targets": "attention,mlp"}
  )
  config.checkpoint = ml_collections.ConfigDict()
  # Steps from one checkpoint to the next, beside that of the last; 0: that alone.
  config.checkpoint.every = 300 if tiny else 100
  # How many of the newest are kept. One of Qwen3-32B takes 393 GB, most of it moments.
  config.checkpoint.keep = 2
  # Whether the run goes on where an earlier one in its workdir stopped. False: it begins anew,
  # and removes the checkpoints of that one.
  config.checkpoint.resume = True


def rows(task: str, arg: str | None) -> int:
  """Rows of a batch: the paper's 32, or what a pod's preset has."""
  pod = pods.TRAINING.get(task, {}).get(arg or "")
  return pod.rows if pod else 32


def sampling(tiny: bool) -> ml_collections.ConfigDict:
  """How replies are sampled; their prompts are cut to `prompt_length` by whole oldest turns."""
  return ml_collections.ConfigDict(
    {
      "prompt_length": 192 if tiny else 6144,
      "max_new_tokens": 192 if tiny else 2048,
      "temperature": 0.4 if tiny else 1.0,
    }
  )


def engine(tiny: bool, pod: str = "") -> ml_collections.ConfigDict:
  """What the inference engine works on together and keeps, see her_jax.inference.batches."""
  host = pods.ENGINE.get(
    pod, pods.Engine(rows=32, page_size=32, chunk=256) if tiny else pods.Engine()
  )
  return ml_collections.ConfigDict(
    {
      # Requests that grow together.
      "rows": host.rows,
      # Of keys and values. 0: what `rows` of the longest prompts and completions fill.
      "pages": host.pages,
      # Tokens of a page.
      "page_size": host.page_size,
      # Prompt tokens that are read together.
      "chunk": host.chunk,
    }
  )


def judge(tiny: bool) -> ml_collections.ConfigDict:
  """The judge's checkpoint and what it reads and writes."""
  return ml_collections.ConfigDict(
    {
      "checkpoint": "",
      # Past turns that the judge sees.
      "history": 1 if tiny else 20,
      "prompt_length": 416 if tiny else 8192,
      "max_new_tokens": 64 if tiny else 1024,
      # 2: each pair in both orders; a contradiction is a tie. 1: one order, drawn at random.
      "orders": 2,
    }
  )
