"""Calls that are wrong, as tables: the call, its arrays and the exact text of the error."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxgemm

_FLOATS = "float64, float32, bfloat16, float16, float8_e4m3fn, float8_e5m2"
# What {names} in the tables stand for.
_TEXTS = {
    "unsupported": f"is not supported; it should be one of {_FLOATS}, int8",
    "floats": f"cannot be added to float products; it should be one of {_FLOATS}",
    "integers": "cannot be added to integer products; it should be one of int8, int16, int32",
    "float_out": f"cannot hold a product of float32 and float32; it should be one of {_FLOATS}",
    "integer_out": "cannot hold a product of int8 and int8; it should be one of int32, float64,"
    " float32, bfloat16, float16",
    "activation": "is unknown; it should be None or one of relu, gelu, gelu_exact, silu, sigmoid,"
    " tanh, relu2",
    "clamp": "it should be (low, high), each a number that is known now or None",
    "whole": "for integer operands it should be an integer of 32 bits",
    "integer_form": "has no integer form; for integer operands it should be None or one of relu,"
    " relu2",
    "precision": "is not a precision; it should be None, a jax.lax.Precision, or one of 'default',"
    " 'fastest', 'bfloat16', 'high', 'tensorfloat32', 'bfloat16_3x', 'highest', 'float32'",
    "array": "is not an array; it should be a jax or numpy array",
    "integer": "would leave the integers; for integer operands it should be an integer (or scale"
    " the converted result)",
    "pair": "both should be floats or both int8",
    "axes": "has 2 dimensions; its axes",
    "one_each": "should be (g,) = (2,), one size for each matrix of rhs",
    "of_w_up": "w_up's contracted axis 1 has size 4",
    "max": "it should be at most 2147483647",
}
# A line at the margin is an error and a call; those below it are the dtypes (float32 unless there
# is one) and shapes of its arguments, and the message.
SHAPES = """
ValueError gemm(a, b)
    [] [3,4] | a: shape () has 0 dimensions, but it should be (..., m, k)
    [3] [3,4] | a: shape (3,) has 1 dimension, but it should be (..., m, k)
    [2,3] [3] | b: shape (3,) has 1 dimension, but it should be (..., k, n)
    [2,3] [5,4] | b: contracted axis 0 has size 5, but a's contracted axis 1 has size 3
    [7,2,3] [5,4] | b: contracted axis 0 has size 5, but a's contracted axis 2 has size 3
    [2,3] [7,5,4] | b: contracted axis 1 has size 5, but a's contracted axis 1 has size 3
    [7,2,3] [5,3,4] | b: batch axes (5,) do not broadcast with a's batch axes (7,)
    [7,1,2,3] [6,5,3,4] | b: batch axes (6, 5) do not broadcast with a's batch axes (7, 1)
ValueError gemm(a, b, transpose_a=True)
    [3] [3,4] | a: shape (3,) has 1 dimension, but it should be (..., k, m)
    [5,2] [3,4] | b: contracted axis 0 has size 3, but a's contracted axis 0 has size 5
ValueError gemm(a, b, transpose_b=True)
    [2,3] [3] | b: shape (3,) has 1 dimension, but it should be (..., n, k)
    [2,3] [4,5] | b: contracted axis 1 has size 5, but a's contracted axis 1 has size 3
ValueError gemm(a, b, transpose_a=True, transpose_b=True)
    [5,2] [4,3] | b: contracted axis 1 has size 3, but a's contracted axis 0 has size 5
ValueError gemm(a, b, bias=c)
    [2,3] [3,4] [2] | bias: shape (2,) should be (n,) = (4,)
    [2,3] [3,4] [1,4] | bias: shape (1, 4) should be (n,) = (4,)
    [2,3] [3,4] [] | bias: shape () should be (n,) = (4,)
ValueError gemm(a, b, c)
    [2,3] [3,4] [4,2] | c: shape (4, 2) does not broadcast to the result's (2, 4)
    [2,3] [3,4] [3,4] | c: shape (3, 4) does not broadcast to the result's (2, 4)
    [2,3] [3,4] [5,2,4] | c: shape (5, 2, 4) does not broadcast to the result's (2, 4)
    [2,3] [3,1] [2,4] | c: shape (2, 4) does not broadcast to the result's (2, 1)
