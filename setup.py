"""Packaging of her_jax.

The ranges below are what the code supports. The versions that are known to work together are
in requirements-pinned.txt; use both:

    pip install -c requirements-pinned.txt -e .            # CPU
    pip install -c requirements-pinned.txt -e '.[tpu]'     # on a TPU VM
    pip install -c requirements-pinned.txt -e '.[cuda]'    # on an NVIDIA GPU
    pip install -c requirements-pinned.txt -e '.[test]'    # tests and linters
"""

import pathlib

import setuptools

_README = pathlib.Path(__file__).parent / "README.md"

# jax 0.11 is left out: 0.11.1 breaks flax <= 0.12.8, and a resolver that takes 0.11 for its
# newer features leaves flax there. Below 0.13 because each minor release of jax may remove
# what it deprecated before. Python 3.11 gets 0.10.2, the last release that supports it.
_JAX = ">=0.10.2,!=0.11.*,<0.13"

_BASE = [
  "absl-py>=2.5",
  "array-record>=0.8",
  "datasets>=5",
  "flax>=0.12.8",
  "grain>=0.2.18",
  "importlib_resources>=6.4",  # tensorflow-datasets imports it and does not declare it.
  f"jax{_JAX}",
  "jinja2>=3.1",  # Chat templates of transformers need it; it is optional there.
  "matplotlib>=3.10",
  "ml-collections>=1.1",
  "numpy>=2",
  "optax>=0.2.8",
  "orbax-checkpoint>=0.12.8",
  "pillow>=11",  # Character cards in PNG.
  "psutil>=6",
  "regex>=2024",  # Stops a pattern of a card that never ends.
  "rich>=13.9",
  "safetensors>=0.6",
  "tensorboardX>=2.6.4",  # Writes TensorBoard files without TensorFlow.
  "tensorflow-datasets>=4.9.10",
  "tokenizers>=0.22",
  # Below 6: 5.x keeps the rotary base in `rope_parameters`, which her_jax/hf reads and writes;
  # a major release may move it again.
  "transformers>=5.24,<6",
]

_GGUF = ["gguf>=0.19"]
_ENDPOINT = ["openai>=3.50", "tenacity>=9.1"]
_SERVE = ["prometheus-client>=0.22", "pydantic>=2.10", "starlette>=0.50", "uvicorn>=0.38"]
_SYNTHESIS = [*_ENDPOINT, "datasketch>=1.6", "scikit-learn>=1.5"]

_EXTRAS = {
  "tpu": [f"jax[tpu]{_JAX}"],
  # CUDA 13. On an older driver install `jax[cuda12]` by hand in place of this extra.
  "cuda": [f"jax[cuda13]{_JAX}"],
  # A chat in the terminal and replies from an OpenAI-compatible endpoint.
  "chat": [*_ENDPOINT, "prompt_toolkit>=3.0.50"],
  # The HTTP server.
  "serve": _SERVE,
  # Weights and tokenizers in llama.cpp's format.
  "gguf": _GGUF,
  # Data made by a teacher model, and what is near-duplicate in it.
  "synthesis": _SYNTHESIS,
  "test": [
    *_GGUF,
    *_SERVE,
    *_SYNTHESIS,
    "hypothesis>=6.150",
    f"jax[tpu]{_JAX}",  # libtpu compiles for pods on any Linux host.
    "mypy>=2",
    "pytest>=9",
    "pytest-xdist>=3.8",
    "ruff>=0.16",
    "torch>=2.8",  # The reference model of the parity tests; her_jax itself never imports it.
  ],
}

setuptools.setup(
  name="her_jax",
  version="0.1.0",
  description="Training, judging and reinforcement learning of role-play language models in JAX",
  long_description=_README.read_text(encoding="utf-8") if _README.exists() else "",
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  python_requires=">=3.11",
  packages=setuptools.find_packages(
    include=[
      "her_jax",
      "her_jax.*",
      "data_pipeline",
      "data_pipeline.*",
      "launch_tpu",
      "launch_tpu.*",
    ]
  ),
  package_data={
    "data_pipeline": [
      "samples/*",
      "samples/recorded/*",
      "synthesis/*.toml",
      "page/*.jinja",
      "page/*.js",
    ],
    "her_jax": [
      "roleplay/*.jsonl",
      "evaluation/*.jinja",
    ],
    "launch_tpu": ["*.sh"],
  },
  install_requires=_BASE,
  extras_require=_EXTRAS,
)
