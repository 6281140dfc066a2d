"""Writes Triton's grpc_service.proto and model_config.proto, from the messages in tritonclient.

For clients in other languages: the two files are what `protoc` wants. They say the same as those of
https://github.com/triton-inference-server/common, without the comments; with a checkout of that, take those.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from tritonclient.grpc import model_config_pb2, service_pb2

INDENT = "  "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write the two files")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for module in (model_config_pb2, service_pb2):
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        (folder / file.name).write_text(proto_text(file), encoding="utf-8")
        print(folder / file.name)


def proto_text(file: Any) -> str:
    """Returns the .proto text of a FileDescriptorProto; protoc makes the same descriptor of it."""
    lines = [f'syntax = "{file.syntax}";', f"package {file.package};"]
    lines += [f'import "{name}";' for name in file.dependency]
    for enum in file.enum_type:
        lines += ["", *enum_lines(enum)]
    for message in file.message_type:
        lines += ["", *message_lines(message)]
    for service in file.service:
        lines += ["", f"service {service.name} {{"]
        for method in service.method:
            asks = "stream " * method.client_streaming + method.input_type
            answers = "stream " * method.server_streaming + method.output_type
            lines.append(f"{INDENT}rpc {method.name}({asks}) returns ({answers}) {{}}")
        lines.append("}")
    return "\n".join(lines) + "\n"


def message_lines(message: Any) -> list[str]:
    return [f"message {message.name} {{", *(INDENT + line for line in _body(message)), "}"]


def enum_lines(enum: Any) -> list[str]:
    return [f"enum {enum.name} {{", *(f"{INDENT}{value.name} = {value.number};" for value in enum.value), "}"]


def _body(message: Any) -> Iterator[str]:
    for enum in message.enum_type:
        yield from enum_lines(enum)
    entries = {entry.name: entry for entry in message.nested_type if entry.options.map_entry}
    fields = list(message.field)
    # A map is a nested type too. Nested types keep their order, so that protoc makes an equal descriptor of the text.
    for nested in message.nested_type:
        if nested.name in entries:
            place = next(i for i, field in enumerate(fields) if field.type_name.split(".")[-1] == nested.name)
            yield from _field_lines(message, fields[: place + 1], entries)
            del fields[: place + 1]
        else:
            yield from message_lines(nested)
    yield from _field_lines(message, fields, entries)


def _field_lines(message: Any, fields: list[Any], entries: dict[str, Any]) -> Iterator[str]:
    inside = ""
    for field in fields:
        choice = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        if choice != inside:
            if inside:
                yield "}"
            if choice:
                yield f"oneof {choice} {{"
            inside = choice
        yield f"{INDENT * bool(inside)}{_label(field, entries)} {field.name} = {field.number};"
    if inside:
        yield "}"


def _label(field: Any, entries: dict[str, Any]) -> str:
    entry = entries.get(field.type_name.split(".")[-1])
    if entry is not None:
        return f"map<{_type(entry.field[0])}, {_type(entry.field[1])}>"
    repeated = "repeated " if field.label == Field.LABEL_REPEATED else ""
    return repeated + _type(field)


def _type(field: Any) -> str:
    return str(field.type_name or Field.Type.Name(field.type).removeprefix("TYPE_").lower())


if __name__ == "__main__":
    main()
