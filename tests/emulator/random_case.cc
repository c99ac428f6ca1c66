// See random_case.h.
#include "random_case.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <random>

#include "buffer.h"
#include "parts/elements.cuh"
#include "parts/realign.cuh"

namespace emulator {

using namespace jaxgemm;

namespace {

std::mt19937 rng;

int Pick(std::initializer_list<int> values) { return values.begin()[rng() % values.size()]; }
bool OneOf(int n) { return rng() % n == 0; }

enum Name { kA, kB, kC, kBias, kAlpha, kBeta, kD, kZ, kNumNames };

// Where a matrix has a batch axis: between its own dimensions, or before them.
enum class Place { kNowhere, kInside, kOutside };

struct Operand {
  Tensor* tensor;
  Place places[kMaxBatchAxes] = {};
  Buffer buffer;
  bool is_present = false;
  int64_t rows = 1;
  int64_t columns = 1;
  // Of all of its matrices.
  int64_t num_elements = 1;

  float Get(int64_t i) const { return LoadElement(tensor->data, tensor->dtype, i); }
  void Set(int64_t i, float x) const { StoreElement(tensor->data, tensor->dtype, i, x); }
};

class Case {
 public:
  explicit Case(const Limits& limits) : limits_(limits) {
    // Kernels have short ways for them.
    limits_.only_plain |= OneOf(4);
    Tensor* tensors[kNumNames] = {&params_.a,     &params_.b,    &params_.c, &params_.bias,
                                  &params_.alpha, &params_.beta, &params_.d, &params_.z};
    for (int i = 0; i < kNumNames; ++i) {
      operands_[i].tensor = tensors[i];
    }
    PickSizes();
    PickEpilogue();
    readable.clear();
    for (int i = 0; i < kNumNames; ++i) {
      if (operands_[i].is_present) {
        MakeOperand(static_cast<Name>(i));
      }
    }
    MakeWorkspace();
    PickSettings();
  }

  // What it is, for people.
  std::string Text() const {
    char text[512];
    const auto address = [&](Name name) {
      return static_cast<int>(reinterpret_cast<uint64_t>(operands_[name].tensor->data) % 128);
    };
    std::snprintf(
        text, sizeof text,
        "m %d n %d k %d, a %s at %d, b %s at %d, %ld matrices, c %d bias %d alpha %d beta %d z %d,"
        " activation %d, d of dtype %d at %d, timing %d order %d, %d SMs",
        params_.m, params_.n, params_.k, params_.a_major == Major::kK ? "k" : "m", address(kA),
        params_.b_major == Major::kK ? "k" : "n", address(kB),
        static_cast<long>(params_.num_matrices), operands_[kC].is_present,
        operands_[kBias].is_present, operands_[kAlpha].is_present, operands_[kBeta].is_present,
        operands_[kZ].is_present, static_cast<int>(params_.activation),
        static_cast<int>(params_.d.dtype), address(kD), static_cast<int>(settings.timing),
        static_cast<int>(settings.order), settings.num_sms);
    return text;
  }

  // Whether the instance does what it should.
  bool Run() {
    num_failures = 0;
    const char* error = LaunchInstance(params_, nullptr);
    if (error != nullptr) {
      std::printf("  %s\n", error);
    }
    bool is_right = error == nullptr && num_failures == 0;
    for (int i = 0; i < kNumNames; ++i) {
      if (operands_[i].is_present && operands_[i].buffer.HasChanged(i < kD)) {
        std::printf("  bytes changed in or around operand %d\n", i);
        is_right = false;
      }
    }
    if (workspace_.HasChanged(false)) {
      std::printf("  bytes changed around the workspace\n");
      is_right = false;
    }
    num_wrong_ = 0;
    for (int matrix = 0; matrix < params_.num_matrices; ++matrix) {
      CheckMatrix(matrix);
    }
    return is_right && num_wrong_ == 0;
  }

