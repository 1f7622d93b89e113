"""Hand-made members: calls of any service with any fields, from a separate process (gRPC's threads and the tests' forks do not work
together).

    with Caller(cluster.scheduler_address) as caller:
        answer = caller.call("Scheduler", "RegisterNode", job="j", node_rank=0, settings={"num_nodes": 2})
        assert answer.code == "INVALID_ARGUMENT" and "..." in answer.details

Fields are named as in the proto files; bytes are base64 both ways, 64-bit numbers in answers are texts (protobuf's JSON).
"""
import base64
import json
import os
import subprocess
import sys
import types

from tests.support.cluster import PATIENCE, ROOT

KEY = base64.b64encode(b"a member's key of thirty-two by.").decode()


def registration(job, node, nodes, local_size=1, **more):
    """The fields of a RegisterNode that the scheduler accepts."""
    settings = {"num_nodes": nodes, "local_size": local_size, "on_node_loss": "fail", "reduction_order": "node", "stall_timeout_s": 3600,
                "intranode": "auto", **more.pop("settings", {})}
    return {"protocol_version": 1, "incarnation": str(int.from_bytes(os.urandom(7), "big") + 1), "job": job, "node_rank": node, "settings": settings,
            "hostname": "hand-made", "control_address": "127.0.0.1:1", "member_key": KEY, **more}


class Caller:
    def __init__(self, address):
        self._process = subprocess.Popen([sys.executable, "-m", __name__, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()

    def call(self, service, method, **request):
        """`code`: gRPC's name of the code; `details`: its message; `answer`: the fields of the answer, or of a stream's first message."""
        self._process.stdin.write(json.dumps([service, method, request]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the process that calls ended with status {self._process.wait(5)}"
        return types.SimpleNamespace(**json.loads(line))

    def register(self, job, node, nodes, local_size=1, **more):
        """Registers a node of a job; returns its MemberId and generation for further calls."""
        request = registration(job, node, nodes, local_size, **more)
        said = self.call("Scheduler", "RegisterNode", **request)
        assert said.code == "OK", said.details
        member = {"job_id": said.answer["job_id"], "node_rank": node, "incarnation": request["incarnation"], "key": KEY}
        return {"member": member, "generation": said.answer["generation"]}


def _main():
    import grpc  # here, because a test that imports this file must not import grpc
    from google.protobuf import json_format
    from tests.support.hostile_calls import SERVICES, load
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        modules = load(folder)
        files = {service: file for file, services in SERVICES.items() for service in services}
        channel = grpc.insecure_channel(sys.argv[1], [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", 1 << 30)])
        streams = []  # keeps the streams open
        for line in sys.stdin:
            service, method, fields = json.loads(line)
            module = modules[files[service]]
            described = module.DESCRIPTOR.services_by_name[service].methods_by_name[method]
            request = json_format.ParseDict(fields, getattr(module, described.input_type.name)())
            answer = getattr(module, described.output_type.name)
            make = channel.unary_stream if described.server_streaming else channel.unary_unary
            stub = make(f"/addend.v1.{service}/{method}", type(request).SerializeToString, answer.FromString)
            said = {"code": "OK", "details": "", "answer": {}}
            try:
                if described.server_streaming:
                    streams.append(stub(request))
                    answered = next(streams[-1])
                else:
                    answered = stub(request, timeout=20 * PATIENCE)
                said["answer"] = json_format.MessageToDict(answered, preserving_proto_field_name=True, including_default_value_fields=True)
            except grpc.RpcError as error:
                said.update(code=error.code().name, details=error.details())
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    _main()
