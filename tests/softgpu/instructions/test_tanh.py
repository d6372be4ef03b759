"""tanh.approx: relative error 2^-11 in f32, absolute 2^-10.987 in f16 and 2^-8 in bf16, jittered by the seed."""

import numpy as np
import pytest

from tests.softgpu import ptx
from tests.softgpu.instructions import approximate, exact
from tests.softgpu.instructions.exact import BF16

pytestmark = pytest.mark.usefixtures("soft")


def test_f32_is_within_2_to_the_minus_11(soft):
    a = approximate.spread(1500, -20, 6, seed=1) * np.resize(np.float32([1, -1]), 1500)
    true = np.tanh(a.astype(np.float64))
    approximate.held(soft, "tanh.approx.f32 {d}, {a};", a, true, np.abs(true) * 2.0**-11)
    soft.reset(seed=9)
    assert np.all(np.abs(ptx.each("tanh.approx.f32 {d}, {a};", a, result=np.float32)) <= 1)


def test_f32_special_values():
    a = np.float32([-np.inf, -0.0, 0.0, np.inf, np.nan])
    got = ptx.each("tanh.approx.f32 {d}, {a};", a, result=np.float32)
    approximate.same_with_signs(got, np.float32([-1, -0.0, 0.0, 1, np.nan]))


def test_f16_is_within_2_to_the_minus_10_987(soft):
    a = approximate.spread(800, -12, 4, seed=2).astype(np.float16) * np.resize(np.float16([1, -1]), 800)
    true = np.tanh(a.astype(np.float64))
    approximate.held(soft, "tanh.approx.f16 {d}, {a};", a, true, np.full(800, 2.0**-10.987), result=np.float16)
    packed = ptx.each("tanh.approx.f16x2 {d}, {a};", a.view(np.uint32), result=np.uint32).view(np.float16)
    assert np.all(np.abs(packed.astype(np.float64) - true) <= 2.0**-10.987)


def test_bf16_is_within_2_to_the_minus_8(soft):
    soft.reset(capability=90)
    a = exact.samples(BF16, 600, seed=3)
    a = a[~exact.is_nan(a, BF16)]
    true = np.tanh(exact.as_floats(a, BF16))
    got = ptx.each("tanh.approx.bf16 {d}, {a};", a, result=np.uint16, version="7.8", target="sm_90")
    assert np.all(np.abs(exact.as_floats(got, BF16) - true) <= 2.0**-8)
