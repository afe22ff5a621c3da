"""launch_tpu/run.sh: its dry run, its errors, and real launches against a stand-in for gcloud.

The stand-in runs the commands on this machine, each worker in a home directory of its own, so
what run.sh sends to the workers is really executed. Python on the workers is a stub too: it
makes an environment whose `pip` only writes down what it was asked for.
"""

import contextlib
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

import pytest

from her_jax import peers

RUN_SH = pathlib.Path(__file__).parents[2] / "launch_tpu" / "run.sh"

pytestmark = pytest.mark.skipif(
  any(shutil.which(tool) is None for tool in ("bash", "git", "tar", "flock", "setsid")),
  reason="needs bash, git, tar, flock and setsid",
)

ODD_FLAGS = [
  '--config.name=it\'s a "test"',
  "--config.path=$HOME/`whoami`/*",
  "--config.rest=a & b; c | d > e  two spaces",
  "--config.lines=one\ntwo",
  "--config.back=\\n\\",
  "--config.empty=",
  "--config.word=grüße",
  "",
]

GCLOUD = """\
#!{python}
import json, os, pathlib, shutil, subprocess, sys

workers = sorted(pathlib.Path({workers!r}).iterdir())
args = sys.argv[1:]
with open({calls!r}, "a") as f:
  f.write(json.dumps(args) + "\\n")
assert args[:3] == ["compute", "tpus", "tpu-vm"], args
verb, words = args[3], [a for a in args[4:] if not a.startswith("--")]
flags = dict(a[2:].split("=", 1) for a in args[4:] if a.startswith("--"))
if flags["worker"] != "all":
  workers = [workers[int(flags["worker"])]]
code = 0
for home in workers:
  if verb == "scp":
    name, _, path = words[1].partition(":")
    assert name == "pod1"
    shutil.copy(words[0], home / path)
  else:
    assert words == ["pod1"]
    environment = dict(os.environ, HOME=str(home))
    done = subprocess.run(["bash", "-c", flags["command"]], cwd=home, env=environment)
    code = code or done.returncode
sys.exit(code)
"""

PYTHON = """\
#!/bin/bash
if [ "$1 $2" = "-m venv" ]; then
  mkdir -p "$4/bin"; cp "$0" "$4/bin/python"
elif [ "$1 $2" = "-m pip" ]; then
  [ "$3" = --version ] || { echo "$PWD: $*" >>"$HOME/pip.log"; [ ! -e "$HOME/no_pip" ]; }
elif [ "$1" = -c ]; then
  exit 0
else
  exec REAL "$@"
fi
"""

MAIN = """\
import json, os, pathlib, sys, time

home = pathlib.Path(os.environ["HOME"])
print("worker", home.name, "starts", flush=True)
(home / "argv.json").write_text(json.dumps(sys.argv[1:]))
flags = dict(a[2:].split("=", 1) for a in sys.argv[1:] if a.startswith("--"))
time.sleep(float(flags.get("sleep", 0.2)))
print("worker", home.name, "ends", flush=True)
sys.exit(int(flags.get("code_" + home.name, 0)))
"""


def dry_run(*args: str) -> list[list[str]]:
  """The commands that run.sh would run, each split into its words."""
  out = subprocess.run(
    [RUN_SH, "--dry_run", *args], check=True, capture_output=True, text=True
  ).stdout
  # A word with a line break spans two lines, so split the whole and cut at the first words.
  lexer = shlex.shlex(out, posix=True, punctuation_chars="\n")
  lexer.whitespace = " \t\r"
  lexer.whitespace_split = True
  lexer.commenters = ""
  commands: list[list[str]] = [[]]
  for word in lexer:
    if word == "\n":
      commands.append([])
    else:
      commands[-1].append(word)
  return [command for command in commands if command]


def failure(*args: str, **kwargs) -> subprocess.CompletedProcess:
  done = subprocess.run([RUN_SH, *args], capture_output=True, text=True, **kwargs)
  assert done.returncode != 0
  assert done.stdout == ""
  return done


def remote_command(command: list[str]) -> str:
  (line,) = [w.removeprefix("--command=") for w in command if w.startswith("--command=")]
  return line


