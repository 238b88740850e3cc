"""tf.train.Example, TensorFlow's protocol buffer of named lists of numbers, without TensorFlow."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

DESCRIPTION = """
name: "example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature"
  oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 label: LABEL_OPTIONAL
          type: TYPE_MESSAGE type_name: ".tensorflow.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 label: LABEL_OPTIONAL
          type: TYPE_MESSAGE type_name: ".tensorflow.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 label: LABEL_OPTIONAL
          type: TYPE_MESSAGE type_name: ".tensorflow.Int64List" oneof_index: 0 }
}
message_type {
  name: "Features"
  nested_type {
    name: "FeatureEntry"
    options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".tensorflow.Feature" }
  }
  field { name: "feature" number: 1 label: LABEL_REPEATED
          type: TYPE_MESSAGE type_name: ".tensorflow.Features.FeatureEntry" }
}
message_type {
  name: "Example"
  field { name: "features" number: 1 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".tensorflow.Features" }
}
"""
"""Source: TensorFlow's example.proto and feature.proto."""


def _message_class() -> Any:
    """In a pool of its own, so that TensorFlow may be there as well."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(DESCRIPTION, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))


Example = _message_class()
"""The class of the messages; to make one, set example.features.feature[name].int64_list.value."""


def features_of(data: bytes) -> Mapping[str, Any]:
    """The features of a serialized Example by their names. Raises ValueError if it is none."""
    try:
        return dict(Example.FromString(data).features.feature)
    except DecodeError as error:
        raise ValueError(f"it is no tf.train.Example ({error})") from error