ValueError gated_gemm(a, b, c)
    [3] [3,4] [3,4] | x: shape (3,) has 1 dimension, but it should be (..., m, k)
    [2,3] [3] [3] | w_gate: shape (3,) has 1 dimension, but it should be (..., k, n)
    [2,3] [5,4] [5,4] | w_gate: contracted axis 0 has size 5, but x's contracted axis 1 has size 3
    [2,2,3] [5,3,4] [5,3,4] | w_gate: batch axes (5,) do not broadcast with x's batch axes (2,)
    [2,3] [3,4] [3,5] | w_up: shape (3, 5) should be w_gate's (3, 4)
    [2,3] [3,4] [1,3,4] | w_up: shape (1, 3, 4) should be w_gate's (3, 4)
ValueError mlp(a, b, c)
    [3] [3,4] [4,5] | x: shape (3,) has 1 dimension, but it should be (..., m, k)
    [2,3] [1,3,4] [4,5] | w_up: shape (1, 3, 4) has 3 dimensions, but it should be (k, hidden)
    [2,3] [3,4] [4] | w_down: shape (4,) has 1 dimension, but it should be (hidden, n)
    [2,3] [5,4] [4,5] | w_up: contracted axis 0 has size 5, but x's contracted axis 1 has size 3
    [2,3] [3,4] [5,4] | w_down: contracted axis 0 has size 5, but {of_w_up}
ValueError mlp(a, b, c, bias_up=d)
    [2,3] [3,4] [4,5] [5] | bias_up: shape (5,) should be (hidden,) = (4,)
ValueError mlp(a, b, c, bias_down=d)
    [2,3] [3,4] [4,5] [4] | bias_down: shape (4,) should be (n,) = (5,)
ValueError gated_gemm(a, b, c, transpose_w=True)
    [2,3] [3] [3] | w_gate: shape (3,) has 1 dimension, but it should be (..., n, k)
    [2,3] [4,5] [4,5] | w_gate: contracted axis 1 has size 5, but x's contracted axis 1 has size 3
ValueError grouped_gemm(a, b, c)
    [1,6,3] [2,3,4] i32[2] | lhs: shape (1, 6, 3) has 3 dimensions, but it should be (m, k)
    [6,3] [3,4] i32[2] | rhs: shape (3, 4) has 2 dimensions, but it should be (g, k, n)
    [6,5] [2,3,4] i32[2] | rhs: contracted axis 1 has size 3, but lhs's contracted axis 1 has size 5
    [6,3] [2,3,4] i32[3] | group_sizes: shape (3,) {one_each}
    [6,3] [2,3,4] i32[] | group_sizes: shape () {one_each}
    [6,3] [2,3,4] i32[1,2] | group_sizes: shape (1, 2) {one_each}
ValueError grouped_gemm(a, b, c, transpose_rhs=True)
    [6,3] [4,3] i32[2] | rhs: shape (4, 3) has 2 dimensions, but it should be (g, n, k)
    [6,3] [2,3,4] i32[2] | rhs: contracted axis 2 has size 4, but lhs's contracted axis 1 has size 3
ValueError grouped_gemm(a, b, c, bias=d)
    [6,3] [2,3,4] i32[2] [4] | bias: shape (4,) should be (g, n) = (2, 4)
    [6,3] [2,3,4] i32[2] [4,2] | bias: shape (4, 2) should be (g, n) = (2, 4)
ValueError matmul(a, b)
    [] [3,4] | a: shape () has 0 dimensions, but it should be (..., k)
    [2,3] [] | b: shape () has 0 dimensions, but it should be (..., k)
    [2,3] [5] | b: contracted axis 0 has size 5, but a's contracted axis 1 has size 3
    [5] [3,4] | b: contracted axis 0 has size 3, but a's contracted axis 0 has size 5
ValueError dot_general(a, b, (((0, 1), (0,)), ((), ())))
    [2,3] [3,4] | dimension_numbers: lhs has 2 contracted axes, but rhs has 1
ValueError dot_general(a, b, (((1,), (0,)), ((0,), ())))
    [2,3] [3,4] | dimension_numbers: lhs has 1 batch axes, but rhs has 0
ValueError dot_general(a, b, (((1, 1), (0, 0)), ((), ())))
    [2,3] [3,4] | dimension_numbers: lhs {axes} (1, 1) should be distinct and among them
