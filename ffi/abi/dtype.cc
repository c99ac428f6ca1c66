#include "abi/dtype.h"

#include <array>

namespace jaxgemm {

namespace ffi = xla::ffi;

namespace {

struct Row {
  DType dtype;
  ffi::DataType xla;
  const char* name;
};

constexpr std::array<Row, 9> kRows = {{
    {DType::kF32, ffi::DataType::F32, "float32"},
    {DType::kBF16, ffi::DataType::BF16, "bfloat16"},
    {DType::kF16, ffi::DataType::F16, "float16"},
    {DType::kU8, ffi::DataType::U8, "uint8"},
    {DType::kF64, ffi::DataType::F64, "float64"},
    {DType::kS8, ffi::DataType::S8, "int8"},
    {DType::kS32, ffi::DataType::S32, "int32"},
    {DType::kF8E4M3, ffi::DataType::F8E4M3FN, "float8_e4m3fn"},
    {DType::kF8E5M2, ffi::DataType::F8E5M2, "float8_e5m2"},
}};

}  // namespace

std::string Names(const std::vector<DType>& dtypes) {
  std::string text;
  for (const Row& row : kRows) {
    for (const DType dtype : dtypes) {
      if (row.dtype == dtype) {
        text += (text.empty() ? "" : " or ") + std::string(row.name);
      }
    }
  }
  return text;
}

std::optional<DType> FromXla(ffi::DataType dtype) {
  for (const Row& row : kRows) {
    if (row.xla == dtype) {
      return row.dtype;
    }
  }
  return std::nullopt;
}

}  // namespace jaxgemm
