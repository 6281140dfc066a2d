"""Clients in Go and Java are compiled and run as the guide says, where the packages that it names are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from tritonclient.grpc import model_config_pb2, service_pb2

from serving import Server
from tests.integration.clients.guide import assert_tiny_scores, commands, need, run

GO_LIBRARIES = Path("/usr/share/gocode/src")
JARS = Path("/usr/share/java")
JAVA = ["grpc-netty", "grpc-protobuf", "grpc-stub", "protobuf", "netty-codec-http2", "perfmark-api"]


def command_with(part: str) -> str:
    found = [command for command in commands() if part in command]
    assert len(found) == 1
    return found[0]


def test_go_over_grpc(tmp_path: Path, tiny_server: Server) -> None:
    libraries = ("google.golang.org/grpc", "google.golang.org/protobuf", "google.golang.org/genproto")
    need("go", "protoc", "protoc-gen-go", "protoc-gen-go-grpc", files=tuple(GO_LIBRARIES / name for name in libraries))
    done = run(command_with("score_grpc/main.go"), tmp_path, tiny_server, timeout_s=240)
    assert done.returncode == 0, done.stderr
    assert_tiny_scores(done.stdout)
    assert "request go-1, snapshot " in done.stderr


def test_go_with_json(tmp_path: Path, tiny_server: Server) -> None:
    need("go")
    done = run(command_with("score_json/main.go"), tmp_path, tiny_server, timeout_s=240)
    assert done.returncode == 0, done.stderr
    assert_tiny_scores(done.stdout)


@pytest.fixture
def quick_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that runs once need not compile itself well: half the time."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto")


@pytest.mark.usefixtures("quick_java")
def test_java_over_grpc(tmp_path: Path, tiny_server: Server) -> None:
    need("javac", "java", "protoc", "grpc_java_plugin", files=tuple(JARS / f"{name}.jar" for name in JAVA))
    done = run(command_with("ScoreGrpc.java"), tmp_path, tiny_server, timeout_s=240)
    assert done.returncode == 0, done.stderr
    assert_tiny_scores(done.stdout)
    assert "request java-1, snapshot " in done.stderr


@pytest.mark.usefixtures("quick_java")
def test_java_with_json(tmp_path: Path, tiny_server: Server) -> None:
    need("javac", "java")
    done = run(command_with("ScoreJson.java"), tmp_path, tiny_server, timeout_s=240)
    assert done.returncode == 0, done.stderr
    assert_tiny_scores(done.stdout)


def test_the_written_proto_says_what_tritonclient_s_messages_say(tmp_path: Path, tiny_server: Server) -> None:
    need("protoc")
    line = "python docs/examples/clients/write_proto.py build/proto"
    assert line in commands()
    done = run(f"{line}\nprotoc -I build/proto -o all.bin --include_imports grpc_service.proto", tmp_path, tiny_server)
    assert done.returncode == 0, done.stderr
    compiled = FileDescriptorSet.FromString((tmp_path / "all.bin").read_bytes())
    by_name = {file.name: file for file in compiled.file}
    for module in (service_pb2, model_config_pb2):
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        assert without_json_names(by_name[file.name]) == without_json_names(file)


def without_json_names(holder: Any) -> Any:
    """A descriptor without the names that protoc works out for JSON."""
    for message in holder.message_type if isinstance(holder, FileDescriptorProto) else holder.nested_type:
        for field in message.field:
            field.ClearField("json_name")
        without_json_names(message)
    return holder