ValueError dot_general(a, b, (((0, 1), (0, 0)), ((), ())))
    [2,3] [3,4] | dimension_numbers: rhs {axes} (0, 0) should be distinct and among them
ValueError dot_general(a, b, (((1,), (0,)), ((1,), (1,))))
    [2,3] [3,4] | dimension_numbers: lhs {axes} (1, 1) should be distinct and among them
ValueError dot_general(a, b, (((2,), (0,)), ((), ())))
    [2,3] [3,4] | dimension_numbers: lhs {axes} (2,) should be distinct and among them
ValueError dot_general(a, b, (((1,), (-2,)), ((), ())))
    [2,3] [3,4] | dimension_numbers: rhs {axes} (-2,) should be distinct and among them
ValueError dot_general(a, b, (((0,), (0,)), ((), ())))
    [2,3] [3,4] | rhs: contracted axis 0 has size 3, but lhs's contracted axis 0 has size 2
ValueError dot_general(a, b, (((), ()), ((0,), (0,))))
    [2,3] [3,4] | rhs: batch axis 0 has size 3, but lhs's batch axis 0 has size 2
"""
DTYPES = """
TypeError gemm(a, b)
    c64[2,3] [3,4] | a: dtype complex64 {unsupported}
    bool[2,3] bool[3,4] | a: dtype bool {unsupported}
    u8[2,3] u8[3,4] | a: dtype uint8 {unsupported}
    i32[2,3] i32[3,4] | a: dtype int32 {unsupported}
    i4[2,3] i8[3,4] | a: dtype int4 {unsupported}
    e4m3[2,3] [3,4] | a: dtype float8_e4m3 {unsupported}
    [2,3] c64[3,4] | b: dtype complex64 {unsupported}
    bf16[2,3] u8[3,4] | b: dtype uint8 {unsupported}
    i8[2,3] u8[3,4] | b: dtype uint8 {unsupported}
    i8[2,3] [3,4] | b: dtype float32 cannot be multiplied with a's int8; {pair}
    [2,3] i8[3,4] | b: dtype int8 cannot be multiplied with a's float32; {pair}
TypeError gemm(a, b, c)
    [2,3] [3,4] i32[2,4] | c: dtype int32 {floats}
    i8[2,3] i8[3,4] [2,4] | c: dtype float32 {integers}
TypeError gemm(a, b, bias=c)
    [2,3] [3,4] bool[4] | bias: dtype bool {floats}
    [2,3] [3,4] c64[4] | bias: dtype complex64 {floats}
    i8[2,3] i8[3,4] u8[4] | bias: dtype uint8 {integers}
TypeError mlp(a, b, c)
    [2,3] i8[3,4] [4,5] | w_up: dtype int8 cannot be multiplied with x's float32; {pair}
    [2,3] [3,4] u8[4,5] | w_down: dtype uint8 {unsupported}
TypeError mlp(a, b, c, activation=None)
    i8[2,3] i8[3,4] i8[4,5] | the product of x and w_up: dtype int32 {unsupported}
TypeError gated_gemm(a, b, c)
    u8[2,3] [3,4] [3,4] | x: dtype uint8 {unsupported}
    i8[2,3] [3,4] [3,4] | w_gate: dtype float32 cannot be multiplied with x's int8; {pair}
    [2,3] [3,4] bf16[3,4] | w_up: dtype bfloat16 should be w_gate's float32
    [2,3] [3,4] i8[3,4] | w_up: dtype int8 should be w_gate's float32
TypeError grouped_gemm(a, b, c)
    u8[6,3] [2,3,4] i32[2] | lhs: dtype uint8 {unsupported}
    i8[6,3] [2,3,4] i32[2] | rhs: dtype float32 cannot be multiplied with lhs's int8; {pair}
    [6,3] [2,3,4] f32[2] | group_sizes: dtype float32 should be an integer dtype
    [6,3] [2,3,4] bool[2] | group_sizes: dtype bool should be an integer dtype
TypeError grouped_gemm(a, b, c, bias=d)
    [6,3] [2,3,4] i32[2] i32[2,4] | bias: dtype int32 {floats}
TypeError matmul(a, b)
    [2,3] u8[3,4] | b: dtype uint8 {unsupported}
TypeError ragged_dot(a, b, c)
    [6,3] [2,3,4] f32[2] | group_sizes: dtype float32 should be an integer dtype
