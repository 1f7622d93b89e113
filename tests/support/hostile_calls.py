"""A member that calls every service with random extreme messages, as fast as it can, until its standard input ends.

    python3 -m tests.support.hostile_calls --seed=N --scheduler=HOST:PORT [--server=HOST:PORT ...] [--agent=HOST:PORT ...] [--victim=JOB]

The calls and their fields are read from the proto files, so a new field is tried as soon as it exists. Values are extremes: no bytes and a
megabyte, numbers at the borders of their types, not-a-number, lines that look like log lines. Some calls use members that this process has
registered itself, in its own jobs, which come and go; others claim to be members of the job `--victim`. After the end of its input it goes on
until each method of `--reach` has accepted a call, for at most a minute. Prints "calling" when it has begun, and at the end the numbers of
accepted and refused calls of each method, as JSON.
"""
import argparse
import collections
import importlib
import itertools
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVICES = {"scheduler": ["Scheduler"], "summation": ["Summation"], "agent": ["Agent"], "trace": ["Trace"], "diagnostics": ["Diagnostics"]}
AT = {"Scheduler": "scheduler", "Summation": "server", "Agent": "agent", "Trace": "any", "Diagnostics": "any"}
DEADLINE_S = 2
REQUESTS_OF_A_METHOD = 40
RENEWED = 0.2
LEFT_OUT = [0.35, 0.35, 0.9]  # of a request's fields; a service refuses most messages with many random fields
OPEN_STREAMS = 40
CALLERS = 4
REACH_S = 60

