"""Foreign clients of the control plane: Python's gRPC against our C server, its health and its reflection."""

import subprocess
from pathlib import Path

import pytest

grpc = pytest.importorskip("grpc", reason="python3-grpcio is not installed")
descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2", reason="python3-protobuf is not installed")

from google.protobuf import descriptor_pool, message_factory  # noqa: E402

BUILD = Path(__file__).resolve().parent.parent / "build"
TOKEN = [("authorization", "Bearer secret")]
BOUND = 20  # seconds, for what must come


class Server:
    """The test service (src/rpc/rpc_test_service.h) as a process, and messages made from the build's descriptors."""

    def __init__(self):
        self.process = subprocess.Popen([BUILD / "src" / "rpc" / "rpc-test-server"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{int(self.process.stdout.readline())}",
                                             options=[("grpc.enable_http_proxy", 0)])
        self.pool = descriptor_pool.DescriptorPool()
        files = descriptor_pb2.FileDescriptorSet.FromString((BUILD / "proto" / "descriptors.binpb").read_bytes())
        for file in files.file:
            self.pool.Add(file)

    def type(self, name):
        return message_factory.MessageFactory(self.pool).GetPrototype(self.pool.FindMessageTypeByName(name))

    def call(self, kind, path, reply):
        return getattr(self.channel, kind)(path, request_serializer=lambda m: m.SerializeToString(),
                                           response_deserializer=self.type(reply).FromString)

    def reflect(self, version="v1", **request):
        types = "grpc.reflection.v1.ServerReflection"
        call = self.call("stream_stream", f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                         types + "Response")
        return next(call(iter([self.type(types + "Request")(**request)]), timeout=BOUND))


@pytest.fixture(scope="module")
def server():
    made = Server()
    yield made
    made.channel.close()
    made.process.stdin.close()
    assert made.process.wait(BOUND) == 0
    assert made.process.stderr.read() == ""  # neither our log nor gRPC's nor a sanitizer's


@pytest.fixture
def get_job(server):
    job_request = server.type("inspan.v1.JobRequest")
    call = server.call("unary_unary", "/inspan.v1.Cluster/GetJob", "inspan.v1.JobInfo")
    return lambda number, **options: call(job_request(id=number), timeout=BOUND, **{"metadata": TOKEN, **options})


def test_unary(get_job):
    job = get_job(1)
    assert (job.id, job.name) == (1, "xxx")
    assert get_job(4).id == 4


@pytest.mark.parametrize("number, code, status", [(2, grpc.StatusCode.NOT_FOUND, "NOT_FOUND"),
                                                  (5, grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT")])
def test_errors_are_sensible_abroad(get_job, number, code, status):
    with pytest.raises(grpc.RpcError) as caught:
        get_job(number)
    assert caught.value.code() == code
    assert ("inspan-status", status) in [tuple(pair) for pair in caught.value.trailing_metadata()]
    if number == 2:
        assert caught.value.details() == "no job 2 – one of 3"


@pytest.mark.parametrize("metadata", [[], [("authorization", "Bearer wrong!")], [("authorization", "secret")],
                                      [("authorization", "bearer secret")]])
def test_token(get_job, metadata):
    with pytest.raises(grpc.RpcError) as caught:
        get_job(1, metadata=metadata)
    assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_unknown_method(server):
    with pytest.raises(grpc.RpcError) as caught:
        server.channel.unary_unary("/inspan.v1.Cluster/Nothing")(b"", timeout=BOUND, metadata=TOKEN)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_deadline(server):
    call = server.call("unary_unary", "/inspan.v1.Cluster/GetJob", "inspan.v1.JobInfo")
    with pytest.raises(grpc.RpcError) as caught:
        call(server.type("inspan.v1.JobRequest")(id=3), timeout=0.2, metadata=TOKEN)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("body", [b"\xff", b"\x0a\x05abc", b"\x08", b"\x0b" * 100])
def test_malformed_message(server, body):
    with pytest.raises(grpc.RpcError) as caught:
        server.channel.unary_unary("/inspan.v1.Cluster/GetJob")(body, timeout=BOUND, metadata=TOKEN)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_message_above_the_limit(server):
    with pytest.raises(grpc.RpcError) as caught:
        server.channel.unary_unary("/inspan.v1.Cluster/GetJob")(bytes((4 << 20) + 1), timeout=BOUND, metadata=TOKEN)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_compression_is_refused(get_job):
    with pytest.raises(grpc.RpcError) as caught:
        get_job(1, compression=grpc.Compression.Gzip)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_streams(server, get_job):
    watch = server.call("unary_stream", "/inspan.v1.Cluster/Watch", "inspan.v1.JobEvent")
    events = watch(server.type("inspan.v1.JobRequest")(id=100), timeout=BOUND, metadata=TOKEN)
    assert [event.wall_ns for event in events] == list(range(100))

    chunk = server.type("inspan.v1.FileChunk")
    put = server.call("stream_unary", "/inspan.v1.Files/Put", "inspan.v1.FileStat")
    assert put((chunk(data=bytes(1 << 20)) for _ in range(20)), timeout=BOUND, metadata=TOKEN).bytes == 20 << 20

    get = server.call("unary_stream", "/inspan.v1.Files/Get", "inspan.v1.FileChunk")
    chunks = get(server.type("inspan.v1.FileId")(bytes=(16 << 20) + 1), timeout=BOUND, metadata=TOKEN)
    assert sum(len(chunk.data) for chunk in chunks) == (16 << 20) + 1

    up = server.type("inspan.v1.AgentUp")
    attach = server.call("stream_stream", "/inspan.v1.Agents/Attach", "inspan.v1.AgentDown")
    answers = attach((up(heartbeat={"sequence": 200 + i}) for i in range(50)), timeout=BOUND, metadata=TOKEN)
    assert [answer.log.request_id for answer in answers] == [200 + i for i in range(50)]
    assert get_job(1).id == 1


SERVING, SERVICE_UNKNOWN, NOT_SERVING = 1, 3, 2


def test_health(server):  # no token: a health checker has none
    request = server.type("grpc.health.v1.HealthCheckRequest")
    check = server.call("unary_unary", "/grpc.health.v1.Health/Check", "grpc.health.v1.HealthCheckResponse")
    for name in ("", "inspan.v1.Cluster", "inspan.v1.Files", "grpc.health.v1.Health"):
        assert check(request(service=name), timeout=BOUND).status == SERVING
    for name in ("inspan.v1.Nothing", "inspan.v1", "inspan.v1.Cluste", "inspan.v1.Cluster/GetJob"):
        with pytest.raises(grpc.RpcError) as caught:
            check(request(service=name), timeout=BOUND)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    watch = server.call("unary_stream", "/grpc.health.v1.Health/Watch", "grpc.health.v1.HealthCheckResponse")
    unknown = watch(request(service="x"), timeout=BOUND)
    assert next(unknown).status == SERVICE_UNKNOWN
    unknown.cancel()


def test_health_watch_sees_the_end():
    made = Server()
    watch = made.call("unary_stream", "/grpc.health.v1.Health/Watch", "grpc.health.v1.HealthCheckResponse")
    events = watch(made.type("grpc.health.v1.HealthCheckRequest")(), timeout=BOUND)
    assert next(events).status == SERVING
    made.process.stdin.close()
    assert [event.status for event in events] == [NOT_SERVING]
    assert made.process.wait(BOUND) == 0
    made.channel.close()


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection(server, version):
    names = {s.name for s in server.reflect(version, list_services="").list_services_response.service}
    assert names == {"inspan.v1.Agents", "inspan.v1.Cluster", "inspan.v1.Files", "grpc.health.v1.Health",
                     "grpc.reflection.v1.ServerReflection"}
    for symbol, file in [("inspan.v1.Cluster", "inspan/v1/inspan.proto"),
                         ("inspan.v1.Cluster.Submit", "inspan/v1/inspan.proto"),
                         ("inspan.v1.JobInfo", "inspan/v1/inspan.proto"),
                         ("inspan.v1.WorkerState", "inspan/v1/inspan.proto"),
                         ("grpc.health.v1.HealthCheckResponse.ServingStatus", "grpc/health/v1/health.proto")]:
        answer = server.reflect(version, file_containing_symbol=symbol)
        files = [descriptor_pb2.FileDescriptorProto.FromString(data)
                 for data in answer.file_descriptor_response.file_descriptor_proto]
        assert [f.name for f in files] == [file], symbol
    answer = server.reflect(version, file_by_filename="inspan/v1/inspan.proto")
    services = descriptor_pb2.FileDescriptorProto.FromString(
        answer.file_descriptor_response.file_descriptor_proto[0]).service
    assert [s.name for s in services] == ["Agents", "Cluster", "Files"]


@pytest.mark.parametrize("request_", [{"file_containing_symbol": "inspan.v1.Clust"}, {"file_containing_symbol": ""},
                                      {"file_containing_symbol": "inspan.v1"},
                                      {"file_containing_symbol": "inspan.v1.Cluster.Submit.x"},
                                      {"file_by_filename": "nothing.proto"},
                                      {"all_extension_numbers_of_type": "inspan.v1.JobInfo"}])
def test_reflection_of_what_is_not_there(server, request_):
    assert server.reflect(**request_).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
