"""Checksums and protocol buffers of TensorFlow's file formats, without TensorFlow."""

from typing import Any

import google_crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from numpy.typing import NDArray


def masked_crc(content: bytes | NDArray[np.float32]) -> int:
    """CRC-32C, rotated and offset as TensorFlow and LevelDB store it."""
    crc = int(google_crc32c.value(content))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def message_classes(description: str) -> dict[str, Any]:
    """Classes of the messages of a FileDescriptorProto in text format, by their names."""
    file = text_format.Parse(description, descriptor_pb2.FileDescriptorProto())
    # A separate pool: in the default one the names would collide with those of an imported TensorFlow.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{message.name}"))
        for message in file.message_type
    }