TypeError dot_general(a, b, (((1,), (0,)), ((), ())))
    u8[2,3] [3,4] | lhs: dtype uint8 {unsupported}
    [2,3] i8[3,4] | rhs: dtype int8 cannot be multiplied with lhs's float32; {pair}
TypeError gemm(a, b, out_dtype="int32")
    [2,3] [3,4] | out_dtype: int32 {float_out}
TypeError gemm(a, b, out_dtype="complex64")
    [2,3] [3,4] | out_dtype: complex64 {float_out}
TypeError gemm(a, b, out_dtype=bool)
    [2,3] [3,4] | out_dtype: bool {float_out}
    i8[2,3] i8[3,4] | out_dtype: bool {integer_out}
TypeError gemm(a, b, out_dtype="int8")
    i8[2,3] i8[3,4] | out_dtype: int8 {integer_out}
TypeError gemm(a, b, out_dtype="float8_e4m3fn")
    i8[2,3] i8[3,4] | out_dtype: float8_e4m3fn {integer_out}
TypeError gemm(a, b, out_dtype="float8_e4m3fnuz")
    [2,3] [3,4] | out_dtype: float8_e4m3fnuz {float_out}
TypeError gemm(a, b, out_dtype="float99")
    [2,3] [3,4] | out_dtype: 'float99' is not a dtype
TypeError gemm(a, b, out_dtype=3)
    [2,3] [3,4] | out_dtype: 3 is not a dtype
ValueError gemm(a, b, out_dtype=float)
    [2,3] [3,4] | out_dtype: float64 needs jax_enable_x64, which is off
    i8[2,3] i8[3,4] | out_dtype: float64 needs jax_enable_x64, which is off
ValueError grouped_gemm(a, b, c, out_dtype="float64")
    [6,3] [2,3,4] i32[2] | out_dtype: float64 needs jax_enable_x64, which is off
"""
OPTIONS = """
ValueError gemm(a, b, activation="swish")
    [2,3] [3,4] | activation: 'swish' {activation}
ValueError gemm(a, b, activation="GELU")
    [2,3] [3,4] | activation: 'GELU' {activation}
ValueError gemm(a, b, activation=abs)
    [2,3] [3,4] | activation: <built-in function abs> {activation}
ValueError gemm(a, b, activation=["relu"])
    [2,3] [3,4] | activation: ['relu'] {activation}
ValueError gemm(a, b, activation="gelu")
    i8[2,3] i8[3,4] | activation: 'gelu' {integer_form}
ValueError gated_gemm(a, b, c)
    i8[2,3] i8[3,4] i8[3,4] | activation: 'silu' {integer_form}
ValueError mlp(a, b, c, activation="glu")
    [2,3] [3,4] [4,5] | activation: 'glu' {activation}
ValueError gated_gemm(a, b, c, activation="glu")
    [2,3] [3,4] [3,4] | activation: 'glu' {activation}
ValueError grouped_gemm(a, b, c, activation=1)
    [6,3] [2,3,4] i32[2] | activation: 1 {activation}
TypeError gemm(a, b, clamp=6.0)
    [2,3] [3,4] | clamp: is 6.0; {clamp}
TypeError gemm(a, b, clamp=(0.0, 1.0, 2.0))
    [2,3] [3,4] | clamp: is (0.0, 1.0, 2.0); {clamp}
TypeError gemm(a, b, clamp=("0", 1))
    [2,3] [3,4] | clamp: has '0'; {clamp}
ValueError gemm(a, b, clamp=(1, 0))
    [2,3] [3,4] | clamp: is (1.0, 0.0); low should be at most high, and neither NaN
ValueError grouped_gemm(a, b, c, clamp=(float("nan"), None))
    [6,3] [2,3,4] i32[2] | clamp: is (nan, None); low should be at most high, and neither NaN
ValueError gemm(a, b, clamp=(0, 1.5))
    i8[2,3] i8[3,4] | clamp: has 1.5; {whole}
ValueError gemm(a, b, clamp=(None, 2**31))
    i8[2,3] i8[3,4] | clamp: has 2147483648.0; {whole}
ValueError gemm(a, b, autodiff="fwd")
    [2,3] [3,4] | autodiff: 'fwd' is unknown; it should be 'vjp' or 'jvp'