FORGED = "gone\n2026-01-01 00:00:00.000 error everything is lost\r\x1b[2J\x1b[31m"
NUMBERS = [0, 1, 2, 3, 7, 100, 65535, 65536, 65537, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1]
DOUBLES = [0.0, 1.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan")]


def load(folder):
    """The generated messages of all proto files, by file."""
    names = ["common", *SERVICES]
    files = [f"proto/addend/v1/{name}.proto" for name in names]
    subprocess.run(["protoc", f"--proto_path={ROOT}", f"--python_out={folder}", *files], check=True)
    sys.path.insert(0, folder)
    return {name: importlib.import_module(f"proto.addend.v1.{name}_pb2") for name in names}


class Values:
    """Makes random messages from their descriptors."""

    def __init__(self, rng, names):
        self.rng = rng
        self.names = names  # names that have a meaning to the scheduler

    def text(self):
        r = self.rng
        return r.choice([lambda: "", lambda: r.choice(self.names), lambda: FORGED, lambda: "x" * r.choice([1, 253, 254, 4096, 4097, 65536]),
                         lambda: "\u00e9\u202e" * r.choice([1, 300]), lambda: "../" * 40, lambda: "x" * (1 << 20) if r.random() < 0.05 else "y" * 300])()

    def scalar(self, field):
        r = self.rng
        if field.type == field.TYPE_STRING:
            return self.text()
        if field.type == field.TYPE_BYTES:
            return r.randbytes(r.choice([0, 1, 16, 31, 32, 33, 1000])) if r.random() < 0.97 else bytes(1 << 20)
        if field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
            return r.choice([*DOUBLES, r.random() * 1e10])
        if field.type == field.TYPE_BOOL:
            return r.random() < 0.5
        if field.type == field.TYPE_ENUM:
            return r.choice(field.enum_type.values).number
        bits = 32 if field.type in (field.TYPE_INT32, field.TYPE_UINT32, field.TYPE_FIXED32) else 64
        signed = field.type in (field.TYPE_INT32, field.TYPE_INT64)
        number = r.choice(NUMBERS) if r.random() < 0.6 else r.randrange(10)
        if signed:
            return max(-2**(bits - 1), min(number * r.choice([1, -1]), 2**(bits - 1) - 1))
        return min(number, 2**bits - 1)

    def request(self, message):
        """Fills many of the fields or a few, in messages within the message many."""
        return self.message(message, left_out=self.rng.choice(LEFT_OUT))

    def message(self, message, depth=0, left_out=LEFT_OUT[0]):
        """Fills a random part of the fields."""
        for field in message.DESCRIPTOR.fields:
            if self.rng.random() < left_out:
                continue
            if field.label == field.LABEL_REPEATED:
                count = self.rng.choice([0, 1, 2, 2, 3, 101, 1000 if depth == 0 else 4])
                for _ in range(count):
                    if field.message_type is None:
                        getattr(message, field.name).append(self.scalar(field))
                    else:
                        self.message(getattr(message, field.name).add(), depth + 1)
            elif field.message_type is not None:
                getattr(message, field.name).SetInParent()
                self.message(getattr(message, field.name), depth + 1)
            else:
                setattr(message, field.name, self.scalar(field))
        return message


class Attacker:
    def __init__(self, options):
        import grpc  # here, because a test that imports this file must not import grpc
        self.grpc, self.options, self.rng = grpc, options, random.Random(options.seed)
        self.folder = tempfile.TemporaryDirectory()
        self.messages = load(self.folder.name)
        self.values = Values(self.rng, [options.victim, "hostile", "grads", "node", "fail", "shrink", "tcp", "rdma", "flat"])
        channel = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", 1 << 30)]
        self.channels = {"scheduler": [grpc.insecure_channel(options.scheduler, channel)],
                         "server": [grpc.insecure_channel(one, channel) for one in options.server],
                         "agent": [grpc.insecure_channel(one, channel) for one in options.agent]}
        self.channels["any"] = self.channels["server"] + self.channels["agent"]
        self.members = []  # members of this process, the newest last
        self.jobs = itertools.count()
        self.made = {}
        self.said = collections.Counter()
        self.streams = collections.deque()

    def methods(self):
        for file, services in SERVICES.items():
            for service in services:
                for method in self.messages[file].DESCRIPTOR.services_by_name[service].methods:
                    # A caller of Drain may end a CPU server; that is Drain's purpose.
                    if self.channels[AT[service]] and method.name != "Drain":
                        yield file, service, method

    def call(self, service, method, request):
        """Returns the answer's bytes, or None; `request` is bytes too."""
        channel = self.rng.choice(self.channels[AT[service]])
        name = f"/addend.v1.{service}/{method.name}"
        make = {(False, False): channel.unary_unary, (False, True): channel.unary_stream, (True, True): channel.stream_stream}[
            method.client_streaming, method.server_streaming]
        try:
            answered = make(name)(iter([request]) if method.client_streaming else request, timeout=DEADLINE_S)
            if method.server_streaming:
                stream, answered = answered, next(iter(answered), None)
                self.keep(stream)
            self.said[method.name, "taken"] += 1
            return answered
        except (self.grpc.RpcError, ValueError) as error:
            code = error.code().name if isinstance(error, self.grpc.RpcError) else "never sent"
            self.said[method.name, code] += 1

    def keep(self, stream):
        """Keeps the stream open, unread, for a while: a node without a watch is not connected, and its job never ready."""
        self.streams.append(stream)
        if len(self.streams) > OPEN_STREAMS:
            self.streams.popleft().cancel()

    def register(self):
        """Registers a node of an own job, with the fields that the scheduler requires and random values in the others."""
        m, r = self.messages["scheduler"], self.rng
        request = m.RegisterNodeRequest()
        if r.random() < 0.5:
            self.values.message(request)
        key = r.randbytes(32)
        nodes = r.choice([1, 1, 2, 65536])
        request.incarnation, request.job, request.node_rank = r.getrandbits(63) | 1, f"hostile{next(self.jobs) % 50}", 0
        request.hostname, request.control_address, request.member_key = "h", "127.0.0.1:1", key
        request.protocol_version = self.options.protocol_version
        request.settings.num_nodes, request.settings.local_size = nodes, r.choice([1, 8, 2**31, 2**32 - 1])
        request.settings.on_node_loss, request.settings.reduction_order, request.settings.intranode = "fail", "node", "auto"
        answered = self.call("Scheduler", self.method("RegisterNode"), request.SerializeToString())
        if answered is not None:
            answer = m.RegisterNodeResponse.FromString(answered)
            member = m.MemberId(job_id=answer.job_id, node_rank=0, incarnation=request.incarnation, key=key)
            self.members.append((member, answer.generation))
            del self.members[:-20]
            if nodes == 1:
                self.begin(member, answer.generation)

    def begin(self, member, generation):
        """Makes the member's job ready, with a planned tensor, so that the scheduler accepts every message about a running job."""
        m = self.messages["scheduler"]
        self.call("Scheduler", self.method("WatchNode"), m.WatchRequest(member=member).SerializeToString())
        self.call("Scheduler", self.method("ReportTrainers"), m.ReportTrainersRequest(member=member, generation=generation, initialised=1).SerializeToString())
        request = m.DeclareRequest(member=member, generation=generation)
        request.tensors.add(name="t", shape=[1000])
        self.call("Scheduler", self.method("Declare"), request.SerializeToString())

    def method(self, name):
        return self.messages["scheduler"].DESCRIPTOR.services_by_name["Scheduler"].methods_by_name[name]

    def request(self, file, method):
        """A prepared request of the method, since making requests takes longer than sending them, with another member each time: if a
        message has a field twice, the last value counts.
        """
        kind = getattr(self.messages[file], method.input_type.name)
        some = self.made.setdefault(method.full_name, [])
        if len(some) < REQUESTS_OF_A_METHOD:
            some.append(self.values.request(kind()).SerializeToString())
        elif self.rng.random() < RENEWED:  # the first ones may all have a field that the service refuses
            self.rng.shuffle(some)
            some[-1] = self.values.request(kind()).SerializeToString()
        fields, last = method.input_type.fields_by_name, kind()
        if "member" in fields and self.members and self.rng.random() < 0.8:
            member, generation = self.rng.choice(self.members)
            last.member.CopyFrom(member)
            if "generation" in fields:
                last.generation = generation
        elif "member" in fields:
            last.member.job_id, last.member.server_id = self.rng.randrange(4), self.rng.randrange(4)
        if "protocol_version" in fields:
            last.protocol_version = self.options.protocol_version
        return self.rng.choice(some) + last.SerializeToString()

    def reached(self, methods):
        return all(self.said[method, "taken"] for method in methods)

    def run(self, over):
        methods = list(self.methods())
        while not over.is_set():
            if self.rng.random() < 0.2:
                self.register()
            file, service, method = self.rng.choice(methods)
            self.call(service, method, self.request(file, method))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--scheduler", required=True)
    parser.add_argument("--server", action="append", default=[])
    parser.add_argument("--agent", action="append", default=[])
    parser.add_argument("--victim", default="job")
    parser.add_argument("--protocol-version", type=int, default=1)
    parser.add_argument("--reach", nargs="*", default=[], metavar="METHOD")
    options = parser.parse_args()
    attacker = Attacker(options)
    over = threading.Event()
    callers = [threading.Thread(target=attacker.run, args=[over], daemon=True) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    print("calling", flush=True)
    sys.stdin.read()
    last = time.monotonic() + REACH_S
    while not attacker.reached(options.reach) and time.monotonic() < last:
        time.sleep(0.1)
    over.set()
    for caller in callers:
        caller.join(2 * DEADLINE_S + 5)
    by_method = collections.defaultdict(dict)
    for (method, outcome), count in sorted(attacker.said.items()):
        by_method[method][outcome] = count
    print(json.dumps(by_method), flush=True)


if __name__ == "__main__":
    main()
