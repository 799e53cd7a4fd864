// 2^t for t <= 0, in single precision.
#pragma once

#include "simd.h"

namespace {

INLINE Floats floor_of(Floats values) {
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_roundscale_ps(0xFFFF, (__m512)values, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
  return (Floats)_mm256_floor_ps((__m256)values);
#else
  const Floats truncated = __builtin_convertvector(__builtin_convertvector(values, Ints), Floats);
  return truncated - (Floats)((Ints)(truncated > values) & (Ints)broadcast(1.0f));
#endif
}

// 2^min(t, 0), and at least 2^-126: floor(t) goes into the exponent field, and a minimax polynomial of degree 5
// (relative error 2e-7 on [0, 1]) gives the power of the fraction.
INLINE Floats exp2_nonpositive(Floats t) {
  t = t < 0 ? t : Floats{};
  t = t > -126 ? t : broadcast(-126.0f);
  const Floats whole = floor_of(t), r = t - whole;
  Floats p = broadcast(1.8775767e-3f);
  p = fma(p, r, broadcast(8.9893397e-3f));
  p = fma(p, r, broadcast(5.5826318e-2f));
  p = fma(p, r, broadcast(2.4015361e-1f));
  p = fma(p, r, broadcast(6.9315308e-1f));
  p = fma(p, r, broadcast(9.9999994e-1f));
  return (Floats)((Ints)p + (__builtin_convertvector(whole, Ints) << 23));
}

}  // namespace
