// Compiles where src/xla_ffi.h declares what the header of the jaxlib at hand declares.
#include <xla/ffi/api/c_api.h>

#include "harness/python/src/xla_ffi.h"

namespace flashsteps::python::xla {

#define SAME_FIELD(Ours, ours, Theirs, theirs)                      \
  static_assert(offsetof(Ours, ours) == offsetof(Theirs, theirs) && \
                sizeof(Ours::ours) == sizeof(Theirs::theirs))
#define SAME_VALUE(ours, theirs) static_assert(int(ours) == int(theirs))

static_assert(sizeof(Header) == offsetof(XLA_FFI_CallFrame, api));
SAME_FIELD(CallFrame, api, XLA_FFI_CallFrame, api);
SAME_FIELD(CallFrame, context, XLA_FFI_CallFrame, ctx);
SAME_FIELD(CallFrame, stage, XLA_FFI_CallFrame, stage);
SAME_FIELD(CallFrame, arguments, XLA_FFI_CallFrame, args);
SAME_FIELD(CallFrame, results, XLA_FFI_CallFrame, rets);
SAME_FIELD(CallFrame, attributes, XLA_FFI_CallFrame, attrs);
SAME_FIELD(Buffers, size, XLA_FFI_Args, size);
SAME_FIELD(Buffers, buffers, XLA_FFI_Args, args);
SAME_FIELD(Buffers, buffers, XLA_FFI_Rets, rets);
SAME_FIELD(Buffer, type, XLA_FFI_Buffer, dtype);
SAME_FIELD(Buffer, data, XLA_FFI_Buffer, data);
SAME_FIELD(Buffer, rank, XLA_FFI_Buffer, rank);
SAME_FIELD(Buffer, dims, XLA_FFI_Buffer, dims);
SAME_FIELD(Attributes, size, XLA_FFI_Attrs, size);
SAME_FIELD(Attributes, types, XLA_FFI_Attrs, types);
SAME_FIELD(Attributes, names, XLA_FFI_Attrs, names);
SAME_FIELD(Attributes, values, XLA_FFI_Attrs, attrs);
SAME_FIELD(Span, data, XLA_FFI_ByteSpan, ptr);
SAME_FIELD(Span, size, XLA_FFI_ByteSpan, len);
SAME_FIELD(Scalar, type, XLA_FFI_Scalar, dtype);
SAME_FIELD(Scalar, value, XLA_FFI_Scalar, value);
SAME_FIELD(Version, major, XLA_FFI_Api_Version, major_version);
SAME_FIELD(Version, minor, XLA_FFI_Api_Version, minor_version);
SAME_FIELD(Metadata, version, XLA_FFI_Metadata, api_version);
SAME_FIELD(Metadata, traits, XLA_FFI_Metadata, traits);
SAME_FIELD(MetadataExtension, base, XLA_FFI_Metadata_Extension, extension_base);
SAME_FIELD(MetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);
SAME_FIELD(Api, version, XLA_FFI_Api, api_version);
SAME_FIELD(Api, create_error, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME_FIELD(Api, find_stream, XLA_FFI_Api, XLA_FFI_Stream_Get);
SAME_FIELD(Api, find_device, XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get);
SAME_FIELD(ErrorArguments, message, XLA_FFI_Error_Create_Args, message);
SAME_FIELD(ErrorArguments, code, XLA_FFI_Error_Create_Args, errc);
SAME_FIELD(StreamArguments, context, XLA_FFI_Stream_Get_Args, ctx);
SAME_FIELD(StreamArguments, stream, XLA_FFI_Stream_Get_Args, stream);
SAME_FIELD(DeviceArguments, context, XLA_FFI_DeviceOrdinal_Get_Args, ctx);
SAME_FIELD(DeviceArguments, device, XLA_FFI_DeviceOrdinal_Get_Args, device_ordinal);

SAME_VALUE(kMajorVersion, XLA_FFI_API_MAJOR);
SAME_VALUE(Type::kBool, XLA_FFI_DataType_PRED);
SAME_VALUE(Type::kInt32, XLA_FFI_DataType_S32);
SAME_VALUE(Type::kFp16, XLA_FFI_DataType_F16);
SAME_VALUE(Type::kFp32, XLA_FFI_DataType_F32);
SAME_VALUE(Type::kBf16, XLA_FFI_DataType_BF16);
SAME_VALUE(Extension::kMetadata, XLA_FFI_Extension_Metadata);
SAME_VALUE(Attributes::kScalar, XLA_FFI_AttrType_SCALAR);
SAME_VALUE(Attributes::kString, XLA_FFI_AttrType_STRING);
SAME_VALUE(Metadata::kCommandBufferCompatible, XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
SAME_VALUE(ErrorCode::kInvalidArgument, XLA_FFI_Error_Code_INVALID_ARGUMENT);
SAME_VALUE(ErrorCode::kResourceExhausted, XLA_FFI_Error_Code_RESOURCE_EXHAUSTED);
SAME_VALUE(ErrorCode::kInternal, XLA_FFI_Error_Code_INTERNAL);

}  // namespace flashsteps::python::xla