 private:
  int PickSize(int tile) const {
    return std::max(1, Pick({1, 2, 3, 4, 7, 8, 12, 16, 24, 33, tile - 1, tile, tile + 1, tile + 4,
                             tile + 8, tile / 2 + 5, 2 * tile, 2 * tile + 3, tile + tile / 2}));
  }

  void PickSizes() {
    const int tile_k = limits_.tile_k;
    params_.m = PickSize(limits_.tile_m);
    params_.n = PickSize(limits_.tile_n);
    params_.k = Pick({0,
                      1,
                      2,
                      3,
                      4,
                      7,
                      8,
                      9,
                      16,
                      24,
                      tile_k - 1,
                      tile_k,
                      tile_k + 1,
                      2 * tile_k,
                      2 * tile_k + 4,
                      3 * tile_k + 8,
                      3 * tile_k - 1,
                      5 * tile_k,
                      6 * tile_k + 3,
                      9 * tile_k + 1});
    // Rows of whole units of 16 bytes.
    if (OneOf(3) || limits_.only_plain) {
      params_.m = (params_.m + 7) / 8 * 8;
      params_.n = (params_.n + 7) / 8 * 8;
      params_.k = (params_.k + 7) / 8 * 8;
    }
    params_.a_major = OneOf(2) ? Major::kK : Major::kMN;
    params_.b_major = OneOf(2) || (limits_.needs_k_major && params_.a_major == Major::kMN)
                          ? Major::kK
                          : Major::kMN;
    params_.num_batch_axes = Pick({0, 0, 1, 1, 2, 3, 4});
    params_.num_matrices = 1;
    for (int axis = 0; axis < params_.num_batch_axes; ++axis) {
      params_.batch_sizes[axis] = params_.num_batch_axes > 2 ? Pick({1, 2, 2}) : Pick({1, 2, 3});
      params_.num_matrices *= params_.batch_sizes[axis];
    }
    const bool a_is_k = params_.a_major == Major::kK;
    const bool b_is_k = params_.b_major == Major::kK;
    SetSize(kA, a_is_k ? params_.m : params_.k, a_is_k ? params_.k : params_.m);
    SetSize(kB, b_is_k ? params_.n : params_.k, b_is_k ? params_.k : params_.n);
    SetSize(kBias, 1, params_.n);
    for (const Name name : {kC, kD, kZ}) {
      SetSize(name, params_.m, params_.n);
    }
  }

  void SetSize(Name name, int64_t rows, int64_t columns) {
    operands_[name].rows = rows;
    operands_[name].columns = columns;
  }

  void PickEpilogue() {
    const bool is_plain = limits_.only_plain || OneOf(3);
    for (int i = 0; i < kNumNames; ++i) {
      operands_[i].is_present = i == kA || i == kB || i == kD || (!is_plain && !OneOf(3));
    }
    const bool has_bounds = !is_plain && OneOf(2);
    params_.clamp_low = has_bounds ? -20.0f : -INFINITY;
    params_.clamp_high = has_bounds ? 33.0f : INFINITY;
    params_.activation = !is_plain && OneOf(2) ? Activation::kRelu : Activation::kNone;
    // Of c no NaN may show where beta is 0.
    c_is_nan_ = operands_[kBeta].is_present && OneOf(4);
  }

  // Where an operand has each batch axis. z has them where d has them.
  void PickPlaces(Name name, bool is_matrix) {
    for (int axis = 0; axis < params_.num_batch_axes; ++axis) {
      Place& place = operands_[name].places[axis];
      place = is_matrix && OneOf(3) ? Place::kInside : Place::kOutside;
      if (name == kZ) {
        place = operands_[kD].places[axis];
      } else if (name != kD && OneOf(2)) {
        place = Place::kNowhere;
      }
    }
  }