class Pod:
  """A clone of the project with two workers behind a stand-in for gcloud."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    self.clone = folder / "my clone"  # a space, as a home directory may have
    self.workers = [folder / "workers" / name for name in ("w0", "w1")]
    for home in self.workers:
      home.mkdir(parents=True)
    files = {
      "her_jax/__init__.py": "",
      "her_jax/main.py": MAIN,
      "configs/rl.py": "",
      "setup.py": "",
      "requirements-pinned.txt": "",
      "out/big.bin": "tracked by mistake",
      "deleted.py": "",
      "launch_tpu/run.sh": RUN_SH.read_text(),
      ".gitignore": "ignored.txt\n",
    }
    for name, text in files.items():
      self.write(name, text)
    (self.clone / "launch_tpu/run.sh").chmod(0o755)
    subprocess.run(["git", "init", "-q"], cwd=self.clone, check=True)
    subprocess.run(["git", "add", "-A"], cwd=self.clone, check=True)
    (self.clone / "deleted.py").unlink()
    self.write("untracked.py", "")
    self.write("ignored.txt", "")
    self.write("configs/rl.py", "edited after git add")

    self.bin = folder / "bin"
    self.bin.mkdir()
    self.calls_file = folder / "calls.jsonl"
    gcloud = GCLOUD.format(
      python=sys.executable,
      workers=str(folder / "workers"),
      calls=str(self.calls_file),
    )
    python = PYTHON.replace("REAL", shlex.quote(sys.executable))
    for name, text in {"gcloud": gcloud, "python3.13": python}.items():
      (self.bin / name).write_text(text)
      (self.bin / name).chmod(0o755)
    self.env = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "TMPDIR": str(folder)}

  def write(self, name: str, text: str) -> None:
    path = self.clone / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)

  def command(self, *flags: str) -> list[str]:
    return [str(self.clone / "launch_tpu" / "run.sh"), "pod1", *flags]

  def launch(self, *flags: str) -> subprocess.CompletedProcess:
    return self.call("--config=configs/rl.py", "--workdir=/mnt/b/run1", *flags)

  def call(self, *flags: str) -> subprocess.CompletedProcess:
    return subprocess.run(
      self.command(*flags), env=self.env, capture_output=True, text=True, timeout=60
    )

  def verbs(self) -> list[str]:
    """What gcloud was asked for: `scp`, or the stage of `ssh`, with its workers."""
    verbs = []
    for line in self.calls_file.read_text().splitlines():
      args = json.loads(line)
      (worker,) = [a.removeprefix("--worker=") for a in args if a.startswith("--worker=")]
      words = [] if args[3] == "scp" else shlex.split(remote_command(args))
      stage = words[words.index("--on_worker") + 1] if "--on_worker" in words else args[3]
      verbs.append(f"{stage} {worker}")
    return verbs

  @contextlib.contextmanager
  def running(self, *flags: str):
    """A launch in the background, from its first line of log on; ended on exit."""
    process = subprocess.Popen(
      self.command("--config=configs/rl.py", "--workdir=/mnt/b/run1", *flags),
      env=self.env,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    try:
      assert process.stdout is not None
      for line in process.stdout:
        if "starts" in line:
          break
      yield process
    finally:
      self.call("--stop")
      process.communicate(timeout=30)


@pytest.fixture
def pod(tmp_path) -> Pod:
  return Pod(tmp_path)


def test_dry_run_prints_the_commands_in_order():
  flags = ["--config=configs/rl.py", "--workdir=/mnt/b/run1", "--config.steps=3"]
  pack, check, copy, unpack, install, start, follow, result = dry_run(
    "pod1", "--zone=us-east5-a", "--project=p1", *flags
  )
  tar = pack[-1]
  ssh = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "pod1"]
  where = ["--zone=us-east5-a", "--project=p1"]

  assert pack[:2] == ["bash", "-c"]
  assert copy == [
    *["gcloud", "compute", "tpus", "tpu-vm", "scp", tar, "pod1:her_jax/pod1/code.tar.gz"],
    *["--worker=all", *where],
  ]
  for command in (check, unpack, install, start, result):
    assert command[:-1] == [*ssh, "--worker=all", *where]
  assert follow[:-1] == [*ssh, "--worker=0", *where]

  script = ["bash", "her_jax/pod1/src/launch_tpu/run.sh", "--on_worker"]
  *words, run_id = shlex.split(remote_command(install))
  assert words == [*script, "install"]
  assert shlex.split(remote_command(start)) == [*script, "start", run_id, *flags]
  assert shlex.split(remote_command(follow)) == [*script, "follow", run_id]
  assert shlex.split(remote_command(result)) == [*script, "result", run_id]


def test_dry_run_quotes_odd_flags():
  flags = ["--config=configs/rl.py:tiny", "--workdir=/mnt/b/r", "--", *ODD_FLAGS, "--zone=x"]
  start = dry_run("pod1", *flags)[5]
  words = shlex.split(remote_command(start))
  flags.remove("--")
  assert words[-len(flags) :] == flags
  # A shell reads the same words as shlex does.
  printed = subprocess.run(
    ["sh", "-c", "printf '%s\\0' " + shlex.join(start)], capture_output=True, text=True
  ).stdout
  assert printed.split("\0")[:-1] == start


def test_dry_run_prints_one_command_a_line_without_gcloud(tmp_path):
  for tool in ("bash", "env", "dirname", "date", "sed", "rm"):
    (tmp_path / tool).symlink_to(shutil.which(tool) or pytest.skip(f"no {tool}"))
  done = subprocess.run(
    [RUN_SH, "pod1", "--config", "configs/rl.py", "--workdir", "/mnt/b/r", "--dry-run"],
    env={"PATH": str(tmp_path)},
    capture_output=True,
    text=True,
    check=True,
  )
  assert len(done.stdout.splitlines()) == 8
  assert all(shlex.split(line) for line in done.stdout.splitlines())
  assert done.stderr == ""


def test_zone_and_project_are_optional_and_may_be_two_words():
  flags = ["--config=configs/rl.py", "--workdir=/mnt/b/r"]
  assert not any("--zone" in word for command in dry_run("pod1", *flags) for word in command)
  copy = dry_run("--zone", "z1", "pod1", "--project", "p1", *flags)[2]
  assert copy[-2:] == ["--zone=z1", "--project=p1"]


def test_help():
  done = subprocess.run([RUN_SH, "--help"], capture_output=True, text=True, check=True)
  assert done.stdout.startswith("Runs her_jax on every worker")
  assert "--dry_run" in done.stdout
  assert "set -euo" not in done.stdout


@pytest.mark.parametrize(
  ("args", "words"),
  [
    ([], "no NAME"),
    (["--config=configs/rl.py"], "no NAME"),
    (["pod1", "--workdir=/mnt/b/r"], "no --config"),
    (["pod1", "--config=configs/rl.py"], "no --workdir"),
    (["pod1", "--config=configs/rl.py", "--workdir=gs://b/r"], "mount the bucket"),
    (["pod1", "--zone"], "--zone needs a value"),
    (["Pod 1", "--config=a", "--workdir=b"], "no name of a TPU VM"),
    (["--config=a", "pod1", "--workdir=b"], "NAME comes first"),
    (["pod1", "pod2", "--config=a", "--workdir=b"], "what is 'pod2'"),
    (["pod1", "--config=a", "--workdir=b", "stray"], "what is 'stray'"),
    (["pod1", "--stop", "--config=a"], "--stop takes no other flag"),
  ],
)
def test_errors(args, words):
  done = failure(*args)
  assert words in done.stderr
  assert done.returncode == 2


def test_missing_gcloud(pod):
  tools = pod.folder / "tools"
  tools.mkdir()
  for tool in ("bash", "env", "git", "dirname"):
    (tools / tool).symlink_to(shutil.which(tool) or pytest.skip(f"no {tool}"))
  pod.env["PATH"] = str(tools)
  done = pod.launch()
  assert done.returncode == 127
  assert "gcloud is not installed" in done.stderr


def test_untracked_config_is_refused_before_anything_is_copied(pod):
  pod.write("configs/new.py", "")
  done = pod.call("--config=configs/new.py:tiny", "--workdir=/mnt/b/r")
  assert done.returncode == 2
  assert "git add" in done.stderr
  assert not pod.calls_file.exists()


def test_launch_copies_the_code_and_runs_the_same_command_on_all_workers(pod):
  flags = ["--config=configs/rl.py", "--workdir=/mnt/b/run1", *ODD_FLAGS[:-1]]
  done = pod.call(*flags)
  assert done.returncode == 0, done.stderr
  # Worker 0's log, the whole and only that.
  assert done.stdout.splitlines() == ["worker w0 starts", "worker w0 ends"]
  for home in pod.workers:
    assert json.loads((home / "argv.json").read_text()) == flags
    src = home / "her_jax/pod1/src"
    assert (src / "configs/rl.py").read_text() == "edited after git add"
    for name in ("out", "deleted.py", "untracked.py", "ignored.txt"):
      assert not (src / name).exists()
    (pip,) = (home / "pip.log").read_text().splitlines()
    assert pip.startswith(f"{src}: -m pip install ")
    assert pip.endswith("-c requirements-pinned.txt -e .[tpu]")
  stages = ["ssh all", "scp all", "ssh all", "install all", "start all", "follow 0"]
  assert pod.verbs() == [*stages, "result all"]
  assert list(pod.folder.glob("her_jax-*.tar.gz")) == []


def test_second_launch_installs_only_what_changed(pod):
  assert pod.launch().returncode == 0
  assert pod.launch().returncode == 0
  log = pod.workers[0] / "pip.log"
  assert len(log.read_text().splitlines()) == 1
  pod.write("requirements-pinned.txt", "jax==1")
  assert pod.launch().returncode == 0
  assert len(log.read_text().splitlines()) == 2


@pytest.mark.parametrize(("code", "passed_on"), [(7, 7), (255, 254)])
def test_exit_code_of_the_run(pod, code, passed_on):
  done = pod.launch(f"--code_w0={code}")
  assert done.returncode == passed_on
  assert "worker w0 ends" in done.stdout


def test_failure_on_another_worker_is_shown(pod):
  done = pod.launch("--code_w1=9")
  assert done.returncode == 9
  assert done.stdout.splitlines()[-1] == "worker w0 ends"
  assert "exit code 9" in done.stderr
  assert "worker w1 ends" in done.stderr


@pytest.mark.parametrize(
  ("codes", "passed_on"),
  [
    ((peers.EXIT_CODE, 1), 1),
    ((1, peers.EXIT_CODE), 1),
    ((peers.EXIT_CODE, 137), peers.EXIT_CODE),
    ((137, peers.EXIT_CODE), peers.EXIT_CODE),
  ],
)
def test_a_failure_is_told_from_the_loss_of_a_worker(pod, codes, passed_on):
  """That the others lost a worker is no reason to start again where it failed."""
  done = pod.launch(*(f"--code_w{i}={code}" for i, code in enumerate(codes)))
  assert done.returncode == passed_on


def test_failed_install_shows_its_log_and_starts_nothing(pod):
  (pod.workers[1] / "no_pip").touch()
  done = pod.launch()
  assert done.returncode == 1
  assert "installing failed" in done.stderr
  assert not (pod.workers[0] / "argv.json").exists()


def test_start_on_some_workers_only_is_undone(pod):
  # Worker 1 cannot make the folder of the run.
  (pod.workers[1] / "her_jax" / "pod1").mkdir(parents=True)
  (pod.workers[1] / "her_jax" / "pod1" / "runs").write_text("in the way")
  done = pod.launch("--sleep=60")
  assert done.returncode == 1
  assert "did not start on all workers" in done.stderr
  assert pod.verbs()[-2:] == ["start all", "stop all"]
  deadline = time.monotonic() + 10
  while not list(pod.workers[0].glob("her_jax/pod1/runs/*/code")):
    assert time.monotonic() < deadline, "worker 0 still runs"
    time.sleep(0.05)


def test_second_run_under_the_name_is_refused_and_the_first_can_be_stopped(pod):
  with pod.running("--sleep=60") as process:
    done = pod.launch()
    assert done.returncode == 75
    assert "already going on under the name pod1" in done.stderr
    assert shlex.join(pod.command("--stop")) in done.stderr
    assert pod.call("--stop").returncode == 0
    assert process.wait(timeout=30) == 128 + 15
  assert "no such run" in pod.call("--stop").stderr
  assert pod.launch().returncode == 0


def test_run_outlives_its_watcher_and_attach_finds_it(pod):
  with pod.running("--sleep=2", "--code_w0=5") as process:
    process.kill()
    done = pod.call("--attach")
    assert done.returncode == 5
    assert done.stdout.splitlines() == ["worker w0 starts", "worker w0 ends"]
    # The log of a run that has ended is there too.
    assert pod.call("--attach").stdout == done.stdout


def test_repeated_start_of_the_same_run_starts_nothing_twice(pod):
  # gcloud repeats a command after a broken connection.
  with pod.running("--sleep=60"):
    calls = [json.loads(line) for line in pod.calls_file.read_text().splitlines()]
    (start,) = [call for call in calls if "--on_worker start" in call[-1]]
    (pod.workers[0] / "argv.json").unlink()
    subprocess.run(["gcloud", *start], env=pod.env, check=True, timeout=30)
    time.sleep(0.5)
    assert not (pod.workers[0] / "argv.json").exists()
