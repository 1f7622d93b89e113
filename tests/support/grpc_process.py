"""gRPC for the tests, each use in its own process: gRPC's threads and the tests' forks do not work together.

health() queries a health service, Clients holds connections open, Proxy changes members' messages. Their processes run this file.
"""
import argparse
from concurrent import futures
import pathlib
import subprocess
import sys
import threading

from tests.support.cluster import PATIENCE

_START_S = 20 * PATIENCE


class _Program:
    """Runs this file with `arguments`; it ends when its standard input ends."""

    def __init__(self, *arguments):
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=pathlib.Path(__file__).parents[2])
        self.first_line = self._process.stdout.readline().strip()
        assert self.first_line, f"the gRPC process ended with status {self._process.wait(_START_S)}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.communicate(timeout=_START_S)


def health(address, service="", tls=None, anonymous=False):
    """The answer of grpc.health.v1 at `address`, host:port, over a new connection: SERVING, NOT_SERVING or the error's name.

    `tls` is a folder with ca.crt, and, unless `anonymous`, tls.crt and tls.key; without it the connection is plain text.
    """
    with _Program("health", address, service, *([tls, *(["--anonymous"] if anonymous else [])] if tls else [])) as program:
        return program.first_line


class Clients(_Program):
    """Endless streams to a service: watched health on both ports, and callers that send nothing."""

    def __init__(self, grpc_port, health_port):
        super().__init__("hold", grpc_port, health_port)


class Proxy(_Program):
    """Listens on 127.0.0.1:`port` and forwards unary calls to `target`; replaces the messages' first bytes `old` by `new`."""

    def __init__(self, target, old, new):
        super().__init__("proxy", target, old.hex(), new.hex())
        self.port = int(self.first_line)


def _say(line):
    print(line, flush=True)


def _wait_for_the_end():
    sys.stdin.read()


def _health(grpc, address, service, tls, anonymous):
    options = [("grpc.enable_http_proxy", 0)]
    if tls:
        read = [None if anonymous and name != "ca.crt" else (tls / name).read_bytes() for name in ("ca.crt", "tls.key", "tls.crt")]
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(*read), options=options)
    else:
        channel = grpc.insecure_channel(address, options=options)
    request = bytes([10, len(service)]) + service.encode()
    try:
        answer = channel.unary_unary("/grpc.health.v1.Health/Check")(request, timeout=5 * PATIENCE)
        _say({b"\x08\x01": "SERVING", b"\x08\x02": "NOT_SERVING"}.get(answer, f"unknown: {answer!r}"))
    except grpc.RpcError as error:
        _say(error.code().name)


def _hold(grpc, grpc_port, health_port):
    over = threading.Event()

    def never():
        over.wait()
        yield from ()
    kept = []
    for port in (grpc_port, health_port):
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        next(watch)
        kept.append((channel, watch))
    silence = grpc.insecure_channel(f"127.0.0.1:{grpc_port}")
    for method in ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/addend.v1.Summation/Converse"):
        kept.append(silence.stream_stream(method)(never()))
    _say("held")
    _wait_for_the_end()
    over.set()


def _proxy(grpc, target, old, new):
    channel = grpc.insecure_channel(target)

    class Forward(grpc.GenericRpcHandler):
        def service(self, details):
            def call(request, context):
                if not request.startswith(old):
                    context.abort(grpc.StatusCode.INTERNAL, f"{details.method} does not begin with {old.hex()}")
                try:
                    return channel.unary_unary(details.method)(new + request[len(old):], timeout=5)
                except grpc.RpcError as error:
                    context.set_trailing_metadata(error.trailing_metadata())  # it has the exit status
                    context.abort(error.code(), error.details())
            return grpc.unary_unary_rpc_method_handler(call)
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Forward()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _say(port)
    _wait_for_the_end()
    server.stop(None)


def _main():
    import grpc  # here, because a test that imports this file must not import grpc
    parser = argparse.ArgumentParser()
    modes = parser.add_subparsers(required=True)
    mode = modes.add_parser("health")
    mode.set_defaults(run=_health)
    mode.add_argument("address")
    mode.add_argument("service")
    mode.add_argument("tls", nargs="?", type=pathlib.Path)
    mode.add_argument("--anonymous", action="store_true")
    mode = modes.add_parser("hold")
    mode.set_defaults(run=_hold)
    mode.add_argument("grpc_port")
    mode.add_argument("health_port")
    mode = modes.add_parser("proxy")
    mode.set_defaults(run=_proxy)
    mode.add_argument("target")
    mode.add_argument("old", type=bytes.fromhex)
    mode.add_argument("new", type=bytes.fromhex)
    arguments = vars(parser.parse_args())
    arguments.pop("run")(grpc, **arguments)


if __name__ == "__main__":
    _main()