  // Puts axes of one place around the elements that there are.
  void AddAxes(Operand* operand, Place place) {
    for (int axis = params_.num_batch_axes - 1; axis >= 0; --axis) {
      if (operand->places[axis] == place) {
        operand->tensor->batch_strides[axis] = operand->num_elements;
        operand->num_elements *= params_.batch_sizes[axis];
      }
    }
  }

  DType PickDType(Name name) const {
    if (name == kA || name == kB || limits_.only_plain || (name == kD && OneOf(3))) {
      return limits_.dtype;
    }
    return name == kAlpha || name == kBeta ? DType::kF32 : static_cast<DType>(rng() % 3);
  }

  void MakeOperand(Name name) {
    Operand& operand = operands_[name];
    Tensor& tensor = *operand.tensor;
    tensor.dtype = PickDType(name);
    const bool is_matrix = name != kBias && name != kAlpha && name != kBeta;
    PickPlaces(name, is_matrix);
    operand.num_elements = operand.columns;
    AddAxes(&operand, Place::kInside);
    tensor.row_stride = is_matrix ? operand.num_elements : 0;
    operand.num_elements *= operand.rows;
    AddAxes(&operand, Place::kOutside);
    const int item_bytes = tensor.dtype == DType::kF32 ? 4 : 2;
    const bool at_end = OneOf(2);
    const bool is_aligned = OneOf(2) || (name == kD && limits_.only_plain);
    const size_t unaligned = at_end ? item_bytes : item_bytes * (rng() % 64);
    operand.buffer.Make(operand.num_elements * item_bytes, at_end, is_aligned ? 16 : unaligned);
    tensor.data = operand.buffer.data();
    for (int64_t i = 0; name < kD && i < operand.num_elements; ++i) {
      operand.Set(i, PickElement(name));
    }
    if (is_matrix && name < kC && OneOf(3) && operand.num_elements > 0) {
      for (int i = 0; i < 3; ++i) {
        operand.Set(rng() % operand.num_elements, NAN);
      }
    }
    operand.buffer.Protect();
    readable.emplace_back(operand.buffer.data(), operand.num_elements * item_bytes);
  }

  float PickElement(Name name) const {
    switch (name) {
      case kAlpha:
        return 0.5f * static_cast<float>(1 + rng() % 4);
      case kBeta:
        return c_is_nan_ ? 0.0f : -0.5f * static_cast<float>(rng() % 3);
      case kC:
        return c_is_nan_ ? NAN : static_cast<float>(rng() % 9) - 4.0f;
      default:
        return static_cast<float>(rng() % 9) - 4.0f;
    }
  }

  // As large as copies of operands need, to the byte (jaxgemm/ffi_kernels/realign.py).
  void MakeWorkspace() {
    for (const Name name : {kA, kB}) {
      const Operand& operand = operands_[name];
      const int64_t halves = ItemBytes(limits_.dtype) / 2;
      if (params_.k > 0 && !IsAlignedForTma(*operand.tensor)) {
        params_.workspace_bytes += operand.num_elements / operand.columns *
                                   UnitsPerRow(operand.columns * halves) * kTmaAlignment;
      }
    }
    workspace_.Make(params_.workspace_bytes, true, kTmaAlignment);
    workspace_.Protect();
    params_.workspace = workspace_.data();
  }

  void PickSettings() {
    params_.num_knobs = 1;
    params_.knobs[0] = Pick({1, 1, 2, 3, 8});
    settings.timing = static_cast<Timing>(rng() % 3);
    settings.order = static_cast<Order>(rng() % 4);
    settings.num_sms = Pick({2, 2, 3, 4, 5, 132});
    random_bits.seed(rng());
  }

  // Of an operand's element (outer, k).
  float GetAlongK(Name name, Major major, int64_t offset, int outer, int k) const {
    const Operand& operand = operands_[name];
    const int64_t stride = operand.tensor->row_stride;
    return operand.Get(offset + (major == Major::kK ? outer * stride + k : k * stride + outer));
  }

