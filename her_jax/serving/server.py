"""Runs the application until the process is told to end."""

from collections.abc import Iterator
import contextlib
import ipaddress
import signal
import socket
import threading
from typing import Any

from absl import logging
import uvicorn

from her_jax.errors import ConfigError
from her_jax.serving import app
from her_jax.serving.service import Service

_BACKLOG = 1024  # Connections that the system holds until they are taken.


def run(service: Service, host: str, port: int, grace_s: float) -> None:
  """Serves; returns when SIGTERM or SIGINT has come and what ran has ended.

  Args:
    port: 0: a free one.
    grace_s: seconds that what runs has to end in.

  Raises:
    ConfigError: the address cannot be taken, or is open to others and no key is asked for.
  """
  require_key(host, service.settings.api_key)
  config = uvicorn.Config(
    app.build(service),
    log_config=None,  # No line a request; what uvicorn warns of comes through logging.
    access_log=False,
    server_header=False,
    timeout_graceful_shutdown=max(round(grace_s), 1),
  )
  with listen(host, port) as listening:
    logging.info("Listening on http://%s:%d", *listening.getsockname()[:2])
    _Server(config, service).run(sockets=[listening])
  logging.info("The server has ended")


def require_key(host: str, api_key: str) -> None:
  """Raises ConfigError unless the address is this machine's own, or a key is asked for."""
  if api_key or is_loopback(host):
    return
  raise ConfigError(
    f"config.serve.host={host} can be reached from other machines, and no key is asked for: name"
    f" the variable of the environment that holds one (--config.serve.api_key_env=HER_API_KEY), or"
    f" take 127.0.0.1"
  )


def is_loopback(host: str) -> bool:
  """Whether an address can be reached from this machine alone."""
  if host == "localhost":
    return True
  with contextlib.suppress(ValueError):
    return ipaddress.ip_address(host).is_loopback
  return False


def listen(host: str, port: int) -> socket.socket:
  """A socket that listens there; taken early, so that a port in use is told before loading."""
  try:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((host, port))
    listening.listen(_BACKLOG)
  except (OSError, OverflowError) as error:
    raise ConfigError(
      f"cannot listen on {host}:{port} ({error}); choose another --config.serve.port or"
      f" --config.serve.host"
    ) from None
  return listening


class _Server(uvicorn.Server):
  """uvicorn's, which returns on a signal in the place of dying of it again."""

  def __init__(self, config: uvicorn.Config, service: Service):
    super().__init__(config)
    self._service = service

  @contextlib.contextmanager
  def capture_signals(self) -> Iterator[None]:
    """A first signal ends it in good order, a second at once."""
    if threading.current_thread() is not threading.main_thread():
      yield
      return
    before = {
      number: signal.signal(number, self.handle_exit)
      for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
      yield
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)

  def handle_exit(self, sig: int, frame: Any) -> None:
    """Takes no more requests."""
    self._service.worker.drain()
    if self.should_exit:
      self.force_exit = True
    self.should_exit = True