ValueError grouped_gemm(a, b, c, autodiff=None)
    [6,3] [2,3,4] i32[2] | autodiff: None is unknown; it should be 'vjp' or 'jvp'
ValueError gemm(a, b, precision="tf33")
    [2,3] [3,4] | precision: 'tf33' {precision}
ValueError gemm(a, b, precision=3)
    [2,3] [3,4] | precision: 3 {precision}
ValueError gemm(a, b, precision=True)
    [2,3] [3,4] | precision: True {precision}
ValueError gemm(a, b, precision=("high", "high"))
    [2,3] [3,4] | precision: ('high', 'high') {precision}
ValueError grouped_gemm(a, b, c, precision="TF32_TF32")
    [6,3] [2,3,4] i32[2] | precision: 'TF32_TF32' {precision}
ValueError dot_general(a, b, (((1,), (0,)), ((), ())), precision=("high", "default"))
    [2,3] [3,4] | precision: ('high', 'default') differs between lhs and rhs; give one
TypeError gemm(a, b, transpose_a=1)
    [2,3] [3,4] | transpose_a: 1 is a int; it should be True or False
TypeError gemm(a, b, transpose_b="yes")
    [2,3] [3,4] | transpose_b: 'yes' is a str; it should be True or False
TypeError gemm(a, b, batch_invariant="no")
    [2,3] [3,4] | batch_invariant: 'no' is a str; it should be True or False
TypeError gated_gemm(a, b, c, transpose_w=None)
    [2,3] [3,4] [3,4] | transpose_w: None is a NoneType; it should be True or False
TypeError grouped_gemm(a, b, c, transpose_rhs=0)
    [6,3] [2,3,4] i32[2] | transpose_rhs: 0 is a int; it should be True or False
TypeError grouped_gemm(a, b, c, batch_invariant=1.0)
    [6,3] [2,3,4] i32[2] | batch_invariant: 1.0 is a float; it should be True or False
ValueError ragged_dot(a, b, c, group_offset=0)
    [6,3] [2,3,4] i32[2] | group_offset: is not supported; it should be None
ValueError ragged_dot(a, b, c, out_sharding="x")
    [6,3] [2,3,4] i32[2] | out_sharding: is not supported; it should be None
ValueError dot_general(a, b, (((1,), (0,)), ((), ())), out_sharding="x")
    [2,3] [3,4] | out_sharding: is not supported; it should be None
"""
SCALARS = """
ValueError gemm(a, b, alpha=c)
    [2,3] [3,4] [1] | alpha: has shape (1,); it should be a scalar
    [2,3] [3,4] [1,1] | alpha: has shape (1, 1); it should be a scalar
ValueError gemm(a, b, c, beta=d)
    [2,3] [3,4] [2,4] [1] | beta: has shape (1,); it should be a scalar
TypeError gemm(a, b, alpha=c + c)
    [2,3] [3,4] c64[] | alpha: dtype complex64 is complex; it should be a real scalar
    i8[2,3] i8[3,4] [] | alpha: dtype float32 {integer}
    i8[2,3] i8[3,4] bf16[] | alpha: dtype bfloat16 {integer}
TypeError gemm(a, b, alpha=2j)
    [2,3] [3,4] | alpha: dtype complex64 is complex; it should be a real scalar
TypeError gemm(a, b, alpha=0.5)
    i8[2,3] i8[3,4] | alpha: dtype float32 {integer}
TypeError gemm(a, b, c, beta=2.0)
    i8[2,3] i8[3,4] i32[2,4] | beta: dtype float32 {integer}
ValueError gemm(a, b, beta=0.5)
    [2,3] [3,4] | beta: is given, but c is not; pass c or leave beta out
ValueError gemm(a, b, beta=c)
    [2,3] [3,4] [] | beta: is given, but c is not; pass c or leave beta out
"""
# The type of a scalar is wrong whatever its value is, and whether or not it is traced.
ONES = """
TypeError gemm(a, b, alpha=1.0)
    i8[2,3] i8[3,4] | alpha: dtype float32 {integer}
TypeError gemm(a, b, alpha=1 + 0j)
    [2,3] [3,4] | alpha: dtype complex64 is complex; it should be a real scalar
TypeError gemm(a, b, alpha=c)
    [2,3] [3,4] c64[] | alpha: dtype complex64 is complex; it should be a real scalar
"""
NOT_ARRAYS = """
TypeError gemm([[1.0]], a)
    [3,4] | a: a list {array}