  // Where an element of an operand's part of a matrix of d is; a bias is in every row.
  int64_t PlaceOf(Name name, int matrix, int64_t row, int64_t column) const {
    return OffsetOf(name, matrix) + row * operands_[name].tensor->row_stride + column;
  }

  // Where an operand's part of a matrix of d begins.
  int64_t OffsetOf(Name name, int matrix) const {
    int64_t offset = 0;
    for (int axis = params_.num_batch_axes - 1; axis >= 0; --axis) {
      offset += matrix % params_.batch_sizes[axis] * operands_[name].tensor->batch_strides[axis];
      matrix /= params_.batch_sizes[axis];
    }
    return offset;
  }

  void CheckMatrix(int matrix) {
    const auto value = [&](Name name, int64_t row, int64_t column) {
      const int64_t place = PlaceOf(name, matrix, row, column);
      return operands_[name].is_present ? operands_[name].Get(place) : 1.0f;
    };
    const float alpha = value(kAlpha, 0, 0);
    const float beta = value(kBeta, 0, 0);
    const std::vector<float> products = Products(matrix);
    for (int64_t i = 0; i < int64_t{params_.m} * params_.n; ++i) {
      const int64_t row = i / params_.n;
      const int64_t column = i % params_.n;
      float z = alpha * products[i];
      if (operands_[kC].is_present && beta != 0.0f) {
        z += beta * value(kC, row, column);
      }
      if (operands_[kBias].is_present) {
        z += value(kBias, row, column);
      }
      float d = params_.activation == Activation::kRelu && z < 0.0f ? 0.0f : z;
      d = d < params_.clamp_low ? params_.clamp_low : d;
      d = d > params_.clamp_high ? params_.clamp_high : d;
      CheckElement(kZ, matrix, row, column, z);
      CheckElement(kD, matrix, row, column, d);
    }
  }

  std::vector<float> Products(int matrix) const {
    std::vector<float> products(int64_t{params_.m} * params_.n);
    const int64_t a_offset = OffsetOf(kA, matrix);
    const int64_t b_offset = OffsetOf(kB, matrix);
    std::vector<float> b(params_.n);
    for (int k = 0; k < params_.k; ++k) {
      for (int column = 0; column < params_.n; ++column) {
        b[column] = GetAlongK(kB, params_.b_major, b_offset, column, k);
      }
      for (int row = 0; row < params_.m; ++row) {
        const float a = GetAlongK(kA, params_.a_major, a_offset, row, k);
        float* d = products.data() + int64_t{row} * params_.n;
        for (int column = 0; column < params_.n; ++column) {
          d[column] += a * b[column];
        }
      }
    }
    return products;
  }

  void CheckElement(Name name, int matrix, int64_t row, int64_t column, float exact) {
    const Operand& operand = operands_[name];
    if (!operand.is_present) {
      return;
    }
    float rounded;
    StoreElement(&rounded, operand.tensor->dtype, 0, exact);
    const float expected = LoadElement(&rounded, operand.tensor->dtype, 0);
    const float found = operand.Get(PlaceOf(name, matrix, row, column));
    const bool is_same = found == expected || (std::isnan(found) && std::isnan(expected));
    if (!is_same && num_wrong_++ < 3) {
      std::printf("  %s[%d, %ld, %ld] is %g, not %g\n", name == kD ? "d" : "z", matrix,
                  static_cast<long>(row), static_cast<long>(column), found, expected);
    }
  }

  Limits limits_;
  GemmParams params_ = {};
  Operand operands_[kNumNames];
  Buffer workspace_;
  bool c_is_nan_ = false;
  long num_wrong_ = 0;
};

}  // namespace

bool RunRandomCase(const Limits& limits, unsigned seed, std::string* text) {
  rng.seed(seed);
  Case test(limits);
  *text = test.Text();
  return test.Run();
}

}  // namespace emulator
