"""A proxy in front of the scheduler that can change what members send: unary calls only, messages as bytes."""
from concurrent import futures

import grpc


class _Forward(grpc.GenericRpcHandler):
    def __init__(self, target, rewrite):
        self._channel = grpc.insecure_channel(target)
        self._rewrite = rewrite

    def service(self, details):
        def call(request, context):
            try:
                return self._channel.unary_unary(details.method)(self._rewrite(details.method, request), timeout=5)
            except grpc.RpcError as error:
                context.set_trailing_metadata(error.trailing_metadata())  # the exit status travels there
                context.abort(error.code(), error.details())
        return grpc.unary_unary_rpc_method_handler(call)

    def close(self):
        self._channel.close()


class GrpcProxy:
    """Listens on 127.0.0.1:`port` and forwards to `target`, host:port.

    `rewrite(method, request)` is called with "/package.Service/Method" and the serialized request, and returns what to
    pass on instead.
    """

    def __init__(self, target, rewrite):
        self._handler = _Forward(target, rewrite)
        self._server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[self._handler])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.stop(None)
        self._handler.close()