TypeError gemm(3.0, a)
    [3,4] | a: a float {array}
TypeError gemm(a, None)
    [2,3] | b: a NoneType {array}
TypeError gemm(a, b, [[1.0]])
    [2,3] [3,4] | c: a list {array}
TypeError gemm(a, b, bias=(1.0,))
    [2,3] [3,4] | bias: a tuple {array}
TypeError mlp(a, b, None)
    [2,3] [3,4] | w_down: a NoneType {array}
TypeError gated_gemm(a, b, None)
    [2,3] [3,4] | w_up: a NoneType {array}
TypeError grouped_gemm(a, b, [2, 4])
    [6,3] [2,3,4] | group_sizes: a list {array}
TypeError dot_general([1.0], a, (((0,), (0,)), ((), ())))
    [3,4] | lhs: a list {array}
TypeError matmul(a, 2)
    [3,4] | b: a int {array}
"""
# Only shapes: the arrays would not fit anywhere.
TOO_LARGE = """
ValueError gemm(a, b)
    bf16[2147483648,2] bf16[2,3] | a: axis 0 has size 2147483648; {max}
    bf16[2,2147483648] bf16[2147483648,3] | a: axis 1 has size 2147483648; {max}
    bf16[2,3] bf16[3,4294967297] | b: axis 1 has size 4294967297; {max}
    bf16[2,3] bf16[2147483648,3,2] | b: axis 0 has size 2147483648; {max}
ValueError gemm(a, b, c)
    bf16[2,3] bf16[3,2] bf16[2147483648,2,2] | c: axis 0 has size 2147483648; {max}
ValueError gated_gemm(a, b, c)
    bf16[2,3] bf16[3,2147483648] bf16[3,2147483648] | w_gate: axis 1 has size 2147483648; {max}
ValueError grouped_gemm(a, b, c)
    bf16[4294967296,2] bf16[2,2,3] i32[2] | lhs: axis 0 has size 4294967296; {max}
    bf16[4,2] bf16[2147483648,2,3] i32[2147483648] | rhs: axis 0 has size 2147483648; {max}
ValueError matmul(a, b)
    bf16[2,3] bf16[3,2147483648] | b: axis 1 has size 2147483648; {max}
ValueError dot_general(a, b, (((1,), (0,)), ((), ())))
    bf16[2147483648,3] bf16[3,4] | lhs: axis 0 has size 2147483648; {max}
"""
_DTYPES = {
    "": "float32",
    "f32": "float32",
    "bf16": "bfloat16",
    "e4m3": "float8_e4m3",
    "i4": "int4",
    "i8": "int8",
    "i32": "int32",
    "u8": "uint8",
    "bool": "bool",
    "c64": "complex64",
}


@dataclasses.dataclass(frozen=True)
class Wrong:
    """A call that must fail.

    Attributes:
      error: the name of the type of its error, exactly.
      call: the call, in which a, b, c and d are the arrays.
      arrays: their dtypes and shapes.
      message: the text of its error, exactly.
    """

    error: str
    call: str
    arrays: str
    message: str

    def __str__(self) -> str:
        return f"{self.call} {self.arrays}"

    def run(self, *arrays: Any) -> Any:
        """Makes the call."""
        return eval(self.call, vars(jaxgemm) | dict(zip("abcd", arrays, strict=False)))

    def structs(self) -> list[jax.ShapeDtypeStruct]:
        """The arrays without contents."""
        found = re.findall(r"(\w*)\[([\d,]*)\]", self.arrays)
        shapes = [tuple(int(size) for size in sizes.split(",") if size) for _, sizes in found]
        return [
            jax.ShapeDtypeStruct(shape, jnp.dtype(_DTYPES[kind]))
            for shape, (kind, _) in zip(shapes, found, strict=True)
        ]

    def ones(self) -> list[np.ndarray]:
        """The arrays."""
        return [np.ones(x.shape, x.dtype) for x in self.structs()]


def calls_of(table: str) -> list[Wrong]:
    """The calls of a table."""
    cases, error, call = [], "", ""
    for line in table.strip().splitlines():
        if line.startswith(" "):
            arrays, message = line.split(" | ")
            cases.append(Wrong(error, call, arrays.strip(), message.format(**_TEXTS)))
        else:
            error, call = line.split(" ", 1)
    return cases
